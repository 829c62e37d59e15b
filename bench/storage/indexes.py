"""The offset index as the log has it (arrays in memory, a plain file when the segment is complete) against a
memory-mapped file.

The mapped variants live only here.  One keeps Kafka's format, big-endian, which the files must have; the
other the machine's own order, the best that a mapping could do.  Both get a file of the full size at once, as
Kafka makes it, cut when the segment is complete.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import statistics
import sys
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from time import perf_counter

from tidegate.runtime.disk import RealDisk
from tidegate.storage.segment.offset_index import OffsetIndex

ENTRIES = {"16 Ki entries (64 MiB of data)": 1 << 14, "256 Ki entries (1 GiB of data)": 1 << 18}
INTERVAL_BYTES = 4096
SEGMENTS = 10_000
SEGMENT_ENTRIES = 1024
LOOKUPS = 20_000
FILE_BYTES = 10 << 20
_ENTRY = Struct(">II")


class MappedIndex:
    """Kafka's format, in a mapping of the whole file."""

    def __init__(self, path: Path, file_bytes: int | None = None) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if file_bytes is not None:
            os.ftruncate(fd, file_bytes)
        self.length = 0 if file_bytes is not None else os.fstat(fd).st_size // _ENTRY.size
        self._map = mmap.mmap(fd, 0)  # which holds a file descriptor of its own
        self._fd = fd if file_bytes is not None else -1
        if file_bytes is None:
            os.close(fd)

    def append(self, offset: int, position: int) -> None:
        _ENTRY.pack_into(self._map, self.length * 8, offset, position)
        self.length += 1

    def floor(self, offset: int) -> int:
        entry, data = _ENTRY.unpack_from, self._map
        return bisect_right(range(self.length), offset, key=lambda at: entry(data, at * 8)[0]) - 1

    def seal(self) -> None:
        self._map.flush()
        self._map.close()
        os.ftruncate(self._fd, self.length * 8)
        os.fsync(self._fd)
        os.close(self._fd)

    def close(self) -> None:
        self._map.close()


class NativeMappedIndex(MappedIndex):
    """The machine's byte order: no unpacking."""

    def __init__(self, path: Path, file_bytes: int | None = None) -> None:
        super().__init__(path, file_bytes)
        self._words = memoryview(self._map).cast("I")
        self._offsets = self._words[::2]

    def append(self, offset: int, position: int) -> None:
        at = 2 * self.length
        self._words[at] = offset
        self._words[at + 1] = position
        self.length += 1

    def floor(self, offset: int) -> int:
        return bisect_right(self._offsets, offset, 0, self.length) - 1

    def _release(self) -> None:
        self._offsets.release()
        self._words.release()

    def seal(self) -> None:
        self._release()
        super().seal()

    def close(self) -> None:
        self._release()
        super().close()


class PlainIndex:
    """The log's own: `storage/segment/offset_index.py`, written and read as `storage/segment/segment.py` does
    it."""

    def __init__(self, path: Path, file_bytes: int | None = None) -> None:
        self._path, self._disk = path, RealDisk()
        if file_bytes is not None:
            self._index = OffsetIndex(0)
        else:
            self._index = OffsetIndex.decode(self._disk.read(path), 0)
        self.append, self.floor = self._index.append, self._index.floor

    def seal(self) -> None:
        self._disk.write_atomic(self._path, self._index.encode())

    def close(self) -> None:
        pass


VARIANTS: dict[str, type[PlainIndex] | type[MappedIndex]] = {
    "arrays and a plain file": PlainIndex,
    "mapped, Kafka's format": MappedIndex,
    "mapped, own byte order": NativeMappedIndex,
}


def bench_index(root: Path) -> None:
    for title, entries in ENTRIES.items():
        print(
            f"\nindex of {title}\n{'':>26} {'append us':>10} {'seal ms':>9} {'first use ms':>13} "
            f"{'look-up us':>11}"
        )
        for name, (append_s, seal_s, use_s, lookup_s) in _write_and_look_up(root, entries).items():
            print(
                f"{name:>26} {append_s * 1e6:10.3f} {seal_s * 1e3:9.2f} {use_s * 1e3:13.2f} "
                f"{lookup_s * 1e6:11.2f}"
            )
    print(
        f"\nindexes of {SEGMENTS} complete segments, {SEGMENT_ENTRIES} entries each: all opened and "
        "asked once, all kept"
    )
    print(
        f"{'':>26} {'seconds':>8} {'us each':>8} {'private MB':>11} {'shared MB':>10} "
        f"{'mappings':>9} {'files':>6}"
    )
    for name, variant in VARIANTS.items():
        _open_many(root, name, variant)


def _write_and_look_up(root: Path, entries: int) -> dict[str, tuple[float, ...]]:
    """Median seconds of: an append, making it durable when complete, reading it again for one look-up, a
    look-up.  In turns."""
    asked = [random.Random(1).randrange(entries) for _ in range(LOOKUPS)]
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in VARIANTS}
    for _turn in range(5):
        for name, variant in VARIANTS.items():
            path = root / "one.index"
            index = variant(path, FILE_BYTES)
            append = index.append
            begin = perf_counter()
            for at in range(entries):
                append(at, at * INTERVAL_BYTES)
            appended = perf_counter()
            index.seal()
            sealed = perf_counter()
            again = variant(path)
            assert again.floor(asked[0]) == asked[0]
            used = perf_counter()
            floor = again.floor
            for offset in asked:
                floor(offset)
            done = perf_counter()
            again.close()
            path.unlink()
            times = (appended - begin) / entries, sealed - appended, used - sealed, (done - used) / LOOKUPS
            found[name].append(times)
    return {name: tuple(map(statistics.median, zip(*turns, strict=True))) for name, turns in found.items()}


def _open_many(root: Path, name: str, variant: Callable[[Path], PlainIndex | MappedIndex]) -> None:
    index, folder = OffsetIndex(0), root / "many"
    for at in range(SEGMENT_ENTRIES):
        index.append(at, at * INTERVAL_BYTES)
    encoded = index.encode()
    if variant is NativeMappedIndex and sys.byteorder == "little":
        encoded = b"".join(encoded[at : at + 4][::-1] for at in range(0, len(encoded), 4))
    folder.mkdir(exist_ok=True)
    for number in range(SEGMENTS):
        (folder / str(number)).write_bytes(encoded)
    gc.collect()
    before = _memory()
    begin = perf_counter()
    held = []
    try:
        for number in range(SEGMENTS):
            opened = variant(folder / str(number))
            assert opened.floor(SEGMENT_ENTRIES // 2) == SEGMENT_ENTRIES // 2
            held.append(opened)
    except OSError as error:
        print(f"{name:>26} after {len(held)}: {error}")
    seconds = perf_counter() - begin
    private, shared, mappings, files = (now - then for now, then in zip(_memory(), before, strict=True))
    each = seconds / max(1, len(held)) * 1e6
    print(
        f"{name:>26} {seconds:8.2f} {each:8.1f} {private / 1e6:11.1f} {shared / 1e6:10.1f} "
        f"{mappings:9} {files:6}"
    )
    for opened in held:
        opened.close()


def _memory() -> tuple[int, int, int, int]:
    """This process's private and shared bytes in memory, its mappings, its open files."""
    _size, resident, shared, *_ = (
        int(word) * mmap.PAGESIZE for word in Path("/proc/self/statm").read_text().split()
    )
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    return resident - shared, shared, mappings, len(os.listdir("/proc/self/fd"))
