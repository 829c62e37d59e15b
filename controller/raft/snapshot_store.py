"""The snapshot of the state machine on disk, and its way over the network in chunks.

One file, `[crc u32][magic, format, index u64, term u64][state]`, replaced as a whole.  The order that must
hold:
1. the state is frozen at an applied index (cheap, where the state lives), 2. encoded and written durably, on
   whatever thread,
3. only then does the Raft thread trim the journal up to that index.  A crash between any two leaves a
   readable pair.

A snapshot never replaces a newer one: the encoder in the background may be overtaken by an installation from
the leader.
"""

from __future__ import annotations

import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime import faults
from .failure import RaftFatal
from .messages import SnapshotChunk

if TYPE_CHECKING:
    from ...runtime.disk import Disk

CHUNKS_IN_FLIGHT_MAX = 4
SNAPSHOT_BYTES_MAX = 4 << 30

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<4sHQQ")
_MAGIC = b"TGSN"
_FORMAT = 1


@dataclass(slots=True, frozen=True)
class Snapshot:
    """A whole snapshot: the state after entry `index` of term `term`; `file` are the bytes as on disk."""

    index: int
    term: int
    file: bytes

    @property
    def state(self) -> memoryview:
        return memoryview(self.file)[_CRC.size + _HEAD.size :]

    @property
    def checksum(self) -> int:
        return int(_CRC.unpack_from(self.file)[0])

    @classmethod
    def make(cls, index: int, term: int, state: bytes) -> Snapshot:
        body = _HEAD.pack(_MAGIC, _FORMAT, index, term) + state
        return cls(index, term, _CRC.pack(zlib.crc32(body)) + body)

    @classmethod
    def read(cls, file: bytes) -> Snapshot:
        """Raises ValueError for anything but a whole, undamaged snapshot of a known format."""
        if len(file) < _CRC.size + _HEAD.size or _CRC.unpack_from(file)[0] != zlib.crc32(
            memoryview(file)[_CRC.size :]
        ):
            raise ValueError("the snapshot is damaged")
        magic, version, index, term = _HEAD.unpack_from(file, _CRC.size)
        if magic != _MAGIC or version != _FORMAT:
            raise ValueError("the snapshot has a format that this version does not know")
        return cls(index, term, file)


class SnapshotStore:
    """The newest snapshot of this member.  `store` may be called from any thread."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._path = folder / "snapshot"
        self._lock = threading.Lock()
        self.latest: Snapshot | None = None
        if disk.exists(self._path):
            try:
                self.latest = Snapshot.read(disk.read(self._path))
            except ValueError as error:
                raise RaftFatal(
                    f"{self._path}: {error}; refusing to start without the entries it stands for"
                ) from error

    def store(self, snapshot: Snapshot) -> bool:
        """Durable when it returns; False when a newer one is there already."""
        with self._lock:
            if self.latest is not None and self.latest.index >= snapshot.index:
                return False
            faults.point("raft.snapshot.before_write", index=snapshot.index)
            self._disk.write_atomic(self._path, snapshot.file)
            faults.point("raft.snapshot.after_write", index=snapshot.index)
            self.latest = snapshot
            return True


@dataclass(slots=True)
class SnapshotTransfer:
    """The leader's side of sending one snapshot to one follower: a window of chunks, resent only when nothing
    moves."""

    snapshot: Snapshot
    chunk_bytes: int
    resend_s: float
    acknowledged_bytes: int = 0
    sent_bytes: int = 0
    moved_at: float = 0.0
    advanced_at: float = 0.0

    def chunks(self, now: float, term: int, commit_index: int) -> list[SnapshotChunk]:
        """What may be sent now."""
        if self.sent_bytes > self.acknowledged_bytes and now - self.moved_at > self.resend_s:
            self.sent_bytes = self.acknowledged_bytes
        file, made = self.snapshot.file, []
        while (
            self.sent_bytes < len(file)
            and self.sent_bytes - self.acknowledged_bytes < CHUNKS_IN_FLIGHT_MAX * self.chunk_bytes
        ):
            data = file[self.sent_bytes : self.sent_bytes + self.chunk_bytes]
            made.append(
                SnapshotChunk(term, commit_index, self.snapshot.checksum, len(file), self.sent_bytes, data)
            )
            self.sent_bytes += len(data)
            self.moved_at = now
        return made

    def acknowledge(self, checksum: int, received_bytes: int, now: float) -> None:
        """A follower that has less than it had (it installed the file, and the news of it was lost; or the
        file was damaged) begins again, but not for an answer that was merely overtaken."""
        if checksum != self.snapshot.checksum:
            return
        if received_bytes > self.acknowledged_bytes:
            self.acknowledged_bytes = min(received_bytes, len(self.snapshot.file))
            self.sent_bytes = max(self.sent_bytes, self.acknowledged_bytes)
            self.moved_at = self.advanced_at = now
        elif received_bytes < self.acknowledged_bytes and now - self.advanced_at > self.resend_s:
            self.acknowledged_bytes = self.sent_bytes = received_bytes
            self.advanced_at = now


@dataclass(slots=True)
class SnapshotAssembly:
    """The follower's side: chunks of one file, in order."""

    checksum: int = 0
    total_bytes: int = 0
    received: bytearray = field(default_factory=bytearray)

    def add(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The whole snapshot once its last chunk fits, else None.  A chunk of another file begins anew; one
        out of order is ignored, and so is a whole file that fails its checksum."""
        if chunk.total_bytes > SNAPSHOT_BYTES_MAX:
            return None
        if (chunk.checksum, chunk.total_bytes) != (self.checksum, self.total_bytes):
            self.checksum, self.total_bytes, self.received = chunk.checksum, chunk.total_bytes, bytearray()
        if chunk.position != len(self.received):
            return None
        self.received += chunk.data
        if len(self.received) < self.total_bytes:
            return None
        file = bytes(self.received)
        self.checksum, self.total_bytes, self.received = 0, 0, bytearray()
        try:
            return Snapshot.read(file)
        except ValueError:
            return None
