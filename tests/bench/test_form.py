"""Who took long, or much memory, is not asked to take more than there is."""

import pytest

from rebracket.bench import form
from rebracket.bench.cases import RULES, SOFTMAX, Case, Mode, Shape
from rebracket.bench.entrant import Entrant
from rebracket.bench.form import Form, Lane
from rebracket.bench.own import Softmax
from tests.bench.planted import Planted

ENTRANT = Planted("planted")


def lane(shape: str, rule: str = "kda", mode: Mode = "forward", entrant: Entrant = ENTRANT) -> Lane:
    return Lane(entrant, Case(RULES[rule], Shape.parse(shape), mode))


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(form, "available_nbytes", lambda: 100 << 30)
    found = Form(longest=10)
    found.note(lane("1x1000x2x8"), 1.0, 1 << 30)
    return found


@pytest.mark.parametrize("shape", ["1x9000x2x8", "3x1000x6x8", "1x1000x2x16", "1x2000x8x8"])
def test_up_to_the_limit_nothing_is_said(known, shape):
    assert known.knows(lane(shape))
    assert known.objection(lane(shape)) is None


@pytest.mark.parametrize(("shape", "seconds"), [("1x11000x2x8", 11), ("4x1000x6x8", 12), ("1x1000x2x32", 16)])
def test_what_would_take_longer_is_told(known, shape, seconds):
    assert known.objection(lane(shape)) == f"about {seconds} s a call, over 10 s"


def test_the_longest_of_as_many_channels_tells_most(known):
    known.note(lane("1x100x2x8"), 5.0, 0)
    known.note(lane("1x1000x2x16"), 9.0, 0)
    assert known.objection(lane("1x9000x2x8")) is None
    assert known.objection(lane("1x1000x3x16")) == "about 14 s a call, over 10 s"
    known.note(lane("1x2000x2x8"), 2.5, 0)
    assert known.objection(lane("1x9000x2x8")) == "about 11 s a call, over 10 s"


def test_of_another_kind_nothing_is_known(known):
    for other in (lane("1x11000x2x8", "gla"), lane("1x11000x2x8", mode="train")):
        assert not known.knows(other)
        assert known.objection(other) is None
    assert not known.knows(lane("1x11000x2x8", entrant=Planted("another")))


def test_the_square_of_softmax_is_reckoned_with(known):
    def softmax(T):
        return Lane(Softmax(), Case(SOFTMAX, Shape(1, T, 2, 8), "forward"))

    known.note(softmax(1000), 1.0, 0)
    assert known.objection(softmax(3000)) is None
    assert known.objection(softmax(4000)) == "about 16 s a call, over 10 s"


def test_memory_that_is_not_there_is_not_asked_for(known, monkeypatch):
    assert known.objection(lane("1x9000x2x8")) is None
    monkeypatch.setattr(form, "available_nbytes", lambda: 10 << 30)
    assert known.objection(lane("1x5000x2x8")) is None
    assert known.objection(lane("1x9000x2x8")) == "about 10 GB a call, and 11 GB are left"
    monkeypatch.setattr(form, "available_nbytes", lambda: None)
    assert known.objection(lane("1x9000x2x8")) is None
