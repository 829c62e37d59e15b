"""Checks snapshots and transaction indexes against the producers and transactions in the batches.

A replay from the log's start, by the very code that recovery uses, with every rule of docs/semantics.md (I,
L) that a stored batch can break checked on the way.  Where a replay cannot know the truth, the file counts as
right:

* a log whose first segments are gone begins with the snapshot at its first offset; without one, the earlier
  producers are unknown;
* a compacted log lacks batches, so only its order is checked, and its files for being readable;
* behind damage, everything starts anew at the next good snapshot;
* a producer that a snapshot lacks may have been idle and forgotten (rule I11): the snapshot must have a
  producer only when it was active lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from ...runtime.disk import Disk
from ...wire.errors import KafkaError
from ...wire.records import BatchHeader, Marker, decode_marker, next_sequence
from ..producers.producer_snapshot import SnapshotInvalid, SnapshotOfOtherVersion, decode_snapshot
from ..producers.producer_state import ProducerEntry, ProducerState
from ..recovery.recovery import aborted_entries, replay_batch
from ..segment.batch_scan import ScannedBatch
from ..segment.transaction_index import (
    ENTRY_BYTES,
    TransactionIndexEntry,
    decode_transaction_index,
)
from ..topic_config import LogConfig
from .findings import Finding
from .verification import StoredBatch

OPEN_TOO_LONG_MS = 3_600_000
"""Longer than any transaction timeout of the default configuration."""
_COMPLETIONS_KEPT = 10_000
_NO_BOUND = 2**62

Report = Callable[[Finding], None]


class ProducerReplay:
    """See the module's text.  `is_exact`: the log was never compacted.  `knows_start`: nothing came before
    the first batch."""

    def __init__(
        self, config: LogConfig, now_ms: int, *, is_exact: bool, knows_start: bool, report: Report
    ) -> None:
        self.is_exact = is_exact
        self.is_reliable = True
        """False behind damage: the state from earlier batches is not known there."""
        self.knows_start = knows_start
        self._config = config
        self._forgotten_before_ms = now_ms - config.producer_id_expiration_ms
        self._now_ms = now_ms
        self._report = report
        self.state = ProducerState(max_producer_ids=_NO_BOUND)
        self._completions: deque[tuple[int, int]] = deque(maxlen=_COMPLETIONS_KEPT)
        self._completions_lost = False
        self._perhaps_forgotten: set[int] = set()  # and active again: a snapshot may know less of them
        self._alone = 0
        self._first_alone: tuple[Path, int, int] | None = None

    def begin_with(self, disk: Disk, path: Path, offset: int) -> None:
        """Loads the snapshot at the log's first offset, if there is one, as the state before the first
        batch."""
        state = self._read_snapshot(disk, path, offset)
        if state is not None:
            self.state, self.knows_start = state, True
            self._completions_lost = True

    def lose_track(self) -> None:
        """Batches are missing or damaged."""
        self.is_reliable = False

    # ---- batches -------------------------------------------------------------------------------------------

    def take(self, batch: StoredBatch, path: Path) -> list[TransactionIndexEntry]:
        """Checks and replays one batch; returns the aborted transactions that it ends."""
        header = batch.header
        if header.producer_id < 0:
            return []
        entry = self.state.get(header.producer_id)
        if header.is_control:
            try:
                marker = decode_marker(batch.view)
            except KafkaError as error:
                self._report(
                    Finding("marker-damaged", path, error.message, batch.position, header.base_offset)
                )
                return []
            if marker is not None:
                self._check_marker(marker, entry, path, batch.position)
        elif entry is not None:
            self._check_data(header, entry, path, batch.position)
        elif self.is_reliable and self.is_exact and self.knows_start and header.base_sequence > 0:
            self._sequence_gap(header, 0, path, batch.position)
        prepared = replay_batch(self.state, ScannedBatch(batch.position, header, batch.view))
        if prepared is None:
            return []
        for done in prepared.completed:
            self._completions_lost |= len(self._completions) == _COMPLETIONS_KEPT
            self._completions.append((done.first_offset, done.last_offset))
        self.state.set_high_watermark(header.base_offset)
        return aborted_entries(prepared)

    def _check_data(self, header: BatchHeader, entry: ProducerEntry, path: Path, position: int) -> None:
        if not self.is_reliable:
            return
        name, offset = f"producer {header.producer_id}", header.base_offset
        if header.producer_epoch < entry.epoch:
            what = f"{name}: epoch {header.producer_epoch} after {entry.epoch}"
            self._report(Finding("producer-epoch-order", path, what, position, offset))
            return
        if self._may_be_forgotten(entry):
            self._perhaps_forgotten.add(header.producer_id)
        first = entry.transaction_first_offset
        if first is not None and not header.is_transactional:
            what = f"{name}: its transaction began at offset {first}"
            self._report(Finding("transaction-interrupted", path, what, position, offset))
        elif first is not None and header.producer_epoch != entry.epoch:
            what = (
                f"{name}: epoch {header.producer_epoch} while epoch {entry.epoch} has one open from "
                f"offset {first}"
            )
            self._report(Finding("transaction-merged", path, what, position, offset))
        if header.base_sequence < 0 or not self.is_exact:
            return
        is_new = header.producer_epoch != entry.epoch or not entry.batches
        expected = 0 if is_new else next_sequence(entry.last_sequence)
        if header.base_sequence != expected and not (
            header.base_sequence == 0 and self._may_be_forgotten(entry)
        ):
            self._sequence_gap(header, expected, path, position)

    def _sequence_gap(self, header: BatchHeader, expected: int, path: Path, position: int) -> None:
        name = f"producer {header.producer_id} epoch {header.producer_epoch}"
        what = f"{name}: sequence {header.base_sequence} where {expected} was expected"
        self._report(Finding("sequence-gap", path, what, position, header.base_offset))

    def _may_be_forgotten(self, entry: ProducerEntry) -> bool:
        is_idle = entry.last_timestamp_ms <= self._forgotten_before_ms
        return entry.transaction_first_offset is None and (
            is_idle or len(self.state) >= self._config.max_producer_ids
        )

    def _check_marker(self, marker: Marker, entry: ProducerEntry | None, path: Path, position: int) -> None:
        if not self.is_reliable:
            return
        if entry is None or entry.transaction_first_offset is None:
            self._alone += 1
            self._first_alone = self._first_alone or (path, position, marker.offset)
        if entry is None:
            return
        name = f"producer {marker.producer_id}"
        if marker.producer_epoch < entry.epoch:
            what = f"{name}: a marker of epoch {marker.producer_epoch} after epoch {entry.epoch}"
            self._report(Finding("marker-epoch", path, what, position, marker.offset))
        if marker.coordinator_epoch < entry.coordinator_epoch:
            what = f"{name}: coordinator epoch {marker.coordinator_epoch} after {entry.coordinator_epoch}"
            self._report(Finding("marker-coordinator-epoch", path, what, position, marker.offset))

    def finish(self, path: Path) -> None:
        """All batches were taken; `path` is the last segment."""
        if self._first_alone is not None and self.is_exact:
            file, position, offset = self._first_alone
            self._report(
                Finding("marker-alone", file, f"{self._alone} of them, the first here", position, offset)
            )
        for offset, producer_id in self.state.open_transactions.items():
            entry = self.state.get(producer_id)
            if (
                entry is not None
                and self._now_ms - entry.last_timestamp_ms > OPEN_TOO_LONG_MS
                and self.is_reliable
            ):
                what = (
                    f"producer {producer_id} epoch {entry.epoch}, last heard of at "
                    f"{entry.last_timestamp_ms} (ms)"
                )
                self._report(Finding("transaction-open", path, what, -1, offset))

    # ---- snapshots -----------------------------------------------------------------------------------------

    def _read_snapshot(self, disk: Disk, path: Path, offset: int) -> ProducerState | None:
        found = ProducerState(max_producer_ids=_NO_BOUND)
        try:
            decode_snapshot(disk.read(path), found)
        except SnapshotInvalid as error:
            kind = "snapshot-unread" if isinstance(error, SnapshotOfOtherVersion) else "snapshot-damaged"
            self._report(Finding(kind, path, str(error), 0, offset))
            return None
        if found.end_offset != offset:
            self._report(
                Finding("snapshot-wrong", path, f"it is one of offset {found.end_offset}", 0, offset)
            )
            return None
        return found

    def compare_snapshot(self, disk: Disk, path: Path, offset: int) -> None:
        """All batches below `offset` were taken."""
        found = self._read_snapshot(disk, path, offset)
        if found is None:
            return
        if not self.is_reliable:
            self.state, self.is_reliable = found, True
            self._completions_lost = True
        elif self.is_exact:
            difference = self._difference(found)
            if difference:
                self._report(Finding("snapshot-wrong", path, difference, 0, offset))

    def _difference(self, found: ProducerState) -> str:
        for entry in found.entries():
            known = self.state.get(entry.producer_id)
            if known is None:
                if self.knows_start:
                    return f"it has producer {entry.producer_id}, of which the log has no batch"
            elif not self._is_same(entry, known):
                return (
                    f"of producer {entry.producer_id} it says {_describe(entry)}; the batches say "
                    f"{_describe(known)}"
                )
        for known in self.state.entries():
            if found.get(known.producer_id) is None and not self._may_be_forgotten(known):
                return f"it lacks producer {known.producer_id}, {_describe(known)}"
        for pair in found.unreplicated:
            if pair not in self._completions and not self._completions_lost:
                return (
                    f"it has a transaction from offset {pair[0]} with a marker at {pair[1]}, which is "
                    "not in the log"
                )
        return ""

    def _is_same(self, stored: ProducerEntry, known: ProducerEntry) -> bool:
        if stored.as_tuple() == known.as_tuple():
            return True
        if self.knows_start and stored.producer_id not in self._perhaps_forgotten:
            return False
        fewer, more = sorted((stored.batches, known.batches), key=len)
        return (
            stored.epoch == known.epoch
            and stored.last_timestamp_ms == known.last_timestamp_ms
            and more[len(more) - len(fewer) :] == fewer
            and (not self.knows_start or stored.transaction_first_offset == known.transaction_first_offset)
        )

    # ---- transaction index ---------------------------------------------------------------------------------

    def compare_transactions(
        self,
        disk: Disk,
        path: Path,
        computed: list[TransactionIndexEntry],
        limit: int,
        *,
        exists: bool,
        is_settled: bool,
    ) -> None:
        """`computed` comes from the markers of this segment; entries at or above `limit` do not count yet.
        `is_settled`: the whole segment is below it, and so every byte of the file counts."""
        data = disk.read(path) if exists else b""
        try:
            stored = decode_transaction_index(data) if is_settled else _sane_entries(data)
        except ValueError as error:
            self._report(Finding("transaction-index-damaged", path, str(error), 0))
            return
        if not self.is_reliable:
            return
        stored = [entry for entry in stored if entry.last_offset < limit]
        wanted = [entry for entry in computed if entry.last_offset < limit]
        if self.is_exact and self.knows_start:
            self._compare_exactly(path, stored, wanted)
            return
        # Records of the transactions may be gone: their entries stay, and reach back at least to the
        # remaining records.
        for entry in wanted:
            fits = [
                e for e in stored if e.last_offset == entry.last_offset and e.producer_id == entry.producer_id
            ]
            if not fits or fits[0].first_offset > entry.first_offset:
                self._transactions_wrong(
                    path, 0, f"no entry for the abort of {_name(entry)}", entry.last_offset
                )
                return

    def _compare_exactly(
        self, path: Path, stored: list[TransactionIndexEntry], wanted: list[TransactionIndexEntry]
    ) -> None:
        for at in range(max(len(stored), len(wanted))):
            has = stored[at] if at < len(stored) else None
            must = wanted[at] if at < len(wanted) else None
            if has == must:
                continue
            if must is not None and (has is None or has.last_offset > must.last_offset):
                self._transactions_wrong(
                    path, at, f"no entry for the abort of {_name(must)}", must.last_offset
                )
            elif has is not None and (must is None or has.last_offset < must.last_offset):
                self._transactions_wrong(
                    path, at, f"an entry for {_name(has)}, which was not aborted", has.last_offset
                )
            elif has is not None and must is not None:
                what = (
                    f"it says {_name(has)}, last stable offset {has.last_stable_offset}; the batches say "
                    f"{_name(must)}, "
                )
                self._transactions_wrong(path, at, f"{what}{must.last_stable_offset}", must.last_offset)
            return

    def _transactions_wrong(self, path: Path, at: int, detail: str, offset: int) -> None:
        self._report(Finding("transaction-index-wrong", path, detail, at * ENTRY_BYTES, offset))


def _sane_entries(data: bytes) -> list[TransactionIndexEntry]:
    """The entries before the first invalid one: the rest was never synced."""
    found: list[TransactionIndexEntry] = []
    for at in range(0, len(data), ENTRY_BYTES):
        try:
            (entry,) = decode_transaction_index(data[at : at + ENTRY_BYTES])
        except ValueError:
            break
        found.append(entry)
    return found


def _describe(entry: ProducerEntry) -> str:
    first = entry.transaction_first_offset
    parts = [
        f"epoch {entry.epoch}",
        f"coordinator epoch {entry.coordinator_epoch}",
        f"last sequence {entry.last_sequence}",
    ]
    parts += [f"{len(entry.batches)} batches", f"last timestamp {entry.last_timestamp_ms}"]
    return ", ".join([*parts, "no transaction" if first is None else f"a transaction from offset {first}"])


def _name(entry: TransactionIndexEntry) -> str:
    return (
        f"producer {entry.producer_id} from offset {entry.first_offset} to its marker at {entry.last_offset}"
    )
