"""A write layer is a file; its name is the file's."""

import pytest

from rebracket.nn import writes
from tests.nn.tiny import SIZE


def test_the_known_writes_are_there():
    assert {"additive", "delta", "delta_product", "gated_erase", "step"} <= set(writes.names())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="write 'detla' is unknown, did you mean 'delta'"):
        writes.make("detla", SIZE)
