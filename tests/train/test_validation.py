"""The loss of each target, and bits per byte: every byte once, every nat once, however the text is cut."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rebracket.data import ordered
from rebracket.train.validation import BitsPerByte, Precision, nats, validate
from tests.train.tiny import CPU, PLAIN, Pairs, pairs, stream

TEXTS = ("größe", "a longer text of several words", "x", "€" * 40)
NBYTES = sum(len(text.encode()) for text in TEXTS)
EXACT, ROUNDED = Precision("float32"), Precision("bfloat16")


def row(tmp_path):
    (batch,) = ordered(stream(tmp_path, "größe", "a longer text of several words"), 1000, 1000)
    return batch


def test_the_loss_is_the_logarithm_of_what_the_model_gives_each_target(tmp_path):
    batch, model = row(tmp_path), pairs()
    probabilities = model(batch.tokens, cu_seqlens=batch.cu_seqlens).logits[0].double().softmax(-1)
    expected = -probabilities[torch.arange(len(probabilities)), batch.targets[0]].log()
    assert torch.allclose(nats(model, batch, EXACT).double(), expected, rtol=1e-6)
    assert model.bounds[-1] == batch.cu_seqlens.tolist()


def test_the_mean_loss_is_what_is_trained_on(tmp_path):
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


def measured(model, tmp_path, context=8, rows=2, limit=0):
    rows = ordered(stream(tmp_path, *TEXTS), context, context * rows, limit)
    return validate(model, rows, PLAIN.byte_lengths(), CPU, EXACT)


@pytest.mark.parametrize("context", [1, 3, 8, 1000])
@pytest.mark.parametrize("rows", [1, 4])
def test_bytes_are_counted_exactly_whatever_the_cutting(tmp_path, context, rows):
    assert measured(pairs(), tmp_path, context, rows).nbytes == NBYTES


def test_a_uniform_model_pays_for_each_byte_and_each_end(tmp_path):
    model = Pairs()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    found = measured(model, tmp_path)
    assert found.nats == pytest.approx((NBYTES + len(TEXTS)) * math.log(257), rel=1e-6)
    assert found.value == pytest.approx((NBYTES + len(TEXTS)) * math.log2(257) / NBYTES, rel=1e-6)


def test_nats_are_those_of_each_document_by_itself(tmp_path):
    model = pairs()
    together = measured(model, tmp_path, rows=7).nats
    apart = 0.0
    for text in TEXTS:
        ids = torch.tensor([PLAIN.document, *PLAIN.encode(text), PLAIN.document])
        logits = model(ids[None, :-1], cu_seqlens=torch.tensor([0, len(ids) - 1])).logits
        apart -= logits[0].double().log_softmax(-1)[range(len(ids) - 1), ids[1:]].sum().item()
    assert together == pytest.approx(apart, rel=1e-6)


def test_a_limit_reads_some_and_counts_only_what_it_read(tmp_path):
    found = measured(pairs(), tmp_path, limit=32)
    asked = [batch.targets[0] for batch in ordered(stream(tmp_path, *TEXTS), 8, 16, limit=32)]
    assert found.nbytes == sum(len(PLAIN.decode_bytes(targets.tolist())) for targets in asked)
    assert 0 < found.nbytes < NBYTES


def test_the_model_is_given_the_bounds_and_left_as_it_was(tmp_path):
    model = pairs()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measured(model, tmp_path)
    assert model.bounds == [batch.cu_seqlens.tolist() for batch in ordered(stream(tmp_path, *TEXTS), 8, 16)]
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_bytes_are_no_code():
    assert BitsPerByte(1.0, 0).value == math.inf
