"""Planted faults: operators that are wrong in one way each, and the laws that must catch them.

A law that no fault breaks proves nothing. Every fault here was a real one somewhere, or is one slip away.
"""
# ruff: noqa: ANN401, ARG001  (signatures that torch and `Operator` prescribe)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from rebracket.ops.heads import repeat_heads
from rebracket.ops.state import Output, State
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.testing.rows import SOUND, Operator, Row
from rebracket.testing.samples import Sample


@final
@dataclass(frozen=True)
class Fault:
    """An operator that is wrong, and the names of laws that it breaks."""

    operator: Operator
    breaks: tuple[str, ...]


Change = Callable[[Sample], Sample]
Spoil = Callable[[Sample, Output], Output]


def before(change: Change) -> Operator:
    """The operator on other arguments, whole and in steps."""
    return Operator(
        lambda s, row: SOUND.attend(change(s), row), lambda s, row, inplace: SOUND.step(change(s), row, inplace)
    )


def after(spoil: Spoil) -> Operator:
    """The operator with other results, over whole sequences."""
    return Operator(lambda s, row: spoil(s, SOUND.attend(s, row)), SOUND.step)


def in_steps_only(step: Callable[[Sample, Row, bool], Output]) -> Operator:
    return Operator(SOUND.attend, step)


def each(s: Sample, names: str, change: Callable[[Tensor], Tensor]) -> Sample:
    """A sample of which some tensors, named by words, went through `change`."""
    return s.map(lambda name, x: change(x) if name in names.split() else x)


def out(found: Output, x: Tensor) -> Output:
    return found._replace(out=x)


def forget_state(s: Sample) -> Sample:
    return replace(s, state=None)


def drop_decay(s: Sample) -> Sample:
    return replace(s, log_decay=None)


def late_decay(s: Sample) -> Sample:
    """Every token decays by the gate of the token before it."""
    if s.log_decay is None or s.log_decay.ndim < 3:
        return s
    return replace(s, log_decay=torch.cat((torch.zeros_like(s.log_decay[:, :1]), s.log_decay[:, :-1]), 1))


def drop_head_decay(s: Sample) -> Sample:
    return drop_decay(s) if s.log_decay is not None and s.log_decay.ndim == 1 else s


def truncate_gates(s: Sample) -> Sample:
    return each(s, "log_decay", lambda x: x.clamp(min=-5.0))


def round_arguments(s: Sample) -> Sample:
    """Everything in the dtype of the queries."""
    return s.to(s.q.dtype)


def round_gates(s: Sample) -> Sample:
    return each(s, "log_decay", lambda x: x.exp().bfloat16().to(x.dtype).log())


def shift_values(s: Sample) -> Sample:
    return each(s, "v", lambda x: x.roll(1, 1))


def tile_heads(s: Sample) -> Sample:
    """Head h of v uses head h % Hq."""
    return each(s, "q k", lambda x: x.repeat(1, 1, s.v.shape[2] // x.shape[2], 1))


def drop_beta(s: Sample) -> Sample:
    return replace(s, write=Delta(1.0)) if isinstance(s.write, Delta) else s


def round_number(s: Sample) -> Sample:
    """A strength given as a number is rounded to the dtype of the values."""
    rule = s.write
    if not isinstance(rule, Delta) or isinstance(rule.beta, Tensor):
        return s
    return replace(s, write=Delta(float(torch.tensor(rule.beta, dtype=s.v.dtype))))


def never_erase(s: Sample) -> Sample:
    return replace(s, write=Additive()) if isinstance(s.write, Delta) else s


def drop_bonus(s: Sample) -> Sample:
    return replace(s, bonus=None)


def other_scale(s: Sample) -> Sample:
    return replace(s, scale=1 / s.q.shape[-1]) if s.scale is None else s


def ignore_causal(s: Sample) -> Sample:
    return replace(s, causal=True)


def detach_keys(s: Sample) -> Sample:
    return each(s, "k", Tensor.detach)


def round_keys(s: Sample) -> Sample:
    return each(s, "k", lambda x: x.bfloat16().to(x.dtype))


def normalize_keys(s: Sample) -> Sample:
    return each(s, "k", lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True))


def trust_layout(s: Sample) -> Sample:
    """Reads memory as if it were contiguous, as a kernel does that was told no strides."""
    return each(s, "v", lambda x: x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()))


