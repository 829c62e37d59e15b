"""Record batches as Arrow columns: which pieces, in which order, and what an error says.

1. A batch that lies outside of the requested offsets is left out by its header.
2. `decompress_pieces` puts the record sections of as many batches as memory allows into one buffer, end to
   end (the chunk itself when no batch is compressed).
3. The compiled kernel decodes a piece; where there is none, or where it refuses the piece, numpy does.

The bytes of a record are the producer's, also with a right CRC: both decoders check every length against its
record before they copy a byte, and invalid data raises INVALID_RECORD that names the offsets.  Offsets must
ascend strictly within the bounds of the batch header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader
from . import kernel_decoder, numpy_decoder
from .columns import Target
from .decompression import Budget, Malformed, decompress_pieces

__all__ = ["MEMORY_DEFAULT", "Target", "decode_batches", "decoder_name"]

MEMORY_DEFAULT = 256 << 20


def decoder_name() -> str:
    """Which decoder this installation has: "kernel" (compiled), or "numpy"."""
    return "numpy" if kernel_decoder.kernel is None else "kernel"


def decode_batches(
    target: Target,
    chunk: bytes | memoryview,
    batches: Sequence[tuple[int, BatchHeader]],
    budget: Budget | None = None,
) -> Iterator[pa.RecordBatch]:
    """The visible `batches` (position in `chunk`, header) as Arrow batches, empty ones left out; raises
    KafkaError.

    A generator: it makes each Arrow batch on demand, within the memory budget."""
    limits = budget or Budget.of_memory(
        MEMORY_DEFAULT, target.topic, with_headers="headers" in target.columns
    )
    inside = [
        (position, header)
        for position, header in batches
        if header.last_offset >= target.start and header.base_offset < target.end
    ]
    first = inside[0][1].base_offset if inside else 0
    last = inside[-1][1].last_offset if inside else 0
    floor = -1
    try:
        for piece in decompress_pieces(chunk, inside, limits):
            sections = piece[1]
            first, last = sections[0].header.base_offset, sections[-1].header.last_offset
            decoded = kernel_decoder.decode_piece(target, piece, floor)
            if decoded is None:
                decoded = numpy_decoder.decode_piece(target, piece, floor)
            floor, rows = decoded.last_offset, decoded.rows
            del decoded
            if rows.num_rows:
                yield rows
    except (IndexError, Malformed) as problem:
        place = f"{target.topic}-{target.partition}, offsets {first} to {last}"
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"{place}: a record cannot be decoded: {problem}"
        ) from None
    except KafkaError as problem:
        place = f"{target.topic}-{target.partition}"
        if place in problem.message:
            raise
        raise KafkaError(problem.code, f"{place}: {problem.message}") from None
