"""Every peer says why it is not there, and where it is there, what it computes is right."""

import sys
from collections.abc import Iterable

import pytest

from rebracket.bench import case, cases, peers
from rebracket.bench.benchmark import Estimates, Row, Run, compare
from rebracket.bench.case import DTYPES, Implementation, Mode
from rebracket.bench.clock import Budget
from rebracket.bench.limits import Limits
from tests.bench.planted import measure_little

PEERS = dict(zip(peers.PEERS.names(), peers.found(), strict=True))
OPTIONAL = {name: peer for name, peer in PEERS.items() if peer.is_optional}
LIMITS = Limits(threads=1, float32=1e9, bfloat16=2e9, copy=1e9, cache=4e9)
LIBRARIES = ("fast_transformers", "fla", "jax", "onnxruntime", "transformers")


def run(peer: Implementation, rule: str, mode: Mode, dtype: str = "float32") -> Row:
    shape = (2, 1 if mode == "decode" else 128, *((3, 16) if len(peer.operator.letters) == 4 else (16,)))
    case = peer.operator(rule, shape, mode, DTYPES[dtype])
    return compare([Run(peer, case)], [LIMITS], Budget(1, 0), Estimates(60))[0]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    measure_little(monkeypatch)


def test_every_file_is_a_peer_with_a_name_of_its_own():
    assert len({peer.name for peer in PEERS.values()}) == len(PEERS) >= 6
    assert set(PEERS) - set(OPTIONAL) == {"torch_conv1d"}
    assert all(isinstance(peer, Implementation) and peer.is_peer for peer in PEERS.values())


@pytest.mark.parametrize("peer", OPTIONAL.values(), ids=OPTIONAL)
def test_a_peer_that_is_not_installed_says_how_to_get_it(peer, monkeypatch):
    monkeypatch.setattr(case, "find_spec", lambda name: None)
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    row = run(peer, "linear", "forward")
    assert row.status == "refused"
    assert row.reason.startswith("not installed: pip install ")


def rows(peer: Implementation, cases: Iterable[tuple[str, Mode]], dtype: str) -> list[Row]:
    """What a peer makes of cases; skips the test where it is not installed."""
    found = [run(peer, rule, mode, dtype) for rule, mode in cases]
    if found[0].reason.startswith("not installed"):
        pytest.skip(found[0].reason)
    return found


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_what_an_installed_peer_computes_is_right(peer):
    found = rows(peer, [(rule, mode) for rule in peer.operator.titles for mode in peer.operator.modes], "float32")
    assert [(row.case, row.reason) for row in found if row.status not in ("timed", "refused")] == []
    assert [row for row in found if row.status == "timed"]


@pytest.mark.parametrize("peer", OPTIONAL.values(), ids=OPTIONAL)
def test_bfloat16_is_right_or_refused(peer):
    found = rows(peer, [("linear", "train"), ("gated_delta", "train"), ("kda", "forward")], "bfloat16")
    assert [(row.case, row.reason) for row in found if row.status not in ("timed", "refused")] == []


def test_a_peer_is_the_same_at_every_call():
    assert all(peer is other for peer, other in zip(PEERS.values(), peers.found(), strict=True))
    assert all(issubclass(peer.operator, tuple(cases.by_name().values())) for peer in PEERS.values())
