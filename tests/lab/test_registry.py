"""A file is an experiment, by its name, complete."""

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
