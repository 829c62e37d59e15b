"""What a node sends of a range is checked before it is used.

A chunk continues exactly where the last one ended; every batch in it has a valid CRC, offsets above those
before it, and ends below the end that the chunk states.  A batch is checked just before it is used: the two
passes over its bytes then find it in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...proto.range_chunks import RecordsChunk
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader, validate_batch
from .visibility import VisibilityFilter


def visible_batches(
    place: str, chunk: RecordsChunk, position: int, visibility: VisibilityFilter
) -> Iterator[tuple[int, BatchHeader]]:
    """The batches whose records may be seen, each with its position in the chunk.  At the end all are
    checked, and the filter has seen all.  `place` is for errors.  Raises KafkaError CORRUPT_MESSAGE, at the
    first batch that is wrong."""
    fields, records = chunk.fields, memoryview(chunk.records)
    if fields.start_offset != position or fields.next_offset <= position:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{place}: expected a chunk that continues at offset {position}, got "
            f"[{fields.start_offset}, {fields.next_offset})",
        )
    at = 0
    lowest = -1  # the first batch may begin below the position: a range may start inside a batch
    while at < len(records):
        header = validate_batch(records, at)
        if (
            header.base_offset < lowest
            or header.last_offset < position
            or header.last_offset >= fields.next_offset
        ):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{place}: batch [{header.base_offset}, {header.last_offset}] is out of place in "
                f"[{fields.start_offset}, {fields.next_offset})",
            )
        if visibility.shows(header, records, at):
            yield at, header
        lowest = header.next_offset
        at += header.size_bytes
