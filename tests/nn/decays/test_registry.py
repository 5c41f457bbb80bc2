"""A decay is a file; its name is the file's."""

import pytest

from rebracket.nn import decays
from tests.nn.tiny import SIZE


def test_the_known_decays_are_there():
    assert {"retnet", "lightning", "gla", "gated_deltanet", "kda"} <= set(decays.names())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="decay 'retnt' is unknown, did you mean 'retnet'"):
        decays.make("retnt", SIZE)
