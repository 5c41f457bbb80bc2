"""Programs: a row's bits depend on weights and its own text alone, its values are those of the float64 reference."""

import itertools
import math
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.program import Choice, Outcome, Program, Segment, layout
from rebracket.backends.cpu.program.compile import FUNCTIONS, PAIRINGS, Weights
from rebracket.backends.reference import program as reference
from rebracket.base.random import uniform
from rebracket.lm import Config, LanguageModel, ModelCache
from rebracket.lm.sampling import Sampler
from rebracket.ops.program import Builder, Exponentials, Function, Graph, Pairing, Product, Value
from tests.lm.test_lowered import MODELS
from tests.lm.tiny import text
from tests.nn.tiny import stir

pytestmark = pytest.mark.skipif(library.PATH is None, reason="the kernels are not built")

FEATURES = ("favor", "rff", "dpfp", "taylor2", "softmax", "hedgehog")
TESTED = [name for name in MODELS if "=" not in name] + [f"gated_deltanet-feature={name}" for name in FEATURES]
FORMATS: tuple[Weights, ...] = (
    ("float32", "bfloat16", "int8") if library.load().isa != "baseline" else ("float32", "bfloat16")
)
TEXTS, LENGTH = 4, 16
# float32 rounds to 6e-8; a logit of these models is behind some hundred roundings, which conditioning multiplies.
BUDGET = 2e-5
# Of a function against float64: its own few roundings, in units of the last place.
ULPS = 4.0


def lowered(name: str) -> Graph:
    torch.manual_seed(0)
    model = LanguageModel(Config.from_dict(MODELS[name]))
    stir(model)
    return model.lower()


def texts() -> list[list[int]]:
    return text(TEXTS, LENGTH).tolist()


def graph_of(build: Builder, out: Value) -> Graph:
    return Graph(tuple(build.operations), (), out, tuple(build.widths), tuple(build.held), tuple(build.paged))


def prepared(
    graph: Graph, weights: Weights = "float32", *, rows: int = 64, threads: int = 1, slots: int = 6
) -> Program:
    return Program.prepare(graph, weights=weights, slots=slots, rows=rows, pages=40, drafts=rows, threads=threads)


def stepped(program: Program) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Logits and states of all texts, each read alone and token by token."""
    slots = [program.open() for _ in range(TEXTS)]
    logits = [
        torch.cat([rows_of(program.run([Segment(slot, [token], "all")])[0]) for token in ids])
        for slot, ids in zip(slots, texts(), strict=True)
    ]
    return logits, [program.read(slot) for slot in slots]


def rows_of(outcome: Outcome) -> Tensor:
    assert outcome.logits is not None
    return outcome.logits[: outcome.accepted]


def ragged(program: Program, draw: random.Random) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The same in calls of any texts in any order, cut anywhere, some of their tokens as drafts."""
    slots, done = [program.open() for _ in range(TEXTS)], [0] * TEXTS
    draw.shuffle(slots)
    logits: list[list[Tensor]] = [[] for _ in range(TEXTS)]
    while any(count < LENGTH for count in done):
        order = [i for i in range(TEXTS) if done[i] < LENGTH]
        draw.shuffle(order)
        calls = [piece(draw, slots[i], texts()[i], done[i]) for i in order]
        for i, outcome in zip(order, program.run(calls), strict=True):
            logits[i].append(rows_of(outcome))
            done[i] += outcome.accepted
    return [torch.cat(parts) for parts in logits], [program.read(slot) for slot in slots]


def piece(draw: random.Random, slot: int, ids: list[int], begin: int) -> Segment:
    count = draw.randint(1, LENGTH - begin)
    drafted = draw.randint(0, count - 1) if draw.random() < 0.5 else 0
    choice = Choice(temperature=1.5, seed=slot, drawn=begin) if drafted else None
    return Segment(slot, ids[begin : begin + count], "all", choice, drafted)


