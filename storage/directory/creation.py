"""Many new logs at once, made off the event loop.

    creation = directory.begin_creation(wanted, now_ms)   on the loop: what stands in the way goes; the names are taken
    creation.run()                                        any thread: makes folders and files, and waits for the disk
    creation.finish()                                     on the loop: the logs are in use, or could not be made

Order per log: its folder; its configuration; its identity (`partition.metadata`), which is on the disk as a whole before it has
its name; its first segment; the folder is synced.  The data folder, which holds the names of all, is synced once, at the end, and
no log is in use before that.  So a crash leaves logs that were never written to: whole, or without identity, and those are
removed when the folder is opened.

Syncs of several logs at the same time share the file system's work, so a few threads make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import Disk
from ...wire.errors import ErrorCode, KafkaError
from ..checkpoint import encode_checkpoint
from ..log.log import Log, LogConfig
from .folder_notes import PartitionKey
from .stored_config import LOG_CONFIG, encode_config

PARTITION_METADATA = "partition.metadata"
log = logs.get(__name__)

THREADS = 4
"""More make little faster, and take Python's lock from the loop."""


class NewLog(NamedTuple):
    """A log that is wanted."""

    topic: str
    topic_id: UUID
    partition: int
    config: LogConfig

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)


Results = dict[PartitionKey, Log | KafkaError]


class Creation:
    """See the module's text.  Made by `LogDirectory.begin_creation` only."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        wanted: Sequence[NewLog],
        results: Results,
        *,
        open_log: Callable[[NewLog], Log],
        take_up: Callable[[Creation], None],
    ) -> None:
        """`results` are those of logs that are there, and of those that cannot be made.  `open_log` (in a thread) opens a folder
        that has all but segments; `take_up` is called by `finish`."""
        self.wanted = list(wanted)
        self.results = results
        self._disk = disk
        self._root = root
        self._open_log = open_log
        self._take_up = take_up

    def finish(self) -> Results:
        """On the loop, after `run`."""
        self._take_up(self)
        return self.results

    def now(self, key: PartitionKey) -> Log:
        """Runs, finishes, and gives one of the logs.  Raises KAFKA_STORAGE_ERROR."""
        self.run()
        result = self.finish()[key]
        if isinstance(result, KafkaError):
            raise result
        return result

    def run(self) -> None:
        """Any thread.  Raises nothing of the disk: `finish` tells."""
        if self.wanted:
            self._run()

    def _run(self) -> None:
        threads = min(THREADS, len(self.wanted))
        if threads > 1:
            with ThreadPoolExecutor(threads, thread_name_prefix="creation") as executor:
                made = list(executor.map(self._make, self.wanted))
        else:
            made = [self._make(each) for each in self.wanted]
        failure: OSError | None = None
        try:
            self._disk.sync_directory(self._root)
        except OSError as error:
            failure = error
        for new, result in zip(self.wanted, made, strict=True):
            if failure is not None and isinstance(result, Log):
                result.close(clean=False)
                result = self._failed(new, failure)
            self.results[new.key] = result

    def _make(self, new: NewLog) -> Log | KafkaError:
        path = self._root / f"{new.topic}-{new.partition}"
        try:
            self._disk.make_directory(path, durable=False)
            if new.config != LogConfig():
                self._write(path / LOG_CONFIG, encode_config(new.config))
            identity = path / PARTITION_METADATA
            unnamed = identity.with_name(identity.name + ".tmp")
            self._write(unnamed, encode_checkpoint([[new.topic_id]]))
            self._disk.rename(unnamed, identity)
            return self._open_log(new)  # syncs the folder, with all that is in it
        except OSError as error:
            return self._failed(new, error)
        except KafkaError as error:
            return error

    def _write(self, path: Path, data: bytes) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.write_at(0, data)
            file.sync_data()
        finally:
            file.close()

    def _failed(self, new: NewLog, error: OSError) -> KafkaError:
        """Nothing can have been written to it; left there, it would stand in the way of the next try."""
        path = self._root / f"{new.topic}-{new.partition}"
        try:
            if self._disk.exists(path):
                self._disk.remove_tree(path)
        except OSError as second:
            log.warning("half_made_log_not_removed", path=path, reason=second)
        failed = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path.name} could not be created: {error}")
        failed.__cause__ = error
        return failed
