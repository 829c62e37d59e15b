"""What the data service yields of a range, for whatever carries it to the reader."""

from __future__ import annotations

from dataclasses import dataclass

from ...proto import data_pb2 as pb
from ...proto.range_chunks import RecordsChunk
from ...storage.log.bulk_read import BulkRead
from ...wire.errors import KafkaError


@dataclass(slots=True)
class FileRead:
    """A chunk that is read while it is sent."""

    read: BulkRead
    fields: pb.RangeChunk
    """Without `next_offset`, which is known when it is sent."""
    size: int = 0
    """Bytes of records, once it is sent."""
    failure: KafkaError | OSError | None = None
    """Why it could not be read, once that is known."""
    counts: bool = False
    """It was sent, and looked at again."""


class Pause:
    """The node waits before the next chunk: what the reader has so far, it is to know at once."""


RangePiece = RecordsChunk | FileRead | Pause
