"""Additive writes change nothing."""

from rebracket import Additive
from rebracket.nn import AdditiveWrite
from tests.nn.tiny import tokens


def test_it_has_no_weights_and_no_gates():
    write, k, v = AdditiveWrite(), tokens(seed=2), tokens(seed=3)
    written = write(tokens(), k, v, None)
    assert isinstance(written.rule, Additive)
    assert written.k is k
    assert written.v is v
    assert written.bonus is None
    assert list(write.parameters()) == []
