"""What the native kernels promise beyond the laws: every instruction set, bitwise independence, no silent fallback."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import rebracket as rb
from rebracket.backends.cpu import library
from rebracket.ops.backend import INSTALLED
from rebracket.ops.checks import Mode
from rebracket.testing.budgets import check_equal
from rebracket.testing.law import SOUND, Row, results
from rebracket.testing.laws import LAWS
from rebracket.testing.operators.recurrence import Case, Shape, few, sample

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")
B, T, H, K, V = 3, 150, 2, 20, 37


def inputs(B: int = B, T: int = T, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    k = torch.nn.functional.normalize(rand(B, T, H, K) - 0.5, dim=-1)
    return {
        "q": (rand(B, T, H, K) - 0.5).to(dtype),
        "k": k.to(dtype),
        "v": (rand(B, T, H, V) - 0.5).to(dtype),
        "log_decay": -rand(B, T, H, K),
        "beta": rand(B, T, H),
    }


def attend(x: dict[str, Tensor], backend: str = "cpu", **kwargs: Tensor) -> rb.Output:
    write = rb.Delta(x["beta"])
    return rb.linear_attention(
        x["q"], x["k"], x["v"], log_decay=x["log_decay"], write=write, backend=backend, **kwargs  # type: ignore[arg-type]
    )  # fmt: skip


def gradients(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    leaves = {name: t.clone().requires_grad_() for name, t in x.items()}
    out, state = attend(leaves)
    return torch.autograd.grad(out.square().sum() + state.memory.square().sum(), list(leaves.values()))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("isa", library.isas()[1:] if library.PATH else ())
@pytest.mark.parametrize("law", LAWS)
def test_laws_hold_on_every_other_instruction_set(isa: str, law: str, monkeypatch: pytest.MonkeyPatch):
    bound = library.with_isa(isa)
    monkeypatch.setattr(library, "kernel", bound.kernel)
    for row in LAWS[law].over("cpu"):
        LAWS[law].check(SOUND, row)


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="REBRACKET_ISA must be one of"):
        library.with_isa("mmx")


def test_kernels_elsewhere_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REBRACKET_KERNELS", str(tmp_path / "none.so"))
    with pytest.raises(FileNotFoundError, match="REBRACKET_KERNELS must be the path of a built library, got"):
        library.found()
    (tmp_path / "none.so").touch()
    assert library.found() == tmp_path / "none.so"


LONG = {
    "whole": Shape(B=1, T=300, Hq=1, H=2, K=20, V=37),
    "packed": Shape(B=1, T=310, Hq=2, H=2, K=5, V=40, offsets=(0, 150, 151, 307)),
    "empty": Shape(B=1, T=310, Hq=2, H=2, K=5, V=40, offsets=(0, 0, 150, 307)),
}
"""More tokens than a segment of 128 writes, and fewer heads than there may be threads."""


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("case", [*few(torch.float32), *few(torch.bfloat16)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(threads: Callable[[int], None], case: Case, shape: str):
    s, row = sample(case, LONG[shape]), Row(case, "chunk", None, "cpu")
    found = []
    for count in (1, 2, 5, 64):
        threads(count)
        found.append(results(lambda x: x.run(row), s))
    for other in found[1:]:
        for name, x in found[0].items():
            check_equal(name, other[name], x)


def test_a_row_does_not_see_its_batch():
    x = inputs()
    whole, grads = attend(x).out, gradients(x)
    for n in range(B):
        alone = {name: t[n : n + 1] for name, t in x.items()}
        assert torch.equal(attend(alone).out[0], whole[n])
        assert all(torch.equal(a[0], b[n]) for a, b in zip(gradients(alone), grads, strict=True))


def test_no_result_depends_on_what_memory_held():
    x = inputs(B=1)
    cu = torch.tensor([0, 0, 40, 41, 140])
    expected = (attend(x, cu_seqlens=cu).out, *gradients(x))
    torch.use_deterministic_algorithms(True)  # new memory is then filled with NaN
    try:
        seen = (attend(x, cu_seqlens=cu).out, *gradients(x))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_strided_inputs_are_read_in_place():
    x = inputs()
    joined = torch.cat([x["q"].flatten(2), x["k"].flatten(2), x["v"].flatten(2)], -1)
    q, k, v = joined.split([H * K, H * K, H * V], -1)
    cut = x | {"q": q.unflatten(-1, (H, K)), "k": k.unflatten(-1, (H, K)), "v": v.unflatten(-1, (H, V))}
    assert cut["q"].stride(1) == joined.shape[-1]
    assert torch.equal(attend(cut).out, attend(x).out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gradient_without_rows_of_its_own_is_read_right(dtype: torch.dtype):
    """The gradient of a sum is one number expanded; the kernels get a copy, which must live while they read it."""
    found = []
    for backend in ("cpu", "reference"):
        x = {name: t.requires_grad_() for name, t in inputs(dtype=dtype).items()}
        found.append(torch.autograd.grad(attend(x, backend=backend).out.sum(), list(x.values())))
    for a, b in zip(*found, strict=True):
        error = float((a.double() - b.double()).norm() / b.double().norm())
        assert error < (1e-5 if dtype == torch.float32 else 1e-2), error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_only_at_the_ends(dtype: torch.dtype):
    x = inputs(dtype=dtype)
    wide = attend({name: t.float() for name, t in x.items()})
    out, state = attend(x)
    assert torch.equal(out, wide.out.to(dtype))
    assert torch.equal(state.memory, wide.state.memory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.float64, "k": torch.float64, "v": torch.float64}, "it computes in float32"),
    ],
)
def test_what_is_not_covered_is_refused_with_the_reason(change: dict[str, torch.dtype], message: str):
    x = {name: t.to(change.get(name, t.dtype)) for name, t in inputs().items()}
    with pytest.raises(ValueError, match=message):
        attend(x)
    assert torch.isfinite(attend(x, backend="auto").out).all()


def test_a_chunk_or_mode_of_another_kind_is_refused_and_left_to_the_reference():
    x = inputs()
    options: list[tuple[Mode, int | None]] = [("chunk", 64), ("parallel", None), ("recurrent", None)]
    for mode, chunk in options:
        with pytest.raises(ValueError, match="its chunks are 16 writes"):
            rb.linear_attention(x["q"], x["k"], x["v"], backend="cpu", mode=mode, chunk=chunk)
        plan = rb.explain(x["q"], x["k"], x["v"], mode=mode, chunk=chunk)
        assert plan.backend == "reference"
        assert any("not 'cpu': its chunks are 16 writes" in reason for reason in plan.reasons)


def test_a_positive_decay_is_seen_inside_the_kernels():
    x = inputs()
    x["log_decay"][1, 77, 1, 3] = 1e-3
    with pytest.raises(ValueError, match=r"log_decay must be <= 0, got up to 0\.001"):
        attend(x)
    x["log_decay"][1, 77, 1, 3] = torch.nan
    with pytest.raises(ValueError, match="log_decay holds NaN"):
        attend(x)


def test_without_a_library_the_reference_runs_and_it_is_said_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "PATH", None)
    library.say_missing.cache_clear()
    try:
        with pytest.warns(UserWarning, match="without a C\\+\\+ compiler"):
            plan = rb.explain(*(inputs()[name] for name in ("q", "k", "v")))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attend(inputs(), backend="auto")
        assert plan.backend == "reference"
        assert any("were not built" in reason for reason in plan.reasons)
    finally:
        library.say_missing.cache_clear()


def test_operators_are_well_formed():
    x = {name: t.requires_grad_() for name, t in inputs(B=1, T=40).items()}
    tensors = (x["q"], x["k"], x["v"], None, x["beta"], x["log_decay"], None, None, None, None)
    call = (*tensors, 1, True, False, 0.5, True, 16, True)
    torch.library.opcheck(torch.ops.rebracket.cpu.default, call)


def test_it_compiles_whole_with_gradients_at_any_length():
    def loss(x: dict[str, Tensor]) -> Tensor:
        write = rb.Delta(x["beta"])
        return rb.linear_attention(x["q"], x["k"], x["v"], log_decay=x["log_decay"], write=write).out.square().sum()

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (64, 17, 200):
        x = {name: t.requires_grad_() for name, t in inputs(T=length).items()}
        seen = torch.autograd.grad(compiled(x), list(x.values()))
        expected = torch.autograd.grad(loss(x), list(x.values()))
        for a, b in zip(seen, expected, strict=True):
            torch.testing.assert_close(a, b)
    torch.compiler.reset()


def test_the_first_call_imports_no_compiler():
    program = "\n".join([
        "import sys, torch, rebracket as rb",
        "x = torch.randn(1, 9, 2, 4, requires_grad=True)",
        "rb.linear_attention(x, x, x).out.sum().backward()",
        "rb.step(x[:, 0], x[:, 0], x[:, 0], state=rb.State.zeros(1, 2, 4, 4))",
        "print('torch._dynamo' in sys.modules)",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_backend_is_the_first_choice_on_a_cpu():
    assert next(iter(INSTALLED)) == "cpu"
    x = inputs()
    assert rb.explain(x["q"], x["k"], x["v"]).backend == "cpu"


def test_meta_tensors_give_shapes():
    x = {name: t.to("meta") for name, t in inputs().items()}
    out, state = attend(x)
    assert out.is_meta
    assert state.memory.shape == (B, H, K, V)
    step = rb.step(x["q"][:, 0], x["k"][:, 0], x["v"][:, 0], state=state, backend="cpu")
    assert step.out.shape == (B, H, V)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_forward_mode_derivatives_are_refused_not_dropped():
    x = inputs()
    with forward_ad.dual_level():
        x["v"] = forward_ad.make_dual(x["v"], torch.ones_like(x["v"]))
        with pytest.raises(ValueError, match="no forward-mode derivative"):
            attend(x)