def write_to_queries(s: Sample) -> Sample:
    with torch.no_grad():
        s.q.mul_(1.0 + 2.0**-9)
    return s


def cast_under_autocast(s: Sample) -> Sample:
    return each(s, "q k v", lambda x: x.bfloat16().to(x.dtype)) if torch.is_autocast_enabled("cpu") else s


def detach_without_queries(s: Sample) -> Sample:
    """No backward pass is recorded unless the queries ask for one."""
    return s if s.q.requires_grad else each(s, "k v", Tensor.detach)


def divide_by_little(s: Sample) -> Sample:
    """A normalizer that divides by whatever is there."""
    little = s.normalize and bool((s.k != 0).any()) and bool((s.k.abs() < 2.0**-100).all())
    return each(s, "k", lambda x: x * 2.0**100) if little else s


def transpose_state(_: Sample, found: Output) -> Output:
    return found._replace(state=State(found.state.memory.mT, found.state.key_sum))


def round_key_sum(_: Sample, found: Output) -> Output:
    total = found.state.key_sum
    return found if total is None else found._replace(state=State(found.state.memory, total.bfloat16().to(total.dtype)))


def leak_future(s: Sample, found: Output) -> Output:
    return out(found, found.out + 1e-3 * s.v.mean(1, keepdim=True)) if s.T else found


def leak_rows(_: Sample, found: Output) -> Output:
    return out(found, found.out + 1e-3 * found.out.mean(0, keepdim=True))


def leak_sequences(s: Sample, found: Output) -> Output:
    """Packed sequences see a little of the token before them."""
    return found if s.cu_seqlens is None else out(found, found.out + 1e-3 * found.out.roll(1, 1))


def leave_tail(s: Sample, found: Output) -> Output:
    """Tokens of no sequence keep what was in memory."""
    if s.cu_seqlens is None:
        return found
    tail = torch.arange(s.T) >= s.cu_seqlens[-1]
    return out(found, torch.where(tail[None, :, None, None], torch.full_like(found.out, torch.nan), found.out))


