"""What is shown: plain lines where there is no terminal, a bar where there is one."""

import io
import re

import pytest

from rebracket.base import progress as module
from rebracket.base.progress import Progress, pace


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes one second further at each look."""
    times = iter(range(100, 1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))


def test_lines_say_count_rate_time_left_and_text(clock):
    stream = io.StringIO()
    with Progress(stream, "step", pause=0).counting(first=3) as show:
        show(5, 10, "loss 1.500")
        show(6, 10, "loss 1.250")
    assert stream.getvalue() == (
        "step 5/10, 2.0/s, 0:00:02 left: loss 1.500\nstep 6/10, 1.5/s, 0:00:03 left: loss 1.250\n"
    )


def test_lines_are_seldom_but_the_first_and_the_last_are_always_shown():
    stream = io.StringIO()
    with Progress(stream, pause=1000).counting() as show:
        for done in range(1, 11):
            show(done, 10, "")
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == ["1/10", "10/10"]


def test_lines_come_again_after_the_pause(clock):
    stream = io.StringIO()
    with Progress(stream, pause=4).counting() as show:
        for done in range(1, 11):
            show(done, 11, "")
    assert [line.split("/")[0] for line in stream.getvalue().splitlines()] == ["1", "5", "9"]


def test_lines_hold_no_control_characters():
    stream = io.StringIO()
    with Progress(stream, pause=0).counting() as show:
        show(1, 2, "[bold]text[/bold]")
        Progress(stream).say("[red]not markup[/red]")
    assert stream.getvalue().endswith("left: [bold]text[/bold]\n[red]not markup[/red]\n")
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_bar_that_shows_the_same_and_keeps_what_is_said(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = Progress(stream, "step")
    with progress.counting(first=3) as show:
        progress.say("[bold]not markup[/bold]")
        show(4, 10, "loss [b]1.500")
    shown = stream.getvalue()
    assert "[bold]not markup[/bold]" in shown
    assert re.search(r"step\W.*4/10", shown)
    assert re.search(r" [\d.,]+/s, 0:00:0\d left: loss \[b\]1\.500", shown)
    assert "\x1b" in shown


def test_the_bar_is_closed_whatever_happens(monkeypatch):
    stream = Terminal()
    progress = Progress(stream)
    with pytest.raises(RuntimeError, match="broken"), progress.counting():
        raise RuntimeError("broken")
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_work_of_one_count_can_follow_another():
    stream = io.StringIO()
    progress = Progress(stream)
    for text in ("first", "second"):
        with progress.counting() as show:
            show(1, 2, text)
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["first", "second"]


@pytest.mark.parametrize(
    ("done", "left", "seconds", "said"),
    [
        (5000, 5000, 1.0, "5,000.0/s, 0:00:01 left"),
        (1, 3, 3600.0, "3,600.0 s each, 3:00:00 left"),
        (1, 0, 0.0, "1,000,000,000.0/s, 0:00:00 left"),
        (0, 5, 1.0, "started"),
    ],
)
def test_pace(done, left, seconds, said):
    assert pace(done, left, seconds) == said
