"""What texts keep between calls: slots of fixed size, and pages of keys and values that texts may share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from rebracket.backends.cpu import library
from rebracket.backends.cpu.program.layout import ProgramCall
from rebracket.ops.program import Graph, Held, Paged

CLOSED = -1
PAGE = ProgramCall.PAGE_TOKENS
MORE = "close slots or snapshots, or prepare the program with more pages"


@final
class Pages:
    """Pages of one pool, each counted by the slots and snapshots that refer to it.

    Args:
        slots: how many slots there are.
        count: pages of the pool.
        size: numbers of a page.
    """

    def __init__(self, slots: int, count: int, size: int) -> None:
        self.count = count
        self.pool = library.empty(count, size)
        self.tables = np.full((slots, max(count, 1)), CLOSED, np.int32)
        self.free = list(range(count))[::-1]
        self.uses: Counter[int] = Counter()

    def reserve(self, ranges: Sequence[tuple[int, int, int, int]]) -> None:
        """Gives each (slot, first token still read, first new one, end) pages of its own for the new tokens, or raises.

        Pages whose tokens are no longer read are given back.
        """
        for slot, first, _, end in ranges:
            self.keep(slot, range(first // PAGE, -(-end // PAGE)))
        wanted = [
            (slot, page)
            for slot, _, begin, end in ranges
            for page in range(begin // PAGE, -(-end // PAGE))
            if self.must_be_taken(slot, page)
        ]
        if len(wanted) > len(self.free):
            raise ValueError(
                f"pages are used up: {len(wanted)} are needed and {len(self.free)} of {self.count} are free; {MORE}"
            )
        for slot, page in wanted:
            self.take(slot, page)

    def renew(self, slot: int, begin: int, end: int) -> None:
        """Gives a slot new pages for these tokens alone, or raises and changes nothing."""
        before = self.share(slot)
        self.put(slot, np.full_like(before, CLOSED))
        try:
            self.reserve([(slot, begin, begin, end)])
        except ValueError:
            self.put(slot, before)
            raise
        self.release(before.tolist())

    def keep(self, slot: int, pages: range) -> None:
        """Gives back what a slot holds outside of these pages."""
        if len(pages) > self.count:
            raise ValueError(f"pages are used up: one text needs {len(pages)} and there are {self.count}; {MORE}")
        outside = np.ones(self.count, np.bool_)
        outside[[page % self.count for page in pages]] = False
        self.release(self.tables[slot, outside].tolist())
        self.tables[slot, outside] = CLOSED

    def must_be_taken(self, slot: int, page: int) -> bool:
        """Whether a page is not there, or is another's too."""
        held = int(self.tables[slot, page % self.count])
        return held < 0 or self.uses[held] > 1

    def take(self, slot: int, page: int) -> None:
        """A page of a slot's own in that place, with what the shared one there held."""
        place = page % self.count
        shared, mine = int(self.tables[slot, place]), self.free.pop()
        if shared >= 0:
            self.pool[mine] = self.pool[shared]
            self.release([shared])
        self.tables[slot, place], self.uses[mine] = mine, 1

    def share(self, slot: int) -> np.ndarray:
        """The pages of a slot, counted once more."""
        table = self.tables[slot].copy()
        self.uses.update(table[table >= 0].tolist())
        return table

    def put(self, slot: int, table: np.ndarray) -> None:
        """Gives a slot pages that were counted for it."""
        self.release(self.tables[slot].tolist())
        self.tables[slot] = table

    def release(self, pages: Iterable[int]) -> None:
        """Counts pages once less; those that nothing refers to are free again."""
        for page in pages:
            if page >= 0:
                self.uses[page] -= 1
                if self.uses[page] == 0:
                    self.free.append(page)


