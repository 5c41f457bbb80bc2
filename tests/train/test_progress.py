"""What is shown: plain lines where there is no terminal, a bar where there is one."""

import io
import sys

import pytest

from rebracket.train import progress
from rebracket.train.progress import Bar, Lines, Pace, Report, screen


def report(step):
    return Report(step=step, loss=1.5, tokens_per_second=12345.6, seconds_left=3723.4)


def test_lines_say_step_loss_speed_and_time_left():
    stream = io.StringIO()
    lines = Lines(stream, pause=0)
    lines.begin(0, 10)
    lines.show(report(4))
    assert stream.getvalue() == "step 4/10: loss 1.500, 12,346 tokens/s, 1:02:03 left\n"


def test_lines_are_seldom_but_the_first_and_the_last_step_are_always_shown():
    stream = io.StringIO()
    lines = Lines(stream, pause=1000)
    lines.begin(0, 10)
    for step in range(1, 11):
        lines.show(report(step))
    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["step 1/10", "step 10/10"]


def test_lines_hold_no_control_characters():
    stream = io.StringIO()
    lines = Lines(stream, pause=0)
    lines.say("[bold]not markup[/bold]")
    assert stream.getvalue() == "[bold]not markup[/bold]\n"


def test_the_bar_shows_the_same_and_keeps_what_is_said(capsys):
    bar = Bar()
    bar.begin(0, 10)
    bar.show(report(4))
    bar.say("[bold]not markup[/bold]")
    bar.end()
    shown = capsys.readouterr().out
    assert "[bold]not markup[/bold]" in shown
    assert "4/10" in shown
    assert "loss 1.500, 12,346 tokens/s" in shown


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bar), (False, Lines)])
def test_a_terminal_gets_the_bar(monkeypatch, terminal, kind):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert isinstance(screen(), kind)


def test_pace(monkeypatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    pace = Pace(left=25, tokens=1000)
    for _ in range(5):
        pace.note(0.5)
    assert pace.tokens_per_second == 2000
    assert pace.seconds_left == 40
