"""`rebracket generate`."""

import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final, get_args

import typer

from rebracket import cli

if TYPE_CHECKING:
    from rebracket.lm import LanguageModel, Tokenizer
    from rebracket.lm.generation import Generation, Piece, Settings
    from rebracket.lm.texts import Running
    from rebracket.train.interrupt import Interrupt

STDIN = "-"


def command(
    model: Annotated[Path, typer.Argument(help="The folder of a model or of a run.", show_default=False)],
    prompt: Annotated[
        list[str] | None, typer.Option(help="The beginning of a text; may be given again, for a batch.")
    ] = None,
    prompt_file: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A file that is a prompt; '-' is standard input.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(help="Of prompt files, such as latin-1; auto is UTF-8, or what a mark or zeros say.")
    ] = "auto",
    tokens: Annotated[int, typer.Option(min=0, help="Most tokens for each text; 0 only reads the prompts.")] = 200,
    temperature: Annotated[
        float | None, typer.Option(help="0: the likeliest token; 1: the model's distribution.  [default: 0.8]")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from so many likeliest tokens.  [default: 0, all]")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the likeliest tokens with this share of the probability.  [default: 1]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the first text; the n-th after it has seed + n.  [default: 0]")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Ends a text and is not shown; may be given again.")] = None,
    endless: Annotated[
        bool | None, typer.Option("--endless/--may-end", help="Whether a document never ends.  [default: may end]")
    ] = None,
    state: Annotated[Path | None, typer.Option(metavar="FILE", help="Resume from what an earlier call saved.")] = None,
    save_state: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the state, to resume from.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Show each prompt before its text.")] = False,
    report_every: Annotated[int, typer.Option(min=0, help="Tokens between reports of time and memory.")] = 0,
    weights: Annotated[
        str, typer.Option(help="Format of the weights in a program: float32, or rounded bfloat16 or int8.")
    ] = "float32",
    drafts: Annotated[
        int, typer.Option(min=0, help="Most tokens to guess ahead from the text itself; they change only the time.")
    ] = 0,
) -> None:
    """Continue texts with a model, from prompts or from a state that an earlier call saved.

    Without a prompt and a state, standard input is the prompt if it is a pipe or a file.

    With --state, options that are not given are those of the earlier call, and several prompts may follow one saved
    text. Text goes to standard output, figures to standard error. Ctrl-C stops, and saves the state if asked to.
    """
    from rebracket.lm import load_model
    from rebracket.lm.generation import refuse_replacing
    from rebracket.train.folder import model_folder
    from rebracket.train.interrupt import Interrupt

    if save_state is not None:
        refuse_replacing(save_state)
    options = Options(temperature, top_k, top_p, seed, None if stop is None else tuple(stop), endless)
    try:
        prompts = prompts_of(prompt or [], prompt_file or [], state, encoding)
        texts = open_texts(*load_model(model_folder(model)), state, prompts, options, running_of(weights, drafts))
        pages = Pages(len(texts.rows))
        with Interrupt() as interrupt:
            meter = Meter(texts, report_every, interrupt)
            read(texts, prompts, pages, meter, echo)
            write(texts, tokens, pages, meter, interrupt)
            finish(texts, pages, save_state)
            meter.end()
            refuse_unshown(pages, save_state)
    except KeyboardInterrupt as error:
        cli.say(f"stopped; nothing was saved{'' if save_state is None else f' to {save_state}'}")
        raise typer.Exit(cli.STOPPED) from error
    if interrupt.asked:
        raise typer.Exit(cli.STOPPED)


@final
@dataclass(frozen=True)
class Options:
    """What the command line says of the settings; None leaves one as it was."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: tuple[str, ...] | None
    endless: bool | None

    def over(self, before: "Settings") -> "Settings":
        """The settings with the options that were given."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        given |= {"top_k": given["top_k"] or None} if "top_k" in given else {}
        settings = {name: given.pop(name) for name in ("stop", "endless") if name in given}
        return replace(before, sampler=replace(before.sampler, **given), **settings)


