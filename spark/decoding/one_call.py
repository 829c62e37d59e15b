"""Decompresses a whole batch into memory that is there already, by one call of the machine's zstd or lz4.

`wire/compression.py` takes 8 KiB at a time out of a stream that has a window of its own: each byte is copied
twice more, and a window is allocated for each batch.  Nearly every Linux has both libraries, since its
package manager needs them.  Where one is missing, and for all that a library refuses, the answer is None:
`wire/compression.py` then does it, or says what is wrong.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_size_t, c_uint, c_void_p
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from ...wire.compression import Compression

__all__ = ["codecs", "decompress_into"]

_ZSTD: Final = ("libzstd.so.1", "libzstd.1.dylib")
_LZ4: Final = ("liblz4.so.1", "liblz4.1.dylib")
_LZ4F_VERSION: Final = 100


def decompress_into(codec: int, stored: memoryview, room: memoryview) -> int | None:
    """How many bytes of `room` the original of `stored` takes; None when this machine cannot do it, when
    `stored` is not valid, or when the room is too small.  After None, `room` holds anything."""
    decompress = _of_thread.by_codec.get(codec)
    if decompress is None or not stored:
        return None
    source, target = pa.py_buffer(stored), pa.py_buffer(room)
    return decompress(source.address, source.size, target.address, target.size)


def codecs() -> frozenset[int]:
    """Those that this machine can decompress in one call."""
    return frozenset(_of_thread.by_codec)


class _Zstd:
    """A context of a thread: not safe to share, and costly to make for each batch."""

    def __init__(self, library: ctypes.CDLL) -> None:
        free = _function(library, "ZSTD_freeDCtx", c_size_t, c_void_p)
        self._is_error = _function(library, "ZSTD_isError", c_uint, c_size_t)
        whole = (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)
        self._decompress = _function(library, "ZSTD_decompressDCtx", c_size_t, *whole)
        self._context = _function(library, "ZSTD_createDCtx", c_void_p)()
        if self._context is None:
            raise MemoryError("zstd has no memory for a context")
        weakref.finalize(self, free, self._context)

    def __call__(self, source: int, source_bytes: int, target: int, target_bytes: int) -> int | None:
        written: int = self._decompress(self._context, target, target_bytes, source, source_bytes)
        return None if self._is_error(written) else written


class _Lz4:
    """The same for lz4's frames; a batch may be several of them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        free = _function(library, "LZ4F_freeDecompressionContext", c_size_t, c_void_p)
        self._is_error = _function(library, "LZ4F_isError", c_uint, c_size_t)
        self._reset = _function(library, "LZ4F_resetDecompressionContext", None, c_void_p)
        size = POINTER(c_size_t)
        step = (c_void_p, c_void_p, size, c_void_p, size, c_void_p)
        self._decompress = _function(library, "LZ4F_decompress", c_size_t, *step)
        create = _function(library, "LZ4F_createDecompressionContext", c_size_t, POINTER(c_void_p), c_uint)
        self._context = c_void_p()
        if self._is_error(create(byref(self._context), _LZ4F_VERSION)):
            raise MemoryError("lz4 has no memory for a context")
        weakref.finalize(self, free, self._context)

    def __call__(self, source: int, source_bytes: int, target: int, target_bytes: int) -> int | None:
        read = written = 0
        while True:
            taken, made = c_size_t(source_bytes - read), c_size_t(target_bytes - written)
            wanted: int = self._decompress(
                self._context, target + written, byref(made), source + read, byref(taken), None
            )
            read, written = read + taken.value, written + made.value
            if wanted == 0 and read == source_bytes:
                return written
            is_stuck = read == source_bytes or not (taken.value or made.value)
            if is_stuck or self._is_error(wanted):
                self._reset(self._context)
                return None


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """AttributeError when the library has none of this name."""
    function = library[name]  # not shared with others that load this library: `getattr` would be
    function.restype, function.argtypes = result, arguments
    return function


@lru_cache(maxsize=2)
def _library(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:  # this machine has none of this name
            continue
    return None


class _OfThread(threading.local):
    by_codec: dict[int, Callable[[int, int, int, int], int | None]]
    """(address and size of what is compressed, address and size of the room) -> bytes written."""

    def __init__(self) -> None:
        self.by_codec = {}
        for codec, names, kind in ((Compression.ZSTD, _ZSTD, _Zstd), (Compression.LZ4, _LZ4, _Lz4)):
            library = _library(names)
            if library is None:
                continue
            try:
                self.by_codec[codec] = kind(library)
            except (AttributeError, MemoryError):  # too old: a function is missing; or no room for a context
                continue


_of_thread = _OfThread()
