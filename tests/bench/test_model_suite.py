"""Whole models: every way is checked against float64, and is timed beside the others."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rebracket.bench import model_suite, models
from rebracket.bench.case import NotCoveredError
from rebracket.bench.clock import Timing
from rebracket.bench.model_suite import QUICK_MODELS, Found, notes, run, tables, write
from rebracket.bench.models.base import SIZES, Prepared, Runner, Work, middle_of, model_of, products
from rebracket.lm import LanguageModel
from rebracket.lm.program import lowered
from tests.bench.planted import measure_little

TINY = {
    "vocab_size": 300,
    "d_model": 64,
    "context": 16,
    "depth": 2,
    "pattern": ["gated_deltanet", "softmax"],
    "mixers": {"gated_deltanet": {"heads": 2, "key_dim": 6, "value_dim": 5}, "softmax": {"heads": 2}},
}
SUITE = replace(QUICK_MODELS, sizes=("tiny",), works=(Work(texts=2), Work(tokens=30)), rounds=1, seconds=0.0)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_little(monkeypatch)
    monkeypatch.setattr(model_suite, "SIDE", 16)
    monkeypatch.setattr("rebracket.bench.models.base.SIZES", {"tiny": TINY})


class Wrong(Runner):
    """The model with one weight changed."""

    is_peer = False

    def ways(self, model: LanguageModel):
        changed = model_of("tiny")
        with torch.no_grad():
            changed.norm.weight[0] += 1e-2
        logits = torch.inference_mode()(lambda tokens: changed(tokens[None]).logits[0])
        yield "wrong", nullcontext(lambda work: Prepared(lambda: None, 1, logits=logits))


class Missing(Runner):
    def ways(self, model: LanguageModel):
        raise NotCoveredError("not installed: pip install it")
        yield


def silent(done: int, total: int, text: str) -> None:
    assert done < total == 2
    assert text.startswith("tiny, ")


def test_every_way_is_timed_and_those_of_this_package_are_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "found", lambda: (*own(), Wrong(), Missing()))
    found = run(replace(SUITE, peers=True), silent)
    timed = {(row.work, row.way) for row in found if row.timing}
    ways = {"modules", "program float32", "program bfloat16", "program int8"}
    assert timed == {(work, way) for work in ("2 texts", "read 30") for way in ways}
    errors = {row.way: row.error for row in found if row.error is not None}
    assert errors["program float32"] < 1e-4 < errors["program bfloat16"] < errors["program int8"] < 0.5
    assert [row.way for row in found if row.wrong] == ["wrong", "wrong"]
    assert notes(found) == ["Missing: not installed: pip install it", "wrong: wrong logits"]
    assert [row.reason for row in run(SUITE, silent) if row.is_peer] == []


def own() -> tuple[Runner, ...]:
    return tuple(models.RUNNERS.load(name)() for name in ("modules", "program"))


def test_the_floor_is_the_longer_of_bytes_and_operations(monkeypatch: pytest.MonkeyPatch):
    rates = {"bytes": 4 * products(model_of("tiny")) / 1e9, "mm": 2 * 16**3 / 1e12}
    monkeypatch.setattr(
        model_suite, "measure", lambda calls, _: ({x: Timing((rates.get(x, 1.0),)) for x in calls}, 0.0)
    )
    monkeypatch.setattr(models, "found", own)
    model = model_of("tiny")
    for row in run(SUITE, silent):
        width = {"program bfloat16": 2, "program int8": 1}.get(row.way, 4)
        rows = 2 if row.work == "2 texts" else 30
        moved = 2 * 2 * model.state_nbytes(0) if rows == 2 else 0
        weights = model.parameter_count() if row.way == "modules" else products(model)
        assert row.floor == pytest.approx(max((width * weights + moved) / 1e9, 2 * products(model) * rows / 1e12))


def test_tables_and_page_hold_what_was_found(tmp_path: Path):
    rows = [
        Found("m", work, way, peer, Timing((seconds,)), 1e-3, error, preparing=0.5)
        for way, peer, error in (("program float32", False, 1e-6), ("other", True, None))
        for work, seconds in (("1 text", 2e-3), ("read 9", 4e-3))
    ]
    (table,) = tables(rows)
    assert table.title == "m"
    assert table.rows[0] == ["program float32", "2 ms ±0% 2.00x", "4 ms ±0% 4.00x", "1.0e-06", "500 ms"]
    assert table.rows[1][-2:] == ["–", "500 ms"]
    write(rows, tmp_path, "rebracket bench --models m")
    assert "| other | 2 ms ±0% 2.00x |" in (tmp_path / "models.md").read_text()
    assert [row["seconds"] for row in json.loads((tmp_path / "models.json").read_text())["rows"]] == [2e-3, 4e-3] * 2


def test_models_are_as_large_as_their_names_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rebracket.bench.models.base.SIZES", SIZES)
    sizes = {}
    for name in SIZES:
        with torch.device("meta"):
            sizes[name] = model_of(name).parameter_count()
    assert sizes["demo"] == 1060240  # the trained model of configs/demo.toml
    assert [round(sizes[name] / 1e6) for name in ("46M", "97M", "hybrid")] == [46, 98, 46]


def test_a_dense_model_has_as_many_weights():
    model = model_of("tiny")
    width, layers = model.config.d_model, len(model.config.layers)
    dense = model.config.vocab_size * width + layers * (4 * width**2 + 3 * width * middle_of(model))
    assert 0 <= dense - products(model) <= layers * 3 * width * 32
    assert lowered(model)