def running_of(weights: str, drafts: int) -> "Running":
    """How the command line says to compute."""
    from rebracket.lm.texts import Running, Weights

    found: dict[str, Weights] = {name: name for name in get_args(Weights)}
    if weights not in found:
        raise ValueError(f"--weights must be of {', '.join(found)}, got {weights!r}")
    return Running(weights=found[weights], drafts=drafts)


def prompts_of(prompt: Sequence[str], prompt_file: Sequence[str], state: Path | None, encoding: str) -> list[str]:
    """The prompts that were given; without any and without a state, the one on standard input."""
    if prompt or prompt_file or state is not None or not piped():
        named = [("--prompt", text) for text in prompt] + [(name, text_of(name, encoding)) for name in prompt_file]
        for name, text in named:
            if not text:
                raise ValueError(f"{name}: this prompt is empty")
        return [text for _, text in named]
    cli.say("the prompt is read from standard input")
    text = text_of(STDIN, encoding)
    return [text] if text else []


def piped() -> bool:
    """Whether standard input is a pipe or a file, and no terminal or empty device."""
    try:
        kind = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISREG(kind)


def text_of(name: str, encoding: str = "auto") -> str:
    """The text of a file, read as text for training is."""
    from rebracket.data import read_file

    return read_file(name, encoding, cli.say)


def open_texts(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    state: Path | None,
    prompts: Sequence[str],
    options: Options,
    running: "Running",
) -> "Generation":
    """The texts to continue, one for each prompt."""
    from rebracket.lm.generation import Generation, Settings

    if state is None:
        return Generation.begin(model.eval(), tokenizer, max(len(prompts), 1), options.over(Settings()), running)
    texts = Generation.load(state, model.eval(), tokenizer, running)
    texts = texts.with_settings(options.over(texts.settings))
    if not prompts and all(row.ended for row in texts.rows):
        raise ValueError(f"{state}: every text in it has ended; give a prompt")
    if len(prompts) in (0, len(texts.rows)):
        return texts
    if len(texts.rows) > 1:
        raise ValueError(f"{state} holds {len(texts.rows)} texts; give as many prompts or none, got {len(prompts)}")
    return texts.fork(len(prompts))


def read(texts: "Generation", prompts: Sequence[str], pages: "Pages", meter: "Meter", echo: bool) -> None:
    """Reads the prompts; first shows what earlier calls held back of the texts."""
    prompts = prompts or [""] * len(texts.rows)
    for row, held in enumerate(texts.read(prompts, report=meter.reading)):
        pages.add(row, held + (prompts[row] if echo else ""))
    meter.begin()


def write(texts: "Generation", tokens: int, pages: "Pages", meter: "Meter", interrupt: "Interrupt") -> None:
    """Continues the texts and shows them, until Ctrl-C."""
    for pieces in texts.grow(0 if pages.error else tokens):
        for piece in pieces:
            pages.add(piece.row, piece.text)
            if piece.ended:
                pages.end(piece.row)
        meter.step(pieces)
        if interrupt.asked or pages.error:
            return


def finish(texts: "Generation", pages: "Pages", save_state: Path | None) -> None:
    """Saves the state, or shows what is still held back."""
    if save_state is not None:
        texts.save(save_state)
    else:
        for row, held in enumerate(texts.rest()):
            pages.add(row, held)
    for row in range(len(texts.rows)):
        pages.end(row)
    # A saved text has not ended: what continues it is to follow without a line break.
    if save_state is None or len(texts.rows) > 1:
        pages.show("\n")
    if save_state is not None and sys.stdout.isatty():
        cli.say("")


def refuse_unshown(pages: "Pages", save_state: Path | None) -> None:
    """Ends the command where its text could not be shown; says that the state is saved nevertheless."""
    if pages.error is None:
        return
    saved = "" if save_state is None else f"; the state is saved to {save_state}"
    if saved or not isinstance(pages.error, BrokenPipeError):
        cli.say(f"rebracket: standard output: {cli.one_line(pages.error)}{saved}")
    raise typer.Exit(1)