def equal(
    found: tuple[list[Tensor], list[dict[str, Tensor]]], wanted: tuple[list[Tensor], list[dict[str, Tensor]]]
) -> None:
    """Logits and states are equal bit for bit."""
    for n, (mine, theirs) in enumerate(zip(found[0], wanted[0], strict=True)):
        assert torch.equal(mine, theirs), (
            f"logits of text {n} differ in rows {(mine != theirs).any(1).nonzero().flatten()}"
        )
    for n, (mine, theirs) in enumerate(zip(found[1], wanted[1], strict=True)):
        wrong = [name for name in theirs if not torch.equal(mine[name], theirs[name])]
        assert not wrong, f"state of text {n} differs in {wrong}"


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", TESTED)
def test_a_row_depends_on_its_text_alone(name: str, weights: Weights):
    graph = lowered(name)
    wanted = stepped(prepared(graph, weights, rows=1))
    for seed, threads in enumerate((1, 2, 1)):
        equal(ragged(prepared(graph, weights, threads=threads), random.Random(f"{name}{seed}")), wanted)


@pytest.mark.parametrize("name", TESTED)
def test_values_are_those_of_the_reference(name: str):
    graph = lowered(name)
    truth, program = reference.Program(graph), prepared(graph)
    held = [truth.empty() for _ in range(TEXTS)]
    wanted = truth.run([reference.Segment(slot, ids) for slot, ids in zip(held, texts(), strict=True)])
    slots = [program.open() for _ in range(TEXTS)]
    outcomes = program.run([Segment(slot, ids, "all") for slot, ids in zip(slots, texts(), strict=True)][:3])
    outcomes += program.run([Segment(slots[3], texts()[3], "all")])
    near(torch.cat([rows_of(outcome) for outcome in outcomes]), wanted, name)
    for slot, theirs in zip(slots, held, strict=True):
        for key, x in program.read(slot).items():
            if not key.endswith("seen"):
                near(x[0], theirs[key], f"{name}, {key}")


def near(found: Tensor, wanted: Tensor, what: str, budget: float = BUDGET) -> None:
    error = (found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30)
    assert error <= budget, f"{what}: {error:.1e} of {budget:.1e}"


@pytest.mark.parametrize("name", ["gated_deltanet", "kda", "mixed"])
def test_bfloat16_weights_are_rounded_and_nothing_else_is(name: str):
    graph = lowered(name)

    def narrow(operation):
        weight = operation.weight if isinstance(operation, Product) and not operation.exact else None
        return operation if weight is None else replace(operation, weight=weight.detach().bfloat16().float())

    rounded = replace(graph, body=tuple(map(narrow, graph.body)), head=tuple(map(narrow, graph.head)))
    equal(stepped(prepared(graph, "bfloat16")), stepped(prepared(rounded, "float32")))


def test_int8_sums_are_exact():
    if "int8" not in FORMATS:
        pytest.skip("int8 needs AVX2")
    for K, N, groups in ((7, 5, 1), (64, 48, 2), (130, 33, 3)):
        table, weight, bias = torch.randn(11, groups * K), torch.randn(N, K), torch.randn(N)
        table[3] = 0
        build = Builder()
        graph = graph_of(build, build.product(build.embed(table), weight, bias, groups=groups))
        found = rows_of(only(prepared(graph, "int8"), list(range(11))))
        x, w = table.view(11, groups, K), weight
        inverse = torch.where(x.abs().amax(-1) > 0, 127 / x.abs().amax(-1), 0)
        sums = (x * inverse[..., None]).round().double() @ (w * (127 / w.abs().amax(-1))[:, None]).round().double().T
        wanted = sums.float() * (w.abs().amax(-1) / 127) * (x.abs().amax(-1) / 127)[..., None] + bias
        assert torch.equal(found, wanted.flatten(1))


def only(program: Program, tokens: list[int]) -> Outcome:
    """A text of its own, whole."""
    return program.run([Segment(program.open(), tokens, "all")])[0]


