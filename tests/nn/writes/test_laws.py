"""What every write layer owes."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rebracket import State, linear_attention, step
from rebracket.nn import Write, Written, decays, writes
from tests.nn.tiny import SIZE, B, T, stir, tokens

H, HQ, K, V = SIZE.heads, SIZE.key_heads, SIZE.key_dim, SIZE.value_dim
DECAYS = ("none", "mamba2", "kda")

pytestmark = pytest.mark.parametrize("name", writes.names())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(name: str, decay: str) -> tuple[Write, decays.Decay | None]:
    """A write and the decay beside it, their weights far from where they start."""
    torch.manual_seed(0)
    gate = None if decay == "none" else decays.make(decay, SIZE).double()
    write = writes.make(name, SIZE, gate).double()
    for part in (write, gate):
        if part is not None:
            stir(part)
    return write, gate


def every_decay(name: str) -> Iterator[tuple[Write, decays.Decay | None]]:
    """The write beside each decay that it can work with."""
    for decay in DECAYS:
        needs = {"complement": "kda", "step": "mamba2"}.get(name, decay)
        if needs == decay:
            yield made(name, decay)


def keys_and_values(write: Write) -> tuple[Tensor, Tensor]:
    """k [B,T,n,Hq,K] and v [B,T,n,H,V], a token's entries on an axis of their own."""
    k = random(B, T, write.key_entries, HQ, K, seed=1)
    return torch.nn.functional.normalize(k, dim=-1), random(B, T, write.entries, H, V, seed=2)


def in_a_row(write: Write, x: Tensor) -> Tensor:
    return x.flatten(1, 2) if write.key_entries or x.shape[2] else x.flatten(2, 3)


def attended(written: Written, log_decay: Tensor | None) -> Tensor:
    q = random(B, T, written.k.shape[2], K, seed=3)
    out, _ = linear_attention(
        q, written.k, written.v, log_decay=log_decay, write=written.rule, bonus=written.bonus, scale=1.0
    )
    return out


def test_the_operator_takes_what_is_written(name: str):
    for write, decay in every_decay(name):
        x, (k, v) = tokens(), keys_and_values(write)
        log_decay = None if decay is None else decay(x)
        written = write(x, in_a_row(write, k), in_a_row(write, v), log_decay)
        assert written.rule.entries == write.entries
        assert attended(written, log_decay).isfinite().all()


def test_one_token_is_a_stretch_of_one(name: str):
    for write, decay in every_decay(name):
        x, (k, v) = tokens(), keys_and_values(write)
        log_decay = None if decay is None else decay(x)
        written = write(x, in_a_row(write, k), in_a_row(write, v), log_decay)
        q = random(B, T, written.k.shape[2], K, seed=3)
        state = State.zeros(B, H, K, V, dtype=torch.float64)
        outs = []
        for t in range(T):
            one_k, one_v = (y[:, t] if write.entries > 1 else y[:, t].flatten(1, 2) for y in (k, v))
            one_decay = None if decay is None else decay(x[:, t])
            one = write(x[:, t], one_k, one_v, one_decay)
            out, state = step(
                q[:, t],
                one.k,
                one.v,
                state=state,
                log_decay=one_decay,
                write=one.rule,
                bonus=one.bonus,
                scale=1.0,
            )
            outs.append(out)
        torch.testing.assert_close(torch.stack(outs, 1), attended(written, log_decay), rtol=1e-9, atol=1e-9)


def test_autocast_rounds_no_gate(name: str):
    for write, decay in every_decay(name):
        write = write.float()
        x, (k, v) = tokens(dtype=torch.float32), (y.float() for y in keys_and_values(write))
        log_decay = None if decay is None else decay.float()(x)
        operands = x, in_a_row(write, k), in_a_row(write, v), log_decay
        wanted = write(*operands)
        with torch.autocast("cpu", torch.bfloat16):
            found = write(*operands)
        for key, tensor in wanted.rule.tensors().items():
            assert torch.equal(found.rule.tensors()[key], tensor), key
        assert torch.equal(found.k, wanted.k)
        assert torch.equal(found.v, wanted.v)


def test_it_can_be_drawn_again(name: str):
    for write, _ in every_decay(name):
        torch.manual_seed(3)
        write.reset_parameters()
        first = {key: p.clone() for key, p in write.named_parameters()}
        stir(write)
        torch.manual_seed(3)
        write.reset_parameters()
        assert all(torch.equal(p, first[key]) for key, p in write.named_parameters())


def test_an_optimizer_shrinks_matrices_only(name: str):
    for write, _ in every_decay(name):
        for key, p in write.named_parameters():
            assert (p.ndim >= 2) == key.endswith("weight"), key
