"""Lines of standard input for an event loop that must go on meanwhile.

A pipe or a terminal gives a line whenever its writer likes, so a thread waits for it.  The thread is a daemon and reads the file
descriptor itself: a buffered reader's lock, held by a thread that waits for ever, would hang the interpreter's own end.

Lines are bytes, without their end (LF or CR LF); what comes after the last line end is a line, too.  At most `CHUNKS_MAX` chunks
wait in memory, then the writer waits.
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
    """`async for` gives lists of lines, as they arrive; `idle` tells that none is there yet."""

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

    # ------------------------------------------------------------------ the thread

    def _read(self, source: BinaryIO) -> None:
        try:
            self._read_lines(source)
        except (RuntimeError, CancelledError):
            pass  # the loop has ended: nobody reads any more
        except Exception as error:  # the thread's top: whoever waits for lines gets it
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
                raise ValueError(f"a line of standard input is longer than {LINE_BYTES_MAX >> 20} MiB: divide it by line ends")
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
        return sys.stdin.buffer  # a stand-in without a descriptor
