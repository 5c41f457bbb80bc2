"""Language models: a config in which every layer names its own mixer, the model, its cache, files and generation."""

from rebracket.lm.cache import ModelCache
from rebracket.lm.checkpoints import load_model, model_id, save_model
from rebracket.lm.config import Config, LayerConfig
from rebracket.lm.generation import Generation, Piece, Row, Running, Settings
from rebracket.lm.model import LanguageModel, ModelOutput
from rebracket.lm.sampling import Sampler
from rebracket.lm.tokenizer import Tokenizer

__all__ = [
    "Config",
    "Generation",
    "LanguageModel",
    "LayerConfig",
    "ModelCache",
    "ModelOutput",
    "Piece",
    "Row",
    "Running",
    "Sampler",
    "Settings",
    "Tokenizer",
    "load_model",
    "model_id",
    "save_model",
]
