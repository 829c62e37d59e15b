"""Whether one log may be used: open, closed, or offline for good; and what a failure of the disk does to it.

A log goes offline at the first error that leaves its state on the disk unknown, or that shows its data to be
damaged.  It stays offline: only opening it again, after a restart, can find out what the disk holds.  A full
disk is not such an error.

    a write or a sync fails                     the disk cannot be trusted: the data folder goes offline with
                                                all its logs
    bytes that were published are not there     damage of this log alone: a file that is gone, or shorter
                                                than the log knows
    ... or cannot be read (EIO)                 the same, but see `ReadErrors` for a disk that dies
    no file could be opened, or no memory had   the read is refused, and nothing follows

"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, ReadFailed
from ...wire.errors import ErrorCode, KafkaError
from ..recovery.recovery import CorruptLog
from ..segment.batch_scan import InvalidBatch
from .hooks import DETACHED

DISK_FAILED = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN})
"""Errors of the disk itself, not of one request, such as a name that is too long or too many open files."""
OUT_OF_HANDLES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""Errors that say nothing about the disk."""
UNREADABLE_LOGS_MAX = 3
UNREADABLE_WITHIN_S = 600.0
log = logs.get(__name__)


def unreadable(error: OSError, directory: Path, offset: int = -1) -> CorruptLog:
    """A CorruptLog for bytes, at `offset` if it is known, that are missing or cannot be read."""
    damage = CorruptLog(Path(error.filename or directory), -1, offset, error.strerror or str(error))
    damage.__cause__ = error
    return damage


class ReadErrors:
    """Read errors in the logs of one data folder: errors in one log are damage of that log, errors in several
    logs within a short time mean that the disk dies."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._seen: dict[tuple[str, int], float] = {}

    def is_dying(self, key: tuple[str, int]) -> bool:
        """Notes a read error of this log: whether UNREADABLE_LOGS_MAX logs have had one within
        UNREADABLE_WITHIN_S."""
        now_s = self._now_s()
        self._seen = {each: at_s for each, at_s in self._seen.items() if now_s - at_s < UNREADABLE_WITHIN_S}
        self._seen[key] = now_s
        return len(self._seen) >= UNREADABLE_LOGS_MAX


class Health:
    """See the module's text.  A hot path only has to check `unusable`."""

    __slots__ = ("_directory", "closed", "hooks", "name", "offline", "unusable")

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.closed = False
        self.offline: OSError | CorruptLog | None = None
        self.unusable = False
        self.hooks = DETACHED
        self._directory = directory

    def go_offline(self, error: OSError | CorruptLog) -> None:
        """The log refuses every request from here on; `hooks` learn it once.  CorruptLog: only this log is
        damaged, not the disk."""
        if self.offline is not None:
            return
        self.offline, self.unusable = error, True
        log.error("log_offline", log=self.name, directory=self._directory, reason=error)
        self.hooks.went_offline(error)

    def close(self) -> None:
        self.closed = self.unusable = True

    def require(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the log is closed or offline."""
        if self.unusable:
            why = f"is offline: {self.offline}" if self.offline is not None else "is closed"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.name} {why}")

    @contextmanager
    def disk_at_work(self, what: str) -> Iterator[None]:
        """Around a write: an error leaves the log's state unknown or shows damage, so the log goes
        offline."""
        try:
            yield
        except (OSError, InvalidBatch) as error:
            self.fail(what, error)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Around a read, which writes nothing: see `fail_read`."""
        try:
            yield
        except (OSError, InvalidBatch) as error:
            self.fail_read(what, error)

    @contextmanager
    def room_needed(self, what: str) -> Iterator[None]:
        """Around a write that changes nothing when it fails: see `refuse`."""
        try:
            yield
        except OSError as error:
            self.refuse(what, error)

    def fail(self, what: str, error: OSError | InvalidBatch) -> NoReturn:
        """Takes the log offline and raises the error."""
        if isinstance(error, InvalidBatch):
            self.go_offline(
                CorruptLog(error.path or self._directory, error.position, error.offset, error.reason)
            )
        else:
            self.go_offline(unreadable(error, self._directory) if isinstance(error, ReadFailed) else error)
        raise self.storage_error(what, error) from error

    def fail_read(self, what: str, error: OSError | InvalidBatch, offset: int = -1) -> NoReturn:
        """A read of published bytes failed and no write ran: only the data of this log is damaged."""
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.ENOENT):
            self.go_offline(unreadable(error, self._directory, offset))
        elif not isinstance(error, OSError) or error.errno not in OUT_OF_HANDLES:
            self.fail(what, error)
        raise self.storage_error(what, error) from error

    def refuse(self, what: str, error: OSError) -> NoReturn:
        """A write failed without changing anything: a full disk refuses the request, any other error takes
        the log offline."""
        if error.errno not in OUT_OF_SPACE:
            self.go_offline(error)
        raise self.storage_error(what, error) from error

    def storage_error(self, what: str, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {what} failed: {error}")
