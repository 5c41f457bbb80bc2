"""Softmax attention is its definition, however the sequence is cut, packed, windowed or grouped."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rebracket.backends.reference import softmax
from rebracket.base.files import write_tensors
from rebracket.ops.backend import choose
from rebracket.ops.call import Softmax
from rebracket.ops.softmax import KeyValues, softmax_attention

B, H, K, V = 2, 6, 4, 5
HEADS = [(6, 6, 6), (6, 2, 2), (6, 3, 2), (2, 2, 6), (1, 1, 6), (3, 6, 2)]
WINDOWS = [None, 1, 2, 5, 100]


def inputs(T: int, heads: tuple[int, int, int] = (6, 3, 2), batch: int = B) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(T)
    sizes = zip(heads, (K, K, V), strict=True)
    q, k, v = (torch.randn(batch, T, count, size, dtype=torch.float64) for count, size in sizes)
    return q, k, v


def definition(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True, window: int | None = None) -> Tensor:
    """One output after another, from the formula."""
    heads = max(x.shape[2] for x in (q, k, v))
    out = torch.zeros(q.shape[0], q.shape[1], heads, v.shape[3], dtype=q.dtype)
    for t in range(q.shape[1]):
        first = 0 if window is None else max(0, t - window + 1)
        last = t + 1 if causal else q.shape[1]
        for h in range(heads):
            qt, kt, vt = (x[:, :, h // (heads // x.shape[2])] for x in (q, k, v))
            weights = (scale * (kt[:, first:last] * qt[:, t : t + 1]).sum(-1)).exp()
            out[:, t, h] = (weights[..., None] * vt[:, first:last]).sum(1) / weights.sum(1, keepdim=True)
    return out


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def same_cache(a: KeyValues, b: KeyValues) -> None:
    for name, tensor in a.tensors().items():
        torch.testing.assert_close(tensor, b.tensors()[name], rtol=0, atol=0)


def pieces(x: Sequence[Tensor], cuts: list[int], window: int | None) -> tuple[Tensor, KeyValues]:
    """The sequence cut at some places, the cache passed along."""
    T = x[0].shape[1]
    cache, outs = None, []
    for begin, end in zip([0, *cuts], [*cuts, T], strict=True):
        q, k, v = (y[:, begin:end] for y in x)
        out, cache = softmax_attention(q, k, v, state=cache, window=window)
        outs.append(out)
    assert cache is not None
    return torch.cat(outs, 1), cache


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("window", WINDOWS)
def test_it_is_its_definition(heads: tuple[int, int, int], window: int | None):
    x = inputs(9, heads)
    same(softmax_attention(*x, window=window).out, definition(*x, scale=0.5, window=window))


@pytest.mark.parametrize("heads", HEADS)
def test_without_causality_every_token_sees_all(heads: tuple[int, int, int]):
    x = inputs(7, heads)
    same(softmax_attention(*x, scale=0.3, causal=False).out, definition(*x, scale=0.3, causal=False))


def test_values_wider_and_narrower_than_keys():
    q, k, v = inputs(9, (6, 2, 2))
    same(softmax_attention(v, v, k).out, definition(v, v, k, scale=5**-0.5))
    same(softmax_attention(q, k, k).out, definition(q, k, k, scale=0.5))


@pytest.mark.parametrize("heads", HEADS)
def test_fewer_heads_are_repeated_ones(heads: tuple[int, int, int]):
    x = inputs(8, heads)
    repeated = tuple(y.repeat_interleave(H // y.shape[2], 2) for y in x)
    for step in (8, 1):
        past, past_repeated = (softmax_attention(*(y[:, :-step] for y in z)).state for z in (x, repeated))
        out = softmax_attention(*(y[:, -step:] for y in x), state=past).out
        same(out, softmax_attention(*(y[:, -step:] for y in repeated), state=past_repeated).out)


@pytest.mark.parametrize("cuts", [[0], [4], [11], [1, 2, 3], [2, 2, 7, 10], list(range(1, 11))])
@pytest.mark.parametrize("window", WINDOWS)
def test_any_cutting_is_the_whole(cuts: list[int], window: int | None):
    x = inputs(11)
    whole, cache = softmax_attention(*x, window=window)
    cut, cut_cache = pieces(x, cuts, window)
    same(cut, whole)
    same_cache(cut_cache, cache)
    assert cut_cache.seen.tolist() == [11, 11]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("block", [1, 3, 4])
def test_blocks_of_queries_are_the_whole(block: int, window: int | None, monkeypatch: pytest.MonkeyPatch):
    x = [y.requires_grad_() for y in inputs(11)]
    whole = pieces(x, [2], window)[0]
    expected = torch.autograd.grad(whole.square().sum(), x)
    monkeypatch.setattr(softmax, "BLOCK", block)
    monkeypatch.setattr(softmax, "SMALLEST_BLOCK", 1)
    blocks = pieces(x, [2], window)[0]
    same(blocks, whole)
    for found, gradient in zip(torch.autograd.grad(blocks.square().sum(), x), expected, strict=True):
        same(found, gradient)


def test_a_long_window_over_a_longer_sequence():
    x, window = inputs(300, (2, 1, 1)), 70
    seen = torch.ones(300, 300, dtype=torch.bool).tril().triu(1 - window)
    q, k, v = (y.expand(-1, -1, 2, -1).transpose(1, 2) for y in x)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2)
    for cuts in ([], [1], [200], [80, 81]):
        same(pieces(x, cuts, window)[0], expected)


def test_a_window_keeps_a_state_of_constant_size():
    x = inputs(40)
    sizes = [pieces(tuple(y[:, :T] for y in x), [], 5)[1].nbytes for T in (3, 4, 5, 40)]
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]
    _, cache = softmax_attention(*x, window=5)
    assert cache.keys.shape[1] == cache.values.shape[1] == 4
    assert cache.keys.untyped_storage().nbytes() == cache.keys.nbytes
    assert cache.seen.tolist() == [40, 40]


def test_the_state_is_apart_from_the_callers_tensors():
    q, k, v = inputs(4)
    _, cache = softmax_attention(q, k, v)
    kept = cache.fork()
    k.zero_()
    v.zero_()
    same_cache(cache, kept)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("bounds", [[0, 4, 11], [0, 0, 5, 5, 9, 9], [0, 1, 2, 3], [0], [0, 0], [0, 11]])
def test_packed_sequences_are_separate_ones(bounds: list[int], window: int | None):
    x = inputs(11, batch=1)
    for y in x:
        y[:, bounds[-1] :] = float("nan")
    out, cache = softmax_attention(*x, cu_seqlens=torch.tensor(bounds), window=window)
    assert out.shape == (1, 11, H, V)
    assert bool((out[:, bounds[-1] :] == 0).all())
    assert cache.seen.tolist() == torch.tensor(bounds).diff().tolist()
    for n, (begin, end) in enumerate(pairwise(bounds)):
        alone, alone_cache = softmax_attention(*(y[:, begin:end] for y in x), window=window)
        same(out[:, begin:end], alone)
        L, kept = cache.keys.shape[1], alone_cache.keys.shape[1]
        same_cache(
            KeyValues(cache.keys[n : n + 1, L - kept :], cache.values[n : n + 1, L - kept :], cache.seen[n : n + 1]),
            alone_cache,
        )
        assert bool((cache.keys[n, : L - kept] == 0).all())
        assert bool((cache.values[n, : L - kept] == 0).all())


@pytest.mark.parametrize("window", WINDOWS)
def test_ragged_rows_continue_in_a_batch_and_packed_again(window: int | None):
    bounds, more = [0, 3, 3, 11], 4
    x, y = inputs(11, batch=1), inputs(more, batch=3)
    _, cache = softmax_attention(*x, cu_seqlens=torch.tensor(bounds), window=window)
    batched, batched_cache = softmax_attention(*y, state=cache, window=window)
    flat = [z.reshape(1, 3 * more, *z.shape[2:]) for z in y]
    offsets = torch.arange(4) * more
    packed, packed_cache = softmax_attention(*flat, state=cache, cu_seqlens=offsets, window=window)
    same(packed.reshape(batched.shape), batched)
    for n, (begin, end) in enumerate(pairwise(bounds)):
        alone = [torch.cat([a[:, begin:end], b[n : n + 1]], 1) for a, b in zip(x, y, strict=True)]
        whole, last = softmax_attention(*alone, window=window)
        same(batched[n : n + 1], whole[:, end - begin :])
        assert batched_cache.seen[n] == packed_cache.seen[n] == last.seen[0]
        for held in (batched_cache, packed_cache):
            kept = last.keys.shape[1]
            same(held.keys[n, held.keys.shape[1] - kept :], last.keys[0])
            same(held.values[n, held.values.shape[1] - kept :], last.values[0])


def test_an_empty_cache_is_no_cache():
    x = inputs(5)
    empty = KeyValues.empty(B, 3, K, 2, V, dtype=torch.float64)
    out, cache = softmax_attention(*x, state=empty)
    same(out, softmax_attention(*x).out)
    same_cache(cache, softmax_attention(*x).state)


def test_no_token_leaves_everything_as_it_was():
    x = inputs(5)
    for window in WINDOWS:
        _, cache = softmax_attention(*x, window=window)
        out, after = softmax_attention(*(y[:, :0] for y in x), state=cache, window=window)
        assert out.shape == (B, 0, H, V)
        same_cache(after, cache)


def test_the_past_does_not_see_the_future():
    x = inputs(9)
    for window in (None, 3):
        before, _ = softmax_attention(*x, window=window)
        changed = [torch.cat([y[:, :6], y[:, 6:] + 1], 1) for y in x]
        assert torch.equal(softmax_attention(*changed, window=window).out[:, :6], before[:, :6])


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("heads", [(6, 3, 2), (4, 2, 2)])
def test_gradients_are_those_of_finite_differences(window: int | None, heads: tuple[int, int, int]):
    x = [y.requires_grad_() for y in inputs(5, heads)]
    _, cache = softmax_attention(*(y.detach() for y in inputs(3, heads)), window=window)
    past = [cache.keys.requires_grad_(), cache.values.requires_grad_()]

    def function(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        out, state = softmax_attention(q, k, v, state=KeyValues(keys, values, cache.seen), window=window)
        return out, state.keys, state.values

    assert torch.autograd.gradcheck(function, (*x, *past))
    assert torch.autograd.gradcheck(lambda *y: softmax_attention(*y, window=window).out, x)


def test_gradients_of_packed_sequences_and_none_for_the_padding():
    x = inputs(9, batch=1)
    for y in x:
        y[:, 7:] = float("nan")
        y.requires_grad_()
    bounds = torch.tensor([0, 4, 4, 7])
    softmax_attention(*x, cu_seqlens=bounds).out.square().sum().backward()
    alone = [y.detach()[:, :7].clone().requires_grad_() for y in x]
    for begin, end in ((0, 4), (4, 7)):
        softmax_attention(*(y[:, begin:end] for y in alone)).out.square().sum().backward()
    for y, z in zip(x, alone, strict=True):
        assert y.grad is not None
        assert z.grad is not None
        same(y.grad[:, :7], z.grad)
        assert bool((y.grad[:, 7:] == 0).all())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor | None, ...]]:
    """What torch is asked: q, k, v and the mask of every call."""
    calls = []
    torch_attention = softmax.F.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **rest: Any) -> Tensor:
        calls.append((q, k, v, mask))
        return torch_attention(q, k, v, mask, **rest)

    monkeypatch.setattr(softmax.F, "scaled_dot_product_attention", attention)
    return calls


def test_torch_is_asked_for_one_width_which_alone_it_fuses(watched: list[tuple[Tensor, ...]]):
    q, k, v = inputs(9, (2, 2, 2))
    softmax_attention(q, k, v)
    softmax_attention(v, v, k)
    assert [x.shape[-1] for call in watched for x in call[:3]] == [5] * 6


def test_no_mask_is_built_where_torch_knows_the_order(watched: list[tuple[Tensor | None, ...]]):
    x = inputs(9, batch=1)
    softmax_attention(*x)
    softmax_attention(*x, window=9)
    softmax_attention(*x, causal=False)
    softmax_attention(*x, cu_seqlens=torch.tensor([0, 4, 9]))
    assert [call[3] for call in watched] == [None] * 5
    softmax_attention(*x, window=8)
    assert watched[5][3] is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_outputs_and_cache_keep_the_dtype_within_its_rounding(dtype: torch.dtype):
    x = [y.to(dtype) for y in inputs(9)]
    out, cache = softmax_attention(*x)
    assert out.dtype == cache.keys.dtype == cache.values.dtype == dtype
    exact = definition(*(y.double() for y in x), scale=0.5)
    error = float((out.double() - exact).norm() / exact.norm())
    assert error < 2 * torch.finfo(dtype).eps


def test_autocast_stays_outside():
    x = [y.float() for y in inputs(9)]
    outside = softmax_attention(*x).out
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(softmax_attention(*x).out, outside)


def test_it_has_shapes_on_meta():
    x = [y.to("meta") for y in inputs(9)]
    out, cache = softmax_attention(*x, window=4)
    assert out.shape == (B, 9, H, V)
    assert cache.keys.shape == (B, 3, 3, K)


def test_caches_are_selected_forked_and_moved():
    _, cache = softmax_attention(*inputs(5, batch=3))
    picked = cache.select([2, 0, 2])
    for rows in (torch.tensor([2, 0, 2]), slice(0, 2)):
        same(cache.select(rows).keys, cache.keys[rows])
    same(picked.values, torch.stack([cache.values[n] for n in (2, 0, 2)]))
    assert cache.select([]).keys.shape[0] == 0
    branch = cache.fork()
    branch.keys.zero_()
    branch.seen.zero_()
    assert float(cache.keys.abs().sum()) > 0
    assert cache.seen.tolist() == [5, 5, 5]
    half = cache.to(torch.bfloat16)
    assert (half.keys.dtype, half.values.dtype, half.seen.dtype) == (torch.bfloat16, torch.bfloat16, torch.int64)
    assert all(tensor.is_meta for tensor in cache.to("meta").tensors().values())
    assert cache.nbytes == 8 * 3 * 5 * (3 * K + 2 * V) + 8 * 3
    assert half.nbytes == 2 * 3 * 5 * (3 * K + 2 * V) + 8 * 3


def test_a_cache_returns_from_its_file_and_continues(tmp_path: Path):
    x = inputs(9)
    _, cache = softmax_attention(*(y[:, :5] for y in x))
    cache.save(tmp_path / "cache")
    loaded = KeyValues.load(tmp_path / "cache")
    same_cache(loaded, cache)
    same(softmax_attention(*(y[:, 5:] for y in x), state=loaded).out, softmax_attention(*x).out[:, 5:])
    write_tensors(tmp_path / "other", cache.tensors(), "rebracket.state", 1, {})
    with pytest.raises(ValueError, match=r"other: expected a 'rebracket.key_values' file"):
        KeyValues.load(tmp_path / "other")


def test_misshapen_caches_are_refused():
    keys, values, seen = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 6, 7), torch.zeros(2, dtype=torch.int64)
    for parts in ((keys[0], values, seen), (keys, values[:, 1:], seen), (keys[1:], values, seen)):
        with pytest.raises(ValueError, match="keys and values must be"):
            KeyValues(*parts)
    for wrong in (seen[1:], seen.int(), seen[:, None]):
        with pytest.raises(ValueError, match="seen must be"):
            KeyValues(keys, values, wrong)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"q": torch.zeros(2, 5, 4)}, ValueError, "q must be"),
        ({"q": torch.zeros(2, 5, 6, 3)}, ValueError, "q, k and v must be"),
        ({"k": torch.zeros(2, 3, 5, 4)}, ValueError, "time before heads"),
        ({"k": torch.zeros(2, 5, 4, 4)}, ValueError, r"heads of q, k and v .* \[6, 4, 2\]"),
        ({"v": torch.zeros(2, 5, 2, 5, dtype=torch.float64)}, TypeError, "share a dtype"),
        ({"causal": None}, TypeError, "causal must be True or False, got None"),
        ({"window": 0}, ValueError, "window"),
        ({"window": 2.0}, ValueError, "window"),
        ({"window": 3, "causal": False}, ValueError, "leave out window"),
        ({"state": KeyValues.empty(2, 3, 4, 2, 5), "causal": False}, ValueError, "leave out window and state"),
        ({"state": KeyValues.empty(3, 3, 4, 2, 5)}, ValueError, r"state.keys must be .* \[2, 'L', 3, 4\]"),
        ({"state": KeyValues.empty(2, 3, 4, 2, 6)}, ValueError, "state.values must be"),
        ({"state": KeyValues.empty(2, 3, 4, 2, 5, dtype=torch.float64)}, TypeError, "use state.to"),
        ({"state": torch.zeros(2)}, TypeError, "state must be a KeyValues"),
        ({"cu_seqlens": torch.tensor([0, 5])}, ValueError, "needs B = 1"),
    ],
)
def test_bad_calls_say_what_is_wrong(change: dict, kind: type[Exception], message: str):
    good = {"q": torch.zeros(2, 5, 6, 4), "k": torch.zeros(2, 5, 3, 4), "v": torch.zeros(2, 5, 2, 5)}
    with pytest.raises(kind, match=message):
        softmax_attention(**{**good, **change})


@pytest.mark.parametrize("name", ["k", "v", "cu_seqlens", "state.keys", "state.values", "state.seen"])
def test_a_tensor_elsewhere_is_refused_by_name(name: str):
    x: dict[str, Any] = dict(zip("qkv", inputs(5, batch=1), strict=True))
    cache = softmax_attention(**x).state
    given: dict[str, Any] = x | {"state": cache, "cu_seqlens": torch.tensor([0, 5])}
    argument, _, part = name.partition(".")
    moved: Any = replace(cache, **{part: cache.tensors()[part].to("meta")}) if part else given[argument].to("meta")
    with pytest.raises(ValueError, match=f"{name} must be on cpu"):
        softmax_attention(**given | {argument: moved})


@pytest.mark.parametrize("bounds", [[1, 5], [0, 3, 2], [0, 6]])
def test_bad_offsets_are_refused(bounds: list[int]):
    with pytest.raises(ValueError, match="cu_seqlens"):
        softmax_attention(*inputs(5, batch=1), cu_seqlens=torch.tensor(bounds))


def test_the_native_backend_refuses_it_by_name_and_the_reference_computes_it():
    q, k, v = inputs(5)
    call = Softmax(q, k, v, None, None, None, None, scale=0.3, causal=True, window=None)
    with pytest.raises(ValueError, match="backend 'cpu' does not cover this call: it does not compute softmax calls"):
        choose(call, "cpu")
    assert choose(call, "auto") is choose(call, "reference")
    same(choose(call, "auto").run(call).out, definition(q, k, v, scale=0.3))


def test_one_compiled_graph_serves_every_length():
    graphs = []

    def counting(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out, cache = softmax_attention(q, k, v)
        return out, *cache.tensors().values()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counting)
    for T in (7, 20, 33):
        for found, wanted in zip(compiled(*inputs(T)), function(*inputs(T)), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.compiler.reset()
    assert len(graphs) == 1


def test_export_keeps_the_length_dynamic():
    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return softmax_attention(q, k, v).out

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Layer(), inputs(11), dynamic_shapes=({1: length},) * 3)
    torch.testing.assert_close(program.module()(*inputs(50)), Layer()(*inputs(50)), rtol=0, atol=0)
