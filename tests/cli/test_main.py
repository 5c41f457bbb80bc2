"""The command: verbs are files, bad input is one line and exit code 2, a fault of the program is not hidden."""

import io
import os
import pkgutil
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rebracket import cli
from rebracket.cli import main, one_line


def test_verbs_are_the_files_of_the_folder():
    assert cli.verbs() == sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name != "__main__")
    assert "train" in cli.verbs()


def test_help_names_every_verb(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(verb.replace("_", "-") in shown for verb in cli.verbs())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), "x.txt: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (FileNotFoundError("no text at x"), "no text at x"),
        (ValueError(), "ValueError"),
    ],
)
def test_an_expected_error_is_one_line_and_exit_code_2(monkeypatch, capsys, error, said):
    def fails():
        raise error

    monkeypatch.delenv(cli.TRACEBACK, raising=False)
    monkeypatch.setattr(cli, "application", lambda: lambda **_: fails())
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"rebracket: {said}\n"
    assert one_line(error) == said


def test_what_has_no_character_becomes_a_question_mark(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(cli, "application", lambda: lambda **_: sys.stdout.write("é1"))
    main([])
    sys.stdout.flush()
    assert written.getvalue() == b"?1"


SCRIPT = "from rebracket.cli import main; main()"


def shell(command):
    """A command line in a process of its own, REBRACKET standing for the command; exit code, output, errors."""
    line = command.replace("REBRACKET", f"{shlex.quote(sys.executable)} -c {shlex.quote(SCRIPT)}")
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command_in_a_traceback(closed):
    code, shown, error = shell(f"REBRACKET lab list {closed}")
    assert code == 0
    assert ("capacity" in shown) == (">&-" not in closed or closed == "2>&-")
    assert error == ""
    code, shown, error = shell(f"REBRACKET train no/such.toml {closed}")
    assert code == 2
    assert (error == "rebracket: no config at no/such.toml\n") == ("2>&-" not in closed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line_or_none():
    assert shell("REBRACKET lab list > /dev/full") == (2, "", "rebracket: No space left on device\n")
    assert shell("REBRACKET train no/such.toml 2> /dev/full") == (2, "", "")
    _, _, error = shell("REBRACKET lab list | true")
    assert "Traceback" not in error
    assert "Exception ignored" not in error


def test_the_traceback_can_be_had(monkeypatch):
    def fails():
        raise ValueError("inside")

    monkeypatch.setenv(cli.TRACEBACK, "1")
    monkeypatch.setattr(cli, "application", lambda: lambda **_: fails())
    with pytest.raises(ValueError, match="inside"):
        main([])


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    def fails():
        raise AttributeError("a mistake")

    monkeypatch.setattr(cli, "application", lambda: lambda **_: fails())
    with pytest.raises(AttributeError, match="a mistake"):
        main([])


def test_an_unknown_verb_or_option_is_exit_code_2(capsys):
    for arguments in (["trian"], ["train", "x.toml", "--nonsense"], ["train"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
        assert "Error" in capsys.readouterr().err
