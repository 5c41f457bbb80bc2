"""A file is an experiment, by its name, complete."""

import runpy
from pathlib import Path

import pytest

from rebracket import lab
from rebracket.lab.base.record import key


def test_every_file_is_an_experiment_and_every_experiment_a_file():
    files = {path.stem for path in Path(lab.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(lab.names()) == files
    assert all(lab.load(name).name == name for name in lab.names())


@pytest.mark.parametrize("name", lab.names())
def test_an_experiment_asks_claims_and_has_cells_of_its_own(name):
    experiment = lab.load(name)
    assert experiment.question.endswith("?")
    assert experiment.claim.endswith(".")
    tiny, quick, full = (experiment.cells(size) for size in ("tiny", "quick", "full"))
    assert 0 < len(tiny) <= len(quick) < len(full)
    assert len({key(cell) for cell in full}) == len(full)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'capacty' is unknown, did you mean 'capacity'\?; known are "):
        lab.load("capacty")
    with pytest.raises(ValueError, match="'base'"):
        lab.load("base")


DOCS = Path(lab.__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", lab.names())
def test_the_docs_quote_each_claim_from_its_class(name):
    markdown = pytest.importorskip("markdown_it")
    page, read = (DOCS / "lab.md").read_text("utf-8"), runpy.run_path(str(DOCS / "conf.py"))
    assert f"\n## {name}\n\n<!-- claim of {name} -->\n" in page
    source = [page]
    read["quoted_claims"](None, "lab", source)
    parsed = markdown.MarkdownIt().parse(source[0])
    texts = ["".join(part.content for part in x.children or ()) for x in parsed if x.type == "inline"]
    assert {lab.load(name).question, lab.load(name).claim} <= set(texts)
