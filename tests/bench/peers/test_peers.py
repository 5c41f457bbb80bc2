"""Every peer says why it is not there, and where it is there, what it computes is right."""

import sys
from collections.abc import Iterable

import pytest

from rebracket.bench import clock, entrant, limits, peers, race
from rebracket.bench.cases import DTYPES, LINEAR_RULES, MODES, RULES, Case, Mode, Shape
from rebracket.bench.clock import Pace
from rebracket.bench.entrant import Entrant, NotCoveredError
from rebracket.bench.form import Form, Lane
from rebracket.bench.limits import Limits
from rebracket.bench.race import Row, grounds

PEERS = dict(zip(peers.names(), peers.found(), strict=True))
LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
LIBRARIES = ("fast_transformers", "fla", "jax", "onnxruntime", "transformers")


def run(peer: Entrant, rule: str, mode: Mode, dtype: str = "float32") -> Row:
    shape = Shape(2, 1 if mode == "decode" else 128, 3, 16)
    lanes = [Lane(peer, Case(RULES[rule], shape, mode, DTYPES[dtype]))]
    return race.race(lanes, grounds(lanes), LIMITS, Pace(1, 0), Form(60))[0]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 16)
    monkeypatch.setattr(clock, "SAMPLE", 0.0)


def test_every_file_is_a_peer_with_a_name_of_its_own():
    assert len({peer.name for peer in PEERS.values()}) == len(PEERS) >= 5
    assert all(isinstance(peer, Entrant) and peer.is_peer for peer in PEERS.values())


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_a_peer_that_is_not_installed_says_how_to_get_it(peer, monkeypatch):
    monkeypatch.setattr(entrant, "find_spec", lambda name: None)
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    row = run(peer, "linear", "forward")
    assert row.status == "refused"
    assert row.reason.startswith("not installed: pip install ")


def rows(peer: Entrant, cases: Iterable[tuple[str, Mode]], dtype: str) -> list[Row]:
    """What a peer makes of cases; skips the test where it is not installed."""
    found = [run(peer, rule, mode, dtype) for rule, mode in cases]
    if found[0].reason.startswith("not installed"):
        pytest.skip(found[0].reason)
    return found


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_what_an_installed_peer_computes_is_right(peer):
    found = rows(peer, [(rule.name, mode) for rule in LINEAR_RULES for mode in MODES], "float32")
    assert [(row.case, row.reason) for row in found if row.status not in ("timed", "refused")] == []
    assert [row for row in found if row.status == "timed"]


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_bfloat16_is_right_or_refused(peer):
    found = rows(peer, [("linear", "train"), ("gated_delta", "train"), ("kda", "forward")], "bfloat16")
    assert [(row.case, row.reason) for row in found if row.status not in ("timed", "refused")] == []


def test_what_is_required_and_not_there_is_a_refusal(monkeypatch):
    entrant.require(True, "fine")
    with pytest.raises(NotCoveredError, match="not so"):
        entrant.require(False, "not so")
    entrant.require_installed("torch", "pip install torch")
    with pytest.raises(NotCoveredError, match="^not installed: pip install abacus$"):
        entrant.require_installed("rebracket_abacus", "pip install abacus")
