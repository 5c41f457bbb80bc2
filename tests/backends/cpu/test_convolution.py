"""What the native short convolution promises beyond the laws."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rebracket.backends.cpu import library
from rebracket.ops.convolution import short_convolution
from rebracket.testing.law import Row, results
from rebracket.testing.memory import peak_tensor_nbytes
from rebracket.testing.operators.convolution import ConvolutionCase as Case

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels were not built")
WIDE = [Case(shape, dtype=torch.float32) for shape in ("wide", "wide_packed")]


def on(backend: str) -> Row:
    return Row(Case(), "", None, backend)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def native(case: Case) -> dict[str, Tensor]:
    return results(lambda s: s.run(on("cpu")), case.draw())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_any_number_of_threads_gives_the_same_bits(case: Case, threads: Callable[[int], None]):
    found = []
    for count in (1, 2, 5):
        threads(count)
        found.append(native(case))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("case", [*WIDE, Case("packed", dtype=torch.bfloat16)], ids=str)
def test_no_result_depends_on_what_memory_held(case: Case):
    expected = native(case)
    torch.use_deterministic_algorithms(True)  # new memory is then filled with NaN
    try:
        found = native(case)
    finally:
        torch.use_deterministic_algorithms(False)
    assert same(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_part_of_a_joint_projection_is_read_in_place(dtype: torch.dtype):
    joint = torch.randn(2, 50, 100, dtype=dtype)
    call = Case("token", dtype=dtype).draw()
    part = replace(call, x=joint[..., 30:67])
    made = part.x.numel() * dtype.itemsize + 2 * 3 * 37 * dtype.itemsize
    assert peak_tensor_nbytes(lambda: part.run(on("cpu"))) == made


def test_long_sums_are_as_exact_as_short_ones():
    x = torch.rand(1, 40_000, 3) + 1
    weight, bias = torch.randn(3, 4).requires_grad_(), torch.randn(3).requires_grad_()
    y, _ = short_convolution(x, weight, bias, backend="cpu")
    found = torch.autograd.grad(y.sum(), (weight, bias))
    exact = torch.stack([F.pad(x.double(), (0, 0, 3 - j, 0))[:, :40_000].sum((0, 1)) for j in range(4)], 1)
    torch.testing.assert_close(found[0].double(), exact, rtol=5e-7, atol=0)
    assert found[1].tolist() == [40_000.0] * 3


def test_extreme_inputs_saturate():
    x = torch.tensor([-torch.inf, -1e30, -100.0, -87.0, 0.0, 88.0, 1e30, torch.inf, torch.nan]).view(1, -1, 1)
    y, _ = short_convolution(x, torch.ones(1, 1), activation="silu", backend="cpu")
    torch.testing.assert_close(y[0, 1:, 0], F.silu(x[0, 1:, 0].double()).float(), equal_nan=True, rtol=1e-6, atol=1e-35)


def test_float64_is_refused_with_the_reason_and_left_to_the_reference():
    call = Case().draw()
    with pytest.raises(ValueError, match="backend 'cpu' does not cover this call: it computes in float32, and x is"):
        call.run(on("cpu"))
    assert torch.equal(call.run(on("auto"))[0], call.run(on("reference"))[0])


def test_without_a_library_the_reference_runs(monkeypatch: pytest.MonkeyPatch):
    call = WIDE[0].draw()
    monkeypatch.setattr(library, "PATH", None)
    monkeypatch.setattr(library, "say_missing", lambda: None)
    assert torch.equal(call.run(on("auto"))[0], call.run(on("reference"))[0])
    with pytest.raises(ValueError, match="were not built"):
        call.run(on("cpu"))


@pytest.mark.parametrize("shape", ["plain", "packed"])
def test_operators_are_well_formed(shape: str):
    call = Case(shape, dtype=torch.float32).draw().map(lambda _, x: x.requires_grad_())
    torch.library.opcheck(torch.ops.rebracket.cpu_convolution.default, (*vars(call).values(), True))


@pytest.mark.parametrize("shape", ["plain", "packed"])
def test_it_compiles_whole_with_gradients_at_any_length(shape: str):
    call = Case(shape, dtype=torch.float32).draw()

    def run(x: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        return short_convolution(x, weight, None, tail, call.cu_seqlens, activation="silu")

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for more in (0, 5, 60):
        x = F.pad(call.x, (0, 0, 0, more), value=0.5)
        leaves = [y.detach().clone().requires_grad_() for y in (x, call.weight, call.tail) if y is not None]
        (y, tail), (wanted, last) = compiled(*leaves), run(*leaves)
        assert torch.equal(y, wanted)
        assert torch.equal(tail, last)
        for a, b in zip(
            *(torch.autograd.grad(z.sum() + t.sum(), leaves) for z, t in ((y, tail), (wanted, last))), strict=True
        ):
            assert torch.equal(a, b)
    torch.compiler.reset()


def test_it_exports():
    call = Case(dtype=torch.float32).draw()

    class Filter(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return short_convolution(x, call.weight, activation="silu")[0]

    program = torch.export.export(Filter(), (call.x,))
    assert torch.equal(program.module()(call.x), Filter()(call.x))


def test_the_first_call_imports_no_compiler():
    program = "\n".join([
        "import sys, torch",
        "from rebracket.nn import ShortConvolution",
        "layer = ShortConvolution(8)",
        "y, tail = layer(torch.randn(1, 9, 8, requires_grad=True))",
        "y.sum().backward()",
        "layer.step(torch.randn(1, 8), tail)",
        "print('torch._dynamo' in sys.modules)",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
