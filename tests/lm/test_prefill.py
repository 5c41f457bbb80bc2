"""Prompts read together, or in pieces, leave what they leave when each is read alone and whole."""

import pytest
import torch
from torch import Tensor

from rebracket.lm import LanguageModel
from rebracket.lm.prefill import calls, prefill
from tests.lm.writers import BYTES, writer
from tests.nn.tiny import assert_same

TEXTS = [[5] * 3, [], list(range(200)), [7], list(range(100, 37, -1))]


@pytest.mark.parametrize("name", ["gated", "hybrid", "counted"])
@pytest.mark.parametrize("piece", [1000, 64, 11])
def test_rows_are_as_if_read_alone(name: str, piece: int):
    model = writer(name)
    begun = [[BYTES.document, row] for row in range(len(TEXTS))]
    before = prefill(model, begun, model.empty_cache(len(TEXTS)))
    together = prefill(model, TEXTS, before, piece=piece)
    for row, text in enumerate(TEXTS):
        alone = model(torch.tensor([begun[row] + text])).cache
        (logits, _), (wanted, _) = (model.step(torch.tensor([1]), cache) for cache in (together.select([row]), alone))
        torch.testing.assert_close(logits, wanted, rtol=1e-9, atol=1e-9)
        for mine, theirs in zip(together.select([row]).layers, alone.layers, strict=True):
            if "state.keys" not in theirs.tensors():
                assert_same(mine.tensors(), theirs.tensors())


def test_no_call_is_longer_than_a_piece(monkeypatch: pytest.MonkeyPatch):
    model, seen, read = writer("gated"), [], LanguageModel.read

    def noted(self: LanguageModel, tokens: Tensor, **rest: object) -> object:
        seen.append(tokens.shape[1])
        return read(self, tokens, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModel, "read", noted)
    said: list[tuple[int, int]] = []
    prefill(model, TEXTS, model.empty_cache(len(TEXTS)), piece=50, report=lambda *so: said.append(so))
    total = sum(map(len, TEXTS))
    assert sum(seen) == total
    assert max(seen) <= 50
    assert said == [(sum(seen[: n + 1]), total) for n in range(len(seen))]


def test_a_text_is_cut_where_it_would_be_alone():
    alone = {(begin, end) for group in calls([0, 0, 30], 8) for _, begin, end in group}
    beside = {(begin, end) for group in calls([13, 1, 30, 9], 8) for row, begin, end in group if row == 2}
    assert alone == beside


def test_short_texts_share_a_call():
    assert [[row for row, _, _ in group] for group in calls([3, 0, 4, 1, 2], 8)] == [[0, 2, 3], [4]]


def test_nothing_to_read_changes_nothing():
    model = writer("gated")
    cache = model.empty_cache(2)
    assert prefill(model, [[], []], cache) is cache
