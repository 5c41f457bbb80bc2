"""Layers: linear attention put together from parts, softmax attention beside it, and what models need around them."""

from rebracket.nn.attention import LinearAttention
from rebracket.nn.cache import LayerCache
from rebracket.nn.convolution import ShortConvolution
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.decays import Decay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.mlp import GatedMLP
from rebracket.nn.norms import GatedNorm, HeadNorm, RMSNorm
from rebracket.nn.parameters import weight_decay_groups
from rebracket.nn.projections import GateProjection, LowRankProjection, Projection
from rebracket.nn.rotary import Rotary
from rebracket.nn.skip import ValueSkip
from rebracket.nn.softmax import SoftmaxAttention
from rebracket.nn.unit import UnitFeatures
from rebracket.nn.writes import AdditiveWrite, DeltaWrite, Write

__all__ = [
    "AdditiveWrite",
    "CosineWeights",
    "Decay",
    "DeltaWrite",
    "GateProjection",
    "GatedMLP",
    "GatedNorm",
    "HeadNorm",
    "LayerCache",
    "LinearAttention",
    "LowRankProjection",
    "Mixer",
    "MixerSize",
    "Projection",
    "RMSNorm",
    "Rotary",
    "ShortConvolution",
    "SoftmaxAttention",
    "UnitFeatures",
    "ValueSkip",
    "Write",
    "weight_decay_groups",
]
