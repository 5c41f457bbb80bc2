"""The operator: linear attention of every kind over a sequence, or one token of it."""

from __future__ import annotations

from torch import Tensor

from rebracket.ops.backend import choose
from rebracket.ops.checks import Mode
from rebracket.ops.lowering import make_call, make_step
from rebracket.ops.plan import Plan, plan, run
from rebracket.ops.state import Output, State
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    write: WriteRule = Additive(),
    bonus: Tensor | None = None,
    normalize: bool = False,
    scale: float | None = None,
    state: State | None = None,
    cu_seqlens: Tensor | None = None,
    causal: bool = True,
    mode: Mode = "auto",
    chunk: int | None = None,
    backend: str = "auto",
) -> Output:
    """Linear attention over a sequence: one recurrence with the decay and the write rule that the arguments name.

        S~_t = Diag(exp(log_decay_t)) S_{t-1},   S_t = S~_t + (what `write` adds),   o_t = scale S_t^T q_t

    Every mode and backend gives the same outputs, state and gradients. Numbers have to be finite: an infinity or NaN in
    k or v at t makes NaN of earlier outputs too, those of its chunk, where it meets a weight of 0.

    Args:
        q: queries [B,T,Hq,K], a feature map already applied; float32, bfloat16, float16 (float32 inside) or float64.
        k: keys [B,T,Hq,K]; Hq divides H, and head h of v uses head h // (H // Hq).
        v: values [B,T,H,V].
        log_decay: natural logarithm of the decay, <= 0, -inf erases; None, per head [H], per token [B,T,H] or per key
            channel [B,T,H,K].
        write: the write rule, such as `Additive()` or `Delta(beta)`.
        bonus: u [H,K] (additive rules): read before the write and add this token with weight u,
            o_t = scale (S_{t-1}^T q_t + (q_t . (u * k_t)) v_t), as RWKV-6 does.
        normalize: divide o_t by q_t . z_t, z the decayed sum of keys (additive rules, positive features); 0 where it is
            below 2^-100.
        scale: factor of the output, K**-0.5 by default; without effect with `normalize`, which divides it out.
        state: the state to continue from; zeros by default.
        cu_seqlens: offsets [N+1] of N sequences packed in one row (B = 1), from 0; tokens beyond the last are
            padding, whose outputs are 0.
        causal: False lets every token see the whole sequence (additive rules, no `state`, no `bonus`); the state
            returned is that of the forward direction.
        mode: "parallel" (T**2), "chunk" (T) or "recurrent" (T, one token at a time); "auto" is what `explain` says.
        chunk: tokens per chunk in mode "chunk".
        backend: "reference", any other installed one, or "auto". An explicit mode or backend is obeyed or refused.

    Returns:
        Output(out [B,T,H,V] in the dtype of v, state).

    Raises:
        ValueError: a shape, value or combination that does not fit, by the name of its argument.
        TypeError: an argument of the wrong kind.

    Cost: per token and head C (K + V) + 4 K V operations for additive rules, 2 C (K + V) + 6 K V for erasing ones, C
    being T in parallel mode; not causal 4 K V in parallel mode without decay, else twice as much. The state is H K V
    numbers a sequence.

    Source: Katharopoulos et al. 2020; Yang et al. 2024 (chunked delta rule); Dao and Gu 2024 (state-space duality).

    Example:
        >>> import torch, rebracket as rb
        >>> q, k, v = torch.randn(2, 100, 3, 4), torch.randn(2, 100, 3, 4), torch.randn(2, 100, 3, 5)
        >>> whole, state = rb.linear_attention(q, k, v)
        >>> first, state = rb.linear_attention(q[:, :60], k[:, :60], v[:, :60])
        >>> rest, state = rb.linear_attention(q[:, 60:], k[:, 60:], v[:, 60:], state=state)
        >>> bool(torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-5))
        True
    """
    call = make_call(q, k, v, log_decay, write, bonus, normalize, scale, state, cu_seqlens, causal)
    return run(call, mode, chunk, backend)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: State,
    log_decay: Tensor | None = None,
    write: WriteRule = Additive(),
    bonus: Tensor | None = None,
    normalize: bool = False,
    scale: float | None = None,
    inplace: bool = False,
    backend: str = "auto",
) -> Output:
    """One token of `linear_attention`, from a state to the next.

        S~ = Diag(exp(log_decay)) S,   S' = S~ + (what `write` adds),   o = scale S'^T q

    Args:
        q: query [B,Hq,K].
        k: key [B,Hq,K]; with `DeltaProduct(beta, writes)` [B,writes,Hq,K].
        v: value [B,H,V]; with `DeltaProduct` [B,writes,H,V].
        state: the state before this token; State.zeros(B,H,K,V) to begin.
        log_decay: None, [H], [B,H] or [B,H,K].
        write: the write rule, its tensors without the time axis: `Delta(beta)` with beta [B,H].
        bonus: as in `linear_attention`.
        normalize: as in `linear_attention`.
        scale: as in `linear_attention`.
        inplace: write the new state into the tensors of the given one (not differentiable).
        backend: as in `linear_attention`.

    Returns:
        Output(out [B,H,V], state).

    Raises:
        ValueError: as `linear_attention`; also when `inplace` would write into a state of another dtype.
        TypeError: an argument of the wrong kind.

    Cost: 4 K V operations a head (6 K V erasing) and the state read and written once, whatever came before. The checks
    take longer than a small state does: `Stepper` makes them once for many steps.

    Source: Katharopoulos et al. 2020, whose transformer is a recurrent network of this step.

    Example:
        >>> import torch, rebracket as rb
        >>> state = rb.State.zeros(1, 2, 4, 5)
        >>> out, state = rb.step(torch.randn(1, 2, 4), torch.randn(1, 2, 4), torch.randn(1, 2, 5), state=state)
        >>> out.shape
        torch.Size([1, 2, 5])
    """
    call = make_step(q, k, v, log_decay, write, bonus, normalize, scale, state, inplace)
    out, after = choose(call, backend).run(call)
    return Output(out.squeeze(1), state if inplace else after)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    write: WriteRule = Additive(),
    bonus: Tensor | None = None,
    normalize: bool = False,
    scale: float | None = None,
    state: State | None = None,
    cu_seqlens: Tensor | None = None,
    causal: bool = True,
    mode: Mode = "auto",
    chunk: int | None = None,
    backend: str = "auto",
) -> Plan:
    """The plan of a call of `linear_attention`: backend, mode, chunk, the reasons, operations, bytes and state size.

    operations = B T H (C (K + V) + 4 K V), erasing B T H (2 C (K + V) + 6 K V)

    Args:
        q: as in `linear_attention`; of this and all other tensors only shape, dtype and device are looked at, so
            tensors on the meta device do.
        k: as in `linear_attention`.
        v: as in `linear_attention`.
        log_decay: as in `linear_attention`.
        write: as in `linear_attention`.
        bonus: as in `linear_attention`.
        normalize: as in `linear_attention`.
        scale: as in `linear_attention`.
        state: as in `linear_attention`.
        cu_seqlens: as in `linear_attention`; its offsets are checked where they have numbers.
        causal: as in `linear_attention`; False costs 4 K V a token and head without decay in parallel mode, else twice.
        mode: as in `linear_attention`.
        chunk: as in `linear_attention`.
        backend: as in `linear_attention`.

    Returns:
        The plan; printed, it is a table.

    Raises:
        ValueError: as `linear_attention`.
        TypeError: as `linear_attention`.

    Cost: nothing that grows with a tensor is computed.

    Source: the chunked form of Yang et al. 2024, counted; a multiply-add is 2.

    Example:
        >>> import torch, rebracket as rb
        >>> x = torch.empty(1, 4096, 8, 64, device="meta")
        >>> print(rb.explain(x, x, x, backend="reference"))  # doctest: +ELLIPSIS
        backend reference, mode chunk, chunk 64, state 131,072 bytes
        ...
    """
    call = make_call(q, k, v, log_decay, write, bonus, normalize, scale, state, cu_seqlens, causal, shapes_only=True)
    return plan(call, mode, chunk, backend)
