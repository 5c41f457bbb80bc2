"""A preset is a file; its name is the file's."""

import pytest

from rebracket.nn import presets
from tests.nn.tiny import SIZE


def test_the_named_architectures_are_there():
    plain = {"softmax", "linear_transformer", "performer", "cosformer"}
    gated = {"retnet", "gla", "mamba2", "deltanet", "gated_deltanet", "kda"}
    assert plain | gated <= set(presets.names())


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="preset 'gated_delta_net' is unknown, did you mean 'gated_deltanet'"):
        presets.make("gated_delta_net", SIZE)
