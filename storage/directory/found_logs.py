"""What stands in a log's folder besides its data, looked at before the log is opened: whose it is, how it is configured, and
whether it may be used at all.

    partition.metadata      the topic's id, there from the log's creation on (`creation`)
    log-config              its configuration, when that is not the default (`stored_config`)
    damaged                 why its data was found not to be what it was

A log without a readable identity is not opened, and nobody guesses whose it is: a topic of this name may have been deleted and
made again.  Where other replicas have the partition it is set aside, like a damaged one, and fetched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ...runtime import logs
from ...runtime.disk import Disk, ReadFailed
from ...wire.errors import ErrorCode, KafkaError
from ..checkpoint import CheckpointInvalid, decode_checkpoint
from ..log.health import unreadable
from ..topic_config import LogConfig
from .creation import PARTITION_METADATA
from .folder_notes import PartitionKey
from .stored_config import LOG_CONFIG, decode_config

DAMAGED = "damaged"
_FIRST_SEGMENT = f"{0:020d}.log"
log = logs.get(__name__)


class FoundLog(NamedTuple):
    """A log's folder that is to be opened."""

    key: PartitionKey
    topic_id: UUID
    config: LogConfig


class UnusableLog(NamedTuple):
    """One that is not, and why.  `topic_id` is None when nobody knows it."""

    topic_id: UUID | None
    reason: KafkaError


def parse_name(name: str) -> PartitionKey | None:
    """The partition of a folder's name; None for anything else."""
    topic, dash, partition = name.rpartition("-")
    return (topic, int(partition)) if dash and topic and partition.isdigit() and partition.isascii() else None


def look_at_log(
    disk: Disk, path: Path, key: PartitionKey, config_of: Callable[[str], LogConfig] | None
) -> FoundLog | UnusableLog | None:
    """None for what a creation that was cut short has left.  `config_of(topic)`: of a log that does not know its own.  Raises
    OSError, but not for what cannot be read."""
    try:
        return _look(disk, path, key, config_of)
    except ReadFailed as error:
        return UnusableLog(None, unreadable(error, path))


def _look(
    disk: Disk, path: Path, key: PartitionKey, config_of: Callable[[str], LogConfig] | None
) -> FoundLog | UnusableLog | None:
    metadata = path / PARTITION_METADATA
    if not disk.exists(metadata):
        return _unidentified(metadata, "is missing") if was_in_use(disk, path) else None
    try:
        topic_id = UUID(decode_checkpoint(disk.read(metadata), 1)[0][0])
    except (CheckpointInvalid, ValueError, IndexError) as error:
        return _unidentified(metadata, f"is damaged ({error})")
    if disk.exists(path / DAMAGED):
        text = disk.read(path / DAMAGED).decode(errors="replace")
        return UnusableLog(topic_id, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text))
    return FoundLog(key, topic_id, _config_at(disk, path, key[0], config_of))


def _unidentified(metadata: Path, what: str) -> UnusableLog:
    reason = (
        f"{metadata} {what}: which topic's records these are is not known. As soon as another replica leads, and nobody counts "
        "on this one, the log is set aside and fetched again. Without another replica: stop the node, and copy the file from "
        "another partition of this very topic, where it is the same; or move the folder away to begin with an empty partition."
    )
    return UnusableLog(None, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason))


def was_in_use(disk: Disk, path: Path) -> bool:
    """Whether there is more than a creation leaves that was cut short before the identity: it may have made the first segment.
    A disk that cannot find the identity, and lists its name, is not to be believed either."""
    names = disk.list_names(path)
    segments = [name for name in names if name.endswith(".log")]
    return PARTITION_METADATA in names or any(name != _FIRST_SEGMENT or disk.size(path / name) for name in segments)


def _config_at(disk: Disk, path: Path, topic: str, config_of: Callable[[str], LogConfig] | None) -> LogConfig:
    if disk.exists(path / LOG_CONFIG):
        try:
            return decode_config(disk.read(path / LOG_CONFIG))
        except ValueError as error:
            log.warning("log_config_damaged", path=path / LOG_CONFIG, reason=error)
            # Perhaps it was a compacted one: holes in it are no loss.
            return replace(config_of(topic) if config_of is not None else LogConfig(), was_compacted=True)
    return config_of(topic) if config_of is not None else LogConfig()
