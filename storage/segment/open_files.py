"""The open files and loaded indexes of a data folder's segments: both bounded, the least recently used are
dropped.

A node may hold tens of thousands of segments and reads few of them.  One `OpenFiles` belongs to a data
folder; its logs share it.

* **A file in use stays open.**  To drop a file here is to forget it: it is closed when its last holder
  releases it (a read in another thread, a flush, a scan), so no read ever meets a closed file, or another
  file under the same number.
* **A file with unsynced writes is never dropped**: its segment holds it until a flush is over.  A file that
  was closed and opened again need not report an earlier write-back error, and the flush would then vouch for
  lost data.  Such files, at most one or two for each log that is being written, may exceed the limit.
* Indexes are dropped only when the disk has them (complete segments); they are read again when needed.

Thread-safe: logs are opened in parallel.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from ...runtime.disk import Disk, File

OPEN_FILES_MAX = 4096
INDEX_BYTES_MAX = 64 * 1024 * 1024


class HoldsIndexes(Protocol):
    """The indexes of a segment, which can be read again."""

    def drop(self) -> None: ...


class OpenFiles:
    """See the module's text."""

    def __init__(
        self, disk: Disk, files_max: int = OPEN_FILES_MAX, index_bytes_max: int = INDEX_BYTES_MAX
    ) -> None:
        assert files_max > 0
        self.disk = disk
        self.files_max = files_max
        self.index_bytes_max = index_bytes_max
        self.index_bytes = 0
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, File] = OrderedDict()
        self._indexes: OrderedDict[HoldsIndexes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: Path, *, create: bool = False) -> File:
        """The open file, opened when needed.  The caller holds it only while it uses it.  Raises OSError."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self.disk.open(path, create=create)
                while len(self._files) >= self.files_max:
                    self._files.popitem(last=False)
                self._files[path] = file
            else:
                self._files.move_to_end(path)
        return file

    def forget(self, path: Path) -> None:
        """The file is renamed, removed, or no longer needed."""
        with self._lock:
            self._files.pop(path, None)

    def index_used(self, holder: HoldsIndexes, size_bytes: int) -> None:
        """`holder` has loaded indexes that it could load again; other segments may have to drop theirs."""
        dropped: list[HoldsIndexes] = []
        with self._lock:
            self.index_bytes += size_bytes - self._indexes.pop(holder, 0)
            self._indexes[holder] = size_bytes
            while self.index_bytes > self.index_bytes_max and len(self._indexes) > 1:
                oldest, size = self._indexes.popitem(last=False)
                self.index_bytes -= size
                dropped.append(oldest)
        for oldest in dropped:
            oldest.drop()

    def index_gone(self, holder: HoldsIndexes) -> None:
        """`holder` keeps its indexes from now on, or has none any more."""
        with self._lock:
            self.index_bytes -= self._indexes.pop(holder, 0)
