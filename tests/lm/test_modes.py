"""Every way of computing is measured by itself and gives the model's logits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rebracket.lm.modes import WAYS, Difference, Way, difference, logits_by, measure
from tests.lm.writers import LAYERS, saved, writer

TOKENS = torch.randint(257, (300,), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_logits_of_the_model(name: str, way: Way):
    model = writer(name)
    parts = list(logits_by(model, TOKENS, way))
    assert max(len(part) for part in parts) <= 256
    torch.testing.assert_close(torch.cat(parts), model(TOKENS[None]).logits[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", ["recurrent", "step", "program"])
@torch.no_grad()
def test_what_is_measured_is_the_text(way: Way, tmp_path: Path):
    folder = saved(tmp_path / "model", "hybrid")
    found = measure(folder, TOKENS.tolist(), way, tmp_path / "logits")
    logits = writer("hybrid", torch.float32)(TOKENS[None]).logits[0]
    written = np.fromfile(tmp_path / "logits", np.float32).reshape(logits.shape)
    torch.testing.assert_close(torch.from_numpy(written), logits, rtol=1e-3, atol=1e-3)
    nats = torch.nn.functional.cross_entropy(logits[:-1], TOKENS[1:], reduction="sum").item()
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.seconds > 0
    assert 0 <= found.nbytes < 1 << 30


def test_distances_are_the_largest_and_in_units_of_the_spread(tmp_path: Path):
    one, other = torch.randn(2, 3 << 20, generator=torch.Generator().manual_seed(1))
    for name, numbers in (("one", one), ("other", other)):
        numbers.numpy().tofile(tmp_path / name)
    found = difference(tmp_path / "one", tmp_path / "other")
    assert found.largest == (one - other).abs().max().item()
    assert found.spread == pytest.approx(1, rel=1e-2)
    assert found.relative == found.largest / found.spread
    assert difference(tmp_path / "one", tmp_path / "one").largest == 0
    assert Difference(largest=2.0, spread=0.0).relative == 2.0


def test_a_number_that_is_none_is_far_from_every_other(tmp_path: Path):
    np.full(9, 1, np.float32).tofile(tmp_path / "one")
    np.array([1, np.nan, 1, 1, 1, 1, 1, 1, 1], np.float32).tofile(tmp_path / "other")
    assert not difference(tmp_path / "one", tmp_path / "other").relative <= 1e9


def test_files_of_different_lengths_are_refused(tmp_path: Path):
    np.zeros(3, np.float32).tofile(tmp_path / "one")
    np.zeros(4, np.float32).tofile(tmp_path / "other")
    with pytest.raises(ValueError, match="must hold as many logits"):
        difference(tmp_path / "one", tmp_path / "other")