@final
class Pages:
    """Texts on standard output, one after the other; the others wait while the first of them grows.

    Args:
        count: how many; if several, each gets a heading with its number.

    Attributes:
        error: why the text could not be written; None so far.
    """

    def __init__(self, count: int) -> None:
        self.error: OSError | None = None
        self._waiting = [[head(row, count)] for row in range(count)]
        self._over = [False] * count
        self._turn = 0
        self._show()

    def add(self, row: int, text: str) -> None:
        """Adds to a text."""
        self._waiting[row].append(text)
        if row == self._turn:
            self._show()

    def end(self, row: int) -> None:
        """Ends a text; the next one is shown."""
        self._over[row] = True
        while self._turn < len(self._over) - 1 and self._over[self._turn]:
            self._turn += 1
            self._show()

    def _show(self) -> None:
        text = "".join(self._waiting[self._turn])
        self._waiting[self._turn].clear()
        if text:
            self.show(text)

    def show(self, text: str) -> None:
        """Writes to standard output; where that fails, for example because it was closed, notes the error."""
        if self.error is None:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except OSError as error:
                self.error = error
                cli.silence(sys.stdout)


def head(row: int, count: int) -> str:
    if count == 1:
        return ""
    return f"==> {row + 1} of {count} <==\n" if row == 0 else f"\n\n==> {row + 1} of {count} <==\n"


@final
class Meter:
    """Reports time, memory and state on standard error.

    Args:
        texts: that are continued.
        every: steps between reports; 0 for none before the end.
        interrupt: after it, reading prompts ends with a KeyboardInterrupt, for half a prompt cannot be continued.
    """

    def __init__(self, texts: "Generation", every: int, interrupt: "Interrupt") -> None:
        self._texts = texts
        self._interrupt = interrupt
        self._every = every
        self._begun = self._now = self._reported = time.perf_counter()
        self._read = sum(row.read for row in texts.rows)
        self._steps = self._told = self._written = 0
        self._reading = ""

    def reading(self, done: int, total: int) -> None:
        """A piece of the prompts is read."""
        if done < total and self._interrupt.asked:
            raise KeyboardInterrupt
        if done < total and sys.stderr.isatty():
            cli.say(f"read {done:,} of {total:,} tokens")

    def begin(self) -> None:
        """All prompts are read."""
        now = time.perf_counter()
        count = sum(row.read for row in self._texts.rows) - self._read
        self._reading = pace("read", count, now - self._begun)
        self._begun = self._now = self._reported = now

    def step(self, pieces: "Sequence[Piece]") -> None:
        """One step is done: a token for each text that had not ended, or several."""
        self._steps += max(Counter(piece.row for piece in pieces).values())
        self._written += len(pieces)
        self._now = time.perf_counter()
        if self._every and self._steps - self._told >= self._every:
            self._report()

    def end(self) -> None:
        """Everything is written."""
        model, counts = self._texts.model, [row.read for row in self._texts.rows]
        softmax = sum(model.config.kv_cache_nbytes(count, dtype=model.embed.weight.dtype) for count in counts)
        cli.say(self._reading)
        cli.say(pace("wrote", self._written, self._now - self._begun))
        cli.say(
            f"state {self._texts.nbytes:,} bytes; keys and values of softmax {softmax:,} bytes "
            f"after {sum(counts):,} tokens"
        )
        cli.say(f"computed by {self._texts.explain()}")

    def _report(self) -> None:
        from rebracket.base.resources import peak_nbytes

        each = (self._now - self._reported) / (self._steps - self._told) * 1000
        self._reported, self._told = self._now, self._steps
        cli.say(
            f"tokens {self._steps}: {each:.2f} ms/token, peak memory {peak_nbytes() / 1e6:.0f} MB, "
            f"state {self._texts.nbytes:,} bytes"
        )


def pace(what: str, tokens: int, seconds: float) -> str:
    return f"{what} {tokens:,} tokens in {seconds:.2f} s, {tokens / max(seconds, 1e-9):,.0f} tokens/s"
