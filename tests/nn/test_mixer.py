"""Sizes are checked where they are given."""

import dataclasses

import pytest

from rebracket.nn import MixerSize
from rebracket.nn.mixer import CHOICES
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
        ("window", 0),
        ("convolution", 0),
        ("beta_max", 2.5),
        ("beta_max", 0),
        ("beta_max", "2"),
        ("rotary_base", 1),
        ("horizon", 0),
    ],
)
def test_a_wrong_size_is_refused_by_name(field: str, value: object):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(SIZE, **{field: value})  # type: ignore[arg-type]


def test_choices_are_the_fields_that_may_be_left_open():
    open_fields = [f.name for f in dataclasses.fields(MixerSize) if f.default is None]
    assert tuple(open_fields) == CHOICES


def test_choices_made():
    assert SIZE.choices() == ()
    assert dataclasses.replace(SIZE, window=3, beta_max=2.0).choices() == ("window", "beta_max")
