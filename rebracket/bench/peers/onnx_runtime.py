"""ONNX Runtime's operator com.microsoft LinearAttention: native, forward only."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from rebracket.bench.case import Implementation, Prepared, Results, require, require_installed
from rebracket.bench.cases.base import AttentionInputs
from rebracket.bench.cases.linear_attention import LinearAttentionCase

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

DOMAIN, OPSET, IR = "com.microsoft", 21, 11
GET = "pip install onnxruntime onnx"


@final
class OnnxRuntime(Implementation):
    """One node, and for the normalizer the running sum of the keys beside it."""

    operator = LinearAttentionCase
    name = "onnxruntime"

    def prepare(self, case: LinearAttentionCase, x: AttentionInputs, threads: int) -> Prepared:
        require_installed("onnxruntime", GET)
        require_installed("onnx", GET)
        require(case.mode != "train", "forward only")
        require(case.dtype == torch.float32, "float32 only")
        given = feed(case, x)
        return bound(case, model(case, given), given, threads)


def feed(case: LinearAttentionCase, x: AttentionInputs) -> dict[str, np.ndarray]:
    """The inputs of the graph: heads and channels are one axis, states are not."""
    B, T, H, D = case.shape
    memory = torch.zeros(B, H, D, D) if x.state is None else x.state.memory
    key_sum = None if x.state is None or x.state.key_sum is None else x.state.key_sum.reshape(B, 1, H * D)
    tokens = {"q": x.q, "k": x.k, "v": x.v, "decay": x.log_decay, "beta": x.beta}
    named = {name: None if t is None else t.reshape(B, T, -1) for name, t in tokens.items()}
    return {name: t.numpy() for name, t in (named | {"memory": memory, "key_sum": key_sum}).items() if t is not None}


def model(case: LinearAttentionCase, given: Mapping[str, np.ndarray]) -> ModelProto:
    from onnx import TensorProto, helper

    outs = ["out", "memory_out", *(["key_sum_out"] if "key_sum" in given else [])]
    graph = helper.make_graph(
        [attention(case, given), *(normalizer(given) if case.rule.normalizes else ())],
        "peer",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outs],
        constants(case),
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR)


def attention(case: LinearAttentionCase, given: Mapping[str, np.ndarray]) -> NodeProto:
    from onnx import helper

    rule = case.rule
    update = {(False, False): "linear", (True, False): "gated", (False, True): "delta", (True, True): "gated_delta"}
    names = ["q", "k", "v", "memory", *("" if name not in given else name for name in ("decay", "beta"))]
    return helper.make_node(
        "LinearAttention",
        names,
        ["sums" if rule.normalizes else "out", "memory_out"],
        domain=DOMAIN,
        update_rule=update[rule.decay != "none", rule.erases],
        q_num_heads=case.shape[2],
        kv_num_heads=case.shape[2],
        scale=1.0 if rule.normalizes else case.shape[3] ** -0.5,
    )


def normalizer(given: Mapping[str, np.ndarray]) -> list[NodeProto]:
    """Nodes that divide by q . z."""
    from onnx import helper

    nodes = [
        ("Add", ["key_sum", "k"], "key_sum_out") if "key_sum" in given else ("CumSum", ["k", "time"], "key_sum_out"),
        ("Mul", ["q", "key_sum_out"], "products"),
        ("Reshape", ["products", "split"], "products_split"),
        ("ReduceSum", ["products_split", "last"], "divisor"),
        ("Reshape", ["sums", "split"], "sums_split"),
        ("Div", ["sums_split", "divisor"], "out_split"),
        ("Reshape", ["out_split", "joined"], "out"),
    ]
    return [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes]


def constants(case: LinearAttentionCase) -> list[Any]:
    from onnx import TensorProto, helper

    B, T, H, D = case.shape
    values = {"last": [-1], "split": [B, T, H, D], "joined": [B, T, H * D]} if case.rule.normalizes else {}
    values |= {"time": 1} if case.rule.normalizes and case.mode != "decode" else {}
    made = {name: np.array(value, np.int64) for name, value in values.items()}
    return [helper.make_tensor(name, TensorProto.INT64, a.shape, a.ravel()) for name, a in made.items()]


def bound(case: LinearAttentionCase, model: ModelProto, given: Mapping[str, np.ndarray], threads: int) -> Prepared:
    """The graph with its inputs where it reads them, so that a call is nothing but the run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")  # the next in turn needs the cores
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, names = session.io_binding(), [out.name for out in session.get_outputs()]
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in given.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        binding.bind_output(name, "cpu")

    def run() -> object:
        session.run_with_iobinding(binding)
        return held  # the inputs live as long as the call

    return Prepared(run, lambda _: results(case, dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))))


def results(case: LinearAttentionCase, made: Mapping[str, np.ndarray]) -> Results:
    B, T, H, D = case.shape
    found: dict[str, Tensor] = {"out": torch.from_numpy(made["out"]).view(B, T, H, D)}
    if case.mode == "decode":
        found["state.memory"] = torch.from_numpy(made["memory_out"])
    if "key_sum_out" in made:
        found["state.key_sum"] = torch.from_numpy(made["key_sum_out"]).view(B, H, D)
    return found
