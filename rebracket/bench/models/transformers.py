"""The transformers library, with a dense random model of as many weights."""
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final

import torch

from rebracket.bench.case import require_installed
from rebracket.bench.models.base import START, Prepared, Runner, Work, middle_of, products, tokens_of
from rebracket.lm import LanguageModel


@final
class Transformers(Runner):
    """Its Llama in float32, a step with its cache."""

    def ways(self, model: LanguageModel) -> Iterator[tuple[str, AbstractContextManager[Callable[[Work], Prepared]]]]:
        require_installed("transformers", "pip install transformers")
        yield "transformers", nullcontext(partial(prepared, model, llama(model)))


def llama(model: LanguageModel) -> Any:  # noqa: ANN401
    """A dense model with as many layers, as wide and as large as another."""
    transformers = importlib.import_module("transformers")
    width, heads = model.config.d_model, max(model.config.d_model // 64, 1)
    config = transformers.LlamaConfig(
        vocab_size=model.config.vocab_size,
        hidden_size=width,
        intermediate_size=middle_of(model),
        num_hidden_layers=len(model.config.layers),
        num_attention_heads=heads,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


def prepared(model: LanguageModel, dense: Any, work: Work) -> Prepared:  # noqa: ANN401
    nbytes = 4 * products(model)
    if work.tokens:
        text = tokens_of(model, 1, work.tokens)
        return Prepared(torch.inference_mode()(lambda: dense(text, logits_to_keep=1)), nbytes)
    with torch.inference_mode():
        cache = dense(tokens_of(model, work.texts, START)).past_key_values
    tokens = tokens_of(model, work.texts, 1)

    @torch.inference_mode()
    def step() -> None:
        dense(tokens, past_key_values=cache)
        cache.crop(START)

    return Prepared(step, nbytes)
