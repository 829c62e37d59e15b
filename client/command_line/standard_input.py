"""Lines of standard input for an event loop.

A read of a pipe or terminal blocks, so a thread does it.  The thread is a daemon and reads the file
descriptor itself: if it waited while holding a buffered reader's lock, the interpreter could not exit.

Lines are bytes, without their line end (LF or CR LF); bytes after the last line end are a line, too.  At most
`CHUNKS_MAX` chunks are in memory; then the thread stops reading, and the pipe's writer blocks.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from concurrent.futures import CancelledError
from typing import BinaryIO, Final

CHUNK_BYTES: Final = 64 << 10
CHUNKS_MAX: Final = 4
LINE_BYTES_MAX: Final = 64 << 20


class StandardInput:
    """`async for` yields lists of lines as they arrive; `idle`: no line is there now."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue(CHUNKS_MAX)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(_source(),), name="standard-input", daemon=True).start()

    @property
    def idle(self) -> bool:
        return self._chunks.empty()

    def __aiter__(self) -> StandardInput:
        return self

    async def __anext__(self) -> list[bytes]:
        chunk = await self._chunks.get()
        if isinstance(chunk, Exception):
            raise chunk
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    # ---- the thread ----------------------------------------------------------------------------------------

    def _read(self, source: BinaryIO) -> None:
        try:
            self._read_lines(source)
        except (RuntimeError, CancelledError):
            pass  # the loop has ended: no reader is left
        except Exception as error:  # the top of the thread: the reader of the lines raises it
            self._hand_over(error)

    def _read_lines(self, source: BinaryIO) -> None:
        rest = bytearray()
        while data := source.read(CHUNK_BYTES):
            rest += data
            if b"\n" in data:
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                self._hand_over([line.removesuffix(b"\r") for line in lines])
            if len(rest) > LINE_BYTES_MAX:
                raise ValueError(
                    f"a line of standard input is longer than {LINE_BYTES_MAX >> 20} MiB: divide it "
                    "by line ends"
                )
        if rest:
            self._hand_over([bytes(rest)])
        self._hand_over(None)

    def _hand_over(self, chunk: list[bytes] | Exception | None) -> None:
        work = self._chunks.put(chunk)
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError:
            work.close()
            raise


def _source() -> BinaryIO:
    if sys.stdin is None:
        raise ValueError("standard input is closed: give the records as arguments")
    try:
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    except (AttributeError, OSError):
        return sys.stdin.buffer  # a replacement without a file descriptor (tests)
