"""Texts that are continued: how, what stands of one between two tokens, and what a token adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self, final, get_args

from rebracket.base.checks import one_of, whole
from rebracket.lm.sampling import Sampler

Way = Literal["auto", "program", "modules"]
Weights = Literal["float32", "bfloat16", "int8"]


@final
@dataclass(frozen=True)
class Settings:
    """How texts are continued.

    Args:
        sampler: how tokens are chosen.
        stop: strings that end a text and are not part of it; one string is one of them, not its letters.
        endless: never sample the end of the document.

    Raises:
        ValueError: If a stop string is empty.

    Example:
        >>> Settings(stop=("END",)).sampler.temperature
        0.8
    """

    sampler: Sampler = field(default_factory=Sampler)
    stop: tuple[str, ...] = ()
    endless: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if not all(self.stop):
            raise ValueError("stop must hold strings of at least one character, got an empty one")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The settings of which `asdict` made the table."""
        return cls(Sampler(**values["sampler"]), tuple(values["stop"]), values["endless"])


@final
@dataclass(frozen=True)
class Running:
    """How texts are computed, which changes no token of a float32 model but by rounding.

    Args:
        way: "program", "modules", or "auto": a program where the model can be one.
        weights: format of a program's weights: "float32", "bfloat16" or "int8", the last two rounded.
        drafts: most tokens that a program guesses ahead of each text, >= 0; they change nothing but the time.

    Raises:
        ValueError: If one is unknown or out of its range, or modules are to have what only programs have.

    Example:
        >>> Running(weights="int8").way
        'auto'
    """

    way: Way = "auto"
    weights: Weights = "float32"
    drafts: int = 0

    def __post_init__(self) -> None:
        one_of("way", self.way, get_args(Way))
        one_of("weights", self.weights, get_args(Weights))
        whole("drafts", self.drafts, 0)
        if self.way == "modules" and self.only_program:
            raise ValueError("way must be program or auto for weights that are not float32 or for drafts, got modules")

    @property
    def only_program(self) -> bool:
        """Whether it asks for what modules do not have."""
        return self.way == "program" or self.weights != "float32" or self.drafts > 0


@final
@dataclass(frozen=True)
class Row:
    """The state of one text between two tokens, its cache aside.

    Args:
        seed: of its random numbers.
        last: the newest token, given or sampled; the next step reads it.
        drawn: random numbers used.
        read: tokens that the cache has read.
        unfinished: bytes of an incomplete character.
        held: text not shown yet, because it may be the beginning of a stop string.
        ended: whether the text has ended.

    Example:
        >>> row = Row(seed=3, last=256, unfinished=bytes([195]))
        >>> Row.from_dict(row.to_dict()) == row
        True
    """

    seed: int
    last: int
    drawn: int = 0
    read: int = 0
    unfinished: bytes = b""
    held: str = ""
    ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The row in JSON types."""
        return {**asdict(self), "unfinished": self.unfinished.hex()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The row of which `to_dict` made the table."""
        return cls(**{**values, "unfinished": bytes.fromhex(values["unfinished"])})


@final
class Piece(NamedTuple):
    """What one token adds to one text.

    Args:
        row: which text.
        token: its id.
        text: the characters that can now be shown; often none, sometimes more than the token's own.
        ended: whether the text ends with it.

    Example:
        >>> Piece(row=0, token=104, text="h", ended=False).text
        'h'
    """

    row: int
    token: int
    text: str
    ended: bool
