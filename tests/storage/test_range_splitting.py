"""Ranges of a log split by size: the same pieces as from a walk over every entry of the indexes, for the
price of some binary searches; and what comes of it when the log changes meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.storage.log import lookup
from tidegate.storage.log.health import Health
from tidegate.storage.log.lookup import OffsetRange, split_range
from tidegate.storage.segment.offset_index import OffsetIndex
from tidegate.storage.segment.segment_list import Segments


class CountedIndex(OffsetIndex):
    """Counts how often it is asked."""

    __slots__ = ("questions",)

    def __init__(self, base_offset: int) -> None:
        super().__init__(base_offset)
        self.questions = 0

    def entry(self, index: int) -> tuple[int, int]:
        self.questions += 1
        return super().entry(index)

    def floor(self, offset: int) -> int:
        self.questions += 1
        return super().floor(offset)

    def ceiling(self, offset: int) -> int:
        self.questions += 1
        return super().ceiling(offset)

    def ceiling_position(self, position: int) -> int:
        self.questions += 1
        return super().ceiling_position(position)


class IndexedSegment:
    """What a split needs of a segment.  `entries` are those of the index; None: nothing may ask for it."""

    def __init__(
        self, base_offset: int, next_offset: int, size_bytes: int, entries: Iterable[tuple[int, int]] | None
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        self._index = CountedIndex(base_offset)
        self._is_readable = entries is not None
        for offset, position in entries or ():
            self._index.append(offset, position)

    @property
    def index(self) -> CountedIndex:
        assert self._is_readable, f"the index of the segment at {self.base_offset} is not needed"
        return self._index


def log_of(segments: Sequence[IndexedSegment], log_start_offset: int = 0) -> Any:
    health = Health("t-0", Path("t-0"))
    listed: Any = list(segments)
    files: Any = SimpleNamespace(disk=None)
    return SimpleNamespace(
        segments=Segments(files, Path("t-0"), listed),
        local=SimpleNamespace(health=health),
        log_start_offset=log_start_offset,
        log_end_offset=segments[-1].next_offset,
    )


def split(log: Any, start: int, end: int, target_bytes: int) -> list[OffsetRange]:
    return [piece for pieces in split_range(log, start, end, target_bytes) for piece in pieces]


def walk(
    segments: Sequence[IndexedSegment], start: int, end: int, target_bytes: int
) -> Iterator[OffsetRange]:
    """The model: every entry, one by one."""
    piece_start, piece_bytes = start, 0
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end or not segment.size_bytes:
            continue
        index = segment.index
        low = max(0, index.floor(start))
        high = index.ceiling(end)
        for at in range(low, max(high, low + 1)):
            offset, position = index.entry(at)
            if piece_bytes >= target_bytes and offset > piece_start:
                yield OffsetRange(piece_start, min(offset, end), piece_bytes)
                piece_start, piece_bytes = offset, 0
            following = index.entry(at + 1)[1] if at + 1 < len(index) else segment.size_bytes
            piece_bytes += following - position
    if piece_start < end:
        yield OffsetRange(piece_start, end, piece_bytes)


def random_segments(dice: random.Random) -> list[IndexedSegment]:
    """With gaps of compaction at the start and the end of segments and between them, and empty ones."""
    found, base = [], dice.randrange(3) * 50
    for _ in range(dice.randint(1, 6)):
        offset, position, entries = base + dice.choice([0, 0, 7]), 0, []
        for _ in range(dice.choice([0, 1, 2, 10, 40])):
            entries.append((offset, position))
            offset += dice.randint(1, 9)
            position += dice.choice([70, dice.randint(61, 3000)])
        end = offset + dice.choice([0, 0, 5])
        found.append(IndexedSegment(base, end, position, entries))
        base = max(end, base + 1) + dice.choice([0, 0, 20])
    return found


@pytest.mark.parametrize("at_once", [1, 3, 256])
@given(seed=st.integers(0, 2**32), target=st.one_of(st.integers(1, 4000), st.integers(1, 100_000)))
def test_a_split_is_the_same_as_by_a_walk_over_every_entry(at_once: int, seed: int, target: int) -> None:
    dice = random.Random(seed)
    segments = random_segments(dice)
    first, last = segments[0].base_offset, segments[-1].next_offset
    edges = [edge for each in segments for edge in (each.base_offset, each.next_offset)]
    for _ in range(8):
        start, end = sorted(dice.choice([dice.randint(first, last), dice.choice(edges)]) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookup, "PIECES_AT_ONCE", at_once)
            assert split(log_of(segments), start, end, target) == list(walk(segments, start, end, target))


def large_segments(count: int, entries: int) -> list[IndexedSegment]:
    """Of 40 records and 4096 bytes an entry."""
    return [
        IndexedSegment(
            at * entries * 40,
            (at + 1) * entries * 40,
            entries * 4096,
            [((at * entries + number) * 40, number * 4096) for number in range(entries)],
        )
        for at in range(count)
    ]


@pytest.mark.parametrize(("target_bytes", "ranges"), [(1 << 20, 128), (16 << 20, 8), (1 << 12, 32_768)])
def test_a_split_asks_indexes_by_the_piece_and_not_by_the_entry(target_bytes: int, ranges: int) -> None:
    segments = large_segments(4, 8192)
    pieces = split(log_of(segments), 0, segments[-1].next_offset, target_bytes)
    assert len(pieces) == ranges
    asked = sum(segment.index.questions for segment in segments)
    assert asked <= 4 * ranges + 8 * len(segments)


def test_the_index_of_a_segment_that_no_piece_ends_in_is_not_read() -> None:
    within = [IndexedSegment(at * 10, at * 10 + 10, 500, None) for at in range(1, 9)]
    ends = [IndexedSegment(at, at + 10, 500, [(at, 0)]) for at in (0, 90)]
    log = log_of([ends[0], *within, ends[1]])
    assert split(log, 5, 95, 10_000) == [OffsetRange(5, 95, 5000)]


def test_a_split_gives_its_pieces_a_few_at_a_time() -> None:
    segments = large_segments(2, 1000)
    given = [len(pieces) for pieces in split_range(log_of(segments), 0, segments[-1].next_offset, 4096)]
    assert sum(given) == 2000
    assert max(given) <= lookup.PIECES_AT_ONCE
    unread = split_range(log_of(large_segments(30, 10)), 0, 12_000, 1 << 30)
    assert [len(pieces) for pieces in unread] == [0] * 30 + [1]  # also between segments


def test_a_range_that_ends_in_a_gap_is_not_exceeded() -> None:
    """Compaction has emptied [10, 20): the second segment's first batch begins behind the range."""
    log = log_of([IndexedSegment(0, 10, 100, [(0, 0)]), IndexedSegment(10, 30, 100, [(20, 0)])])
    assert split(log, 0, 15, 100) == [OffsetRange(0, 15, 100)]
    assert split(log, 0, 20, 100) == [OffsetRange(0, 20, 100)]
    assert split(log, 0, 21, 100) == [OffsetRange(0, 20, 100), OffsetRange(20, 21, 100)]