def numbers(count: int) -> Tensor:
    """Many numbers of every size that a float has, of both signs, and the places where a branch begins."""
    sizes = torch.logspace(-30, 1.9, count - 4, dtype=torch.float64).float() * torch.tensor([1.0, -1.0]).repeat(
        count // 2 - 2
    )
    return torch.cat([sizes, torch.tensor([0.0, -0.0, 60.0, -87.3])])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_exact_to_a_few_units(function: Function):
    x = numbers(4000)
    build = Builder()
    graph = graph_of(build, build.apply(function, build.embed(x[None])))
    found = rows_of(only(prepared(graph), [0]))[0]
    wanted = reference.FUNCTIONS[function](x.double())
    if function == "softplus":  # torch takes it for x above 20
        wanted = x.double().clamp(min=0) + torch.log1p(torch.exp(-x.double().abs()))
    if function == "silu":
        wanted = x.double() * torch.sigmoid(x.double())
    within_units(function, found, wanted, absolute=1e-7 if function in ("sin", "cos") else 2.4e-38)


def within_units(name: str, found: Tensor, wanted: Tensor, absolute: float) -> None:
    """Errors of a few units of the last place; less than the smallest normal number may be 0."""
    unit = torch.finfo(torch.float32).eps / 2
    found, wanted = found.flatten(), wanted.flatten()
    error = (found.double() - wanted).abs() - absolute
    worst = (error / (wanted.abs() * unit).clamp(min=1e-300)).argmax()
    assert error[worst] <= ULPS * unit * wanted[worst].abs(), f"{name}: {found[worst]} for {wanted[worst]}"


