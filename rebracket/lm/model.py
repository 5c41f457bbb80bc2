"""The language model: blocks of a mixer and an MLP between an embedding and its transpose."""

from __future__ import annotations

from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rebracket.base.checks import whole
from rebracket.lm.cache import ModelCache
from rebracket.lm.config import Config, LayerConfig
from rebracket.nn.cache import LayerCache
from rebracket.nn.mixer import Mixer
from rebracket.nn.mlp import GatedMLP
from rebracket.nn.norms import RMSNorm
from rebracket.nn.projections import STREAM_GAIN, Projection, draw
from rebracket.ops.checks import Mode
from rebracket.ops.program import Builder, Graph, Value


@final
class ModelOutput(NamedTuple):
    """What a language model returns.

    Args:
        logits: [B,T,vocab], or [B,vocab] for one token.
        cache: what the model keeps of all tokens so far.

    Example:
        >>> ModelOutput(torch.zeros(1, 2, 3), ModelCache(())).logits.shape
        torch.Size([1, 2, 3])
    """

    logits: Tensor
    cache: ModelCache


@final
class Block(nn.Module):
    """A mixer and an MLP, each added to the residual stream.

    x' = x + mixer(norm(x)),   x'' = x' + mlp(norm(x'))

    Args:
        mixer: the layer over time.
        mlp_dim: width of the MLP's middle; 0 leaves it out.
    """

    def __init__(self, mixer: Mixer, mlp_dim: int) -> None:
        super().__init__()
        size = mixer.size
        self.mixer_norm = RMSNorm(size.d_model, size.norm_eps)
        self.mixer = mixer
        self.mlp_norm = RMSNorm(size.d_model, size.norm_eps) if mlp_dim else None
        self.mlp = GatedMLP(size.d_model, mlp_dim, size.layers) if mlp_dim else None

    def forward(
        self, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None, mode: Mode, inplace: bool = False
    ) -> tuple[Tensor, LayerCache]:
        """A sequence x [B,T,d_model], or with a cache one token of each row x [B,d_model]."""
        y, after = self.mixer(self.mixer_norm(x), cache=cache, cu_seqlens=cu_seqlens, mode=mode, inplace=inplace)
        x = x + y
        return (x if self.mlp is None or self.mlp_norm is None else x + self.mlp(self.mlp_norm(x))), after

    def lower(self, build: Builder, x: Value) -> Value:
        """The operations of one token."""
        x = self.mixer.lower(build, self.mixer_norm.lower(build, x), x)
        if self.mlp is None or self.mlp_norm is None:
            return x
        return self.mlp.lower(build, self.mlp_norm.lower(build, x), x)

    def reset_parameters(self) -> None:
        """Draws every weight again, in the order of use."""
        for part in (self.mixer_norm, self.mixer, self.mlp_norm, self.mlp):
            if part is not None:
                part.reset_parameters()


