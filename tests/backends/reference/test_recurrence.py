"""Compiled and exported programs compute what eager ones compute, at any length, without being unrolled."""

import pytest
import torch

import rebracket as rb

B, H, K, V = 2, 3, 4, 5


def arguments(T: int, rule: str) -> dict[str, torch.Tensor]:
    """Inputs of one call that need gradients."""
    generator = torch.Generator().manual_seed(T)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator).requires_grad_()

    tensors = {"q": rand(B, T, H, K), "k": rand(B, T, H, K), "v": rand(B, T, H, V), "memory": rand(B, H, K, V)}
    extra = {
        "delta": {"beta": rand(B, T, H), "gate": rand(B, T, H)},
        "low_rank": {"erase": rand(B, T, H, K), "read": rand(B, T, H, K), "gate": rand(B, T, H, K)},
        "normalized": {"key_sum": rand(B, H, K)},
        "bonus": {"bonus": rand(H, K), "gate": rand(B, T, H, K)},
    }
    return tensors | extra[rule]


def call(x: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The call that the tensors at hand describe: outputs and final state."""
    write = rb.Additive()
    if "beta" in x:
        write = rb.Delta(x["beta"])
    if "erase" in x:
        write = rb.LowRank(x["erase"], 0.1 * x["read"])
    log_decay = -x["gate"] if "gate" in x else None
    state = rb.State(x["memory"], x.get("key_sum"))
    out, state = rb.linear_attention(
        x["q"],
        x["k"],
        x["v"],
        log_decay=log_decay,
        write=write,
        bonus=x.get("bonus"),
        normalize="key_sum" in x,
        state=state,
    )
    return [out, *state.tensors().values()]


def gradients(results: list[torch.Tensor], x: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(sum((r.square().sum() for r in results), torch.zeros(())), list(x.values()))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("rule", ["delta", "low_rank", "normalized", "bonus"])
def test_compiled_equals_eager_at_every_length(rule: str) -> None:
    traces = []

    def counting(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        traces.append(graph)
        return graph

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counting)
    for T in (64, 7, 70, 200):
        x = arguments(T, rule)
        seen, expected = compiled(x), call(x)
        for a, b in zip(seen, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        for a, b in zip(gradients(seen, x), gradients(expected, x), strict=True):
            assert b.abs().max() > 0
            torch.testing.assert_close(a, b)
    assert len(traces) == 1, "one graph must serve every length"


def test_backward_through_the_whole_compiler() -> None:
    x = arguments(70, "delta")
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for a, b in zip(gradients(compiled(x), x), gradients(call(x), x), strict=True):
        torch.testing.assert_close(a, b)


def test_packed_sequences_compile() -> None:
    x = {name: t[:1].detach() for name, t in arguments(30, "normalized").items()}

    def packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        return rb.linear_attention(q, k, v, cu_seqlens=cu, normalize=True).out

    compiled = torch.compile(packed, fullgraph=True, backend="eager")
    for cu in (torch.tensor([0, 7, 7, 30]), torch.tensor([0, 1, 20, 25])):
        torch.testing.assert_close(
            compiled(x["q"], x["k"], x["v"], cu), packed(x["q"], x["k"], x["v"], cu), rtol=0, atol=0
        )


def test_export_keeps_the_length_dynamic() -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
            return rb.linear_attention(q, k, v, write=rb.Delta(beta)).out

    def inputs(T: int) -> tuple[torch.Tensor, ...]:
        x = arguments(T, "delta")
        return tuple(x[name].detach() for name in ("q", "k", "v", "beta"))

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Layer(), inputs(40), dynamic_shapes=tuple({1: length} for _ in range(4)))
    torch.testing.assert_close(program.module()(*inputs(300)), Layer()(*inputs(300)), rtol=0, atol=0)


def test_operator_is_well_formed() -> None:
    x = arguments(20, "delta")
    tensors = (x["q"], x["k"], x["v"], None, x["beta"], None, None, x["memory"], None, None)
    flat = (*tensors, 1, True, False, 0.5, True, 8, True)
    torch.library.opcheck(torch.ops.rebracket.reference.default, flat)