@pytest.mark.parametrize("function", PAIRINGS)
@pytest.mark.parametrize("each", [1, 3, 16])
def test_pairs_are_as_the_reference_has_them(function: Pairing, each: int):
    x, y = torch.randn(2, 48), torch.randn(2, 48 // each)
    build = Builder()
    left, right = build.embed(torch.cat([x, y], 1)).split(48, 48 // each)
    graph = graph_of(build, build.pair(function, left, right))
    wanted = reference.PAIRINGS[function](x.double(), y.double().repeat_interleave(each, 1))
    within_units(function, rows_of(only(prepared(graph), [0, 1])), wanted, absolute=1e-6)


def test_extremes_of_the_functions():
    infinity = math.inf
    given = torch.tensor([[infinity, -infinity, math.nan, 200.0, -200.0]])
    wanted: dict[Function, list[float]] = {
        "exp": [infinity, 0, math.nan, infinity, 0],
        "expm1": [infinity, -1, math.nan, infinity, -1],
        "sigmoid": [1, 0, math.nan, 1, 0],
        "softplus": [infinity, 0, math.nan, 200, 0],
        "relu": [infinity, 0, math.nan, 200, 0],
    }
    for function, each in wanted.items():
        build = Builder()
        graph = graph_of(build, build.apply(function, build.embed(given)))
        found = rows_of(only(prepared(graph), [0]))[0]
        assert torch.equal(found.nan_to_num(7, 8, 9), torch.tensor(each, dtype=torch.float32).nan_to_num(7, 8, 9)), (
            function
        )


# --- instruction sets ---


def test_instruction_sets_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    """Those with fused multiply-add; the baseline of x86 rounds products apart and is another stream."""
    sets = [name for name in library.isas() if name != "baseline"]
    if len(sets) < 2:
        pytest.skip("this machine has one instruction set with fused multiply-add")
    for name in TESTED:
        for weights in ("float32", "bfloat16", "int8"):
            found = []
            for isa in sets:
                monkeypatch.setattr(library, "load", lambda isa=isa: library.with_isa(isa))
                library.kernel.cache_clear()
                found.append(stepped(prepared(lowered(name), weights)))
            for one, other in itertools.pairwise(found):
                equal(one, other)
    monkeypatch.undo()
    library.kernel.cache_clear()


# --- faults that the laws must catch ---


def with_many_rows(change: Callable[[Program], object]) -> Callable[[Program], None]:
    """A program that computes otherwise where a call has several rows."""

    def plant(program: Program) -> None:
        body, run = program.call.body, program.run
        other = change(program)

        def wrong(segments):
            many = sum(len(segment.tokens) for segment in segments) > 1
            program.call.body = other if many else body
            return run(segments)

        program.run = wrong

    return plant


def copied(program: Program):
    return (layout.Operation * program.call.bodies).from_buffer_copy(program.compiled.body)


SPARE: list[Tensor] = []  # what the kernels write to must live as long as the test


def split_sums(program: Program):
    """The second half of k is summed apart, and added."""
    body = copied(program)
    first = next(i for i, op in enumerate(body) if op.kind == 1 and not op.bias and op.x.width > 1)
    op, half = body[first], body[first].x.width // 2
    room = layout.Operation.from_buffer_copy(op)
    spare = torch.zeros(64, op.out.stride)
    SPARE.append(spare)
    room.x = layout.Span(op.x.data + 4 * half, op.x.stride, op.x.width - half)
    room.weight, room.out = op.weight + half * 64, layout.Span(spare.data_ptr(), op.out.stride, op.out.width)
    # Panels follow each other by the whole K: one panel is split, which the tiny first layers have.
    room.out.width = min(16, op.out.width)
    op.x.width, op.out.width, op.v = half, room.out.width, room.out
    program.call.bodies += 1
    return (layout.Operation * (len(body) + 1))(*body[:first], room, *body[first:])


def round_by_tile(program: Program):
    """One function is a unit of the last place larger."""
    body = copied(program)
    next(op for op in body if op.kind == 4).after *= 1 + 2**-23
    return body


def leave_dirty(program: Program) -> None:
    """A slot keeps what the text before it left."""
    first = program.open()
    program.run([Segment(first, [3, 1])])
    program.close(first)
    program.open = lambda: opened_dirty(program)


def opened_dirty(program: Program) -> int:
    slot = int((program.slots.seen < 0).nonzero()[0][0])
    program.slots.seen[slot] = 0
    return slot


def keep_rejected(program: Program) -> None:
    """A draft that was not accepted leaves its write behind."""
    run = program.run

    def wrong(segments):
        outcomes = run(segments)
        for segment, outcome in zip(segments, outcomes, strict=True):
            if outcome.accepted < len(segment.tokens):
                run([Segment(segment.slot, [segment.tokens[outcome.accepted]])])
                program.slots.seen[segment.slot] -= 1
        return outcomes

    program.run = wrong


def forget_position(program: Program) -> None:
    """Where a text stands is lost between calls."""
    run = program.run

    def wrong(segments):
        outcomes = run(segments)
        for segment in segments:
            program.slots.seen[segment.slot] = 0
        return outcomes

    program.run = wrong


FAULTS = {
    "round_by_tile": ("gated_deltanet", with_many_rows(round_by_tile)),
    "leave_dirty": ("gated_deltanet", leave_dirty),
    "keep_rejected": ("gated_deltanet", keep_rejected),
    "forget_position": ("retnet", forget_position),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str):
    name, plant = FAULTS[fault]
    wanted = stepped(prepared(lowered(name), rows=1))
    program = prepared(lowered(name))
    plant(program)
    with pytest.raises(AssertionError):
        equal(ragged(program, random.Random(1)), wanted)


def test_a_split_sum_is_caught():
    table, weight = torch.randn(13, 40), torch.randn(13, 40)
    build = Builder()
    x = build.embed(table)
    logits = build.apply("negative", build.product(x, weight))
    program = prepared(graph_of(build, logits))
    sound = torch.cat([rows_of(only(program, [i])) for i in range(5)])
    for slot in range(5):
        program.close(slot)
    assert torch.equal(rows_of(only(program, list(range(5)))), sound)
    with_many_rows(split_sums)(program)
    assert not torch.equal(rows_of(only(program, list(range(5)))), sound)


# --- softmax layers ---


@pytest.mark.parametrize("name", ["softmax", "softmax-window=3"])
def test_texts_longer_than_a_page_are_cut_anywhere(name: str):
    graph, ids = lowered(name), text(1, 150).tolist()[0]
    one, many = prepared(graph, rows=1), prepared(graph, rows=150)
    slot = one.open()
    wanted = torch.cat([rows_of(one.run([Segment(slot, [token], "all")])[0]) for token in ids])
    for cuts in ([0, 150], [0, 63, 64, 65, 150], [0, 1, 100, 128, 129, 150]):
        slot = many.open()
        found = [rows_of(many.run([Segment(slot, ids[i:j], "all")])[0]) for i, j in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(found), wanted), cuts
    near(wanted, reference.Program(graph).run([reference.Segment(reference.Program(graph).empty(), ids)]), name)


# --- slots ---


@pytest.mark.parametrize("name", ["gated_deltanet", "mixed", "softmax-window=3", "linear_transformer", "kda"])
def test_slots_fork_snapshot_restore_and_convert(name: str):
    program, ids = prepared(lowered(name)), [*texts()[0], *texts()[1]]
    slot = program.open()
    program.run([Segment(slot, ids[:10])])
    taken = program.snapshot(slot)
    fork = program.fork(slot)
    here = program.read(slot)
    wanted = rows_of(program.run([Segment(slot, ids[10:], "all")])[0])
    assert torch.equal(rows_of(program.run([Segment(fork, ids[10:14], "all")])[0]), wanted[:4]), "fork"
    program.restore(fork, taken)
    assert torch.equal(rows_of(program.run([Segment(fork, ids[10:], "all")])[0]), wanted), "snapshot"
    other = program.open()
    program.write(other, here, 10)
    assert all(torch.equal(x, here[key]) for key, x in program.read(other).items())
    assert torch.equal(rows_of(program.run([Segment(other, ids[10:], "all")])[0]), wanted), "read and write"


def test_what_is_read_is_the_cache_of_the_model():
    torch.manual_seed(0)
    model = LanguageModel(Config.from_dict(MODELS["mixed"]))
    stir(model)
    program, ids = prepared(model.lower()), texts()[0]
    slot = program.open()
    program.run([Segment(slot, ids)])
    with torch.no_grad():
        _, cache = model(torch.tensor([ids]))
    theirs, mine = cache.tensors(), program.read(slot)
    assert mine.keys() == {name for name in theirs if not name.endswith("seen") or "state" in name}
    for name, x in mine.items():
        near(x, theirs[name].double(), name, 1e-4)
    counts = {name: x for name, x in theirs.items() if name not in mine}
    assert ModelCache.from_tensors(mine | counts).rows == 1


def test_pages_are_shared_counted_and_freed():
    program = Program.prepare(lowered("softmax"), slots=3, rows=64, pages=3)
    slot = program.open()
    program.run([Segment(slot, [1] * 64)])
    assert len(program.slots.pages.free) == 2
    fork = program.fork(slot)
    assert len(program.slots.pages.free) == 2
    program.run([Segment(fork, [2]), Segment(slot, [3])])
    assert len(program.slots.pages.free) == 0
    last = program.open()
    with pytest.raises(ValueError, match="pages are used up"):
        program.run([Segment(fork, [1]), Segment(last, [1])])
    assert program.position(fork) == 65
    program.close(fork)
    assert len(program.slots.pages.free) == 1
    taken = program.snapshot(slot)
    program.close(slot)
    assert len(program.slots.pages.free) == 1
    del taken
    assert len(program.slots.pages.free) == 3


def test_a_window_gives_pages_back():
    program = Program.prepare(lowered("softmax-window=3"), slots=1, rows=64, pages=3)
    slot = program.open()
    for _ in range(9):
        program.run([Segment(slot, [1] * 64)])
    assert program.position(slot) == 9 * 64


# --- choosing tokens ---


def choosing(logits: Tensor) -> Program:
    """A program whose logits after token i are row i."""
    build = Builder()
    return prepared(graph_of(build, build.embed(logits)))


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 90, "top_p": 0.9}, {"temperature": 0.0}]
)
def test_tokens_are_chosen_as_the_sampler_does(settings):
    logits = 3 * torch.randn(40, 300)
    program = choosing(logits)
    for limit in (300, 211):
        sampler = Sampler(**{"temperature": 0.9, **settings})
        for row in range(40):
            slot = program.open()
            choice = Choice(sampler.temperature, sampler.top_k or 0, sampler.top_p, 2**64 - 1 - row, row, limit)
            found = program.run([Segment(slot, [row], choice=choice)])[0].tokens
            program.close(slot)
            assert found == sampler.choose(logits[row : row + 1, :limit], [uniform(2**64 - 1 - row, row)])


