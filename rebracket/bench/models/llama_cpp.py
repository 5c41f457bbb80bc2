"""llama.cpp, whose server xllamacpp runs in this process, with a dense random model of as many bytes."""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from rebracket.bench.case import require_installed
from rebracket.bench.models.base import START, Prepared, Runner, Work, middle_of, tokens_of
from rebracket.lm import LanguageModel

FORMATS = {"f32": ("F32", 4.0), "bf16": ("BF16", 2.0), "q8_0": ("Q8_0", 34 / 32)}
"""Its formats: the name that gguf has for each, and bytes of a weight."""
NEW = 32
"""Tokens of each text in a call."""
MOST = 64
BYTE_TOKENS = 259
HEAD = 64


@final
class LlamaCpp(Runner):
    """Its server, without HTTP; sampling and text are in its times."""

    def ways(self, model: LanguageModel) -> Iterator[tuple[str, AbstractContextManager[Callable[[Work], Prepared]]]]:
        require_installed("xllamacpp", "pip install xllamacpp gguf")
        require_installed("gguf", "pip install xllamacpp gguf")
        for name in FORMATS:
            yield f"llama.cpp {name}", served(model, name)


@contextmanager
def served(model: LanguageModel, form: str) -> Iterator[Callable[[Work], Prepared]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dense.gguf")
        weights = write_dense(path, model, form)
        yield partial(prepared, model, path, int(weights * FORMATS[form][1]))


def prepared(model: LanguageModel, path: Path, nbytes: int, work: Work) -> Prepared:
    """A server for the work; the next one takes its place."""
    server = server_of(path, work)
    if work.tokens:
        text = tokens_of(model, work.tokens).remainder(model.config.vocab_size - 3).add(3).tolist()
        return Prepared(partial(complete, server, text, 1), nbytes)
    texts = tokens_of(model, work.texts, START).clamp(min=3).tolist()
    pool = ThreadPoolExecutor(work.texts)
    return Prepared(lambda: list(pool.map(lambda text: complete(server, text, NEW), texts)), nbytes, times=NEW)


def complete(server: Any, text: list[int], tokens: int) -> None:  # noqa: ANN401
    asked = {"prompt": text, "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": True}
    server.handle_completions(asked if tokens > 1 else {**asked, "cache_prompt": False})


def server_of(path: Path, work: Work) -> Any:  # noqa: ANN401
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = work.texts
    params.n_ctx = work.texts * max(2 * (START + NEW), 2 * work.tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    params.n_gpu_layers, params.n_threads_http, params.warmup, params.verbosity = 0, 1, False, -1
    return xllamacpp.Server(params)


def write_dense(path: Path, model: LanguageModel, form: str) -> int:
    """Writes a dense model with as many layers, as wide and as large as another; returns how many weights it has."""
    gguf = importlib.import_module("gguf")
    config, kind = model.config, gguf.GGMLQuantizationType[FORMATS[form][0]]
    vocab, width, layers = config.vocab_size, config.d_model, len(config.layers)
    middle = middle_of(model)
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, vocab, width, layers, middle)
    draw = np.random.default_rng(0)

    def add(name: str, rows: int, columns: int) -> int:
        weight = (0.02 * draw.standard_normal((rows, columns), np.float32)).astype(np.float32)
        packed = gguf.quants.quantize(weight, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        return weight.size

    add("token_embd.weight", vocab, width)
    count = add("output.weight", vocab, width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(layers):
        for name, shape in shapes(width, middle).items():
            count += add(f"blk.{i}.{name}.weight", *shape)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return count


def shapes(width: int, middle: int) -> dict[str, tuple[int, int]]:
    """The matrices of a layer."""
    square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (width, width))
    return square | {"ffn_gate": (middle, width), "ffn_up": (middle, width), "ffn_down": (width, middle)}


def describe(writer: Any, vocab: int, width: int, layers: int, middle: int) -> None:  # noqa: ANN401
    """The sizes, and a vocabulary of bytes and made-up words."""
    heads = max(width // HEAD, 1)
    writer.add_context_length(1 << 16)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(middle)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("llama")
    words = [f"word{n}".encode() for n in range(vocab - BYTE_TOKENS)]
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", *(f"<0x{n:02X}>".encode() for n in range(256)), *words])
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
