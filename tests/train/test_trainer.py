"""Steps: the same from any checkpoint, the same however the batch is divided, and never beyond what is finite."""

import math
from dataclasses import replace

import pytest
import torch

from rebracket.train import checkpoint
from rebracket.train.trainer import Trainer
from tests.train.tiny import config, ignore, same, trainer


def run(of: Trainer, steps):
    return [of.advance() for _ in range(steps)]


def tensors(of: Trainer):
    return {name: tensor.clone() for name, tensor in of.checkpoint("").tensors.items()}


def test_the_loss_falls(tmp_path):
    updates = run(trainer(tmp_path, config(steps=60)), 60)
    assert updates[-1].loss < 0.6 * updates[0].loss


def test_resumed_from_a_file_it_continues_bitwise(tmp_path):
    whole = trainer(tmp_path, config())
    updates = run(whole, 12)
    first, second = trainer(tmp_path, config()), trainer(tmp_path, config(), seed=5)
    begun = run(first, 5)
    checkpoint.write(tmp_path / "saved", first.checkpoint("corpus"), keep=1)
    found = checkpoint.newest(tmp_path / "saved", ignore)
    assert found is not None
    torch.manual_seed(999)
    second.restore(found)
    assert begun + run(second, 7) == updates
    assert same(tensors(second), tensors(whole))


def test_random_numbers_continue_too(tmp_path):
    of = trainer(tmp_path, config())
    saved = of.checkpoint("")
    drawn = torch.rand(3)
    torch.rand(17)
    of.restore(saved)
    assert torch.equal(torch.rand(3), drawn)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    of = trainer(tmp_path, config())
    saved = of.checkpoint("")
    other = replace(saved, tensors={name: tensor[:1] for name, tensor in saved.tensors.items()})
    with pytest.raises(ValueError, match="weights of another model"):
        of.restore(other)


def test_rows_accumulated_are_one_longer_row(tmp_path):
    longer = trainer(tmp_path, config(batch_tokens=192))
    divided = trainer(tmp_path, config(batch_tokens=64, accumulate=3))
    for one, other in zip(run(longer, 6), run(divided, 6), strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.bits_per_byte == pytest.approx(other.bits_per_byte, rel=1e-5)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)


def test_the_gradient_is_clipped_and_its_norm_told_as_it_was(tmp_path, monkeypatch):
    of = trainer(tmp_path, config())
    seen = []
    monkeypatch.setattr(of, "_update_weights", lambda _: seen.extend(p.grad for p in of.model.parameters()))
    monkeypatch.setattr(of, "_config", replace(of._config, optimizer=replace(of._config.optimizer, clip=0.01)))
    update = of.advance()
    clipped = math.sqrt(sum(float(gradient.square().sum()) for gradient in seen))
    assert update.gradient_norm > 0.1
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_the_rate_is_the_schedules(tmp_path):
    updates = run(trainer(tmp_path, config(steps=12)), 12)
    assert [update.learning_rate for update in updates][:3] == [0.025, 0.05, pytest.approx(0.0489, rel=1e-2)]
    assert updates[-1].learning_rate == pytest.approx(0.005)
    assert [update.step for update in updates] == list(range(1, 13))


def test_bits_per_byte_are_the_loss_in_another_unit(tmp_path):
    update = trainer(tmp_path, config()).advance()
    ends = 64 * math.log2(math.e) * update.loss
    assert ends / 64 <= update.bits_per_byte <= ends / 60


def test_a_loss_that_is_not_finite_stops_before_the_weights_move(tmp_path):
    of = trainer(tmp_path, config())
    run(of, 2)
    before = tensors(of)
    with torch.no_grad():
        next(of.model.parameters())[:] = math.nan
    with pytest.raises(FloatingPointError, match=r"step 3: loss nan.*lower optimizer.learning_rate"):
        of.advance()
    assert of.step == 2
    after = tensors(of)
    assert same(
        {name: tensor for name, tensor in before.items() if name.startswith("optimizer.")},
        {name: tensor for name, tensor in after.items() if name.startswith("optimizer.")},
    )