def lose_last_chunk(s: Sample, found: Output) -> Output:
    """The chunk that is not full is not computed."""
    whole = torch.arange(s.T) < max(s.T // 16, 1) * 16
    return out(found, found.out * whole[None, :, None, None])


def count_itself_twice(s: Sample, found: Output) -> Output:
    if s.causal:
        return found
    own = repeat_heads((s.q * s.k[:, : s.T]).sum(-1, keepdim=True), s.v.shape[2])
    return out(found, found.out + 1e-2 * own * s.v)


def add_noise(_: Sample, found: Output) -> Output:
    return out(found, found.out * (1 + 1e-6 * torch.rand_like(found.out)))


def round_by_default(_: Sample, found: Output) -> Output:
    """A buffer in whatever dtype torch gives by default."""
    return out(found, found.out.to(torch.get_default_dtype()).to(found.out.dtype))


def divide_by_zero(s: Sample, found: Output) -> Output:
    """A normalizer without a guard: 0 / 0 where nothing was written."""
    return out(found, found.out / (found.out != 0).any(-1, keepdim=True)) if s.normalize else found


def differ_without_gradients(_: Sample, found: Output) -> Output:
    """A path of its own for inference, and not the same one."""
    return found if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() else out(found, found.out * 1.01)


def keep_a_state_per_token(s: Sample, found: Output) -> Output:
    k = repeat_heads(s.k[:, : s.T], s.v.shape[2])
    products = torch.einsum("bthk,bthv->bthkv", k, s.v[:, : s.T])
    return out(found, found.out + 0 * (products * products).sum())


def keep_weights_per_channel(s: Sample, row: Row) -> Output:
    """The decays [C,C,K] of all chunks at once."""
    found = SOUND.attend(s, row)
    pairs = s.k[..., None] * torch.ones(row.chunk or s.T)
    return out(found, found.out + 0 * (pairs * pairs).sum())


def keep_all_pairs(s: Sample, found: Output) -> Output:
    """Scores of every token with every other."""
    pairs = s.k.flatten(2) @ s.k.flatten(2).mT
    return out(found, found.out + 0 * (pairs * pairs).sum())


def freeze_gradients(_: Sample, found: Output) -> Output:
    return out(found, Frozen.apply(found.out))


@final
class Frozen(torch.autograd.Function):
    """x^2 whose gradient is right but has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The square of x."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The gradient of the square, cut off from x."""
        return grads[0] * 2 * ctx.saved_tensors[0].detach()


def by_differences(s: Sample, row: Row) -> Output:
    """Additive writing with decays as exp of differences of running sums, as many kernels have them."""
    if not isinstance(s.write, Additive) or s.log_decay is None or s.log_decay.ndim < 3 or s.bonus is not None:
        return SOUND.attend(s, row)
    log_decay = s.log_decay if s.log_decay.ndim == 4 else s.log_decay[..., None]
    g = log_decay.cumsum(1)
    later = torch.ones(s.T, s.T, dtype=torch.bool).tril()[None, :, :, None, None]
    weights = (g[:, :, None] - g[:, None]).exp() * later
    q, k = (repeat_heads(x, s.v.shape[2]) for x in (s.q, s.k))
    scores = torch.einsum("bthk,bshk,btshk->bths", q, k, weights.expand(*weights.shape[:-1], q.shape[-1]))
    within = q.shape[-1] ** -0.5 * torch.einsum("bths,bshv->bthv", scores, s.v)
    entry = SOUND.attend(replace(s, v=torch.zeros_like(s.v)), row)
    return Output(within + entry.out, SOUND.attend(s, row).state)


def step_without_decay(s: Sample, row: Row, inplace: bool) -> Output:
    return SOUND.step(drop_decay(s), row, inplace)


def step_elsewhere(s: Sample, row: Row, inplace: bool) -> Output:
    """An in-place step that is not."""
    return SOUND.step(s, row, False)


def step_in_dense_memory(s: Sample, row: Row, inplace: bool) -> Output:
    """A state that is taken to lie as a new one does."""
    assert s.state is not None
    dense = State(
        **{
            name: x.as_strided(x.shape, torch.empty_like(x, memory_format=torch.contiguous_format).stride())
            for name, x in s.state.tensors().items()
        }
    )
    return SOUND.step(replace(s, state=dense), row, inplace)


def step_in_bfloat16(s: Sample, row: Row, inplace: bool) -> Output:
    """A state that is rounded to bfloat16 between steps."""
    found = SOUND.step(s, row, inplace)
    state = found.state
    state.memory.copy_(state.memory.bfloat16())
    return found


FAULTS: dict[str, Fault] = {
    "the state is transposed": Fault(after(transpose_state), ("modes_agree", "any_shape")),
    "the state is forgotten": Fault(before(forget_state), ("modes_agree", "cutting_changes_nothing")),
    "the decay is dropped": Fault(before(drop_decay), ("modes_agree", "literal_agrees", "reset_is_two_runs")),
    "the decay is late by one": Fault(before(late_decay), ("modes_agree", "literal_agrees", "reset_is_two_runs")),
    "a decay per head is dropped": Fault(before(drop_head_decay), ("decays_nest",)),
    "gates are truncated": Fault(before(truncate_gates), ("modes_agree", "reset_is_two_runs")),
    "gates are rounded": Fault(before(round_gates), ("weak_gates_keep_their_effect",)),
    "gates are rounded to the dtype of q": Fault(before(round_arguments), ("gates_may_be_wider",)),
    "decays by differences": Fault(
        Operator(by_differences, SOUND.step), ("strong_gate_costs_nothing", "strong_gates_are_finite")
    ),
    "values are shifted by one": Fault(
        before(shift_values), ("modes_agree", "literal_agrees", "padding_changes_nothing")
    ),
    "heads are tiled": Fault(before(tile_heads), ("modes_agree", "literal_agrees")),
    "beta is dropped": Fault(before(drop_beta), ("modes_agree", "rules_nest", "strength_has_three_shapes")),
    "a number for beta is rounded": Fault(before(round_number), ("strength_has_three_shapes",)),
    "nothing is erased": Fault(
        before(never_erase), ("orthonormal_keys_recall_exactly", "last_write_is_read_exactly", "rules_nest")
    ),
    "the bonus is dropped": Fault(before(drop_bonus), ("modes_agree",)),
    "the default scale is another": Fault(before(other_scale), ("defaults_are_what_they_say",)),
    "causal is ignored": Fault(before(ignore_causal), ("not_causal_is_the_square",)),
    "a token counts itself twice": Fault(after(count_itself_twice), ("not_causal_is_the_square",)),
    "the future leaks": Fault(after(leak_future), ("future_stays_out", "cutting_changes_nothing")),
    "rows leak": Fault(after(leak_rows), ("rows_do_not_meet",)),
    "sequences leak": Fault(after(leak_sequences), ("packed_equals_separate",)),
    "the tail is left as it was": Fault(after(leave_tail), ("packed_equals_separate",)),
    "the last chunk is lost": Fault(after(lose_last_chunk), ("any_shape", "modes_agree")),
    "keys are rounded": Fault(before(round_keys), ("repeated_keys_stay_in_budget", "modes_agree")),
    "keys are normalized": Fault(before(normalize_keys), ("zero_and_long_keys_are_exact",)),
    "the sum of keys is rounded": Fault(after(round_key_sum), ("normalizer_stays_exact",)),
    "the normalizer divides by zero": Fault(after(divide_by_zero), ("empty_normalizer_gives_zero",)),
    "the normalizer divides by next to nothing": Fault(before(divide_by_little), ("small_features_divide_or_vanish",)),
    "a buffer has torch's default dtype": Fault(after(round_by_default), ("torch_defaults_change_nothing",)),
    "runs differ": Fault(after(add_noise), ("runs_repeat",)),
    "an input is written to": Fault(before(write_to_queries), ("inputs_stay_untouched",)),
    "strides are ignored": Fault(before(trust_layout), ("layouts_change_nothing",)),
    "keys have no gradient": Fault(before(detach_keys), ("gradients_are_derivatives", "modes_agree")),
    "gradients have no gradient": Fault(after(freeze_gradients), ("gradients_have_gradients",)),
    "gradients only with the queries'": Fault(before(detach_without_queries), ("any_gradient_alone",)),
    "inference takes another path": Fault(
        after(differ_without_gradients), ("inference_mode_changes_nothing", "checkpointing_changes_nothing")
    ),
    "autocast leaks in": Fault(before(cast_under_autocast), ("autocast_stays_out",)),
    "a state per token is kept": Fault(after(keep_a_state_per_token), ("memory_grows_with_the_tokens",)),
    "weights per channel are kept": Fault(
        Operator(keep_weights_per_channel, SOUND.step),
        ("memory_grows_with_the_tokens", "parallel_mode_holds_no_weight_per_channel"),
    ),
    "all pairs are kept": Fault(
        after(keep_all_pairs), ("memory_grows_with_the_tokens", "memory_both_ways_grows_with_the_tokens")
    ),
    "steps drop the decay": Fault(in_steps_only(step_without_decay), ("step_is_one_token",)),
    "steps are not in place": Fault(in_steps_only(step_elsewhere), ("step_in_place_is_step",)),
    "strides of a state are ignored": Fault(in_steps_only(step_in_dense_memory), ("a_state_is_its_numbers",)),
    "steps round the state": Fault(in_steps_only(step_in_bfloat16), ("steps_do_not_drift",)),
}
"""Every fault by what is wrong."""
