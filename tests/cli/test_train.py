"""`rebracket train`: killed at any moment it resumes to the same losses; bad input is one line and changes nothing."""

import io
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rebracket.cli import main
from rebracket.train import session
from rebracket.train.metrics import records
from rebracket.train.validation import BitsPerByte

CONFIG = """
[model]
d_model = 8
mlp_dim = 8
context = 16
depth = 1
pattern = ["gated_deltanet"]
[model.mixers.gated_deltanet]
heads = 2
key_dim = 3
value_dim = 4
[data]
text = ["text"]
vocab_size = 280
held_out = 0.2
[train]
steps = 60
batch_tokens = 64
validate_every = 20
validate_tokens = 64
checkpoint_every = 7
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config and text in it, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REBRACKET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REBRACKET_TRACEBACK", raising=False)
    Path("tiny.toml").write_text(CONFIG)
    Path("text").mkdir()
    for number in range(40):
        Path(f"text/{number}.txt").write_text(f"number {number} comes before number {number + 1}\n" * 8)
    return tmp_path


def start(out):
    """The command in a process of its own."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    command = [sys.executable, "-m", "rebracket.cli", "train", "tiny.toml", "--out", out]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps(out):
    return [record["step"] for record in records(Path(out, "metrics.jsonl")) if record["kind"] == "train"]


def send(number, process, out, step):
    """Lets a process come to a step and then sends it a signal; gives its exit code and output."""
    while process.poll() is None and max(steps(out), default=0) < step:
        time.sleep(0.001)
    process.send_signal(number)
    said, _ = process.communicate(timeout=100)
    return process.returncode, said


def measured(out):
    """Everything in the metrics but what a clock decides."""
    found = [record for record in records(Path(out, "metrics.jsonl")) if record["kind"] != "start"]
    return [{key: value for key, value in record.items() if key != "tokens_per_second"} for record in found]


def test_killed_and_stopped_and_started_again_it_continues_to_bitwise_the_same_losses(home):
    unbroken = start("whole")
    for step in (2, 30):
        code, _ = send(signal.SIGKILL, start("torn"), "torn", step)
        assert code == -signal.SIGKILL
    code, said = send(signal.SIGINT, start("torn"), "torn", 45)
    reached = steps("torn")[-1]
    assert code == 130
    assert said.splitlines()[-1] == (
        f"stopped at step {reached} of 60, saved; to go on: rebracket train tiny.toml --out torn"
    )
    code, said = send(0, start("torn"), "torn", 60)
    assert code == 0
    assert f"resuming: going on from step {reached} of 60" in said
    assert unbroken.wait(timeout=100) == 0
    assert steps("torn") == list(range(1, 61))
    assert measured("torn") == measured("whole")
    torn, whole = load_file("torn/model/model.safetensors"), load_file("whole/model/model.safetensors")
    assert torn.keys() == whole.keys()
    assert all(np.array_equal(torn[name], whole[name]) for name in torn)


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["train", *arguments])
    shown = capsys.readouterr()
    return end.value.code, shown.out, shown.err


def test_it_says_what_it_is_about_to_do_and_how_it_ended(home, capsys):
    code, said, _ = call(capsys, "tiny.toml", "--set", "train.steps=3")
    assert code == 0
    assert "parameters" in said
    assert re.search(r"^step 3/3, .*, 0:00:00 left: loss \d", said, re.MULTILINE)
    assert "this model" in said
    assert "xz -9e of this text alone" in said
    assert "model: runs/tiny/model" in said
    code, said, _ = call(capsys, "tiny.toml", "--set", "train.steps=3")
    assert code == 0
    assert said.startswith("runs/tiny is finished: 3 of 3 steps\n")


