"""What a reader may see of a range, against a reference that knows every transaction (docs/semantics.md
X4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.client.consuming.visibility import VisibilityFilter
from tidegate.wire.records import (
    BatchHeader,
    ControlType,
    NewRecord,
    assign_in_place,
    encode_batch,
    encode_marker,
    parse_header,
)

# One step of a log: (producer id, what it does); id 0 writes outside transactions.
steps = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "write", "commit", "abort"])), max_size=40
)


@dataclass
class History:
    """A partition's batches, its aborted transactions as the transaction index has them, and the visible
    first offsets."""

    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    # producer id, first offset, marker's offset
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)
    last_stable_offset: int = 0


def play(script: list[tuple[int, str]]) -> History:
    history, offset = History(), 0
    open_transactions: dict[int, list[int]] = {}
    for producer_id, what in script:
        if what == "write":
            batch = bytearray(
                encode_batch(
                    [NewRecord(b"k", b"v")] * 2,
                    producer_id=producer_id,
                    producer_epoch=0,
                    transactional=producer_id > 0,
                )
            )
            if producer_id:
                open_transactions.setdefault(producer_id, []).append(offset)
            else:
                history.visible.add(offset)
        elif not producer_id:
            continue
        else:
            kind = ControlType.COMMIT if what == "commit" else ControlType.ABORT
            batch = bytearray(encode_marker(kind, producer_id, 0, 0, 0))
            written = open_transactions.pop(producer_id, [])
            if what == "commit":
                history.visible.update(written)
            elif written:
                history.aborted.append((producer_id, written[0], offset))
        assign_in_place(memoryview(batch), 0, offset, 0)
        header = parse_header(batch)
        history.batches.append((header, bytes(batch)))
        offset = header.next_offset
    history.last_stable_offset = min([written[0] for written in open_transactions.values()] or [offset])
    return history


def seen(history: History, start: int, aborted: list[tuple[int, int]]) -> set[int]:
    visibility = VisibilityFilter(aborted)
    return {
        header.base_offset
        for header, data in history.batches
        if start <= header.base_offset < history.last_stable_offset
        and visibility.shows(header, memoryview(data), 0)
    }


@settings(max_examples=300)
@given(steps, st.integers(0, 40))
def test_exactly_the_committed_batches_are_shown_wherever_the_range_starts(
    script: list[tuple[int, str]], skip: int
) -> None:
    history = play(script)
    start = history.batches[skip][0].base_offset if skip < len(history.batches) else 0
    aborted = [
        (pid, first)
        for pid, first, marker in history.aborted
        if marker >= start and first < history.last_stable_offset
    ]
    wanted = {offset for offset in history.visible if start <= offset < history.last_stable_offset}
    assert seen(history, start, aborted) == wanted


def test_without_the_list_aborted_records_would_be_seen() -> None:
    """The ablation: the reference above notices when the filter is off."""
    history = play([(1, "write"), (0, "write"), (1, "abort"), (1, "write"), (1, "commit")])
    assert seen(history, 0, [(1, 0)]) == history.visible
    assert seen(history, 0, []) != history.visible


def test_an_emptied_control_batch_is_skipped() -> None:
    marker = bytearray(encode_marker(ControlType.ABORT, 1, 0, 0, 0))
    marker[57:61] = (0).to_bytes(4, "big")
    visibility = VisibilityFilter([(1, 0)])
    assert not visibility.shows(parse_header(marker), memoryview(marker), 0)
    later = encode_batch(
        [NewRecord(b"k", b"v")], base_offset=1, producer_id=1, producer_epoch=0, transactional=True
    )
    assert not visibility.shows(parse_header(later), memoryview(later), 0)  # it ended nothing


def written(producer_id: int, *, transactional: bool) -> bytearray:
    return bytearray(
        encode_batch(
            [NewRecord(b"k", b"v")], producer_id=producer_id, producer_epoch=0, transactional=transactional
        )
    )


def test_records_without_a_transaction_of_a_producer_that_aborts_are_shown() -> None:
    visibility = VisibilityFilter([(1, 0)])
    for transactional in (True, False):
        batch = written(1, transactional=transactional)
        assert visibility.shows(parse_header(batch), memoryview(batch), 0) is not transactional


def test_a_batch_that_compaction_has_emptied_is_not_shown() -> None:
    """A reader would look for its first record."""
    emptied = written(1, transactional=True)
    emptied[57:61] = (0).to_bytes(4, "big")
    assert not VisibilityFilter().shows(parse_header(emptied), memoryview(emptied), 0)