@final
@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that a slot held at one token: numbers, position, pages.

    Args:
        numbers: [slot_size].
        position: tokens that had been read.
        table: pages, kept from being freed while the snapshot is.
        program: digest of the program that it belongs to.
    """

    numbers: Tensor
    position: int
    table: np.ndarray
    program: str
    pages: Pages

    def __del__(self) -> None:
        self.pages.release(self.table.tolist())


@final
class Slots:
    """The slots of a program.

    Args:
        graph: what a slot holds.
        count: how many there are.
        pages: pages for keys and values.
        page_size: numbers of a page.
        program: digest of the program.
        paged: place of each paged layer in a page.
    """

    def __init__(
        self, graph: Graph, count: int, pages: int, page_size: int, program: str, paged: Mapping[int, int]
    ) -> None:
        self.graph, self.program, self.paged = graph, program, paged
        self.numbers = library.empty(count, -(-max(graph.slot_size, 1) // 16) * 16).zero_()
        self.seen = np.full(count, CLOSED, np.int64)
        self.pages = Pages(count, pages if graph.paged else 0, page_size)
        windows = [layer.window for layer in graph.paged]
        self.window = None if None in windows else max((w for w in windows if w is not None), default=None)

    def open(self) -> int:
        """A new slot, of a text without tokens; a ValueError if none is closed."""
        closed = np.flatnonzero(self.seen == CLOSED)
        if not len(closed):
            raise ValueError(f"all {len(self.seen)} slots are open; close one, or prepare the program with more")
        slot = int(closed[0])
        self.numbers[slot] = 0
        self.seen[slot] = 0
        return slot

    def close(self, slot: int) -> None:
        """Ends a text; its slot and pages can be used again."""
        self.position(slot)
        self.seen[slot] = CLOSED
        self.pages.put(slot, np.full_like(self.pages.tables[slot], CLOSED))

    def position(self, slot: int) -> int:
        """Tokens that a slot has read; an IndexError or ValueError if it is not there or closed."""
        if not 0 <= slot < len(self.seen):
            raise IndexError(f"slot must be from 0 to {len(self.seen) - 1}, got {slot}")
        if self.seen[slot] < 0:
            raise ValueError(f"slot {slot} is closed; open it first")
        return int(self.seen[slot])

    def fork(self, slot: int) -> int:
        """A new slot with all that another holds: one copy, and shared pages."""
        self.position(slot)
        mine = self.open()
        self.numbers[mine], self.seen[mine] = self.numbers[slot], self.seen[slot]
        self.pages.put(mine, self.pages.share(slot))
        return mine

    def snapshot(self, slot: int) -> Snapshot:
        """What a slot holds now."""
        position = self.position(slot)
        return Snapshot(self.numbers[slot].clone(), position, self.pages.share(slot), self.program, self.pages)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Puts a slot where it was, or where another was; a ValueError for a snapshot of another program."""
        self.position(slot)
        if snapshot.program != self.program or (self.graph.paged and snapshot.pages is not self.pages):
            raise ValueError(
                f"snapshot is of another program, {snapshot.program[:12]}, this is {self.program[:12]}: the weights, "
                "their format or the pages are others"
            )
        self.numbers[slot], self.seen[slot] = snapshot.numbers, snapshot.position
        self.pages.uses.update(snapshot.table[snapshot.table >= 0].tolist())
        self.pages.put(slot, snapshot.table)

    def reserve(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Pages for the next tokens of slots, (slot, how many) each; those behind a window are given back."""
        spans = []
        for slot, count in ranges:
            seen = int(self.seen[slot])
            spans.append((slot, 0 if self.window is None else max(0, seen - self.window + 1), seen, seen + count))
        self.pages.reserve(spans)

    def read(self, slot: int) -> dict[str, Tensor]:
        """What a slot holds as tensors of one row, by their names in a `ModelCache`."""
        position, numbers = self.position(slot), self.numbers[slot]
        found = {x.name: numbers[x.offset : x.offset + x.size].view(1, *x.shape).clone() for x in self.graph.held}
        for layer in self.graph.paged:
            first = 0 if layer.window is None else max(0, position - layer.window + 1)
            keys, values = (
                x[:, first % PAGE :][:, : position - first] for x in self.of_pages(slot, layer, first, position)
            )
            found |= {f"{layer.prefix}keys": keys[:, :].clone(), f"{layer.prefix}values": values.clone()}
            found[f"{layer.prefix}seen"] = torch.tensor([position])
        return found

    def of_pages(self, slot: int, layer: Paged, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys [1,L,H,K] and values [1,L,H,V] of the whole pages that hold these positions."""
        places = [page % self.pages.count for page in range(begin // PAGE, -(-end // PAGE))]
        pages = self.pages.pool[torch.from_numpy(self.pages.tables[slot, places].astype(np.int64))]
        keys, values = (part.clone() for part in self.parts(pages, layer))
        return keys.permute(0, 3, 1, 2).flatten(0, 1)[None], values.permute(0, 2, 1, 3).flatten(0, 1)[None]

    def parts(self, pages: Tensor, layer: Paged) -> tuple[Tensor, Tensor]:
        """Views of a layer's keys [pages,H,K,PAGE] and values [pages,H,PAGE,V]."""
        H, K, V, begin = layer.heads, layer.key_dim, layer.value_dim, self.paged[layer.index]
        middle, end = begin + PAGE * H * K, begin + PAGE * H * (K + V)
        return pages[:, begin:middle].view(-1, H, K, PAGE), pages[:, middle:end].view(-1, H, PAGE, V)

    def write(self, slot: int, tensors: Mapping[str, Tensor], position: int) -> None:
        """Puts a slot into a state that `read` gave, or a `ModelCache` of one row at that position.

        Raises:
            ValueError: If a tensor is missing or misshapen; nothing is written then.
        """
        self.position(slot)
        held = [(x, fitting(tensors, x.name, (1, *x.shape))) for x in self.graph.held]
        kept = [(layer, *self.kept(tensors, layer, position)) for layer in self.graph.paged]
        if kept:
            first = min(position - keys.shape[1] for _, keys, _ in kept)
            self.pages.renew(slot, first, position)
        for x, tensor in held:
            self.put_numbers(slot, x, tensor)
        for layer, keys, values in kept:
            self.put_keys(slot, layer, keys, values, position)
        self.seen[slot] = position

    def put_numbers(self, slot: int, held: Held, tensor: Tensor) -> None:
        self.numbers[slot, held.offset : held.offset + held.size] = tensor.flatten()

    def kept(self, tensors: Mapping[str, Tensor], layer: Paged, position: int) -> tuple[Tensor, Tensor]:
        """Keys and values that a layer still reads, of as many tokens as there are."""
        names = f"{layer.prefix}keys", f"{layer.prefix}values"
        length = tensors[names[0]].shape[1] if names[0] in tensors else 0
        keys = fitting(tensors, names[0], (1, length, layer.heads, layer.key_dim))
        values = fitting(tensors, names[1], (1, length, layer.heads, layer.value_dim))
        needed = position if layer.window is None else min(position, layer.window - 1)
        if length < needed:
            raise ValueError(f"{names[0]} must hold the last {needed} tokens of {position}, it holds {length}")
        return keys[:, length - needed :], values[:, length - needed :]

    def put_keys(self, slot: int, layer: Paged, keys: Tensor, values: Tensor, position: int) -> None:
        for t, (key, value) in enumerate(zip(keys[0], values[0], strict=True), position - keys.shape[1]):
            page = int(self.pages.tables[slot, t // PAGE % self.pages.count])
            to_keys, to_values = self.parts(self.pages.pool[page : page + 1], layer)
            to_keys[0, :, :, t % PAGE], to_values[0, :, t % PAGE] = key, value


def fitting(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor by its name, of one shape."""
    if name not in tensors:
        raise ValueError(f"{name} is missing among {sorted(tensors)}: is the state of another model?")
    if tuple(tensors[name].shape) != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensors[name].shape)}: is it of another model?")
    return tensors[name].to("cpu", torch.float32)
