"""Tiny models of bytes, random but sure of themselves, for what is written with them."""

from pathlib import Path

import torch

from rebracket.lm import Config, LanguageModel, Tokenizer, save_model
from tests.nn.tiny import stir

BYTES = Tokenizer.bytes()
PLAIN = {"vocab_size": BYTES.vocab_size, "d_model": 12, "mlp_dim": 10, "context": 16}
GATED = {"mixer": "gated_deltanet", "heads": 4, "key_heads": 2, "key_dim": 6, "value_dim": 5}
LAYERS = {
    "gated": [GATED] * 2,
    "hybrid": [GATED, {"mixer": "softmax", "heads": 2, "key_dim": 4}, {"mixer": "softmax", "heads": 3, "window": 5}],
    "counted": [{"mixer": "retnet", "heads": 2}, {"mixer": "linear_transformer", "heads": 3}],
}


def writer(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> LanguageModel:
    """A model of bytes; in float64 two ways to the same logits do not choose another token."""
    model = LanguageModel(Config.from_dict({**PLAIN, "layers": LAYERS[name]})).to(dtype)
    stir(model, seed)
    return model.eval()


def saved(folder: Path, name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    save_model(folder, writer(name, dtype, seed), BYTES)
    return folder
