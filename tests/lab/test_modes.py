"""The claim about modes holds on a tiny grid, and is refuted by a mode that is another function, or no training."""

import pytest
import torch

from rebracket.lab import modes
from rebracket.lm.model import LanguageModel
from tests.lab.measuring import judged

whole = LanguageModel.read


def test_it_holds():
    verdict = judged("modes")
    assert verdict.passed, verdict.sentence


def forgetful(self, tokens, *, cache=None, cu_seqlens=None, mode: modes.Mode):
    """One mode sees the words at even places only."""
    seen = tokens.clone()
    seen[:, 1::2] = 0
    return whole(self, seen if mode == "recurrent" else tokens, cache=cache, cu_seqlens=cu_seqlens, mode=mode)


def noise(draw, rows, tokens):
    return torch.randint(modes.VOCABULARY, (rows, tokens), generator=draw)


@pytest.mark.parametrize(
    ("where", "name", "fault", "what"),
    [
        (LanguageModel, "read", forgetful, ("logits apart", "gradients apart", "last losses")),
        (modes, "counting", noise, ("last loss over that of a uniform guess",)),
    ],
    ids=["another function", "nothing to learn"],
)
def test_a_planted_fault_refutes_it(monkeypatch, where, name, fault, what):
    monkeypatch.setattr(where, name, fault)
    verdict = judged("modes")
    assert not verdict.passed
    assert all(f"REFUTED: {words}" in verdict.sentence for words in what), verdict.sentence
