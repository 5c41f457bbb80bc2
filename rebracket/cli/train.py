"""`rebracket train`."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rebracket.train import Outcome

STOPPED = 130


def command(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as configs/demo.toml.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME of NAME.toml if not given.")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A file, folder, glob, '-' or 'stdlib' instead of data.text; may be given again."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value; may be given again.")
    ] = None,
) -> None:
    """Train a language model; given again after any end, the same command goes on where it stood."""
    try:
        run(config, out, [*(overrides or []), *given_text(text)])
    except KeyboardInterrupt as error:
        sys.stdout.write(f"stopped; to go on: {again()}\n")
        raise typer.Exit(STOPPED) from error


def given_text(text: Sequence[str] | None) -> list[str]:
    """The override of `data.text`, if there is one."""
    return [f"data.text={json.dumps(text, ensure_ascii=False)}"] if text else []


def run(config: Path, out: Path | None, overrides: Sequence[str]) -> None:
    """Trains from where the run stands, and says how it ended."""
    from rebracket.data import cache_folder
    from rebracket.train import TrainConfig, screen, train

    read = TrainConfig.read(config, overrides)
    folder = out or Path("runs") / config.stem
    shown = screen()
    shown.say(last_words(train(read, folder, cache_folder(), shown), read.train.steps, folder))


def last_words(outcome: "Outcome", steps: int, folder: Path) -> str:
    from rebracket.train import verdict

    if outcome.result is None:
        sys.stdout.write(f"stopped at step {outcome.step:,} of {steps:,}, saved; to go on: {again()}\n")
        raise typer.Exit(STOPPED)
    begin = [f"{folder} is finished: {outcome.step:,} of {steps:,} steps"] if outcome.before else []
    where = [f"curve: {folder / outcome.result['curve']}", f"model: {folder / 'model'}"]
    return "\n".join([*begin, verdict(outcome.result), *where])


def again() -> str:
    """The command of this process."""
    return shlex.join(["rebracket", *sys.argv[1:]])
