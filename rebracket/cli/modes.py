"""`rebracket modes`."""

import multiprocessing
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rebracket import cli

if TYPE_CHECKING:
    from rich.table import Table

    from rebracket.lm.modes import Difference, Measured, Way

DISAGREE = 1


def command(
    model: Annotated[Path, typer.Argument(help="The folder of a model or of a run.", show_default=False)],
    text: Annotated[
        list[str] | None,
        typer.Option(help="A file, folder, glob or 'stdlib' instead of the run's held-out text; may be given again."),
    ] = None,
    encoding: Annotated[
        str, typer.Option(help="Of the text, such as latin-1; auto is UTF-8, or what a mark or zeros say.")
    ] = "auto",
    tokens: Annotated[int, typer.Option(min=2, help="How many tokens of the longest document.")] = 2048,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference that passes, in standard deviations of the logits.")
    ] = 1e-3,
) -> None:
    """Run a text through a model in every mode, step by step and as a program, and compare the logits.

    Each way runs in a process of its own, which measures its time and memory. Exit code 1: two ways disagree.
    """
    from rebracket.data import read
    from rebracket.lm import load_model
    from rebracket.train.folder import model_folder, run_of

    folder = model_folder(model)
    tokenizer = load_model(folder)[1]
    document = max(
        read(text, encoding=encoding, say=cli.say) if text else run_of(model).held_out(cli.say),
        key=lambda one: one.nbytes,
    )
    ids = [tokenizer.document, *tokenizer.encode(document.text)][:tokens]
    nbytes = len(tokenizer.decode_bytes(ids))
    sys.stdout.write(f"{document.name}: {len(ids):,} tokens, {nbytes:,} bytes, in float32\n")
    found, distances = compare(folder, ids)
    cli.show(table(found, distances, len(ids), nbytes))
    worst = max(distances.values(), key=lambda distance: distance.relative)
    sys.stdout.write(f"largest difference: {worst.relative:.1e} standard deviations of the logits\n")
    if any(not distance.relative <= tolerance for distance in distances.values()):
        sys.stderr.write(f"rebracket: the ways disagree by more than {tolerance:g} standard deviations\n")
        raise typer.Exit(DISAGREE)


def compare(folder: Path, ids: Sequence[int]) -> "tuple[dict[Way, Measured], dict[Way, Difference]]":
    """What each way took, and how much its logits differ from those of the parallel one."""
    from rebracket.lm import load_model
    from rebracket.lm.modes import WAYS, Measured, Way, difference
    from rebracket.lm.program import why_not

    if reason := why_not(load_model(folder)[0].float()):
        sys.stdout.write(f"no program: {reason}\n")
    ways: list[Way] = [*WAYS] if reason else [*WAYS, "program"]
    with tempfile.TemporaryDirectory() as beside:
        outs: dict[Way, Path] = {way: Path(beside, way) for way in ways}
        found: dict[Way, Measured] = {way: alone(folder, ids, way, out) for way, out in outs.items()}
        return found, {way: difference(outs["parallel"], out) for way, out in outs.items()}


def alone(folder: Path, ids: Sequence[int], way: "Way", out: Path) -> "Measured":
    """One way in a process of its own."""
    from rich.console import Console

    from rebracket.lm.modes import measure

    fresh = multiprocessing.get_context("spawn")
    with Console(stderr=True).status(way), ProcessPoolExecutor(1, fresh) as process:
        try:
            return process.submit(measure, folder, ids, way, out).result()
        except BrokenProcessPool as error:
            raise ValueError(
                f"{way}: its process was killed, perhaps for lack of memory; give fewer --tokens"
            ) from error


def table(found: "Mapping[Way, Measured]", distances: "Mapping[Way, Difference]", count: int, nbytes: int) -> "Table":
    from rich.table import Table

    from rebracket.train import BitsPerByte

    shown = Table(caption="differences of logits from parallel; peak memory beyond the loaded model")
    shown.add_column("mode")
    for name in ("largest difference", "/ std of logits", "bits per byte", "seconds", "tokens/s", "peak memory"):
        shown.add_column(name, justify="right")
    for way, one in found.items():
        shown.add_row(
            way,
            f"{distances[way].largest:.1e}",
            f"{distances[way].relative:.1e}",
            f"{BitsPerByte(one.nats, nbytes).value:.6f}",
            f"{one.seconds:.2f}",
            f"{count / one.seconds:,.0f}",
            f"{one.nbytes / 1e6:,.1f} MB",
        )
    return shown
