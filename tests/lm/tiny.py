"""Tiny language models: one of each preset, and one that mixes them with a state of its own size in every layer."""

import torch
from torch import Tensor

from rebracket.lm import Config, LanguageModel
from rebracket.nn import presets
from tests.nn.tiny import stir

VOCAB, B, T = 13, 3, 9
SIZES = {"heads": 4, "key_heads": 2, "key_dim": 6, "value_dim": 5}
PLAIN = {"vocab_size": VOCAB, "d_model": 8, "mlp_dim": 10, "context": 16}
MIXED = {
    **PLAIN,
    "tie_embeddings": False,
    "layers": [
        {"mixer": "gated_deltanet", **SIZES},
        {"mixer": "softmax", "heads": 2, "key_dim": 4, "window": 4},
        {"mixer": "kda", "heads": 1, "key_dim": 3, "value_dim": 7},
        {"mixer": "linear_transformer", "heads": 2, "feature": "dpfp"},
    ],
}
CONFIGS = {
    **{name: {**PLAIN, "layers": [{"mixer": name, **SIZES}] * 2} for name in presets.names()},
    "mixed": MIXED,
}


def config(name: str) -> Config:
    return Config.from_dict(CONFIGS[name])


def language_model(name: str, dtype: torch.dtype = torch.float64) -> LanguageModel:
    model = LanguageModel(config(name)).to(dtype)
    stir(model)
    return model


def text(rows: int = B, count: int = T, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, (rows, count), generator=torch.Generator().manual_seed(seed))