def test_equal_logits_take_the_first():
    program = choosing(torch.zeros(3, 40))
    assert program.run([Segment(program.open(), [1], choice=Choice(temperature=0))])[0].tokens == [0]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_damaged_logits_choose_nothing(wrong: float, temperature: float):
    logits = torch.randn(3, 20)
    logits[1, 7] = wrong
    program = choosing(logits)
    slots = [program.open() for _ in range(2)]
    damaged, sound = program.run(
        [Segment(slot, [2 - row], choice=Choice(temperature)) for row, slot in enumerate(slots, 1)]
    )
    assert (damaged.tokens, damaged.damaged, sound.damaged) == ([], True, False)
    assert len(sound.tokens) == 1


# --- drafts ---


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", ["gated_deltanet", "mixed", "deltaproduct", "rwkv6", "linear_transformer"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_is_the_same_with_drafts_and_without(name: str, weights: Weights, temperature: float):
    program, ids = prepared(lowered(name), weights), texts()[0]
    plain, drafting = program.open(), program.open()
    written = continued(program, plain, ids, temperature, lambda _: [], 40)
    draw = random.Random(name)
    guesses = [*written[:9], 1, 1, *written[11:]]  # right for a while, then wrong
    guessed = continued(program, drafting, ids, temperature, lambda done: guesses[done : done + draw.randint(0, 6)])
    assert guessed == written[: len(guessed)]
    position = program.position(drafting)
    again = program.open()
    program.run([Segment(again, [*ids, *written][:position])])
    assert all(torch.equal(x, program.read(again)[key]) for key, x in program.read(drafting).items())


