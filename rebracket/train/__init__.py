"""Training: from a config to a folder with a model in it, through any number of interruptions."""

from rebracket.train.config import DataConfig, LoopConfig, OptimizerConfig, TrainConfig
from rebracket.train.folder import RunFolder
from rebracket.train.loop import Trainer, Update
from rebracket.train.progress import Bar, Lines, Screen, screen
from rebracket.train.session import Outcome, train, verdict
from rebracket.train.validation import BitsPerByte, validate

__all__ = [
    "Bar",
    "BitsPerByte",
    "DataConfig",
    "Lines",
    "LoopConfig",
    "OptimizerConfig",
    "Outcome",
    "RunFolder",
    "Screen",
    "TrainConfig",
    "Trainer",
    "Update",
    "screen",
    "train",
    "validate",
    "verdict",
]
