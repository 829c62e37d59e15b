"""Whether one log may be used: open, closed, or offline for good; and what a failure of the disk does to it.

A log goes offline at the first error that leaves it in a state that nobody knows, or that shows its data to be damaged.  It stays
so: only opening it again, after a restart, may find out what the disk really holds.  A full disk is not such an error.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError
from .batch_scan import InvalidBatch
from .recovery import CorruptLog

OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that end when somebody makes room; every other error of a write says that the disk cannot be trusted."""
DISK_FAILED = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN})
"""Errors of the disk itself, whatever was asked of it: not of a name that is too long, or of too many open files."""
log = logs.get(__name__)


class Health:
    """See the module's text.  `unusable` is all that a hot path needs to look at."""

    __slots__ = ("closed", "name", "offline", "on_offline", "unusable", "_directory")

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.closed = False
        self.offline: OSError | CorruptLog | None = None
        self.unusable = False
        self.on_offline: Callable[[OSError | CorruptLog], None] | None = None
        self._directory = directory

    def go_offline(self, error: OSError | CorruptLog) -> None:
        """Refuses everything from now on; tells `on_offline` once.  CorruptLog: only this log is damaged, not the disk."""
        if self.offline is not None:
            return
        self.offline, self.unusable = error, True
        log.error("log_offline", log=self.name, directory=self._directory, reason=error)
        if self.on_offline is not None:
            self.on_offline(error)

    def close(self) -> None:
        self.closed = self.unusable = True

    def require(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the log is not in use any more."""
        if self.unusable:
            why = f"is offline: {self.offline}" if self.offline is not None else "is closed"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.name} {why}")

    @contextmanager
    def disk_at_work(self, what: str) -> Iterator[None]:
        """What fails in here leaves the log in an unknown state, or shows that its data is damaged: it goes offline."""
        try:
            yield
        except (OSError, InvalidBatch) as error:
            self.fail(what, error)

    @contextmanager
    def room_needed(self, what: str) -> Iterator[None]:
        """What fails in here has changed nothing that counts: see `refuse`."""
        try:
            yield
        except OSError as error:
            self.refuse(what, error)

    def fail(self, what: str, error: OSError | InvalidBatch) -> NoReturn:
        """Goes offline, and says so to the caller."""
        if isinstance(error, InvalidBatch):
            self.go_offline(CorruptLog(error.path or self._directory, error.position, error.offset, error.reason))
        else:
            self.go_offline(error)
        raise self.storage_error(what, error) from error

    def refuse(self, what: str, error: OSError) -> NoReturn:
        """A write that changed nothing: a full disk refuses it, any other error takes the log offline."""
        if error.errno not in OUT_OF_SPACE:
            self.go_offline(error)
        raise self.storage_error(what, error) from error

    def storage_error(self, what: str, error: Exception) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}: {what} failed: {error}")
