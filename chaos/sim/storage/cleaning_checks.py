"""Checks what compaction did to a log, after each cleaning, also after one that a crash interrupted.

Below the place up to which a cleaning could go (the last stable offset of that time), records may go; nothing
else may change: a batch keeps its offsets, producer and sequences; the remaining records do not change; the
newest committed record of each key stays (a tombstone may go, too); no record of an aborted transaction
becomes readable.  Behind that place, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....storage.log.log import Log
from ....wire.records import ControlType, Record, decode_batch, decode_marker
from .model import LogModel, StoredBatch

Identity = tuple[int, int, int, int, int, bool, bool]


def _identity(batch: StoredBatch) -> Identity:
    h = batch.header
    return (
        h.base_offset,
        h.last_offset,
        h.producer_id,
        h.producer_epoch,
        h.base_sequence,
        h.is_control,
        h.is_transactional,
    )


def committed_records(model: LogModel) -> Iterator[Record]:
    """The committed data records of all batches that were appended and not truncated, in order of offsets."""
    replay = model.replay()
    aborted = {(e.producer_id, e.first_offset, e.marker_offset) for e in replay.ended if e.is_aborted}
    ended = [(e.producer_id, e.first_offset, e.marker_offset) for e in replay.ended]
    for header, data in model.batches:
        if header.is_control:
            continue
        if header.is_transactional:
            mine = next(
                (e for e in ended if e[0] == header.producer_id and e[1] <= header.base_offset < e[2]), None
            )
            if mine is None or mine in aborted:
                continue
        yield from decode_batch(data)


def adopt_cleaned(log: Log, model: LogModel, found: list[StoredBatch], limit: int) -> None:
    """`found` is all that readers see now; the model takes it for the stored batches.  Raises AssertionError
    when a check fails."""
    # they may come back
    before = {b.header.base_offset: b for b in model.batches if b.header.next_offset <= model.hidden_to}
    hidden = set(before)
    before.update({batch.header.base_offset: batch for batch in model.visible()})
    hidden -= {batch.header.base_offset for batch in model.visible()}
    for batch in found:
        base = batch.header.base_offset
        old = before.get(base)
        assert old is not None, f"a batch at {base} that was not there"
        if old.data == batch.data:
            continue
        assert base < limit, f"the batch at {base} has changed, and cleaned was below {limit}"
        assert _identity(old) == _identity(batch), (
            f"the batch at {base} is another one: {old.header} is now {batch.header}"
        )
        if not old.header.is_control:
            records = set(decode_batch(old.data))
            assert all(record in records for record in decode_batch(batch.data)), (
                f"the batch at {base} has other records"
            )
    there = {batch.header.base_offset for batch in found}
    gone = [base for base in before if base not in there and base not in hidden]
    assert all(base < limit for base in gone), (
        f"the batches at {gone} are gone, and cleaned was below {limit}"
    )
    _check_newest_stay(model, found, limit)
    _check_reads_are_committed(log, model, found)
    model.store_cleaned({batch.header.base_offset: batch.data for batch in found}, limit)


def check_aborted_are_gone(model: LogModel, cleaned_to: int) -> None:
    """After a complete cleaning no record of an aborted transaction is left, whatever its key
    (docs/semantics.md C2)."""
    aborted = [each for each in model.replay().ended if each.is_aborted]
    for header, _data in model.visible():
        if (
            header.is_transactional
            and not header.is_control
            and header.base_offset < cleaned_to
            and header.record_count
        ):
            mine = [each for each in aborted if each.producer_id == header.producer_id]
            void = any(each.first_offset <= header.base_offset < each.marker_offset for each in mine)
            assert not void, f"records of an aborted transaction are left at {header.base_offset}"


def _check_newest_stay(model: LogModel, found: Iterable[StoredBatch], limit: int) -> None:
    newest = {record.key: record for record in committed_records(model) if record.offset < limit}
    there = {(r.offset, r.value) for b in found if not b.header.is_control for r in decode_batch(b.data)}
    for key, record in newest.items():
        if record.value is not None and record.offset >= model.start:
            assert (record.offset, record.value) in there, (
                f"the newest record of {key!r}, at {record.offset}, is gone"
            )


def _check_reads_are_committed(log: Log, model: LogModel, found: Iterable[StoredBatch]) -> None:
    """A read_committed consumer sees only committed records (rule F3)."""
    committed = {record.offset for record in committed_records(model)}
    upper = log.last_stable_offset
    waiting = [(t.first_offset, t.producer_id) for t in log.aborted_transactions(log.log_start_offset, upper)]
    void: set[int] = set()
    for header, data in found:
        if header.next_offset > upper:
            break
        while waiting and waiting[0][0] <= header.last_offset:
            void.add(waiting.pop(0)[1])
        if header.is_control:
            marker = decode_marker(data)
            if marker is not None and marker.control_type is ControlType.ABORT:
                void.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in void):
            wrong = [
                r.offset for r in decode_batch(data) if r.offset not in committed and r.offset >= model.start
            ]
            assert not wrong, f"readers see aborted records at {wrong}"
