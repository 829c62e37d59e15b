"""How far a journal was durable, beside the journal: what was lost afterwards is not taken for a torn tail.

    durable                 [crc u32][term u64][index u64] of the last entry that a sync has covered

The note is written after each sync and not synced itself: it costs one small write, and a power cut may bring an older one back,
or none that can be read.  It never says more than was durable.  Before entries are cut it is lowered, durably.

It tells damage from an honest torn tail where the journal cannot: a last batch that the disk changed later, a shortened file.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...runtime.disk import Disk

_CRC = struct.Struct("<I")
_PLACE = struct.Struct("<QQ")
Place = tuple[int, int]
"""Term and index: of two journals, the one that ends at the higher place is the newer one."""
NOWHERE: Place = (0, 0)


class DurableNote:
    """The note of one journal; made when it is not there."""

    def __init__(self, disk: Disk, path: Path) -> None:
        if not disk.exists(path):
            disk.write_atomic(path, _encode(NOWHERE))
        self._file = disk.open(path)
        self.place = _decode(self._file.read_at(0, self._file.size()))

    def raise_to(self, place: Place) -> None:
        """All entries up to this place are durable."""
        if place > self.place:
            self._file.write_at(0, _encode(place))
            self.place = place

    def lower_to(self, place: Place) -> None:
        """What is after this place is about to be cut.  Durable when it returns."""
        if place < self.place:
            self._file.write_at(0, _encode(place))
            self._file.sync_data()
            self.place = place

    def close(self) -> None:
        self._file.close()


def _encode(place: Place) -> bytes:
    body = _PLACE.pack(*place)
    return _CRC.pack(zlib.crc32(body)) + body


def _decode(data: bytes) -> Place:
    body = data[_CRC.size :]
    if len(body) != _PLACE.size or _CRC.unpack_from(data)[0] != zlib.crc32(body):
        return NOWHERE
    term, index = _PLACE.unpack(body)
    return int(term), int(index)
