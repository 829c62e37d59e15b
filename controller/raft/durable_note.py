"""A note beside the journal of how far it was durable, so that later damage is not taken for a torn tail.

    durable                 [crc u32][term u64][index u64] of the last entry that a sync has covered

The note is written after each sync and not synced itself: it costs one small write, and a power cut may bring
an older one back, or none that can be read.  It never says more than was durable.  It is lowered, durably,
before entries are truncated.

It tells damage from an honest torn tail where the journal cannot: a last batch that the disk changed later, a
shortened file.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...runtime.disk import Disk

_CRC = struct.Struct("<I")
_POSITION = struct.Struct("<QQ")
LogPosition = tuple[int, int]
"""Term and index: of two journals, the one that ends at the higher position is the newer one."""
EMPTY_POSITION: LogPosition = (0, 0)


class DurableNote:
    """The note of one journal; made when it is not there."""

    def __init__(self, disk: Disk, path: Path) -> None:
        if not disk.exists(path):
            disk.write_atomic(path, _encode(EMPTY_POSITION))
        self._file = disk.open(path)
        self.position = _decode(self._file.read_at(0, self._file.size()))

    def raise_to(self, position: LogPosition) -> None:
        """All entries up to this position are durable."""
        if position > self.position:
            self._file.write_at(0, _encode(position))
            self.position = position

    def lower_to(self, position: LogPosition) -> None:
        """The journal is about to be truncated to this position.  Durable when it returns."""
        if position < self.position:
            self._file.write_at(0, _encode(position))
            self._file.sync_data()
            self.position = position

    def close(self) -> None:
        self._file.close()


def _encode(position: LogPosition) -> bytes:
    body = _POSITION.pack(*position)
    return _CRC.pack(zlib.crc32(body)) + body


def _decode(data: bytes) -> LogPosition:
    body = data[_CRC.size :]
    if len(body) != _POSITION.size or _CRC.unpack_from(data)[0] != zlib.crc32(body):
        return EMPTY_POSITION
    term, index = _POSITION.unpack(body)
    return int(term), int(index)
