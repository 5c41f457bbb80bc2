"""`rebracket train`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rebracket import cli


def command(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as configs/demo.toml.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME of NAME.toml if not given.")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A file, folder, glob, '-' or 'stdlib' instead of data.text; may be given again."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of the text, such as latin-1, instead of data.encoding.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value; may be given again.")
    ] = None,
) -> None:
    """Train a language model; the same command resumes a run that was stopped in any way."""
    from rebracket.base.progress import Progress
    from rebracket.data import cache_folder
    from rebracket.train import TrainConfig, train, verdict

    given = {"data.text": text, "data.encoding": encoding}
    options = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value]
    read = TrainConfig.read(config, [*(overrides or []), *options])
    folder, progress = out or Path("runs") / config.stem, Progress(sys.stdout, "step")
    try:
        outcome = train(read, folder, cache_folder(), progress)
    except KeyboardInterrupt:
        cli.stop("stopped")
    reached = f"{outcome.step:,} of {read.train.steps:,}"
    if outcome.result is None:
        cli.stop(f"stopped at step {reached}, saved")
    begin = [f"{folder} is finished: {reached} steps"] if outcome.before else []
    curve = folder / "curve.png"
    drawn = curve if curve.exists() else "none without matplotlib: pip install matplotlib, then give this command again"
    progress.say("\n".join([*begin, verdict(outcome.result), f"curve: {drawn}", f"model: {folder / 'model'}"]))
