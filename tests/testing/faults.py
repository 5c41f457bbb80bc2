"""Planted faults: runs that are wrong in one way each, and the laws that must catch them.

A law that no fault breaks proves nothing. Every fault here was a real one somewhere, or is one slip away.
"""

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
from rebracket.testing import law
from rebracket.testing.law import SOUND, Result, Row, Run, each
from rebracket.testing.operators.convolution import ConvolutionCase
from rebracket.testing.operators.convolution import ConvolutionSample as Filtered
from rebracket.testing.operators.recurrence import STEPS, Case, Sample


@final
@dataclass(frozen=True)
class Fault:
    """A run that is wrong, the names of laws that it breaks, and the operators that it is planted in."""

    run: Run
    breaks: tuple[str, ...]
    kinds: tuple[type[law.Case], ...] = (Case,)


def before(change: Callable[[Any], Any]) -> Run:
    """The operator on other arguments, whole and in steps."""
    return lambda s, row: SOUND(change(s), row)


def after(spoil: Callable[[Any, Any], Result]) -> Run:
    """The operator with other results, over whole sequences."""
    return lambda s, row: SOUND(s, row) if row.mode.startswith(STEPS) else spoil(s, SOUND(s, row))


def in_steps_only(wrong: Run) -> Run:
    return lambda s, row: wrong(s, row) if row.mode.startswith(STEPS) else SOUND(s, row)


def write(s: Any, x: Tensor) -> Any:
    x.data.mul_(1.0 + 2.0**-9)  # unseen by autograd, as a kernel would
    return s


def cast_under_autocast(s: law.Sample) -> law.Sample:
    return s.map(lambda _, x: x.bfloat16().to(x.dtype)) if torch.is_autocast_enabled("cpu") else s


def detach_without_first(s: law.Sample) -> law.Sample:
    """No backward pass is recorded unless the first input asks for one."""
    return s if next(iter(s.tensors().values())).requires_grad else s.map(lambda _, x: x.detach())


def leak_future(_: law.Sample, found: Result) -> Result:
    return (found[0] + 1e-3 * found[0].mean(1, keepdim=True) if found[0].numel() else found[0]), found[1]


def leak_rows(_: law.Sample, found: Result) -> Result:
    return found[0] + 1e-3 * found[0].mean(0, keepdim=True), found[1]


def add_noise(_: law.Sample, found: Result) -> Result:
    return found[0] * (1 + 1e-6 * torch.rand_like(found[0])), found[1]


def round_by_default(_: law.Sample, found: Result) -> Result:
    """A buffer in whatever dtype torch gives by default."""
    return found[0].to(torch.get_default_dtype()).to(found[0].dtype), found[1]


def differ_without_gradients(_: law.Sample, found: Result) -> Result:
    """A path of its own for inference, and not the same one."""
    return found if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() else (1.01 * found[0], found[1])


def scale_normalized(s: law.Sample, found: Result) -> Result:
    return (found[0] if s.scale is None else s.scale * found[0]), found[1]  # type: ignore[attr-defined]


def freeze_gradients(_: law.Sample, found: Result) -> Result:
    return Frozen.apply(found[0]), found[1]


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


def named(s: Sample, names: str, change: Callable[[Tensor], Tensor]) -> Sample:
    """A sample of which some tensors, named by words, went through `change`."""
    return s.map(lambda name, x: change(x) if name in names.split() else x)


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
    return named(s, "log_decay", lambda x: x.clamp(min=-5.0))


def round_arguments(s: Sample) -> Sample:
    """Everything in the dtype of the queries."""
    return s.to(s.q.dtype)


def round_gates(s: Sample) -> Sample:
    return named(s, "log_decay", lambda x: x.exp().bfloat16().to(x.dtype).log())


def shift_values(s: Sample) -> Sample:
    return named(s, "v", lambda x: x.roll(1, 1))


def tile_heads(s: Sample) -> Sample:
    """Head h of v uses head h % Hq."""
    return named(s, "q k", lambda x: x.repeat(1, 1, s.v.shape[2] // x.shape[2], 1))


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
    return named(s, "k", Tensor.detach)


def round_keys(s: Sample) -> Sample:
    return named(s, "k", lambda x: x.bfloat16().to(x.dtype))


def normalize_keys(s: Sample) -> Sample:
    return named(s, "k", lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True))


def trust_layout(s: Sample) -> Sample:
    """Reads memory as if it were contiguous, as a kernel does that was told no strides."""
    return named(s, "v", lambda x: x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()))


