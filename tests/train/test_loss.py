"""The loss: -ln p of each target, in float32 whatever the model computes in, and with a gradient."""

import torch
import torch.nn.functional as F

from rebracket.data import ordered
from rebracket.train.loss import Precision, nats
from tests.train.tiny import pairs, stream

EXACT, ROUNDED = Precision("float32"), Precision("bfloat16")


def row(tmp_path):
    (batch,) = ordered(stream(tmp_path, "größe", "a longer text of several words"), 1000, 1000)
    return batch


def test_it_is_the_logarithm_of_what_the_model_gives_each_target(tmp_path):
    batch, model = row(tmp_path), pairs()
    probabilities = model(batch.tokens, cu_seqlens=batch.cu_seqlens).logits[0].double().softmax(-1)
    expected = -probabilities[torch.arange(len(probabilities)), batch.targets[0]].log()
    assert torch.allclose(nats(model, batch, EXACT).double(), expected, rtol=1e-6)
    assert model.bounds[-1] == batch.cu_seqlens.tolist()


def test_its_mean_is_what_is_trained_on(tmp_path):
    batch, model = row(tmp_path), pairs()
    nats(model, batch, EXACT).mean().backward()
    logits = model(batch.tokens, cu_seqlens=batch.cu_seqlens).logits
    (expected,) = torch.autograd.grad(F.cross_entropy(logits[0], batch.targets[0]), [model.head.weight])
    assert model.head.weight.grad is not None
    assert torch.allclose(model.head.weight.grad, expected, atol=1e-7)


def test_bfloat16_computes_so_and_takes_the_logarithm_in_float32(tmp_path):
    batch = row(tmp_path)
    exact, rounded = nats(pairs(), batch, EXACT), nats(pairs(), batch, ROUNDED)
    assert exact.dtype == rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, rtol=2e-2)
