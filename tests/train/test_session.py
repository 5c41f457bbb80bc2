"""A whole run: what it leaves in its folder, the three patterns from one line, and the model it says it is."""

import importlib.util
import io
import json
import math
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from rebracket.base.progress import Progress
from rebracket.data import load_corpus, ordered
from rebracket.lm.checkpoints import load_model
from rebracket.train import checkpoint
from rebracket.train.config import TrainConfig
from rebracket.train.metrics import Metrics, records
from rebracket.train.session import device_of, train, verdict
from rebracket.train.validation import Precision, validate

MIXERS = {"gated_deltanet": {"heads": 2, "key_dim": 4, "value_dim": 6}, "softmax": {"heads": 2, "key_dim": 4}}
TABLE = {
    "d_model": 12,
    "mlp_dim": 16,
    "context": 16,
    "depth": 1,
    "pattern": ["gated_deltanet"],
    "mixers": MIXERS,
}
PATTERNS = {
    "linear": ["gated_deltanet"],
    "hybrid": ["gated_deltanet", "gated_deltanet", "gated_deltanet", "softmax"],
    "softmax": ["softmax"],
}


@pytest.fixture
def text(tmp_path):
    for number in range(40):
        (tmp_path / f"text/{number}.txt").parent.mkdir(exist_ok=True)
        (tmp_path / f"text/{number}.txt").write_text(f"number {number} is followed by number {number + 1}\n" * 8)
    return str(tmp_path / "text")


def config(text, model=TABLE, **loop):
    plain = {"steps": 6, "batch_tokens": 128, "validate_every": 3, "validate_tokens": 128, "checkpoint_every": 2}
    return TrainConfig.from_dict(
        {
            "model": model,
            "data": {"text": [text], "tokenizer": "bytes", "held_out": 0.1},
            "optimizer": {"learning_rate": 0.01, "warmup": 2},
            "train": plain | loop,
        }
    )


def run(of, tmp_path, name="run"):
    shown = io.StringIO()
    outcome = train(of, tmp_path / name, tmp_path / "cache", Progress(shown, "step", pause=0))
    return outcome, shown.getvalue()


def test_a_run_leaves_all_it_promises(text, tmp_path):
    outcome, said = run(config(text), tmp_path)
    folder = tmp_path / "run"
    assert outcome.step == 6
    assert outcome.result is not None
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names - {"curve.png"} == {"config.json", "metrics.jsonl", "checkpoints", "model"}
    assert ("curve.png" in names) == (importlib.util.find_spec("matplotlib") is not None)
    assert TrainConfig.from_dict(json.loads((folder / "config.json").read_text())) == config(text)
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == [
        "step-000000004.safetensors",
        "step-000000006.safetensors",
    ]
    kinds = [(record["kind"], record["step"]) for record in records(folder / "metrics.jsonl")]
    steps = [("train", step) for step in range(1, 7)]
    assert kinds == [("start", 0), *steps[:3], ("validation", 3), *steps[3:], ("result", 6)]
    assert "parameters" in said
    assert "state" in said
    assert "softmax" in said


def test_the_result_is_what_the_saved_model_makes_of_the_held_out_text(text, tmp_path):
    outcome, _ = run(config(text), tmp_path)
    assert outcome.result is not None
    model, tokenizer = load_model(tmp_path / "run/model")
    corpus = load_corpus([text], held_out=0.1, tokenizer="bytes", cache=tmp_path / "cache")
    rows = ordered(corpus.held_out, model.config.context, 128)
    found = validate(model, rows, tokenizer.byte_lengths(), torch.device("cpu"), Precision("float32"))
    assert outcome.result["nats"] == found.nats
    assert outcome.result["nbytes"] == found.nbytes == corpus.held_out.nbytes
    assert outcome.result["bits_per_byte"] == found.nats / (math.log(2) * corpus.held_out.nbytes)


