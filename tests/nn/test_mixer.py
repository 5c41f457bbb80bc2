"""Sizes are checked where they are given, and parts are built from them by name."""

import dataclasses

import pytest

from rebracket.nn.mixer import fitted
from tests.nn.tiny import SIZE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("d_model", 0),
        ("heads", -1),
        ("key_heads", 3),
        ("key_dim", 2.0),
        ("value_dim", True),
        ("layers", 0),
        ("layer", 3),
        ("layer", -1),
        ("norm_eps", 0),
        ("norm_eps", "1"),
    ],
)
def test_a_wrong_size_is_refused_by_name(field: str, value: object):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(SIZE, **{field: value})  # type: ignore[arg-type]


def part(value_dim: int, heads: int, decay: str, *, rank: int = 16) -> tuple[object, ...]:
    return value_dim, heads, decay, rank


def test_a_part_takes_sizes_by_name_and_keeps_its_own_defaults():
    assert fitted(part, SIZE, {"decay": "d", "rank": 3}) == (SIZE.value_dim, SIZE.heads, "d", 16)


def test_a_part_that_asks_for_what_is_no_size_is_refused():
    with pytest.raises(TypeError, match="part: decay must be named as one of d_model, heads, .*, or have a default"):
        fitted(part, SIZE)
