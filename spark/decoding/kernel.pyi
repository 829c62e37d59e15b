"""The compiled kernel, kernel.c."""

from collections.abc import Callable

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
