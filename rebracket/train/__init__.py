"""Training: from a config to a folder with a model in it, through any number of interruptions."""

from rebracket.train.config import DataConfig, LoopConfig, OptimizerConfig, TrainConfig
from rebracket.train.folder import RunFolder
from rebracket.train.session import Outcome, train, verdict
from rebracket.train.trainer import Trainer, Update
from rebracket.train.validation import BitsPerByte, Precision, validate

__all__ = [
    "BitsPerByte",
    "DataConfig",
    "LoopConfig",
    "OptimizerConfig",
    "Outcome",
    "Precision",
    "RunFolder",
    "TrainConfig",
    "Trainer",
    "Update",
    "train",
    "validate",
    "verdict",
]