def merged(segments: Sequence[IndexedSegment]) -> IndexedSegment:
    """One segment in the place of all, with every third batch."""
    first, last = segments[0].base_offset, segments[-1].next_offset
    entries = [(offset, 2048 * at) for at, offset in enumerate(range(first, last, 120))]
    return IndexedSegment(first, last, 2048 * len(entries), entries)


@pytest.mark.parametrize("at", range(1, 14))
@pytest.mark.parametrize("target_bytes", [1000, 5000, 30_000, 1 << 30])
@pytest.mark.parametrize("change", ["cleaned", "rolled", "begins later", "truncated"])
def test_a_split_of_a_log_that_changes_meanwhile_covers_the_range_once(
    monkeypatch: pytest.MonkeyPatch, change: str, target_bytes: int, at: int
) -> None:
    monkeypatch.setattr(lookup, "PIECES_AT_ONCE", 3)
    segments = large_segments(5, 10)
    log = log_of(segments)
    found: list[OffsetRange] = []
    for turn, pieces in enumerate(split_range(log, 15, 1990, target_bytes)):
        found += pieces
        if turn == at:
            now: dict[str, list[IndexedSegment]] = {
                "cleaned": [merged(segments[:4]), segments[4]],
                "rolled": [*segments, IndexedSegment(2000, 2000, 0, [])],
                "begins later": segments[3:],
                "truncated": segments[:2],
            }
            log.segments = log_of(now[change]).segments
    assert (found[0].start, found[-1].end) == (15, 1990)
    assert all(left.end == right.start for left, right in itertools.pairwise(found))
    assert all(piece.start < piece.end for piece in found)
