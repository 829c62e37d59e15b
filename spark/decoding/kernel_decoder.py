"""Decodes record batches to Arrow columns with the compiled kernel (kernel.c), where the installation has it.

The kernel fills Arrow's own buffers; here they only get their types.  It is optional: a machine without a C
compiler installs without it, and `kernel` is None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..arrow_schema import ARROW_TYPES
from .columns import Decoded, Target, headers_column, to_batch
from .decompression import Piece

if TYPE_CHECKING:
    from types import ModuleType

    from .kernel import BinaryBuffers, HeaderBuffers

kernel: ModuleType | None
try:
    from . import kernel
except ImportError:
    kernel = None

WANTED = {"key": 1, "value": 2, "offset": 4, "timestamp": 8, "timestampType": 16, "headers": 32}


def decode_piece(target: Target, piece: Piece, floor: int) -> Decoded | None:
    """The columns of a piece whose offsets lie above `floor`; None when there is no kernel, or when it
    refuses, which it does for invalid data: numpy_decoder.py then says what is wrong."""
    if kernel is None:
        return None
    data, sections = piece
    wanted = sum({WANTED.get(name, 0) for name in target.columns})
    made = kernel.decode(data, sections, floor, target.start, target.end, wanted, pa.allocate_buffer)
    if made is None:
        return None
    rows, last_offset, key, value, offset, timestamp, timestamp_type, headers = made
    columns: dict[str, Callable[[], Any]] = {
        "key": lambda: _binary(rows, key),
        "value": lambda: _binary(rows, value),
        "offset": lambda: _numbers("offset", rows, offset),
        "timestamp": lambda: _numbers("timestamp", rows, timestamp),
        "timestampType": lambda: _numbers("timestampType", rows, timestamp_type),
        "headers": lambda: _headers(rows, headers),
    }
    return Decoded(to_batch(target, rows, columns), last_offset)


def _binary(rows: int, buffers: BinaryBuffers) -> Any:
    valid, nulls, offsets, data = buffers
    return pa.Array.from_buffers(pa.binary(), rows, [valid, offsets, data], nulls)


def _numbers(column: str, rows: int, buffer: pa.Buffer) -> Any:
    return pa.Array.from_buffers(ARROW_TYPES[column], rows, [None, buffer], 0)


def _headers(rows: int, buffers: HeaderBuffers) -> Any:
    valid, nulls, offsets, entries, names, values = buffers
    return headers_column(rows, valid, nulls, offsets, _binary(entries, names), _binary(entries, values))
