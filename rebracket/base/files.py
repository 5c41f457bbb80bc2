"""Named tensors in one safetensors file that says what it is and is either whole or not there."""

import json
import os
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

KIND = "rebracket.kind"
VERSION = "rebracket.version"
TENSORS = "rebracket.tensors"
# Other readers of safetensors ask which library the tensors came from; "pt" is their word for torch.
FORMAT = "format"
RESERVED = frozenset({KIND, VERSION, TENSORS, FORMAT})


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    kind: str,
    version: int,
    extra: Mapping[str, str],
) -> None:
    """Write named tensors to one safetensors file, whole or not at all.

    The file is written beside ``path``, flushed to the disk and renamed over it, so a reader sees the old file or the
    new one and never half of either. Its metadata hold the kind, the format version and every tensor's dtype, shape
    and CRC-32.

    Args:
        path: The file to write or replace; its folder must exist.
        tensors: Name to tensor, any shapes, dtypes and devices; views and shared storage are written as copies.
        kind: What the file is, in one word, such as ``"state"``.
        version: The format version of this kind, at least 1.
        extra: Further text to keep with the tensors.

    Raises:
        ValueError: If ``extra`` uses one of the keys that this format keeps for itself.
        FileNotFoundError: If the folder does not exist.
        OSError: If the file cannot be written; an older one is untouched.

    Cost:
        One copy of each tensor that is not plain CPU memory of its own, and one pass for the CRC.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "example.safetensors"
        >>> write_tensors(path, {"x": torch.arange(3.0)}, "example", 1, {"note": "three numbers"})
        >>> read_tensors(path, "example", 1)
        ({'x': tensor([0., 1., 2.])}, {'note': 'three numbers'})
    """
    taken = sorted(RESERVED & extra.keys())
    if taken:
        raise ValueError(f"extra: the keys {taken} belong to the file format; rename them")
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: its folder does not exist; make it first")
    plain = plain_copies(tensors)
    metadata = {
        **extra,
        FORMAT: "pt",
        KIND: kind,
        VERSION: str(version),
        TENSORS: json.dumps({name: describe(tensor) for name, tensor in plain.items()}),
    }
    with replacing(path) as beside:
        try:
            save_file(plain, beside, metadata)
        except SafetensorError as error:
            raise system_error(error) from error


def read_tensors(path: str | os.PathLike[str], kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote, or say exactly why that cannot be done.

    Args:
        path: The file to read.
        kind: The kind the file must be.
        version: The format version the file must have.

    Returns:
        The tensors by name, on the CPU, and the ``extra`` text given when they were written.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, truncated, foreign, of another kind or of another version; the message
            names the path and what was found.

    Cost:
        One read of the file and one pass for the CRC.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as foreign:
        ...     read_tensors(foreign.name, "state", 1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: ...: expected a 'state' file, found an empty file
    """
    path = Path(path)
    refuse_unreadable(path, kind)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            refuse_other(path, metadata, kind, version)
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a {kind!r} file, found damaged or foreign bytes ({error})") from error
    refuse_damaged(path, metadata, tensors, kind)
    return tensors, {key: text for key, text in metadata.items() if key not in RESERVED}


def parse_json(text: str) -> Any:  # noqa: ANN401 - JSON holds anything
    """What a JSON text holds.

    Raises:
        ValueError: If it is no JSON, or nested so deeply that it is none of ours.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def plain_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Detached, contiguous CPU tensors, no two on one storage (safetensors refuses those)."""
    storages: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        if copy.untyped_storage().data_ptr() in storages:
            copy = copy.clone()
        storages.add(copy.untyped_storage().data_ptr())
        plain[name] = copy
    return plain


def describe(tensor: Tensor) -> list[str | list[int] | int]:
    """Dtype, shape and CRC-32 of a plain CPU tensor, as they stand in the metadata."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), checksum(tensor)]


def checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


def system_error(error: SafetensorError) -> OSError:
    """The system's error, which safetensors has only as text."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; on success it is flushed and takes ``path``'s place, on failure it goes."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.touch()
        mode = beside.stat().st_mode  # what the user's umask allows; safetensors' own would shut everyone else out
        yield beside
        beside.chmod(mode)
        flush(beside)
        beside.replace(path)
        if os.name == "posix":  # elsewhere a folder cannot be opened, and the rename is already durable enough
            flush(path.parent)
    except OSError as error:
        if error.errno and error.filename in (None, str(beside)):
            error.filename = str(path)
        raise
    finally:
        beside.unlink(missing_ok=True)


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_unreadable(path: Path, kind: str) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; expected a {kind!r} file")
    if not path.is_file():
        raise ValueError(f"{path}: expected a {kind!r} file, found a folder or device")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: expected a {kind!r} file, found an empty file")


def refuse_other(path: Path, metadata: Mapping[str, str], kind: str, version: int) -> None:
    if KIND not in metadata:
        raise ValueError(f"{path}: expected a {kind!r} file, found a safetensors file that this library did not write")
    if metadata[KIND] != kind:
        raise ValueError(f"{path}: expected a {kind!r} file, found a {metadata[KIND]!r} file")
    found = metadata.get(VERSION)
    if found != str(version):
        raise ValueError(
            f"{path}: expected version {version} of a {kind!r} file, found version {found}; "
            f"read it with the release that wrote it, and write it anew"
        )


def refuse_damaged(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], kind: str) -> None:
    found = {name: describe(tensor) for name, tensor in tensors.items()}
    try:
        written: dict[str, object] = dict(parse_json(metadata[TENSORS]))
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected a {kind!r} file, found damaged metadata ({error})") from error
    differing = sorted(name for name in found.keys() | written.keys() if found.get(name) != written.get(name))
    if differing:
        raise ValueError(
            f"{path}: expected a {kind!r} file, found one whose contents changed after it was written: "
            + "; ".join(f"{name}: written {written.get(name)}, found {found.get(name)}" for name in differing)
        )