def test_a_finished_run_is_left_alone(text, tmp_path):
    first, _ = run(config(text), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "run").rglob("*"))}
    second, said = run(config(text), tmp_path)
    assert second.before
    assert second.result == first.result
    assert said == ""
    assert {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "run").rglob("*"))} == before


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_one_line_changes_the_pattern(text, tmp_path, pattern):
    outcome, said = run(config(text, {**TABLE, "depth": 4, "pattern": pattern}, steps=20), tmp_path)
    assert outcome.result is not None
    losses = [record["loss"] for record in records(tmp_path / "run/metrics.jsonl") if record["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.2
    assert [line.split()[2].strip(",") for line in said.splitlines() if line.startswith("layer ")] == (pattern * 4)[:4]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({**TABLE, "vocab_size": 300}, "model.vocab_size is given by the tokenizer"),
        ({**TABLE, "mixers": {**MIXERS, "softmax": {"hads": 2}}}, "did you mean 'heads'"),
        ({**TABLE, "d_modl": 3}, "did you mean 'd_model'"),
        ({**TABLE, "pattern": ["gated_deltanett"]}, "did you mean 'gated_deltanet'"),
        ({**TABLE, "context": 24}, "batch_tokens must be a multiple of the context 24, got 128"),
        ({**TABLE, "context": 4096}, "batch_tokens must be a multiple"),
        ({"d_model": 3}, "context"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_anything_is_written(text, tmp_path, model, said):
    with pytest.raises(ValueError, match=said):
        run(config(text, model), tmp_path)
    assert not (tmp_path / "run").exists()


def test_bfloat16_trains_and_keeps_float32_weights(text, tmp_path):
    outcome, _ = run(config(text, precision="bfloat16"), tmp_path)
    exact, _ = run(config(text), tmp_path, "exact")
    assert outcome.result is not None
    assert exact.result is not None
    model, _ = load_model(tmp_path / "run/model")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert outcome.result["nats"] != exact.result["nats"]
    assert outcome.result["nats"] == pytest.approx(exact.result["nats"], rel=0.02)


def test_another_text_is_refused_and_nothing_lost(text, tmp_path):
    run(config(text), tmp_path)
    unfinished = tmp_path / "run/metrics.jsonl"
    unfinished.write_text("".join(unfinished.read_text().splitlines(keepends=True)[:-1]))
    before = unfinished.read_text()
    (Path(text) / "0.txt").write_text("changed")
    with pytest.raises(ValueError, match="started with another text"):
        run(config(text), tmp_path)
    assert unfinished.read_text() == before


def test_a_run_that_died_after_its_last_step_finishes(text, tmp_path):
    first, _ = run(config(text), tmp_path)
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    second, said = run(config(text), tmp_path)
    assert "resuming: going on from step 6 of 6" in said
    assert second.result == first.result


@pytest.fixture
def writes(monkeypatch):
    """What a run writes, in order: lines of metrics and checkpoints, each with its step."""
    found, add, write = [], Metrics.add, checkpoint.write

    def adding(self, kind, step, values):
        found.append((kind, step))
        add(self, kind, step, values)

    def writing(folder, saved, keep):
        found.append(("checkpoint", saved.step))
        return write(folder, saved, keep)

    monkeypatch.setattr(Metrics, "add", adding)
    monkeypatch.setattr(checkpoint, "write", writing)
    return found


def test_what_is_due_after_a_step_is_done_and_saving_comes_last(text, tmp_path, writes):
    _, said = run(config(text, steps=12, log_every=4, validate_every=6, checkpoint_every=6), tmp_path)
    assert writes == [
        ("start", 0),
        ("train", 4),
        ("validation", 6),
        ("checkpoint", 6),
        ("train", 8),
        ("train", 12),
        ("checkpoint", 12),
        ("result", 12),
    ]
    speeds = [record["tokens_per_second"] for record in records(tmp_path / "run/metrics.jsonl") if "loss" in record]
    assert len(speeds) == 3
    assert min(speeds) > 0
    shown = re.findall(r"^step (\d+)/12, .* left: loss [\d.]+, [\d,]+ tokens/s$", said, re.MULTILINE)
    assert shown == [str(step) for step in range(1, 13)]


def test_ctrl_c_finishes_the_step_saves_it_and_stops(text, tmp_path, writes, monkeypatch):
    add = Metrics.add

    def interrupted(self, kind, step, values):
        add(self, kind, step, values)
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Metrics, "add", interrupted)
        outcome, _ = run(config(text, validate_every=0, checkpoint_every=100), tmp_path)
    assert (outcome.step, outcome.result) == (3, None)
    assert writes[-2:] == [("train", 3), ("checkpoint", 3)]
    load_model(tmp_path / "run/model")
    resumed, said = run(config(text, validate_every=0, checkpoint_every=100), tmp_path)
    assert "resuming: going on from step 3 of 6" in said
    whole, _ = run(config(text, validate_every=0, checkpoint_every=100), tmp_path, "whole")
    assert resumed.result == whole.result


def test_signals_are_as_before_whatever_happens(text, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(checkpoint, "write", broken)
    before = signal.getsignal(signal.SIGINT)  # a shell's background jobs begin with it ignored
    with pytest.raises(RuntimeError, match="broken"):
        run(config(text), tmp_path)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_picture_that_could_not_be_drawn_is_drawn_by_a_later_call(text, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib.figure", None)
        outcome, _ = run(config(text), tmp_path)
    assert outcome.result is not None
    assert not (tmp_path / "run/curve.png").exists()
    assert run(config(text), tmp_path)[0].before
    assert (tmp_path / "run/curve.png").exists()


def bytes_predicted(metrics):
    """Up to a factor, at each step: it tells which documents' ends were in the batch, whatever the weights."""
    return [
        round(record["loss"] / record["bits_per_byte"], 9) for record in records(metrics) if record["kind"] == "train"
    ]


def test_the_seed_decides_weights_and_order(text, tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        run(config(text, seed=seed), tmp_path, name)
    one, same, other = (load_model(tmp_path / name / "model")[0].embed.weight for name in ("one", "same", "other"))
    assert torch.equal(one, same)
    assert (one - other).abs().mean() > 0.01
    one, same, other = (bytes_predicted(tmp_path / name / "metrics.jsonl") for name in ("one", "same", "other"))
    assert one == same
    assert one != other


def test_other_threads_are_told(text, tmp_path):
    run(config(text), tmp_path)
    metrics = tmp_path / "run/metrics.jsonl"
    kept = metrics.read_text().splitlines(keepends=True)[:-1]
    metrics.write_text("".join(kept).replace(f'"threads": {torch.get_num_threads()}', '"threads": 77'))
    _, said = run(config(text), tmp_path)
    assert f"started with 77 threads, now {torch.get_num_threads()}: losses may differ" in said


def test_devices_are_named_or_refused():
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type in ("cpu", "cuda")
    for name in ("nonsense", "cuda:99", "meta", "hpu", "privateuseone", "vulkan", ""):
        with pytest.raises(ValueError, match=f"train.device '{name}' is not available here"):
            device_of(name)


def test_the_verdict_sets_the_model_beside_xz():
    result = {
        "bits_per_byte": 1.5,
        "xz_alone": 2.5,
        "xz_after": 2.0,
        "xz_before_nbytes": 1000,
        "nbytes": 100,
        "documents": 2,
    }
    assert verdict(result).splitlines() == [
        "held-out text, 100 bytes of 2 documents, in bits per byte:",
        "  1.5000  this model",
        "  2.5000  xz -9e of this text alone",
        "  2.0000  xz -9e given 1,000 bytes of training text before it",
    ]