def continued(program: Program, slot: int, ids: list[int], temperature: float, guess, count: int = 24) -> list[int]:
    found: list[int] = []
    left = ids
    while len(found) < count:
        drafts = guess(len(found))
        choice = Choice(temperature, seed=5, drawn=len(found) if temperature else 0)
        outcome = program.run([Segment(slot, [*left, *drafts], choice=choice, drafted=len(drafts))])[0]
        found += outcome.tokens
        left = outcome.tokens[-1:]
    return found


def test_a_token_that_ends_the_text_stops_the_drafts():
    build = Builder()
    graph = graph_of(build, build.embed(torch.eye(6).roll(1, 1)))  # after i comes i + 1
    program = prepared(graph)
    slot = program.open()
    choice = Choice(temperature=0, stop=3)
    outcome = program.run([Segment(slot, [1, 2, 3, 4], choice=choice, drafted=3)])[0]
    assert (outcome.tokens, outcome.accepted, outcome.ended) == ([2, 3], 2, True)
    assert program.position(slot) == 2


# --- what is refused ---


def bad_calls(program: Program) -> dict[str, tuple[list[Segment], str]]:
    slot = program.slots.seen.tolist().index(2)
    return {
        "slot": ([Segment(9, [1])], "slot must be from 0 to|from 0 to 5"),
        "closed": ([Segment(5, [1])], "closed"),
        "empty": ([Segment(slot, [])], "at least one token"),
        "token": ([Segment(slot, [1, 13])], "tokens must be from 0 to 12"),
        "negative": ([Segment(slot, [-1])], "tokens must be from 0 to 12"),
        "rows": ([Segment(slot, [1] * 65)], "at most 64 rows"),
        "twice": ([Segment(slot, [1]), Segment(slot, [1])], "in segments 0 and 1"),
        "unchosen": ([Segment(slot, [1, 2], drafted=1)], "no choice"),
        "drafted": ([Segment(slot, [1, 2], choice=Choice(), drafted=2)], "0 to 1 drafted"),
        "temperature": ([Segment(slot, [1], choice=Choice(temperature=-1))], "temperature"),
        "top_p": ([Segment(slot, [1], choice=Choice(top_p=0))], "top_p"),
        "limit": ([Segment(slot, [1], choice=Choice(limit=14))], "1 to 13"),
        "none": ([], "1 to 64 segments"),
    }


