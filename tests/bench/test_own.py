"""Our entrants are the installed backends and softmax, and refuse what is not theirs."""

import pytest
import torch

from rebracket.bench.cases import RULES, SOFTMAX, Case, Shape, inputs
from rebracket.bench.entrant import NotCoveredError
from rebracket.bench.own import Ours, Softmax, backends
from rebracket.bench.truth import Truth
from rebracket.ops.backend import INSTALLED

LONG, TOKEN = Shape(2, 70, 3, 4), Shape(2, 1, 3, 4)
COMPUTED = [*((name, mode) for name in [*INSTALLED, "auto"] for mode in ("forward", "train", "decode"))]


def test_every_backend_takes_part():
    assert [entrant.name for entrant in backends()] == list(INSTALLED)
    assert not any(entrant.is_peer for entrant in (*backends(), Softmax()))


@pytest.mark.parametrize(("backend", "mode"), COMPUTED)
@pytest.mark.parametrize("rule", ["linear", "kda"])
def test_a_backend_is_right(backend, mode, rule):
    case = Case(RULES[rule], TOKEN if mode == "decode" else LONG, mode)
    x = inputs(case)
    try:
        attempt = Ours(backend).prepare(case, x, 1)
    except NotCoveredError as refusal:
        pytest.skip(str(refusal))
    made = attempt.run()
    assert max(Truth.of(case).errors(attempt.results(made)).values()) < 1e-5
    if mode == "forward":
        assert isinstance(made, torch.Tensor)
        assert not made.requires_grad


def test_decode_is_in_place():
    case = Case(RULES["kda"], TOKEN, "decode")
    x = inputs(case)
    assert x.state is not None
    before = x.state.memory.clone()
    attempt = Ours("reference").prepare(case, x, 1)
    found = attempt.results(attempt.run())
    assert found["state.memory"] is x.state.memory
    assert not torch.equal(before, x.state.memory)


def test_what_is_not_theirs_is_refused():
    softmax, kda = Case(SOFTMAX, LONG, "forward"), Case(RULES["kda"], LONG, "forward")
    with pytest.raises(NotCoveredError, match="no recurrence"):
        Ours("reference").prepare(softmax, inputs(softmax), 1)
    with pytest.raises(NotCoveredError, match="it is softmax attention"):
        Softmax().prepare(kda, inputs(kda), 1)
    with pytest.raises(NotCoveredError, match="must be auto or one of"):
        Ours("abacus").prepare(kda, inputs(kda), 1)
    token = Case(SOFTMAX, TOKEN, "decode")
    with pytest.raises(NotCoveredError, match="grows with every token"):
        Softmax().prepare(token, inputs(token), 1)
