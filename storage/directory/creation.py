"""Creates many new logs at once, off the event loop.

    creation = directory.begin_creation(wanted, now_ms)   on the loop: removes what stands in the way;
                                                          reserves the names
    creation.run()                                        any thread: makes folders and files, waits for the
                                                          disk
    creation.finish()                                     on the loop: the logs are in use, or the result has
                                                          the error

Order per log: its folder; its configuration; its identity (`partition.metadata`), whose content is durable
before the file gets its name; its first segment; the folder is synced.  The data folder, which holds the
names of all logs, is synced once, at the end, and no log is in use before that.  So a crash leaves only logs
without records.  They are complete, or they have no identity; opening the folder removes the latter.

Concurrent syncs of several logs share the work of the file system, so a few threads make them.
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
from ..checkpoint import encode_value
from ..log.log import Log, LogConfig
from .folder_notes import PartitionKey
from .stored_config import LOG_CONFIG, encode_config

PARTITION_METADATA = "partition.metadata"
log = logs.get(__name__)

THREADS = 4
"""More threads are hardly faster, and compete with the loop for the interpreter's lock."""


class NewLog(NamedTuple):
    """A log to create."""

    topic: str
    topic_id: UUID
    partition: int
    config: LogConfig

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)


Results = dict[PartitionKey, Log | KafkaError]


class Creation:
    """See the module's text.  Made by `begin_creation` of a data folder, or of all of them."""

    def __init__(self, results: Results | None = None) -> None:
        """`results` holds the logs that exist already and the errors of those that cannot be made."""
        self.results: Results = results or {}
        self._shares: list[FolderShare] = []

    def add(self, share: FolderShare) -> None:
        self._shares.append(share)

    def absorb(self, other: Creation) -> None:
        """The logs of the other creation, in another folder, are created with these."""
        self.results |= other.results
        self._shares += other._shares

    def run(self) -> None:
        """Any thread.  Raises no error of the disk: `finish` returns them."""
        for share in self._shares:
            self.results |= share.run()

    def finish(self) -> Results:
        """On the loop, after `run`."""
        for share in self._shares:
            share.adopt_created(self.results)
        return self.results

    def now(self, key: PartitionKey) -> Log:
        """Runs, finishes, and gives one of the logs.  Raises KAFKA_STORAGE_ERROR."""
        self.run()
        result = self.finish()[key]
        if isinstance(result, KafkaError):
            raise result
        return result


class FolderShare:
    """The logs of a creation that one data folder gets."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        wanted: Sequence[NewLog],
        *,
        open_log: Callable[[NewLog], Log],
        adopt_created: Callable[[Results], None],
    ) -> None:
        """`open_log` (in a thread) opens a folder that has all but segments; `adopt_created` (on the loop)
        takes the results of `wanted` into use, and puts an error where that fails."""
        self._wanted = list(wanted)
        self._disk = disk
        self._root = root
        self._open_log = open_log
        self.adopt_created = adopt_created

    def run(self) -> Results:
        """Any thread."""
        if not self._wanted:
            return {}
        threads = min(THREADS, len(self._wanted))
        if threads > 1:
            with ThreadPoolExecutor(threads, thread_name_prefix="creation") as executor:
                made = list(executor.map(self._make, self._wanted))
        else:
            made = [self._make(each) for each in self._wanted]
        failure: OSError | None = None
        try:
            self._disk.sync_directory(self._root)
        except OSError as error:
            failure = error
        results: Results = {}
        for new, result in zip(self._wanted, made, strict=True):
            if failure is not None and isinstance(result, Log):
                result.close(clean=False)
                result = self._failed(new, failure)
            results[new.key] = result
        return results

    def _make(self, new: NewLog) -> Log | KafkaError:
        path = self._root / f"{new.topic}-{new.partition}"
        try:
            self._disk.make_directory(path, durable=False)
            if new.config != LogConfig():
                self._write(path / LOG_CONFIG, encode_config(new.config))
            identity = path / PARTITION_METADATA
            unnamed = identity.with_name(identity.name + ".tmp")
            self._write(unnamed, encode_value(new.topic_id))
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
        """No record can have been written to the log; its folder, left there, would block the next
        creation."""
        path = self._root / f"{new.topic}-{new.partition}"
        try:
            if self._disk.exists(path):
                self._disk.remove_tree(path)
        except OSError as second:
            log.warning("half_made_log_not_removed", path=path, reason=second)
        failed = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path.name} could not be created: {error}")
        failed.__cause__ = error
        return failed
