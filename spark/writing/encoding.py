"""Rows of Arrow columns become the records of batches: with the compiled kernel (decoding/kernel.c), which
copies them from Arrow's buffers, or, where there is none, as Python objects.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...client.producing.partitioner import murmur2
from ...wire.records import EncodedRecords, NewRecord, encode_records
from ..decoding import kernel_decoder
from .rows import Numbers, Rows

_SIGN_CLEARED = 0x7FFFFFFF
NO_KEY = -1


def key_hashes(keys: pa.Array) -> Numbers:
    """Kafka's murmur2 of each key without the sign bit, NO_KEY for null."""
    kernel = kernel_decoder.kernel
    if kernel is not None:
        return np.frombuffer(kernel.hashes(_buffers(keys), len(keys)), np.int32).astype(np.int64)
    hashes = (NO_KEY if key is None else murmur2(key) & _SIGN_CLEARED for key in keys.to_pylist())
    return np.fromiter(hashes, np.int64, len(keys))


class Encoder:
    """Of some rows."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._keys = None if rows.keys is None else _buffers(rows.keys)
        self._values = _buffers(rows.values)
        self._headers = None if rows.headers is None else _headers_buffers(rows.headers)

    def encode_into(self, records: EncodedRecords, chosen: Numbers) -> None:
        """Appends these rows."""
        timestamps_ms, kernel = self._rows.timestamps_ms, kernel_decoder.kernel
        first = len(records)
        base = records.base_timestamp_ms if first else int(timestamps_ms[chosen[0]])
        if kernel is None:
            piece, _ = encode_records(self._records(chosen), first, base)
        else:
            columns = self._keys, self._values, self._headers
            piece = kernel.encode(chosen, first, base, timestamps_ms, *columns)
        records.append(piece, len(chosen), base, int(timestamps_ms[chosen].max()))

    def _records(self, chosen: Numbers) -> list[NewRecord]:
        rows, nothing = self._rows, [None] * len(chosen)
        keys = nothing if rows.keys is None else rows.keys.take(chosen).to_pylist()
        headers = nothing if rows.headers is None else rows.headers.take(chosen).to_pylist()
        return [
            NewRecord(key, value, tuple((each["key"], each["value"]) for each in given or ()), timestamp_ms)
            for key, value, given, timestamp_ms in zip(
                keys,
                rows.values.take(chosen).to_pylist(),
                headers,
                rows.timestamps_ms[chosen].tolist(),
                strict=True,
            )
        ]


def _buffers(column: pa.Array) -> tuple[pa.Buffer | None, pa.Buffer, pa.Buffer | None, int]:
    valid, offsets, data = column.buffers()
    return valid, offsets, data, column.offset


def _headers_buffers(headers: pa.Array) -> tuple[object, ...]:
    names, contents = headers.values.flatten()
    valid, offsets = headers.buffers()[:2]
    return valid, offsets, headers.offset, _buffers(names), _buffers(contents)