@pytest.mark.parametrize("name", ["gated_deltanet", "mixed"])
def test_a_bad_call_is_refused_and_writes_nothing(name: str):
    program = prepared(lowered(name))
    slot, other = program.open(), program.open()
    program.run([Segment(slot, [1, 2])])
    before = program.read(slot)
    for what, (segments, message) in bad_calls(program).items():
        with pytest.raises((ValueError, IndexError), match=message):
            program.run([Segment(other, [3]), *segments] if what in ("token", "empty") else segments)
        assert (program.position(slot), program.position(other)) == (2, 0), what
        assert all(torch.equal(x, before[key]) for key, x in program.read(slot).items()), what
    wrongs: list[Any] = [1.5, "a", None]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            program.run([Segment(slot, [wrong])])
        with pytest.raises(TypeError):
            program.run([Segment(wrong, [1])])


def test_what_belongs_to_another_program_is_refused():
    one, other = prepared(lowered("gated_deltanet")), prepared(lowered("gated_deltanet"), "bfloat16")
    taken = one.snapshot(one.open())
    with pytest.raises(ValueError, match="another program"):
        other.restore(other.open(), taken)
    slot = one.open()
    with pytest.raises(ValueError, match="is missing"):
        one.write(slot, {}, 3)
    wrong = {name: torch.zeros(2) for name in one.read(slot)}
    with pytest.raises(ValueError, match="must be"):
        one.write(slot, wrong, 3)


def test_preparing_refuses_what_it_cannot_do():
    graph = lowered("softmax")
    for settings, message in (
        ({"weights": "int4"}, "weights"),
        ({"slots": 0}, "slots"),
        ({"rows": 0}, "rows"),
        ({"threads": 0}, "threads"),
        ({"pages": 0}, "pages"),
    ):
        with pytest.raises(ValueError, match=message):
            Program.prepare(graph, **{"pages": 1, **settings})
    program = Program.prepare(graph, pages=1)
    program.open()
    with pytest.raises(ValueError, match="all 1 slots are open"):
        program.open()


def test_int8_without_avx2_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "load", lambda: library.with_isa("baseline"))
    with pytest.raises(ValueError, match="needs AVX2"):
        prepared(lowered("gated_deltanet"), "int8")


def test_a_state_that_does_not_fit_changes_nothing():
    graph = lowered("softmax")
    large, small = Program.prepare(graph, pages=3, rows=150), Program.prepare(graph, pages=1, rows=150)
    here, there = large.open(), small.open()
    large.run([Segment(here, [1] * 100)])
    small.run([Segment(there, [1] * 5)])
    before = small.read(there)
    with pytest.raises(ValueError, match="pages are used up"):
        small.write(there, large.read(here), 100)
    assert small.position(there) == 5
    assert all(torch.equal(x, before[key]) for key, x in small.read(there).items())


# --- threads and processes ---


def test_calls_from_several_threads_and_after_a_fork():
    programs = [prepared(lowered("gated_deltanet"), threads=2) for _ in range(3)]
    wanted = stepped(prepared(lowered("gated_deltanet")))
    found: dict[int, Any] = {}
    workers = [threading.Thread(target=lambda n=n: found.update({n: stepped(programs[n])})) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for n in range(3):
        equal(found[n], wanted)
    if os.name != "posix":
        return
    child = os.fork()
    if child == 0:
        program = prepared(lowered("gated_deltanet"), threads=2)
        same = all(torch.equal(x, y) for x, y in zip(stepped(program)[0], wanted[0], strict=True))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_function_and_pairing_is_listed_as_the_kernels_have_them():
    """The order of names is that of the enumerations in csrc/program.h."""
    source = (Path(library.__file__).parent / "csrc/program.h").read_text()
    for names, kind in ((FUNCTIONS, "Function"), (PAIRINGS, "Pairing")):
        listed = source.split(f"enum {kind} : int32_t {{")[1].split("}")[0].lower().split(", ")
        assert [name.strip() for name in listed][: len(names)] == list(names)


def test_exponentials_of_equal_parts():
    x = 5 * torch.randn(3, 22)
    for divided in (True, False):
        build = Builder()
        value = build.embed(x)
        out = build.buffer(22)
        build.add(Exponentials(value, out, 2, divided))
        graph = graph_of(build, out)
        near(
            rows_of(only(prepared(graph), [0, 1, 2])),
            reference.Program(graph).run([reference.Segment(reference.Program(graph).empty(), [0, 1, 2])]),
            "exponentials",
            1e-6,
        )
