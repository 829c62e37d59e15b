"""The compiled kernel, kernel.c."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .decompression import Section

# validity where there are nulls, how many, offsets, data
BinaryBuffers = tuple[pa.Buffer | None, int, pa.Buffer, pa.Buffer]
# validity where there are nulls, how many, offsets; how many entries, their names and values
HeaderBuffers = tuple[pa.Buffer | None, int, pa.Buffer, int, BinaryBuffers, BinaryBuffers]

def decode(
    data: bytes | memoryview,
    sections: list[Section],
    floor: int,
    start: int,
    end: int,
    wanted: int,
    allocate: Callable[[int], pa.Buffer],
    /,
) -> (
    tuple[
        int,
        int,
        BinaryBuffers | None,
        BinaryBuffers | None,
        pa.Buffer | None,
        pa.Buffer | None,
        pa.Buffer | None,
        HeaderBuffers | None,
    ]
    | None
): ...

# validity where there are nulls, offsets, data, where the array begins in them
BytesColumn = tuple[pa.Buffer | None, pa.Buffer, pa.Buffer | None, int]
# validity where there are nulls, offsets, where the array begins in them, keys, values
HeadersColumn = tuple[pa.Buffer | None, pa.Buffer, int, BytesColumn, BytesColumn]

def encode(
    rows: npt.NDArray[np.int64],
    first: int,
    base_timestamp: int,
    timestamps: npt.NDArray[np.int64],
    key: BytesColumn | None,
    value: BytesColumn,
    headers: HeadersColumn | None,
    /,
) -> bytes: ...
def hashes(key: BytesColumn, count: int, /) -> bytes: ...
