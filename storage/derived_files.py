"""Which files a clean stop left beside the batches, and how long they are: what is missing or short at the next start is noticed.

    derived-files       in the data folder: per file its log's folder, its name and its size; one row for each

After a clean stop the files of a segment are believed without reading the segment.  A `.txnindex` that is not there looks like
one that never was: no transaction was aborted, and readers would be given what was.  A time index that lost its end gives wrong
offsets.  So a log whose files are not those that the stop left is scanned from the first such segment on, as after an unclean
stop, and they are built again.

The file is written before the clean mark and means nothing without it.  Without this file (an older version made the stop),
everything is believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ..runtime import logs
from ..runtime.disk import Disk
from .checkpoint import CheckpointInvalid, decode_checkpoint, encode_checkpoint
from .segment_swap import SEGMENT_SUFFIXES

DERIVED_FILES = "derived-files"
log = logs.get(__name__)


def write_derived_files(disk: Disk, folder: Path, logs_there: Iterable[Path]) -> None:
    """Of these logs, which are closed.  Raises OSError."""
    files = (path / name for path in logs_there for name in disk.list_names(path) if _is_derived(name))
    disk.write_atomic(folder / DERIVED_FILES, encode_checkpoint((each.parent.name, each.name, disk.size(each)) for each in files))


class DerivedFiles:
    """What a clean stop has noted in this folder.  Any thread."""

    def __init__(self, disk: Disk, folder: Path, *, clean: bool) -> None:
        """Raises OSError."""
        self._disk = disk
        self._folder = folder
        self._noted: dict[str, dict[str, int]] = defaultdict(dict)
        path = folder / DERIVED_FILES
        if not clean or not disk.exists(path):
            return
        try:
            for where, name, size in decode_checkpoint(disk.read(path), 3):
                self._noted[where][name] = int(size)
        except (CheckpointInvalid, ValueError) as error:
            log.warning("derived_files_damaged", path=path, reason=error, consequence="all files of segments are believed")
            self._noted.clear()

    def first_changed(self, directory: Path) -> int | None:
        """The base offset of the first segment of this log that lacks a file, or has one of another size.  Raises OSError."""
        for name, size in sorted(self._noted.get(directory.name, {}).items()):
            path = directory / name
            try:
                found = self._disk.size(path)
            except FileNotFoundError:
                found = -1
            if found != size:
                log.warning("derived_file_changed", path=path, size_bytes=found, noted_bytes=size)
                return int(name.partition(".")[0])
        return None


def _is_derived(name: str) -> bool:
    stem, _, suffix = name.partition(".")
    return suffix in SEGMENT_SUFFIXES and suffix != "log" and stem.isdigit()
