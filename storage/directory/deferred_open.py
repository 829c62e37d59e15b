"""Deferred open: the logs of a data folder for which the disk had no room at the start.  Each opens at its
next use, once there is room.

Hardly any log needs room to open (`recovery`).  Until a deferred log opens, requests for it are refused, its
files stay as they are, and the folder keeps all notes of it.  The other logs of the folder are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE
from ...wire.errors import ErrorCode, KafkaError
from ..durability.flush_notes import Identity, identity_of
from ..log.log import Log
from .folder_notes import PartitionKey
from .found_logs import FoundLog

log = logs.get(__name__)


class DeferredOpen:
    """See the module's text.  Used on the loop's thread."""

    def __init__(self, load: Callable[[FoundLog], Log], lower: Callable[[PartitionKey, int], None]) -> None:
        """`load` opens a log as after an unclean stop; `lower` lowers the notes above its end.  Both raise
        OSError."""
        self._found: dict[PartitionKey, FoundLog] = {}
        self._load = load
        self._lower = lower

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def topic_id_of(self, key: PartitionKey) -> UUID | None:
        found = self._found.get(key)
        return found.topic_id if found is not None else None

    def identities(self) -> Iterable[Identity]:
        return [identity_of(found.topic_id, key[1]) for key, found in self._found.items()]

    def put(self, found: FoundLog, error: OSError) -> KafkaError:
        """Adds a log that could not be opened for lack of room.  Raises every other error of the disk."""
        if error.errno not in OUT_OF_SPACE:
            raise error
        self._found[found.key] = found
        return _refusal(found.key, error)

    def lower_noted_start(self, found: FoundLog, opened: Log) -> Log | KafkaError:
        """Lowers a noted log start that is above the log's end: it would hide the records that are appended
        next.  Raises OSError."""
        try:
            self._lower(found.key, opened.log_end_offset)
            return opened
        except OSError as error:
            opened.close(clean=False)
            return self.put(found, error)

    def open(self, key: PartitionKey) -> Log:
        """Waits for the disk.  Raises KafkaError, which is a CorruptLog when this log itself is damaged;
        OSError for errors other than lack of room."""
        found = self._found[key]
        try:
            opened = self._load(found)
        except OSError as error:
            raise self.put(found, error) from error
        result = self.lower_noted_start(found, opened)
        if isinstance(result, KafkaError):
            raise result
        self.forget(key)
        log.info("log_opened_late", log=f"{key[0]}-{key[1]}")
        return result

    def forget(self, key: PartitionKey) -> None:
        self._found.pop(key, None)


def _refusal(key: PartitionKey, error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"there is no room to open {key[0]}-{key[1]}: {error}")
