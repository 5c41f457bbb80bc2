"""What a language model is made of: every layer names its own mixer, sizes and options."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import torch

from rebracket.base.checks import truth, whole
from rebracket.base.registry import nearest
from rebracket.nn import presets
from rebracket.nn.mixer import Mixer, MixerSize

PATTERN_KEYS = ("depth", "pattern", "mixers")


@final
@dataclass(frozen=True)
class LayerConfig:
    """One layer: a preset, its sizes and its options.

    Args:
        mixer: name of a preset.
        heads, key_heads, key_dim, value_dim: sizes, as in `MixerSize`.
        options: the options that were chosen, as pairs of name and value, sorted; the others are the preset's defaults.

    Raises:
        ValueError: If there is no such preset.

    Example:
        >>> layer = LayerConfig.from_dict({"mixer": "softmax", "heads": 2, "window": 9}, d_model=32)
        >>> layer.key_dim, layer.options
        (16, (('window', 9),))
    """

    mixer: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        presets.options(self.mixer)  # raises where there is no such preset

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, d_model: int, where: str = "layer") -> Self:
        """A layer from a table of `mixer`, sizes and the options of that preset.

        key_heads is heads by default, key_dim d_model // heads, value_dim key_dim.

        Raises:
            ValueError: If a key is unknown or `mixer` or `heads` is missing; `where` says in which table.
        """
        refuse_missing(table(values, where), ("mixer",), where)
        try:
            known = presets.options(values["mixer"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        own = [field.name for field in dataclasses.fields(cls) if field.name != "options"]
        refuse_unknown(values, [*own, *known], where)
        refuse_missing(values, ("heads",), where)
        heads = whole(f"{where}: heads", values["heads"])
        key_dim = values.get("key_dim", d_model // heads)
        sizes = {"key_heads": heads, "key_dim": key_dim, "value_dim": key_dim}
        chosen = sorted((name, values[name]) for name in known if values.get(name) is not None)
        return cls(**(sizes | {name: values[name] for name in own if name in values}), options=tuple(chosen))

    def to_dict(self) -> dict[str, Any]:
        """The table from which `from_dict` makes an equal layer, every size spelled out."""
        return {name: value for name, value in vars(self).items() if name != "options"} | dict(self.options)

    def size(self, config: Config, layer: int) -> MixerSize:
        """The size of this layer as the `layer`-th of a model."""
        return MixerSize(
            d_model=config.d_model,
            heads=self.heads,
            key_heads=self.key_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            layer=layer,
            layers=len(config.layers),
            norm_eps=config.norm_eps,
        )


@final
@dataclass(frozen=True)
class Config:
    """A language model in numbers.

    Args:
        vocab_size: ids of the tokenizer, >= 1.
        d_model: width of the residual stream, >= 1.
        layers: one entry a layer, at least one.
        mlp_dim: width of the middle of each block's MLP, >= 0; 0 leaves the MLPs out.
        context: tokens of a training sequence, >= 1.
        norm_eps: added under the square root of the norms, > 0.
        tie_embeddings: whether the logits use the embedding's weights.

    Raises:
        ValueError: If a number is out of its range, or a layer does not fit.
        TypeError: If tie_embeddings is no truth value.

    Example:
        >>> sizes = {"heads": 2, "key_dim": 8, "value_dim": 16}
        >>> tables = {"gated_deltanet": sizes, "softmax": {"heads": 4}}
        >>> config = Config.from_dict({
        ...     "vocab_size": 257, "d_model": 32, "mlp_dim": 64, "context": 128,
        ...     "depth": 4, "pattern": ["gated_deltanet"] * 3 + ["softmax"], "mixers": tables,
        ... })
        >>> [layer.mixer for layer in config.layers]
        ['gated_deltanet', 'gated_deltanet', 'gated_deltanet', 'softmax']
    """

    vocab_size: int
    d_model: int
    layers: tuple[LayerConfig, ...]
    mlp_dim: int
    context: int
    norm_eps: float = 1e-5
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 1), ("d_model", 1), ("mlp_dim", 0), ("context", 1)):
            whole(f"config: {name}", getattr(self, name), least)
        truth("tie_embeddings", self.tie_embeddings)
        if not self.layers:
            raise ValueError("layers must hold at least one layer, got none")
        checked: set[str] = set()
        for index, layer in enumerate(self.layers):
            if repr(layer) in checked:
                continue
            checked.add(repr(layer))
            try:
                with torch.device("meta"):  # every part checks itself, and no weight is made
                    self.mixer(index)
            except (TypeError, ValueError) as error:
                raise ValueError(f"layers[{index}] ({layer.mixer}): {error}") from error

    def sizes(self) -> tuple[MixerSize, ...]:
        """The size of every layer."""
        return tuple(layer.size(self, i) for i, layer in enumerate(self.layers))

    def mixer(self, index: int) -> Mixer:
        """The mixer of one layer, its weights not yet drawn from a seed."""
        layer = self.layers[index]
        return presets.make(layer.mixer, layer.size(self, index), dict(layer.options))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A config from a table, as TOML or JSON give it.

        The layers stand there one by one as `layers`, or as `depth` and `pattern`, names repeated in order to that
        depth, with the sizes of each name in `mixers`; a name is a preset, or an alias whose table has `mixer`.

        Args:
            values: the table; mlp_dim is 8/3 d_model by default, up to a multiple of 8.

        Raises:
            ValueError: If a key is unknown (the nearest known one is named), missing, or does not fit.
        """
        own = [field.name for field in dataclasses.fields(cls)]
        refuse_unknown(table(values, "config"), [*own, *PATTERN_KEYS], "config")
        refuse_missing(values, ("vocab_size", "d_model", "context"), "config")
        d_model = whole("config: d_model", values["d_model"])
        plain = {key: value for key, value in values.items() if key in own}
        widened = {"mlp_dim": 8 * -(-d_model // 3), **plain}
        return cls(**{**widened, "layers": layers_of(values, d_model)})

    def to_dict(self) -> dict[str, Any]:
        """The table with every layer spelled out; `from_dict` makes an equal config of it."""
        return {**dataclasses.asdict(self), "layers": [layer.to_dict() for layer in self.layers]}

    def kv_cache_nbytes(self, tokens: int, *, dtype: torch.dtype = torch.float32) -> int:
        """Bytes that softmax attention with the same heads in every layer would hold of one sequence.

        sum over layers of min(tokens, window - 1) * key_heads * (key_dim + value_dim) * bytes of a number

        Args:
            tokens: tokens read, >= 0.
            dtype: of keys and values.
        """
        return sum(kept(tokens, x) * x.key_heads * (x.key_dim + x.value_dim) for x in self.layers) * dtype.itemsize


def kept(tokens: int, layer: LayerConfig) -> int:
    """Tokens that a softmax layer holds: those of its window but the present one, or all."""
    window = dict(layer.options).get("window")
    return tokens if window is None else min(tokens, window - 1)


def layers_of(values: Mapping[str, Any], d_model: int) -> tuple[LayerConfig, ...]:
    """The layers that a table spells out or describes by a pattern."""
    patterned = [key for key in PATTERN_KEYS if key in values]
    if "layers" not in values:
        return patterned_layers(values, d_model)
    if patterned:
        raise ValueError(f"config: layers spells them out, so leave {', '.join(patterned)} out, or leave out layers")
    tables = values["layers"]
    if isinstance(tables, (str, Mapping)) or not isinstance(tables, Sequence):
        raise TypeError(f"layers must be a list of tables, got {type(tables).__name__}; for a pattern give depth")
    return tuple(LayerConfig.from_dict(x, d_model=d_model, where=f"layers[{i}]") for i, x in enumerate(tables))


def patterned_layers(values: Mapping[str, Any], d_model: int) -> tuple[LayerConfig, ...]:
    refuse_missing(values, PATTERN_KEYS, "config (without layers)")
    pattern, tables = values["pattern"], table(values["mixers"], "mixers")
    if isinstance(pattern, str) or not isinstance(pattern, Sequence) or not pattern:
        raise ValueError(f"pattern must be a list of at least one name, got {pattern!r}")
    refuse_unknown(dict.fromkeys(pattern), tables.keys(), "pattern")
    named = {name: named_layer(name, sizes, d_model) for name, sizes in tables.items()}
    depth = whole("config: depth", values["depth"])
    return tuple(named[name] for name in itertools.islice(itertools.cycle(pattern), depth))


def named_layer(name: str, sizes: object, d_model: int) -> LayerConfig:
    """The layer of a table in `mixers`, whose name is its preset unless it says otherwise."""
    where = f"mixers.{name}"
    return LayerConfig.from_dict({"mixer": name, **table(sizes, where)}, d_model=d_model, where=where)


def table(values: object, where: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} must be a table, got {type(values).__name__}")
    return values


def refuse_unknown(values: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: {key!r} is unknown{nearest(key, sorted(known))}")


def refuse_missing(values: Mapping[str, Any], needed: Collection[str], where: str) -> None:
    missing = [key for key in needed if key not in values]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} must be given")
