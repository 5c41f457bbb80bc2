"""The reference vectors on every backend in every mode, and on the token loop."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from rebracket.ops.backend import INSTALLED
from rebracket.ops.checks import Mode
from rebracket.ops.state import State
from rebracket.ops.write import WriteRule
from rebracket.ops.writes.additive import Additive
from rebracket.ops.writes.delta import Delta
from rebracket.ops.writes.delta_product import DeltaProduct
from rebracket.ops.writes.gated_erase import GatedErase
from rebracket.ops.writes.low_rank import LowRank
from rebracket.testing.budgets import check
from rebracket.testing.law import Result, Row
from rebracket.testing.operators.recurrence import MODES, Case, Sample
from tests.testing.faults import FAULTS

FILES = sorted(Path(__file__).parents[1].joinpath("vectors").glob("*.safetensors"))
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-4}
WAYS = [(mode, chunk) for mode, chunk in MODES] + [("chunk", 64)]
ARGUMENTS = {"q": "q", "k": "k", "v": "v", "log_decay": "log_decay", "bonus": "bonus", "state.memory": "initial_state"}
NAMES = ARGUMENTS | {
    "write.beta": "beta",
    "write.erase": "erase_gate",
    "write.write": "write_gate",
}
LOW_RANK = ARGUMENTS | {"write.erase": "erase_write", "write.read": "erase_read"}


def load(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118


def rule(x: Mapping[str, Tensor], kind: str, writes: int) -> WriteRule:
    if kind == "additive":
        return Additive()
    if kind == "delta":
        return Delta(x["beta"]) if writes == 1 else DeltaProduct(x["beta"], writes)
    if kind == "gated_erase":
        return GatedErase(x["erase_gate"], x["write_gate"])
    assert kind == "erase_pair"
    return LowRank(x["erase_write"], x["erase_read"])


def as_sample(x: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Sample:
    return Sample(
        x["q"],
        x["k"],
        x["v"],
        log_decay=x.get("log_decay"),
        write=rule(x, metadata["rule"], int(metadata["writes"])),
        bonus=x.get("bonus"),
        normalize=metadata["normalize"] == "1",
        scale=float(metadata["scale"]),
        state=State(x["initial_state"]) if "initial_state" in x else None,
    )


def check_vector(run: Callable[[Sample], Result], file: Path, dtype: torch.dtype) -> None:
    """Outputs, the final state and every gradient of one file."""
    x, metadata = load(file)
    s = as_sample(x, metadata).to(dtype).leaves()
    out, state = run(s)
    assert (out.shape, state.memory.shape) == (x["out"].shape, x["final_state"].shape)
    ((out * x["cot_out"]).sum() + (state.memory * x["cot_state"]).sum()).backward()
    check("out", out, x["out"], LIMITS[dtype])
    check("final_state", state.memory, x["final_state"], LIMITS[dtype])
    names = LOW_RANK if metadata["rule"] == "erase_pair" else NAMES
    grads = {f"grad_{names[name]}": tensor.grad for name, tensor in s.tensors().items()}
    assert grads.keys() == {name for name in x if name.startswith("grad_")}
    for name, grad in grads.items():
        assert grad is not None, f"{name}: none"
        check(name, grad, x[name], LIMITS[dtype])


def test_the_vectors_are_all_here():
    assert len(FILES) == 21


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("file", FILES, ids=lambda x: x.stem)
def test_token_loop(file: Path, dtype: torch.dtype):
    check_vector(Sample.define, file, dtype)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(("mode", "chunk"), WAYS)
@pytest.mark.parametrize("file", FILES, ids=lambda x: x.stem)
@pytest.mark.parametrize("backend", INSTALLED)
def test_backend(backend: str, file: Path, mode: Mode, chunk: int | None, dtype: torch.dtype):
    row = Row(Case(), mode, chunk, backend)
    call = as_sample(*load(file)).to(dtype).call(row)
    if INSTALLED[backend].covers(call) is None:
        check_vector(lambda s: s.run(row), file, dtype)
    else:
        assert backend != "reference"


@pytest.mark.parametrize(
    ("fault", "file"),
    [
        ("the state is forgotten", "additive_none"),
        ("the state is transposed", "one_token"),
        ("the decay is dropped", "delta_token"),
        ("the decay is late by one", "additive_channel"),
        ("a decay per head is dropped", "additive_head"),
        ("gates are truncated", "delta_token_flush"),
        ("values are shifted by one", "delta_product2_token"),
        ("beta is dropped", "delta_none_negative"),
        ("nothing is erased", "delta_repeated_key"),
        ("keys are rounded", "gated_erase_channel"),
        ("keys have no gradient", "erase_pair_channel"),
        ("the bonus is dropped", "additive_channel_bonus"),
        ("the future leaks", "additive_none_normalized"),
        ("decays by differences", "additive_channel_strong"),
    ],
)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_a_planted_fault_is_caught(fault: str, file: str, dtype: torch.dtype):
    path = next(x for x in FILES if x.stem == file)
    with pytest.raises(AssertionError):
        check_vector(lambda s: FAULTS[fault].run(s, Row(Case())), path, dtype)
