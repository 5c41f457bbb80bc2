"""Layers: linear attention put together from parts, softmax attention beside it, and what models need around them."""

from rebracket.nn.attention import LinearAttention
from rebracket.nn.cache import LayerCache
from rebracket.nn.convolution import ShortConvolution
from rebracket.nn.correction import QueryCorrection
from rebracket.nn.cosine import CosineWeights
from rebracket.nn.decays import Decay
from rebracket.nn.mixer import Mixer, MixerSize
from rebracket.nn.mlp import GatedMLP
from rebracket.nn.normalized import UnitFeatures
from rebracket.nn.norms import CenteredNorm, GatedNorm, HeadNorm, JointNorm, OutputNorm, RMSNorm
from rebracket.nn.parameters import weight_decay_groups
from rebracket.nn.projections import GateProjection, LowRankProjection, Projection
from rebracket.nn.rotary import Rotary
from rebracket.nn.skip import ValueSkip
from rebracket.nn.softmax import SoftmaxAttention
from rebracket.nn.writes.additive import AdditiveWrite
from rebracket.nn.writes.base import Write, Written
from rebracket.nn.writes.delta import DeltaWrite

__all__ = [
    "AdditiveWrite",
    "CenteredNorm",
    "CosineWeights",
    "Decay",
    "DeltaWrite",
    "GateProjection",
    "GatedMLP",
    "GatedNorm",
    "HeadNorm",
    "JointNorm",
    "LayerCache",
    "LinearAttention",
    "LowRankProjection",
    "Mixer",
    "MixerSize",
    "OutputNorm",
    "Projection",
    "QueryCorrection",
    "RMSNorm",
    "Rotary",
    "ShortConvolution",
    "SoftmaxAttention",
    "UnitFeatures",
    "ValueSkip",
    "Write",
    "Written",
    "weight_decay_groups",
]