@final
class LanguageModel(nn.Module):
    """A causal language model whose layers each have their own mixer and state size.

    logits = norm(block_L(... block_1(embed(tokens)))) W^T, W the embedding's weights when they are tied

    Args:
        config: the sizes.
        seed: of the first weights; torch's own random generators are not changed.

    Attributes:
        recompute: whether training keeps only each block's input and recomputes the rest in the backward pass: less
            memory, about a third more time. False at first.

    Cost: about 2 operations a parameter and token forward; memory for all logits, B T vocab numbers (`read` and
    `logits` give those of some tokens only).

    Example:
        >>> config = Config.from_dict({
        ...     "vocab_size": 7, "d_model": 8, "context": 6, "layers": [{"mixer": "gated_deltanet", "heads": 2}]})
        >>> model = LanguageModel(config)
        >>> logits, cache = model(torch.tensor([[1, 2, 3]]))
        >>> model.step(torch.tensor([4]), cache).logits.shape
        torch.Size([1, 7])
    """

    def __init__(self, config: Config, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        weight = torch.empty(config.vocab_size, config.d_model)  # init_weights draws it; Embedding need not
        self.embed = nn.Embedding(config.vocab_size, config.d_model, _weight=weight)
        self.blocks = nn.ModuleList(Block(config.mixer(index), config.mlp_dim) for index in range(len(config.layers)))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = None if config.tie_embeddings else Projection(config.d_model, config.vocab_size, STREAM_GAIN)
        self.init_weights(seed)

    def forward(
        self,
        tokens: Tensor,
        *,
        cache: ModelCache | None = None,
        cu_seqlens: Tensor | None = None,
        mode: Mode = "auto",
        inplace: bool = False,
        last: int | None = None,
    ) -> ModelOutput:
        """Reads tokens and predicts the one after each; with a cache also one token of each row, as `step` does.

        Args:
            tokens: [B,T] int64 or int32, in [0, vocab), B = 1 when packed; with a cache also [B].
            cache: of the tokens before, or None at the start.
            cu_seqlens: [N+1] bounds of sequences packed into one row; the cache then has N rows.
            mode: how the linear layers compute: "parallel", "chunk", "recurrent" or "auto".
            inplace: of one token a row: as in `step`.
            last: compute the logits of so many last tokens of each row, >= 0; of all by default.

        Returns:
            logits [B,T,vocab], or as many as are asked for, and the cache from which to continue.

        Raises:
            ValueError: If a shape does not fit, or the cache is of another model.
            TypeError: If tokens are not whole numbers.
        """
        if tokens.ndim == 1 and cache is not None and cu_seqlens is None:
            return self.token(tokens, cache, inplace)
        x, cache = self.read(tokens, cache=cache, cu_seqlens=cu_seqlens, mode=mode)
        return ModelOutput(
            self.logits(x if last is None else x[:, max(x.shape[1] - whole("last", last, 0), 0) :]), cache
        )

    def read(
        self,
        tokens: Tensor,
        *,
        cache: ModelCache | None = None,
        cu_seqlens: Tensor | None = None,
        mode: Mode = "auto",
    ) -> tuple[Tensor, ModelCache]:
        """As `forward`, with x [B,T,d_model] in place of the logits: `logits(x[:, -1])` gives the last ones only.

        As methods, this and `logits` are not between the model's own hooks; those of all modules inside run.
        """
        refuse_tokens(tokens, "B,T")
        x = self.embed(tokens)
        after, blocks = [], self.each_block()
        before = [None] * len(blocks) if cache is None else self.layer_caches(cache)
        for block, layer in zip(blocks, before, strict=True):
            x, layer = self.run_block(block, x, layer, cu_seqlens, mode)
            after.append(layer)
        return x, ModelCache(tuple(after))

    def run_block(
        self, block: Block, x: Tensor, cache: LayerCache | None, cu_seqlens: Tensor | None, mode: Mode
    ) -> tuple[Tensor, LayerCache]:
        """One block over T tokens, its activations kept or recomputed in the backward pass."""
        if not (self.recompute and torch.is_grad_enabled()):
            return block(x, cache, cu_seqlens, mode)
        result = checkpoint(block, x, cache, cu_seqlens, mode, use_reentrant=False)
        return cast("tuple[Tensor, LayerCache]", result)

    def logits(self, x: Tensor) -> Tensor:
        """The logits [...,vocab] of the residual stream x [...,d_model]."""
        x = self.norm(x)
        return F.linear(x, self.embed.weight) if self.head is None else self.head(x)

    def step(self, tokens: Tensor, cache: ModelCache, *, inplace: bool = False) -> ModelOutput:
        """Reads one token a row, between the model's hooks.

        Args:
            tokens: [B] int64 or int32, in [0, vocab).
            cache: of the tokens before; `empty_cache` at the start.
            inplace: write linear layers' new states over the old ones; without gradients only.

        Returns:
            logits [B,vocab] and the cache from which to continue.

        Raises:
            ValueError: If a shape does not fit, or the cache is of another model.
            TypeError: If tokens are not whole numbers.

        Cost: about 2 operations a parameter, however many tokens came before; softmax layers read their whole cache.
        """
        refuse_tokens(tokens, "B")
        return self(tokens, cache=cache, inplace=inplace)

    def token(self, tokens: Tensor, cache: ModelCache, inplace: bool) -> ModelOutput:
        """What `forward` and `step` do with one token of each row."""
        refuse_tokens(tokens, "B")
        x = self.embed(tokens)
        after = []
        for block, layer in zip(self.each_block(), self.layer_caches(cache), strict=True):
            x, layer = block(x, layer, None, "auto", inplace)
            after.append(layer)
        return ModelOutput(self.logits(x), ModelCache(tuple(after)))

    def layer_caches(self, cache: ModelCache) -> tuple[LayerCache, ...]:
        """One cache a layer; a ValueError if the cache has more or fewer."""
        found, wanted = len(cache.layers), len(self.blocks)
        if found != wanted:
            raise ValueError(f"cache must have {wanted} layers, got {found}: is it another model's?")
        return cache.layers

    @torch.no_grad()
    def lower(self) -> Graph:
        """The model as a list of operations over rows, which holds its weights.

        Raises:
            NotLoweredError: If a part has no `lower`.

        Example:
            >>> config = Config.from_dict({
            ...     "vocab_size": 7, "d_model": 8, "context": 6, "layers": [{"mixer": "gla", "heads": 2}]})
            >>> [held.name for held in LanguageModel(config).lower().held]
            ['0.state.memory']
        """
        build = Builder()
        x = build.embed(self.embed.weight)
        for index, block in enumerate(self.each_block()):
            with build.layer(index):
                x = block.lower(build, x)
        body = tuple(build.operations)
        x = self.norm.lower(build, x)
        logits = build.product(x, self.embed.weight) if self.head is None else self.head.lower(build, x)
        head = tuple(build.operations[len(body) :])
        return Graph(body, head, logits, tuple(build.widths), tuple(build.held), tuple(build.paged))

    def each_block(self) -> list[Block]:
        """The blocks, first layer first."""
        return cast("list[Block]", list(self.blocks))

    def mixers(self) -> list[Mixer]:
        """The mixer of each layer."""
        return [block.mixer for block in self.each_block()]

    def empty_cache(
        self, rows: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ModelCache:
        """The cache of `rows` sequences before their first token; dtype and device default to those of the weights."""
        return ModelCache(tuple(mixer.empty_cache(rows, dtype=dtype, device=device) for mixer in self.mixers()))

    def init_weights(self, seed: int) -> None:
        """Draws every weight again from a seed, in place; torch's own random generators are not changed."""
        device = self.embed.weight.device
        forked = [] if device.type in ("cpu", "meta") else [device]
        with torch.random.fork_rng(forked, device_type=device.type if forked else "cuda"):
            torch.manual_seed(seed)
            draw(self.embed.weight, STREAM_GAIN)
            for block in self.each_block():
                block.reset_parameters()
            self.norm.reset_parameters()
            if self.head is not None:
                self.head.reset_parameters()

    def parameter_count(self) -> int:
        """Numbers in the weights; tied ones count once."""
        return sum(p.numel() for p in self.parameters())

    def state_nbytes(self, tokens: int) -> int:
        """Bytes of one sequence's cache after `tokens` tokens: constant except for softmax layers."""
        return sum(mixer.state_nbytes(tokens) for mixer in self.mixers())

    def summary(self) -> tuple[str, ...]:
        """The model in printable lines: sizes, each layer with its state, and the state beside a softmax model's."""
        config, tokens = self.config, self.config.context
        pairs = enumerate(zip(config.layers, self.mixers(), strict=True))
        first = f"{self.parameter_count():,} parameters, d_model {config.d_model}, vocabulary {config.vocab_size:,}"
        softmax = config.kv_cache_nbytes(tokens, dtype=self.embed.weight.dtype)
        last = f"after {tokens:,} tokens: state {self.state_nbytes(tokens):,} bytes, softmax's {softmax:,}"
        return (first, *(describe(i, layer, mixer, tokens) for i, (layer, mixer) in pairs), last)


def describe(index: int, layer: LayerConfig, mixer: Mixer, tokens: int) -> str:
    heads = f"{layer.heads} heads" if layer.heads == layer.key_heads else f"{layer.heads} heads on {layer.key_heads}"
    return (
        f"layer {index}: {layer.mixer}, {heads} of {layer.key_dim} x {layer.value_dim}, "
        f"state {mixer.state_nbytes(tokens):,} bytes"
    )


def refuse_tokens(tokens: Tensor, axes: str) -> None:
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"tokens must be int64 or int32, got {tokens.dtype}")
    if tokens.ndim != len(axes.split(",")):
        raise ValueError(f"tokens must be [{axes}], got {list(tokens.shape)}")
