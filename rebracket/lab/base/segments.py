"""A text in segments: what came most often since the last delimiter, and what was marked, however long ago."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from rebracket import features
from rebracket.lab.base.learning import UNLABELLED, Examples, learn, recalled
from rebracket.lab.base.memories import generator
from rebracket.lm.config import Config
from rebracket.lm.model import LanguageModel
from rebracket.nn import decays
from rebracket.nn.attention import LinearAttention
from rebracket.nn.decays import Decay
from rebracket.nn.mixer import MixerSize
from rebracket.train.config import OptimizerConfig

DELIMITER, MOST, MARKED, FIRST = range(4)
"""Ends a segment; asks for its most frequent symbol so far; asks for the marked symbol; the first symbol."""
SHARES = (1 / 16, 3 / 16, 3 / 16)
"""How many of the tokens are these three."""
SYMBOLS = 6
USUAL = 0.4
"""How many symbols of a segment are its usual one; the others are any."""
MARKS = 8
"""How often the marked symbol is given, all in the first half; more than once so that training finds it at all."""


ROWS, TESTED = 16, 512
OPTIMIZER = OptimizerConfig(learning_rate=0.01, warmup=20, weight_decay=0.0)


def read_segments(gate: str, T: int, steps: int, seed: int) -> dict[str, float]:
    """Trains a `reader` on texts of segments, and says how often it is right and what its heads forget where.

    Args:
        gate: a key of `GATES`.
        T: tokens of a text.
        steps: of training, 16 texts each.
        seed: of weights and texts.

    Returns:
        Fractions of right answers to questions about the segment, and about the marked symbol in the last quarter; for
        the learned gate also what is left of a head's memory after tokens of some kinds.

    Cost: 16 T steps tokens forward and backward, about 3 s for T = 96 and 300 steps.

    Example:
        >>> sorted(read_segments("none", 32, 1, 0))
        ['right, marked', 'right, most frequent']
    """
    model = reader(gate, T, seed)
    learn(model, lambda step: segments(T, ROWS, generator(step, seed)), steps, OPTIMIZER)
    tests = segments(T, TESTED, generator(steps, seed))
    right = {
        "right, most frequent": recalled(model, only(tests, MOST)),
        "right, marked": recalled(model, only(tests, MARKED, T * 3 // 4)),
    }
    return {**right, **(heads(log_decays(model, tests.tokens), tests.tokens == DELIMITER) if gate == "learned" else {})}


def heads(log_decay: Tensor, ends: Tensor) -> dict[str, float]:
    """What is left of the head that tells delimiters most from other tokens, and of the one that forgets least."""
    at_ends, elsewhere = log_decay[ends].mean(0), log_decay[~ends].mean(0)
    empties = int((elsewhere.exp() - at_ends.exp()).argmax())
    half = log_decay[:, log_decay.shape[1] // 2 :].sum(1).mean(0)
    return {
        "left at a delimiter, emptying head": float(at_ends[empties].exp()),
        "left elsewhere, emptying head": float(elsewhere[empties].exp()),
        "left after half a text, keeping head": float(half.max().exp()),
    }


def segments(T: int, rows: int, draw: torch.Generator) -> Examples:
    """Texts of segments, and what is asked in them.

    A segment has about 16 tokens. Each of its symbols counts towards the most frequent one, which is asked only where
    it is one alone. The symbol that is marked in a text is the same wherever it is asked for.

    Args:
        T: tokens of a text.
        rows: texts.
        draw: where they are drawn from.

    Returns:
        Examples [rows,T].

    Cost: some passes over rows x T x 6 numbers.

    Example:
        >>> examples = segments(32, 3, torch.Generator().manual_seed(0))
        >>> bool((examples.tokens[examples.labels >= 0] < FIRST).all())
        True
    """
    kinds = torch.bucketize(torch.rand(rows, T, generator=draw), torch.tensor(SHARES).cumsum(0), right=True)
    usual = torch.randint(SYMBOLS, (rows, T + 1), generator=draw).gather(1, (kinds == DELIMITER).cumsum(1))
    other = torch.randint(SYMBOLS, (rows, T), generator=draw)
    symbols = usual.where(torch.rand(rows, T, generator=draw) < USUAL, other)
    places = torch.randint(T // 2, (rows, MARKS), generator=draw)
    marked = FIRST + SYMBOLS + torch.randint(SYMBOLS, (rows, 1), generator=draw)
    tokens = kinds.where(kinds < FIRST, FIRST + symbols).scatter(1, places, marked.expand_as(places))
    begun = torch.arange(T) > places.amin(1, keepdim=True)
    known = marked.where((tokens == MARKED) & begun, UNLABELLED)
    return Examples(tokens, most_frequent(tokens).where(tokens == MOST, known))


def most_frequent(tokens: Tensor) -> Tensor:
    """The symbol that came most often since the last delimiter [B,T], `UNLABELLED` where two did."""
    counts = one_hot(tokens, FIRST + 2 * SYMBOLS)[..., FIRST : FIRST + SYMBOLS].cumsum(1)
    # Counts never fall, so those at the last delimiter are the largest at any delimiter so far.
    before = counts.where((tokens == DELIMITER)[..., None], 0).cummax(1).values
    (first, second), (symbol, _) = (x.unbind(-1) for x in (counts - before).topk(2, -1))
    return (FIRST + symbol).where(first > second, UNLABELLED)


def only(examples: Examples, question: int, since: int = 0) -> Examples:
    """The same texts with one question, asked from a token on.

    Args:
        examples: of `segments`.
        question: `MOST` or `MARKED`.
        since: the first token at which it counts.

    Returns:
        Examples with fewer labels.

    Cost: one pass.

    Example:
        >>> examples = segments(32, 3, torch.Generator().manual_seed(0))
        >>> bool((only(examples, MOST).labels < FIRST + SYMBOLS).all())
        True
    """
    asked = (examples.tokens == question) & (torch.arange(examples.tokens.shape[1]) >= since)
    return Examples(examples.tokens, examples.labels.where(asked, UNLABELLED))


@final
class ConstantDecay(Decay):
    """A learned decay that does not see the tokens: all decay as a token of zeros would.

    Args:
        inner: the decay that is learned.

    Example:
        >>> size = MixerSize(d_model=8, heads=2, key_heads=2, key_dim=3, value_dim=5)
        >>> log_decay = ConstantDecay(decays.make("gated_deltanet", size))(torch.randn(1, 6, 8))
        >>> bool((log_decay == log_decay[:, :1]).all())
        True
    """

    def __init__(self, inner: Decay) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.zeros_like(x))

    def reset_parameters(self) -> None:
        """Draws the inner one again."""
        self.inner.reset_parameters()


GATES: Mapping[str, Callable[[MixerSize], Decay | None]] = {
    "learned": lambda size: decays.make("gated_deltanet", size),
    "constant": lambda size: ConstantDecay(decays.make("gated_deltanet", size)),
    "fixed": lambda size: decays.make("retnet", size),
    "none": lambda size: None,
}
"""The decay of each head: set by the token, learned but the same for all tokens, RetNet's, or none."""


