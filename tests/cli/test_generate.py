"""`rebracket generate`: a text resumed in another process is as if it had never been stopped; errors change nothing."""

import io
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rebracket.base.files import read_tensors
from rebracket.cli import main
from rebracket.cli.generate import Meter
from rebracket.lm import load_model
from tests.lm.writers import saved
from tests.nn.tiny import assert_same

ROOT = Path(__file__).parents[2]
PROMPT = ["--prompt", "a document to be read: é\n"]
DRAWN = ["--temperature", "1.3", "--top-k", "30", "--top-p", "0.9", "--seed", "4", "--endless"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder with three models in it, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REBRACKET_TRACEBACK", raising=False)
    saved(Path("gated"), "gated")
    saved(Path("hybrid"), "hybrid")
    saved(Path("other"), "gated", seed=1)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Runs the command here; gives exit code, text and figures."""

    def called(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["generate", *arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return called


def elsewhere(*arguments: str, **more: str) -> subprocess.Popen[str]:
    """The command in a process of its own, with as many threads and more in its environment; its input is a pipe."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": str(ROOT), **more}
    return subprocess.Popen(
        [sys.executable, "-m", "rebracket.cli", "generate", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def state(path: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    return read_tensors(path, "rebracket.texts", 1)


def assert_same_state(found: str, wanted: str) -> None:
    (tensors, about), (wanted_tensors, wanted_about) = state(found), state(wanted)
    assert about == wanted_about
    assert_same(tensors, wanted_tensors, 0, 0)


@pytest.mark.parametrize("model", ["gated", "hybrid"])
def test_a_text_resumes_in_another_process(model, run):
    code, unbroken, _ = run(model, *PROMPT, *DRAWN, "--tokens", "40", "--save-state", "whole")
    assert code == 0
    first = elsewhere(model, *PROMPT, *DRAWN, "--tokens", "17", "--save-state", "half").communicate()[0]
    process = elsewhere(model, "--state", "half", "--tokens", "23", "--save-state", "half")
    assert first + process.communicate()[0] == unbroken
    assert process.returncode == 0
    assert_same_state("half", "whole")


def test_a_document_is_read_once_and_continued_often(run):
    Path("document.txt").write_text("some words to remember\n" * 30)
    code, shown, said = run("hybrid", "--prompt-file", "document.txt", *DRAWN, "--tokens", "0", "--save-state", "read")
    assert (code, shown) == (0, "")
    assert "read 690 tokens in " in said
    before = Path("read").read_bytes()
    _, unbroken, _ = run("hybrid", "--prompt-file", "document.txt", *DRAWN, "--tokens", "25")
    assert run("hybrid", "--state", "read", "--tokens", "25")[1] == unbroken
    assert Path("read").read_bytes() == before
    both = ["--prompt", "who?", "--prompt", "when?"]
    _, asked, said = run("hybrid", "--state", "read", *both, "--tokens", "9", "--temperature", "0")
    assert re.fullmatch(r"==> 1 of 2 <==\n.*\n\n==> 2 of 2 <==\n.*\n", asked, re.DOTALL)
    assert "read 9 tokens" in said


def test_what_one_call_holds_back_the_next_one_shows(run):
    text = run("gated", *PROMPT, *DRAWN, "--tokens", "20")[1]
    options = ["gated", *PROMPT, *DRAWN, "--stop", text[5:8] + "never"]
    held = []
    for count in range(3, 13):
        first = run(*options, "--tokens", str(count), "--save-state", "half")[1]
        assert first + run("gated", "--state", "half", "--tokens", str(20 - count))[1] == text
        held.append(run(*options, "--tokens", str(count))[1].removesuffix("\n") != first)
    assert any(held)


def test_ctrl_c_saves_where_it_stands(run):
    options = ["gated", *PROMPT, *DRAWN, "--report-every", "1"]
    process = elsewhere(*options, "--tokens", "1000000", "--save-state", "half")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("tokens 5:"):
        pass
    process.send_signal(signal.SIGINT)
    first, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    done = int(re.findall(r'"drawn": (\d+)', state("half")[1]["rows"])[0])
    rest = run("gated", "--state", "half", "--tokens", "10", "--save-state", "half")[1]
    _, unbroken, _ = run(*options, "--tokens", str(done + 10), "--save-state", "whole")
    assert first + rest == unbroken
    assert_same_state("half", "whole")


@pytest.mark.parametrize("options", [[], ["--save-state", "new"]])
def test_ctrl_c_ends_the_reading_between_two_pieces_and_says_what_is_saved(run, monkeypatch, options):
    Path("long.txt").write_text("a long document\n" * 1000)
    reading, told = Meter.reading, []

    def asked(meter: Meter, done: int, total: int) -> None:
        told.append(done)
        signal.raise_signal(signal.SIGINT)
        reading(meter, done, total)

    monkeypatch.setattr(Meter, "reading", asked)
    code, shown, said = run("gated", "--prompt-file", "long.txt", "--tokens", "5", *options)
    assert (code, shown) == (130, "")
    assert said == f"stopped; nothing was saved{' to new' if options else ''}\n"
    assert told == [4096]
    assert not Path("new").exists()


def test_what_is_piped_in_is_the_prompt_where_none_is_given(run):
    options = ["--temperature", "0", "--tokens", "9", "--endless"]
    wanted = run("gated", "--prompt", "def ", *options)[1]
    shown, said = elsewhere("gated", *options).communicate("def ")
    assert shown == wanted
    assert said.startswith("the prompt is read from standard input\nread 4 tokens")
    unprompted = run("gated", *options)[1]
    assert elsewhere("gated", *options).communicate("")[0] == unprompted
    assert unprompted != wanted
    assert elsewhere("gated", "--prompt", "def ", *options).communicate("ignored")[0] == wanted


def test_output_that_is_closed_ends_the_text_and_keeps_the_state(run):
    process = elsewhere("gated", *PROMPT, *DRAWN, "--tokens", "100000", "--save-state", "kept")
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=100) == 1
    assert process.stderr is not None
    said = process.stderr.read()
    assert said.endswith("rebracket: standard output: Broken pipe; the state is saved to kept\n")
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert run("gated", "--state", "kept", "--tokens", "3")[0] == 0


def test_output_that_is_closed_without_a_state_to_save_ends_in_silence():
    process = elsewhere("gated", *PROMPT, *DRAWN, "--tokens", "100000")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=100) == 1
    assert process.stderr is not None
    assert "pipe" not in process.stderr.read().lower()


def test_text_that_the_encoding_has_no_character_for_is_shown_as_far_as_it_goes():
    options = ["gated", "--prompt", "é1", "--echo", "--tokens", "3", "--endless", "--temperature", "0"]
    shown, said = elsewhere(*options, PYTHONIOENCODING="ascii").communicate("")
    assert shown.startswith("?1")
    assert "wrote 3 tokens" in said


def test_a_batch_shows_the_texts_of_single_prompts(run, monkeypatch):
    Path("one.txt").write_text("from a file, longer than the others")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from outside")))
    options = ["--temperature", "0", "--tokens", "12", "--endless"]
    prompts = [["--prompt", "ab"], ["--prompt", "cde f"], ["--prompt-file", "one.txt"], ["--prompt-file", "-"]]
    code, shown, said = run("gated", *[word for prompt in prompts for word in prompt], *options)
    assert code == 0
    prompts[-1] = ["--prompt", "from outside"]
    texts = [run("gated", *prompt, *options)[1].removesuffix("\n") for prompt in prompts]
    assert shown == "\n\n".join(f"==> {n + 1} of 4 <==\n{text}" for n, text in enumerate(texts)) + "\n"
    assert "wrote 48 tokens in " in said


def test_options_of_the_earlier_call_stand_unless_given(run):
    run("gated", *PROMPT, *DRAWN, "--stop", "zz", "--tokens", "3", "--save-state", "a")
    run("gated", "--state", "a", "--tokens", "3", "--save-state", "b")
    assert state("b")[1]["settings"] == state("a")[1]["settings"]
    changed = ["--top-k", "0", "--temperature", "0.5", "--stop", "yy", "--may-end"]
    run("gated", "--state", "a", "--tokens", "3", *changed, "--save-state", "c")
    assert '"temperature": 0.5, "top_k": null, "top_p": 0.9, "seed": 4' in state("c")[1]["settings"]
    assert '"stop": ["yy"], "endless": false' in state("c")[1]["settings"]


def test_figures_are_of_the_model(run):
    model, _ = load_model("hybrid")
    _, shown, said = run("hybrid", "--prompt", "xyz", "--tokens", "6", "--report-every", "3", "--endless", "--echo")
    assert shown.startswith("xyz")
    assert shown.endswith("\n")
    nbytes = model.state_nbytes(9)
    assert re.search(
        rf"^tokens 3: \d+\.\d\d ms/token, peak memory \d+ MB, state {model.state_nbytes(6):,} bytes$", said, re.M
    )
    assert re.search(rf"^tokens 6: \d+\.\d\d ms/token, peak memory \d+ MB, state {nbytes:,} bytes$", said, re.M)
    assert re.search(r"^read 3 tokens in \d+\.\d\d s, [\d,]+ tokens/s$", said, re.M)
    assert re.search(r"^wrote 6 tokens in \d+\.\d\d s, [\d,]+ tokens/s$", said, re.M)
    softmax = f"{model.config.kv_cache_nbytes(9):,}"
    assert f"state {nbytes:,} bytes; keys and values of softmax {softmax} bytes after 9 tokens\n" in said


@pytest.mark.parametrize("options", [["--temperature", "0"], DRAWN])
def test_drafts_change_no_character(run, options):
    prompt = ["--prompt", "abcabcabcabcabcabc"]
    _, plain, said = run("hybrid", *prompt, *options, "--tokens", "60")
    assert said.endswith("\ncomputed by a program with float32 weights\n")
    _, drafted, said = run("hybrid", *prompt, *options, "--tokens", "60", "--drafts", "4", "--report-every", "7")
    assert drafted == plain
    assert said.endswith("\ncomputed by a program with float32 weights, drafts of 4\n")
    reports = [int(count) for count in re.findall(r"^tokens (\d+):", said, re.M)]
    assert reports
    assert all(after - before >= 7 for before, after in itertools.pairwise([0, *reports]))


def test_sixty_four_texts_are_each_as_if_alone(run):
    prompts = [["--prompt", "ab" * (n + 1)] for n in range(64)]
    options = ["--temperature", "0", "--tokens", "5", "--endless"]
    _, shown, said = run("gated", *[word for prompt in prompts for word in prompt], *options)
    texts = re.split(r"(?:\n\n)?==> \d+ of 64 <==\n", shown.removesuffix("\n"))[1:]
    assert "wrote 320 tokens" in said
    for n in (0, 40, 63):
        assert run("gated", *prompts[n], *options)[1].removesuffix("\n") == texts[n]


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_weights_can_be_rounded(run, weights):
    options = [*PROMPT, "--temperature", "0", "--tokens", "30", "--endless", "--weights", weights]
    code, shown, said = run("gated", *options)
    assert (code, len(shown.encode()) >= 30) == (0, True)
    assert f"computed by a program with {weights} weights\n" in said


def test_a_model_that_is_no_program_runs_through_its_modules_and_says_so(run):
    saved(Path("double"), "gated", torch.float64)
    code, _, said = run("double", *PROMPT, "--tokens", "3")
    assert code == 0
    reason = "embed.weight is torch.float64 on cpu; programs compute in float32 on CPUs"
    assert said.endswith(f"\ncomputed by the modules: {reason}\n")
    refused = (2, "", f"rebracket: a program was asked for, and the model cannot be one: {reason}\n")
    assert run("double", *PROMPT, "--drafts", "2") == refused


def test_a_stop_string_ends_the_text(run):
    text = run("gated", *PROMPT, *DRAWN, "--tokens", "30")[1]
    stop = text[9:11]
    shown = run("gated", *PROMPT, *DRAWN, "--tokens", "30", "--stop", stop, "--save-state", "over")[1]
    assert shown == text[: text.index(stop)]
    code, shown, said = run("gated", "--state", "over")
    assert (code, shown) == (2, "")
    assert said == "rebracket: over: every text in it has ended; give a prompt\n"
    assert run("gated", "--state", "over", "--prompt", "again", "--tokens", "3")[0] == 0


def test_a_run_is_as_good_as_its_model(run, home):
    Path("run").mkdir()
    Path("gated").rename("run/model")
    whole = run("run", *PROMPT, "--tokens", "5")
    assert whole[0] == 0
    assert whole[1] == run("run/model", *PROMPT, "--tokens", "5")[1]


def test_a_prompt_is_read_as_text_to_train_on_is(run):
    Path("damaged").write_bytes(b"odd \xff")
    Path("wide").write_bytes("wide".encode("utf-16"))
    Path("latin").write_bytes("été à Évry\n".encode("latin-1") * 9)
    code, _, said = run("gated", "--prompt-file", "damaged", "--tokens", "2")
    assert code == 0
    assert said.startswith("places that are not UTF-8 and were replaced: 1, first damaged\nread 7 tokens")
    assert run("gated", "--prompt-file", "wide", "--tokens", "2")[2].startswith("read 4 tokens")
    code, _, said = run("gated", "--prompt-file", "latin", "--tokens", "2")
    assert (code, said) == (2, "rebracket: latin: not UTF-8; name its encoding, such as latin-1\n")
    code, _, said = run("gated", "--prompt-file", "latin", "--encoding", "latin-1", "--tokens", "2")
    assert said.startswith(f"read {len('été à Évry'.encode()) * 9 + 9} tokens")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no model or run at nothing"),
        (["empty"], "empty/config.json: no such file; a model's folder holds"),
        (["run"], "run: this run has no model yet"),
        (["gated", "--prompt-file", "nothing"], "nothing: No such file or directory"),
        (["gated", "--prompt-file", "void"], "void: this prompt is empty"),
        (["gated", "--prompt", ""], "--prompt: this prompt is empty"),
        (["gated", "--state", "two", "--prompt", "x", "--prompt", ""], "--prompt: this prompt is empty"),
        (["gated", "--temperature", "-1"], "temperature must be a number of at least 0, got -1.0"),
        (["gated", "--top-p", "2"], "top_p must lie in (0, 1], got 2.0"),
        (["gated", "--top-k", "-3"], "top_k must be a whole number of at least 1, got -3"),
        (["gated", "--stop", ""], "stop must hold strings of at least one character"),
        (["gated", "--weights", "int4"], "--weights must be of float32, bfloat16, int8, got 'int4'"),
        (["gated", "--state", "nothing"], "nothing: no such file; expected a 'rebracket.texts' file"),
        (["gated", "--state", "void"], "void: expected a 'rebracket.texts' file, found an empty file"),
        (["other", "--state", "good"], "good: state from another model: it was made by "),
        (["gated", "--state", "two", "--prompt", "x"], "two holds 2 texts; give as many prompts or none, got 1"),
        (
            ["gated", "--save-state", "notes"],
            "notes: expected a 'rebracket.texts' file, found damaged or foreign bytes",
        ),
        (["gated", "--save-state", "no/good"], "no/good: its folder does not exist"),
    ],
)
def test_errors_are_one_line_and_change_nothing(arguments, said, run, home):
    run("gated", *PROMPT, "--tokens", "2", "--save-state", "good")
    run("gated", *PROMPT, "--prompt", "b", "--tokens", "2", "--save-state", "two")
    Path("void").touch()
    Path("notes").write_text("my notes")
    Path("empty").mkdir()
    Path("run").mkdir()
    Path("run/metrics.jsonl").touch()
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    code, shown, line = run(*arguments, *([] if "--save-state" in arguments else ["--save-state", "new"]))
    assert (code, shown) == (2, "")
    assert line.startswith(f"rebracket: {said}")
    assert line.count("\n") == 1
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