def divide_by_little(s: Sample) -> Sample:
    """A normalizer that divides by whatever is there."""
    little = s.normalize and bool((s.k != 0).any()) and bool((s.k.abs() < 2.0**-100).all())
    return named(s, "k", lambda x: x * 2.0**100) if little else s


def transpose_state(_: Sample, found: Output) -> Output:
    return found._replace(state=State(found.state.memory.mT, found.state.key_sum))


def round_key_sum(_: Sample, found: Output) -> Output:
    total = found.state.key_sum
    return found if total is None else found._replace(state=State(found.state.memory, total.bfloat16().to(total.dtype)))


def leak_sequences(s: Sample, found: Output) -> Output:
    """Packed sequences see a little of the token before them."""
    return found if s.cu_seqlens is None else found._replace(out=found.out + 1e-3 * found.out.roll(1, 1))


def leave_padding(s: Sample, found: Output) -> Output:
    """Tokens of no sequence keep what was in memory."""
    if s.cu_seqlens is None:
        return found
    padding = torch.arange(s.T) >= s.cu_seqlens[-1]
    return found._replace(
        out=torch.where(padding[None, :, None, None], torch.full_like(found.out, torch.nan), found.out)
    )


def lose_last_chunk(s: Sample, found: Output) -> Output:
    """The chunk that is not full is not computed."""
    whole = torch.arange(s.T) < max(s.T // 16, 1) * 16
    return found._replace(out=found.out * whole[None, :, None, None])


def count_itself_twice(s: Sample, found: Output) -> Output:
    if s.causal:
        return found
    own = repeat_heads((s.q * s.k[:, : s.T]).sum(-1, keepdim=True), s.v.shape[2])
    return found._replace(out=found.out + 1e-2 * own * s.v)


def divide_by_zero(s: Sample, found: Output) -> Output:
    """A normalizer without a guard: 0 / 0 where nothing was written."""
    return found._replace(out=found.out / (found.out != 0).any(-1, keepdim=True)) if s.normalize else found


def keep_a_state_per_token(s: Sample, found: Output) -> Output:
    k = repeat_heads(s.k[:, : s.T], s.v.shape[2])
    products = torch.einsum("bthk,bthv->bthkv", k, s.v[:, : s.T])
    return found._replace(out=found.out + 0 * (products * products).sum())


def keep_weights_per_channel(s: Sample, row: Row) -> Output:
    """The decays [C,C,K] of all chunks at once."""
    found = s.run(row)
    pairs = s.k[..., None] * torch.ones(row.chunk or s.T)
    return found._replace(out=found.out + 0 * (pairs * pairs).sum())


def keep_all_pairs(s: Sample, found: Output) -> Output:
    """Scores of every token with every other."""
    pairs = s.k.flatten(2) @ s.k.flatten(2).mT
    return found._replace(out=found.out + 0 * (pairs * pairs).sum())


def by_differences(s: Sample, row: Row) -> Output:
    """Additive writing with decays as exp of differences of running sums, as many kernels have them."""
    if not isinstance(s.write, Additive) or s.log_decay is None or s.log_decay.ndim < 3 or s.bonus is not None:
        return s.run(row)
    log_decay = s.log_decay if s.log_decay.ndim == 4 else s.log_decay[..., None]
    g = log_decay.cumsum(1)
    later = torch.ones(s.T, s.T, dtype=torch.bool).tril()[None, :, :, None, None]
    weights = (g[:, :, None] - g[:, None]).exp() * later
    q, k = (repeat_heads(x, s.v.shape[2]) for x in (s.q, s.k))
    scores = torch.einsum("bthk,bshk,btshk->bths", q, k, weights.expand(*weights.shape[:-1], q.shape[-1]))
    within = q.shape[-1] ** -0.5 * torch.einsum("bths,bshv->bthv", scores, s.v)
    entry = replace(s, v=torch.zeros_like(s.v)).run(row)
    return Output(within + entry.out, s.run(row).state)


def step_without_decay(s: Sample, row: Row) -> Output:
    return drop_decay(s).run(row)


def step_elsewhere(s: Sample, row: Row) -> Output:
    """An in-place step that is not."""
    return s.run(replace(row, mode=row.mode.removesuffix("_inplace")))


def step_in_dense_memory(s: Sample, row: Row) -> Output:
    """A state that is taken to have the strides of a new one."""
    dense = each(
        s.state, lambda x: x.as_strided(x.shape, torch.empty_like(x, memory_format=torch.contiguous_format).stride())
    )
    return s.after(dense).run(row)


def step_in_bfloat16(s: Sample, row: Row) -> Output:
    """A state that is rounded to bfloat16 between steps."""
    found = s.run(row)
    found.state.memory.copy_(found.state.memory.bfloat16())
    return found


def keep_first_write(s: Sample, row: Row) -> Output:
    """A prepared step that keeps the write rule of the step it was prepared with."""
    if not row.mode.startswith("stepper") or not s.T:
        return s.run(row)
    n = s.write.entries
    return replace(
        s, write=s.write.map(lambda x: x[:, :n].repeat(1, s.T, *[1] * (x.ndim - 2)) if x.ndim > 2 else x)
    ).run(row)


def merged(s: Filtered, row: Row) -> Result:
    """Outputs that see the sequence packed before theirs."""
    whole = (
        s
        if s.cu_seqlens is None
        else replace(s, cu_seqlens=s.cu_seqlens[[0, -1]], tail=s.tail[:1] if s.tail is not None else None)
    )
    return whole.run(row)[0], s.run(row)[1]


def dense(s: Filtered) -> Filtered:
    """x read as if nothing lay between its tokens."""
    strides = torch.empty(s.x.shape, device="meta").stride()
    return replace(s, x=torch.as_strided(s.x, s.x.shape, strides, s.x.storage_offset()))


def keep_inputs(s: Filtered, found: Result) -> Result:
    """A tail that is part of a larger tensor."""
    return found[0], torch.cat((s.x.new_zeros(1), found[1].flatten()))[1:].view_as(found[1])


FILTERED = (ConvolutionCase,)
EVERY = (Case, ConvolutionCase)
FAULTS: dict[str, Fault] = {
    "the future leaks": Fault(after(leak_future), ("future_stays_out", "cutting_changes_nothing"), EVERY),
    "rows leak": Fault(after(leak_rows), ("rows_do_not_meet",), EVERY),
    "a buffer has torch's default dtype": Fault(after(round_by_default), ("torch_defaults_change_nothing",), EVERY),
    "runs differ": Fault(after(add_noise), ("runs_repeat",), EVERY),
    "an input is written to": Fault(
        before(lambda s: write(s, next(iter(s.tensors().values())))), ("inputs_stay_untouched",), EVERY
    ),
    "gradients have no gradient": Fault(after(freeze_gradients), ("gradients_have_gradients",), EVERY),
    "gradients only with the first input's": Fault(before(detach_without_first), ("any_gradient_alone",), EVERY),
    "inference takes another path": Fault(
        after(differ_without_gradients), ("inference_mode_changes_nothing", "checkpointing_changes_nothing"), EVERY
    ),
    "what inference mode made is taken twice": Fault(
        before(lambda s: s.map(lambda _, x: 2 * x if x.is_inference() and torch.is_grad_enabled() else x)),
        ("learning_goes_on_from_inference_mode",),
        EVERY,
    ),
    "autocast leaks in": Fault(before(cast_under_autocast), ("autocast_stays_out",), EVERY),
    "autocast leaks in both ways": Fault(before(cast_under_autocast), ("autocast_stays_out_both_ways",)),
    "the state is transposed": Fault(after(transpose_state), ("it_is_the_token_loop", "any_shape")),
    "the state is forgotten": Fault(before(forget_state), ("it_is_the_token_loop", "cutting_changes_nothing")),
    "the decay is dropped": Fault(before(drop_decay), ("it_is_the_token_loop", "literal_agrees", "reset_is_two_runs")),
    "the decay is late by one": Fault(
        before(late_decay), ("it_is_the_token_loop", "literal_agrees", "reset_is_two_runs")
    ),
    "a decay per head is dropped": Fault(before(drop_head_decay), ("decays_nest",)),
    "gates are truncated": Fault(before(truncate_gates), ("it_is_the_token_loop", "reset_is_two_runs")),
    "gates are rounded": Fault(before(round_gates), ("weak_gates_keep_their_effect",)),
    "gates are rounded to the dtype of q": Fault(before(round_arguments), ("gates_may_be_wider",)),
    "decays by differences": Fault(by_differences, ("strong_gate_costs_nothing", "strong_gates_are_finite")),
    "values are shifted by one": Fault(
        before(shift_values), ("it_is_the_token_loop", "literal_agrees", "padding_changes_nothing")
    ),
    "heads are tiled": Fault(before(tile_heads), ("it_is_the_token_loop", "literal_agrees")),
    "beta is dropped": Fault(before(drop_beta), ("it_is_the_token_loop", "rules_nest", "strength_has_three_shapes")),
    "a number for beta is rounded": Fault(before(round_number), ("strength_has_three_shapes",)),
    "nothing is erased": Fault(
        before(never_erase), ("orthonormal_keys_recall_exactly", "last_write_is_read_exactly", "rules_nest")
    ),
    "the bonus is dropped": Fault(before(drop_bonus), ("it_is_the_token_loop",)),
    "a normalizer keeps the scale": Fault(after(scale_normalized), ("a_normalizer_divides_the_scale_out",)),
    "the default scale is another": Fault(before(other_scale), ("defaults_are_what_they_say",)),
    "causal is ignored": Fault(before(ignore_causal), ("not_causal_is_the_square",)),
    "a token counts itself twice": Fault(after(count_itself_twice), ("not_causal_is_the_square",)),
    "sequences leak": Fault(after(leak_sequences), ("packed_equals_separate",)),
    "the padding is left as it was": Fault(after(leave_padding), ("packed_equals_separate",)),
    "the last chunk is lost": Fault(after(lose_last_chunk), ("any_shape", "it_is_the_token_loop")),
    "keys are rounded": Fault(before(round_keys), ("repeated_keys_stay_in_budget", "it_is_the_token_loop")),
    "keys are normalized": Fault(before(normalize_keys), ("zero_and_long_keys_are_exact",)),
    "the sum of keys is rounded": Fault(after(round_key_sum), ("normalizer_stays_exact",)),
    "the normalizer divides by zero": Fault(after(divide_by_zero), ("empty_normalizer_gives_zero",)),
    "the normalizer divides by next to nothing": Fault(before(divide_by_little), ("small_features_divide_or_vanish",)),
    "strides are ignored": Fault(before(trust_layout), ("layouts_change_nothing",)),
    "keys have no gradient": Fault(before(detach_keys), ("gradients_are_derivatives", "it_is_the_token_loop")),
    "a state per token is kept": Fault(after(keep_a_state_per_token), ("memory_grows_with_the_tokens",)),
    "weights per channel are kept": Fault(
        keep_weights_per_channel,
        ("memory_grows_with_the_tokens", "parallel_mode_holds_no_weight_per_channel"),
    ),
    "all pairs are kept": Fault(
        after(keep_all_pairs), ("memory_grows_with_the_tokens", "memory_both_ways_grows_with_the_tokens")
    ),
    "steps drop the decay": Fault(in_steps_only(step_without_decay), ("step_is_one_token",)),
    "steps are not in place": Fault(in_steps_only(step_elsewhere), ("step_in_place_is_step",)),
    "strides of a state are ignored": Fault(in_steps_only(step_in_dense_memory), ("a_state_is_its_numbers",)),
    "steps round the state": Fault(in_steps_only(step_in_bfloat16), ("steps_do_not_drift",)),
    "prepared steps keep the first write": Fault(keep_first_write, ("a_prepared_step_is_a_step", "step_is_one_token")),
    "the tail is forgotten": Fault(
        before(lambda s: replace(s, tail=None)), ("it_is_the_token_loop", "cutting_changes_nothing"), FILTERED
    ),
    "the weights are reversed": Fault(
        before(lambda s: replace(s, weight=s.weight.flip(1))), ("it_is_the_token_loop",), FILTERED
    ),
    "the activation is dropped": Fault(
        before(lambda s: replace(s, activation=None)), ("it_is_the_token_loop",), FILTERED
    ),
    "the bias is dropped": Fault(before(lambda s: replace(s, bias=None)), ("it_is_the_token_loop",), FILTERED),
    "the tail has no gradient": Fault(
        before(lambda s: s.after(each(s.tail, Tensor.detach))),
        ("it_is_the_token_loop", "cutting_changes_nothing", "gradients_are_derivatives"),
        FILTERED,
    ),
    "the tail that is handed on has no gradient": Fault(
        after(lambda s, found: (found[0], found[1].detach())),
        ("it_is_the_token_loop", "cutting_changes_nothing"),
        FILTERED,
    ),
    "packed sequences touch": Fault(merged, ("it_is_the_token_loop", "packed_equals_separate"), FILTERED),
    "one output leaks": Fault(
        after(lambda s, found: (found[0] + 1e-3 * found[0].roll(-1, 1), found[1])),
        ("it_is_the_token_loop", "future_stays_out"),
        FILTERED,
    ),
    "strides of x are ignored": Fault(before(dense), ("layouts_change_nothing",), FILTERED),
    "the weight is written to": Fault(before(lambda s: write(s, s.weight)), ("inputs_stay_untouched",), FILTERED),
    "the tail keeps all inputs alive": Fault(after(keep_inputs), ("the_tail_keeps_nothing_alive",), FILTERED),
}
"""Every fault by what is wrong."""