def reader(gate: str, T: int, seed: int) -> LanguageModel:
    """One layer of linear attention between an embedding and its transpose, four heads of 8 x 16.

    Args:
        gate: a key of `GATES`.
        T: tokens of a text.
        seed: of the weights.

    Returns:
        The model, untrained.

    Cost: some thousand weights.

    Example:
        >>> reader("none", 32, seed=0).parameter_count()
        6688
    """
    layer = {"mixer": "linear_transformer", "heads": 4, "key_dim": 8, "value_dim": 16}
    config = {"vocab_size": FIRST + 2 * SYMBOLS, "d_model": 32, "mlp_dim": 0, "context": T, "layers": [layer]}
    model = LanguageModel(Config.from_dict(config))
    (block,) = model.each_block()
    size = block.mixer.size
    # No norm and no further part: what is forgotten is then the decay's doing.
    block.mixer = LinearAttention(size, feature=features.make("identity", size.key_dim), decay=GATES[gate](size))
    model.init_weights(seed)
    return model


@torch.no_grad()
def log_decays(model: LanguageModel, tokens: Tensor) -> Tensor:
    """What each head of a `reader` forgets at each token.

    Args:
        model: with a learned or constant decay.
        tokens: [B,T].

    Returns:
        Log-decays [B,T,H].

    Cost: a small part of reading the tokens.

    Example:
        >>> log_decays(reader("learned", 3, seed=0), torch.tensor([[0, 1, 2]])).shape
        torch.Size([1, 3, 4])
    """
    (block,) = model.each_block()
    if not isinstance(block.mixer, LinearAttention) or block.mixer.decay is None:
        raise ValueError("model must be a reader with a decay")
    return block.mixer.decay(block.mixer_norm(model.embed(tokens)))
