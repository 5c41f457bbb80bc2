"""The files that sources name: files, pipes, folders, globs, standard input and Python's own library."""

import errno
import glob
import os
import stat
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

from rebracket.data.encoding import AUTO, NotTextError, decode, shown

STDIN = "-"
STDLIB = "stdlib"
STDLIB_WITH_TESTS = "stdlib+tests"
INSTALLED = frozenset({"site-packages", "dist-packages"})
TESTS = frozenset({"test", "tests", "idle_test"})
DEEP = "**"
UNREADABLE = "cannot be read"


def warn(line: str) -> None:
    """Says a line as a Python warning."""
    warnings.warn(line, stacklevel=2)


@final
@dataclass(frozen=True)
class Losses:
    """What was left out or replaced while text was read.

    Args:
        counts: how often, by reason.
        examples: the first name for each reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Counts `count` more for a reason."""
        self.counts[reason] += count
        self.examples.setdefault(reason, name)

    def lines(self) -> list[str]:
        """A line for each reason."""
        return [f"{reason}: {count:,}, first {self.examples[reason]}" for reason, count in self.counts.items()]


@final
@dataclass(frozen=True)
class Found:
    """A file to read, or standard input.

    Args:
        name: of its document.
        load: reads it.
        named: whether the user named this very file; one found in a folder is left out where it is no text.
    """

    name: str
    load: Callable[[], bytes]
    named: bool

    def text(self, encoding: str, losses: Losses) -> str:
        """The text; "" and a loss where a file that nobody named is no text or cannot be read.

        Raises:
            OSError: the user named this file, and it cannot be read.
            ValueError: the user named this file, and it is no text or its encoding must be named.
        """
        try:
            decoded = decode(self.load(), encoding, zeros=self.named)
        except OSError:
            if self.named:
                raise
            losses.add(f"files left out that {UNREADABLE}", self.name)
            return ""
        except NotTextError as error:
            if self.named:
                raise ValueError(f"{self.name}: {error}") from error
            losses.add(f"files left out that {error.reason}", self.name)
            return ""
        if decoded.lost:
            losses.add(f"places that are not {shown(decoded.encoding)} and were replaced", self.name, decoded.lost)
        return decoded.text


def read_file(name: str, encoding: str = AUTO, say: Callable[[str], None] = warn) -> str:
    """The text of one file, or of standard input for "-", read as `rebracket.data.read` reads it.

    Args:
        name: of the file.
        encoding: as `rebracket.data.read` takes it.
        say: is called with a line where bytes had to be replaced.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no file, or no text.
    """
    found, losses = named(name), Losses()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    text = found.text(encoding, losses)
    for line in losses.lines():
        say(line)
    return text


def find(source: str, losses: Losses) -> list[Found]:
    """The files that a source names."""
    if source in (STDLIB, STDLIB_WITH_TESTS):
        return stdlib(INSTALLED if source == STDLIB_WITH_TESTS else INSTALLED | TESTS, losses)
    path = at_home(source)
    if path.is_dir():
        root = path.resolve().name
        return [unnamed(f"{root}/{below.as_posix()}", path / below) for below in files_below(path, losses)]
    one = named(source)
    return matching(source, losses) if one is None else [one]


def named(source: str) -> Found | None:
    """Standard input, or a file or pipe of that name; None where there is none.

    Raises:
        ValueError: standard input is closed, or there is a folder, a device or a socket of that name.
    """
    if source == STDIN:
        if sys.stdin is None:
            raise ValueError("-: standard input is closed")
        return Found(STDIN, sys.stdin.buffer.read, named=True)
    path = at_home(source)
    if not path.exists():
        return None
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise ValueError(f"{source}: must be a file or a pipe, is a {'folder' if stat.S_ISDIR(mode) else 'device'}")
    return Found(path.as_posix(), path.read_bytes, named=True)


def at_home(path: str) -> Path:
    """The path with `~` written out; as it is where there is no such home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises a RuntimeError


def unnamed(name: str, path: Path) -> Found:
    return Found(name, path.read_bytes, named=False)


def stdlib(unwanted: frozenset[str], losses: Losses) -> list[Found]:
    root = Path(sysconfig.get_path("stdlib"))
    below = files_below(root, losses, unwanted)
    return [unnamed(f"{STDLIB}/{path.as_posix()}", root / path) for path in below if path.suffix == ".py"]


def matching(pattern: str, losses: Losses) -> list[Found]:
    """The files that match a glob, in which `**` stands for folders of any depth."""
    whole = at_home(pattern)
    if DEEP in whole.parts:
        depth = whole.parts.index(DEEP)
        roots = glob.glob(str(Path(*whole.parts[:depth])))  # noqa: PTH207 - Path.glob takes no absolute pattern
        below = ((Path(root), path) for root in roots for path in files_below(Path(root), losses))
        paths = [root / path for root, path in below if fits(path.parts, whole.parts[depth:])]
    else:
        paths = [Path(path) for path in glob.glob(str(whole)) if not Path(path).is_dir()]  # noqa: PTH207
    if not paths:
        raise FileNotFoundError(f"no text at {pattern}: no file, folder or glob match of that name")
    return [unnamed(path.as_posix(), path) for path in paths if is_file(path, losses)]


def fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob.

    Example:
        >>> fits(["a", "b", "c.md"], ["**", "*.md"]), fits(["a", "c.md"], ["*.md"])
        (True, False)
    """
    if not pattern:
        return not parts
    if pattern[0] == DEEP:
        return any(fits(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and fits(parts[1:], pattern[1:])


def files_below(root: Path, losses: Losses, unwanted: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The files at any depth, relative to a folder: none hidden, none in a hidden or unwanted folder.

    Links to folders are followed, but no folder is entered twice; it has the name without links where there is one.
    """

    def missed(error: OSError) -> None:
        losses.add(f"folders left out that {UNREADABLE}", str(error.filename))

    seen: set[tuple[int, int]] = set()
    waiting = [root]
    for top in waiting:
        for folder, below, files in os.walk(top, onerror=missed):
            about = Path(folder).stat()
            if (about.st_dev, about.st_ino) in seen:
                below.clear()
                continue
            seen.add((about.st_dev, about.st_ino))
            below[:] = sorted(name for name in below if not name.startswith(".") and name not in unwanted)
            waiting += [path for path in (Path(folder, name) for name in below) if path.is_symlink()]
            paths = (Path(folder, name) for name in sorted(files) if not name.startswith("."))
            yield from (path.relative_to(root) for path in paths if is_file(path, losses))


def is_file(path: Path, losses: Losses) -> bool:
    """Whether a path is a plain file; pipes and devices, which may never end, and broken links are losses."""
    try:
        plain = stat.S_ISREG(path.stat().st_mode)
    except OSError:
        losses.add(f"files left out that {UNREADABLE}", str(path))
        return False
    if not plain:
        losses.add("files left out that are pipes or devices", str(path))
    return plain
