"""Opens the logs of one data folder, from what the folder notes of them (`folder_notes`).

Any thread: logs are opened in parallel, because opening mostly waits for the disk and computes checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...runtime.disk import Disk, ReadFailed
from ...wire.errors import KafkaError
from ..durability.flush_notes import identity_of
from ..log.health import unreadable
from ..log.log import Log, LogConfig
from ..segment.open_files import OPEN_FILES_MAX, OpenFiles
from .async_delete import AsyncFileDeleter
from .folder_notes import FolderNotes, PartitionCheckpoint, PartitionKey
from .found_logs import FoundLog
from .opening_progress import OpeningProgress


def _no_clock() -> float:
    return 0.0


@dataclass(slots=True, frozen=True)
class FolderOptions:
    """How a data folder works; the same for all folders of a node."""

    files_max: int = OPEN_FILES_MAX
    """Bound on the open files of segments without unsynced writes."""
    recovery_threads: int = 1
    """Logs that are opened, or closed, at the same time."""
    recovery_pool: Callable[[int], Executor] = ThreadPoolExecutor
    file_deleter: AsyncFileDeleter | None = None
    """Unlinks in its thread; without one the caller unlinks and waits."""
    now_s: Callable[[], float] = _no_clock
    """A monotonic clock."""


DEFAULT_OPTIONS = FolderOptions()


class LogLoader:
    """See the module's text."""

    def __init__(
        self, disk: Disk, folder: Path, files: OpenFiles, notes: FolderNotes, options: FolderOptions
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._files = files
        self._notes = notes
        self._options = options

    def open(self, key: PartitionKey, config: LogConfig, *, clean: bool, flushed_end: int = 0) -> Log:
        """`clean`: the folder was closed cleanly; `flushed_end`: batches below it are known to have been
        flushed.  Raises KafkaError, OSError."""
        known = self._notes.get(key)
        noted = known or PartitionCheckpoint(0, 0, 0)
        return Log.open(
            self._disk,
            self._folder / f"{key[0]}-{key[1]}",
            topic=key[0],
            partition=key[1],
            config=config,
            clean=clean and known is not None,
            recovery_point=noted.recovery_point,
            flushed_end=flushed_end,
            log_start_offset=noted.log_start_offset,
            high_watermark=noted.high_watermark,
            files=self._files,
        )

    def open_found(self, found: FoundLog, *, clean: bool) -> Log:
        """A log that was in the folder at the start.  Raises KafkaError, OSError."""
        flushed_end = self._notes.claims.get(identity_of(found.topic_id, found.key[1]), 0)
        try:
            return self.open(found.key, found.config, clean=clean, flushed_end=flushed_end)
        except ReadFailed as error:
            raise unreadable(error, self._folder / f"{found.key[0]}-{found.key[1]}") from error

    def open_all(
        self, found: Sequence[FoundLog], *, clean: bool, progress: OpeningProgress
    ) -> list[Log | KafkaError | OSError]:
        """Every log, or the error that it does not open with, in order.  Raises OpeningStopped."""

        def load(entry: FoundLog) -> Log | KafkaError | OSError:
            with progress.one():
                try:
                    return self.open_found(entry, clean=clean)
                except (KafkaError, OSError) as error:
                    return error

        if self._options.recovery_threads > 1 and len(found) > 1:
            with self._options.recovery_pool(self._options.recovery_threads) as executor:
                return list(executor.map(load, found))
        return [load(entry) for entry in found]
