"""What a data folder notes of its logs for the next start: a checkpoint every few seconds, and the flushes
since.

    partition-checkpoint    per partition: recovery point, high watermark, log start; replaced atomically
    flush-notes             per flush: up to where batches are on the disk (`flush_notes`)

Both files may lag behind the logs but never lead: before a log is truncated, `before_truncation` durably
lowers every offset that the files note above the truncation.  A log that loses its name is removed from both
files.  Rows of logs that are not open stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..checkpoint import CheckpointInvalid, RowShapes, encode_checkpoint, parse_checkpoint
from ..durability.flush_notes import FLUSH_NOTES, FlushNotes, Identity, read_flush_notes

PARTITION_CHECKPOINT = "partition-checkpoint"
PARTITION_CHECKPOINT_SHAPES = RowShapes({1: 5}, writes=1)
log = logs.get(__name__)

PartitionKey = tuple[str, int]


class PartitionCheckpoint(NamedTuple):
    """What the checkpoint notes of one partition; every field is an offset of the log, and a column."""

    recovery_point: int
    high_watermark: int
    log_start_offset: int

    def lowered_to(self, offset: int) -> PartitionCheckpoint:
        """What may be noted of the log when it is truncated to `offset`."""
        return PartitionCheckpoint(*(min(offset, noted) for noted in self))

    def leads(self, log_end_offset: int) -> bool:
        """Whether it must be lowered before the log ends there.  A start lowers the high watermark itself."""
        return any(noted > log_end_offset for noted in self._replace(high_watermark=0))


def _parse_row(topic: str, partition: str, *offsets: str) -> tuple[PartitionKey, PartitionCheckpoint]:
    return (topic, int(partition)), PartitionCheckpoint(*map(int, offsets))


def decode_partition_checkpoint(data: bytes) -> dict[PartitionKey, PartitionCheckpoint]:
    """Raises CheckpointInvalid."""
    return dict(parse_checkpoint(data, PARTITION_CHECKPOINT_SHAPES, _parse_row))


class FolderNotes:
    """See the module's text.  `read` first, and `begin` when the logs are open.  Used on the loop's thread,
    except `sync`."""

    def __init__(self, disk: Disk, folder: Path, on_failure: Callable[[OSError], None]) -> None:
        """`on_failure` is called when a write fails: the note may be on the disk even so and may outlive a
        crash, so a later truncation would have to void it."""
        self.claims: dict[Identity, int] = {}
        """Flushed ends as the previous life of the node noted them."""
        self._disk = disk
        self._path = folder / PARTITION_CHECKPOINT
        self._flushes_path = folder / FLUSH_NOTES
        self._on_failure = on_failure
        self._written: dict[PartitionKey, PartitionCheckpoint] = {}
        # rows of deleted logs, which a full disk keeps until the next checkpoint
        self._forgotten: set[PartitionKey] = set()
        self._flushes: FlushNotes | None = None
        self._keys: dict[Identity, PartitionKey] = {}

    def read(self) -> None:
        """Raises OSError."""
        self._written = self._read_checkpoint()
        self.claims = read_flush_notes(self._disk, self._flushes_path)

    def _read_checkpoint(self) -> dict[PartitionKey, PartitionCheckpoint]:
        if not self._disk.exists(self._path):
            return {}
        try:
            return decode_partition_checkpoint(self._disk.read(self._path))
        except CheckpointInvalid as error:
            log.warning(
                "partition_checkpoint_damaged",
                path=self._path,
                reason=error,
                consequence="every log is scanned in full",
            )
            return {}

    @property
    def rows(self) -> Iterable[PartitionKey]:
        """The partitions that the checkpoint has rows of."""
        return self._written.keys()

    def get(self, key: PartitionKey) -> PartitionCheckpoint | None:
        return self._written.get(key)

    def begin(self, here: Iterable[Identity]) -> None:
        """The caller has opened all logs of the folder, or knows them to be unusable; from here on flushes
        can be noted.  Raises OSError."""
        claims = {each: self.claims[each] for each in here if each in self.claims}
        self._flushes = FlushNotes(self._disk, self._flushes_path, claims)

    def open(self, identity: Identity, key: PartitionKey) -> None:
        """The log is in use: flushes of it are noted from here on."""
        self._keys[identity] = key

    def close(self) -> None:
        if self._flushes is not None:
            self._flushes.close()

    # ---- writing -------------------------------------------------------------------------------------------

    def write(self, rows: Mapping[PartitionKey, PartitionCheckpoint]) -> None:
        """Writes a checkpoint with these new rows; the rows of other logs stay, but for deleted ones.  Raises
        OSError (the old checkpoint stays)."""
        kept = {key: row for key, row in self._written.items() if key not in self._forgotten}
        self._write({**kept, **rows})
        self._forgotten.clear()
        if self._flushes is not None:
            with self._reporting_failure():
                self._flushes.trim(self._settled)

    def _settled(self, identity: Identity) -> int:
        """The offset up to which the checkpoint replaces the flush notes of this log.  The notes of a log
        that is not open are kept."""
        key = self._keys.get(identity)
        noted = self._written.get(key) if key is not None else None
        return noted.recovery_point if noted is not None else -1

    def _write(self, rows: dict[PartitionKey, PartitionCheckpoint]) -> None:
        if rows == self._written:
            return
        content = encode_checkpoint(
            ((*key, *row) for key, row in sorted(rows.items())), PARTITION_CHECKPOINT_SHAPES.writes
        )
        with self._reporting_failure():
            self._disk.write_atomic(self._path, content)
        self._written = rows

    @contextmanager
    def _reporting_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._on_failure(error)
            raise

    def note_flush(self, identity: Identity, end_offset: int) -> None:
        """Raises OSError, but not on a full disk."""
        if self._flushes is not None:
            self._flushes.note(identity, end_offset)

    def sync(self) -> None:
        """Makes notes of flushes durable; any thread.  Raises OSError."""
        if self._flushes is not None:
            self._flushes.sync()

    # ---- lowering, forgetting ------------------------------------------------------------------------------

    def before_truncation(self, identity: Identity, key: PartitionKey, offset: int) -> None:
        """The log is about to be truncated to `offset`: without this call, a crash would make the truncation
        look like lost data.  Raises OSError."""
        self._void_flushes(identity, offset)
        self.lower(key, offset)

    def lower(self, key: PartitionKey, offset: int) -> None:
        noted = self._written.get(key)
        if noted is not None and noted.leads(offset):
            self._write({**self._written, key: noted.lowered_to(offset)})

    def _void_flushes(self, identity: Identity, offset: int) -> None:
        if self._flushes is not None:
            with self._reporting_failure():
                self._flushes.void(identity, offset)

    def forget(self, keys: Collection[PartitionKey], identity: Identity | None) -> None:
        """The logs of these names, and of this identity when it is known, are deleted or begin anew.  Raises
        OSError."""
        if identity is not None:
            self._void_flushes(identity, 0)
            self._keys.pop(identity, None)
        self._write({key: row for key, row in self._written.items() if key not in keys})

    def forget_if_room(self, keys: Collection[PartitionKey], identity: Identity | None) -> None:
        """Like `forget`, of deleted logs; on a full disk their rows of the checkpoint stay until the next
        checkpoint.  Raises OSError."""
        try:
            self.forget(keys, identity)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            self._forgotten.update(keys)
            log.warning("checkpoint_not_written", path=self._path, reason=error)