def test_it_says_where_the_curve_is_or_how_to_get_it(home, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib.figure", None)
        _, said, _ = call(capsys, "tiny.toml", "--set", "train.steps=2")
    assert "curve: none without matplotlib: pip install matplotlib, then give this command again\n" in said
    _, said, _ = call(capsys, "tiny.toml", "--set", "train.steps=2")
    assert "curve: runs/tiny/curve.png\n" in said
    assert Path("runs/tiny/curve.png").is_file()


@pytest.mark.parametrize("place", ["rebracket.lm.tokenizer.Tokenizer.train", "rebracket.train.session.xz"])
def test_ctrl_c_at_any_time_says_how_to_resume(home, capsys, monkeypatch, place):
    """While the tokenizer is learned, and while all held-out text is read at the end."""

    def interrupted(*_):
        raise KeyboardInterrupt

    arguments = ["tiny.toml", "--set", "train.steps=2"]
    monkeypatch.setattr(sys, "argv", ["rebracket", "train", *arguments])
    with monkeypatch.context() as patched:
        patched.setattr(place, interrupted)
        code, said, _ = call(capsys, *arguments)
    assert code == 130
    assert said.splitlines()[-1] == "stopped; to go on: rebracket train tiny.toml --set train.steps=2"
    assert call(capsys, *arguments)[0] == 0


def test_a_learning_rate_that_is_far_too_high_is_said_to_be(home, capsys):
    rate = ["--set", "optimizer.learning_rate=1e9", "--set", "optimizer.warmup=0"]
    code, _, error = call(capsys, "tiny.toml", *rate, "--set", "train.steps=20")
    assert code == 2
    assert error.startswith("rebracket: step 2: ")
    assert error.endswith("; lower optimizer.learning_rate\n")


def test_numbers_that_run_away_before_the_last_look_are_said_to(home, capsys, monkeypatch):
    monkeypatch.setattr(session, "validate", lambda *_: BitsPerByte(math.nan, 5))
    code, _, error = call(capsys, "tiny.toml", "--set", "train.steps=1")
    assert code == 2
    assert error == ("rebracket: step 2: held-out text has nan bits per byte; lower optimizer.learning_rate\n")


def test_what_needs_no_text_is_checked_before_any_is_read(home, capsys, monkeypatch):
    cases = {
        ("--set", "model.nosuch=3"): "'nosuch' is unknown",
        ("--set", "model.mixers.gated_deltanet.heads=0"): "heads must be",
        ("--set", "model.vocab_size=300"): "model.vocab_size is given by the tokenizer",
        ("--set", "train.batch_tokens=65"): "batch_tokens must be a multiple of the context 16",
        ("--set", "train.device=abacus"): "train.device 'abacus'",
        ("--out", "tiny.toml"): "tiny.toml is a file",
        ("--out", "tiny.toml/deeper/run"): "tiny.toml is a file",
        ("--out", "locked/run"): "locked may not be written to",
    }
    Path("locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")
    for arguments, said in cases.items():
        code, _, error = call(capsys, "tiny.toml", "--text", "missing.txt", *arguments)
        assert code == 2
        assert said in error


def test_text_can_be_given_by_option_and_by_pipe(home, capsys, monkeypatch):
    text = "".join(f"a line of text, the {number}th\n" for number in range(200))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, said, _ = call(capsys, "tiny.toml", "--text", "-", "--set", "train.steps=2")
    assert code == 0
    assert "of 1 documents" in said


def test_text_is_read_as_its_encoding_says_and_what_is_left_out_is_said(home, capsys):
    latin = "".join(f"été numéro {number} à Évry\n" for number in range(200))
    Path("latin.txt").write_bytes(latin.encode("latin-1"))
    code, _, error = call(capsys, "tiny.toml", "--text", "latin.txt")
    assert (code, error) == (2, "rebracket: latin.txt: not UTF-8; name its encoding, such as latin-1\n")
    code, said, _ = call(capsys, "tiny.toml", "--text", "latin.txt", "--encoding", "latin-1", "--set", "train.steps=2")
    assert code == 0
    counts = re.findall(r"([\d,]+) bytes of", said)[:2]
    assert sum(int(count.replace(",", "")) for count in counts) == len(latin.encode())
    Path("text/picture.png").write_bytes(b"\x89PNG\0\0")
    code, said, _ = call(capsys, "tiny.toml", "--out", "other", "--set", "train.steps=2")
    assert said.startswith("files left out that are binary: 1, first text/picture.png\n")


def test_a_config_with_a_byte_order_mark_is_read(home, capsys):
    Path("tiny.toml").write_text(CONFIG, encoding="utf-8-sig")
    assert call(capsys, "tiny.toml", "--set", "train.steps=2")[0] == 0


def test_a_run_of_an_earlier_release_continues_where_its_config_lacks_a_new_default(home, capsys):
    call(capsys, "tiny.toml", "--set", "train.steps=2")
    path = Path("runs/tiny/config.json")
    path.write_text(path.read_text().replace('"encoding": "auto",', ""))
    assert call(capsys, "tiny.toml", "--set", "train.steps=2")[0] == 0


def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(home, capsys):
    Path("empty.txt").write_text("")
    Path("short.txt").write_text("a\nb\n")
    Path("broken.toml").write_text("[train\n")
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("precious")
    cases = {
        ("missing.toml",): "no config at missing.toml",
        ("broken.toml",): "broken.toml is no TOML",
        ("tiny.toml", "--set", "train.stps=3"): "'stps' is unknown, did you mean 'steps'?",
        ("tiny.toml", "--set", "train.steps=x"): "train.steps must be a whole number of at least 1, got 'x'",
        ("tiny.toml", "--set", "model.pattern=['gatd_deltanet']"): "'gatd_deltanet' is unknown",
        ("tiny.toml", "--set", "train.device=abacus"): "train.device 'abacus' is not available here",
        ("tiny.toml", "--text", "missing.txt"): "no text at missing.txt",
        ("tiny.toml", "--text", "empty.txt"): "text must not be empty, got no text in empty.txt",
        ("tiny.toml", "--text", "short.txt"): "text must be longer than one context of 16 tokens, got ",
        ("tiny.toml", "--out", "thesis"): "thesis holds no run but chapter.txt",
        ("tiny.toml", "--out", "tiny.toml"): "tiny.toml is a file",
    }
    before = sorted(path.as_posix() for path in Path().glob("[!c]*/**"))
    for arguments, said in cases.items():
        code, _, error = call(capsys, *arguments)
        assert code == 2
        assert said in error
        assert error.startswith("rebracket: ")
        assert error.count("\n") == 1
    assert sorted(path.as_posix() for path in Path().glob("[!c]*/**")) == before
    assert Path("thesis/chapter.txt").read_text() == "precious"


def test_a_run_of_another_config_is_left_as_it_is(home, capsys):
    call(capsys, "tiny.toml", "--set", "train.steps=2")
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    code, _, error = call(capsys, "tiny.toml", "--set", "train.steps=3")
    assert code == 2
    assert "runs/tiny holds a run of another config: train.steps was 2, now 3" in error
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before
