"""Reads the files beside a log's data before the log is opened: its topic id, its configuration, and whether
it may be used.

    partition.metadata      the topic's id, there from the log's creation on (`creation`)
    log-config              its configuration, when that is not the default (`stored_config`)
    damaged                 why a read or a recovery found its data damaged

A log without a readable identity is not opened, and its name does not prove its topic: a topic of this name
may have been deleted and created again.  When other replicas have the partition, the node sets the log aside
like a damaged one and fetches it again.
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
from ..checkpoint import CheckpointInvalid, parse_value
from ..log.health import unreadable
from ..topic_config import LogConfig
from .creation import PARTITION_METADATA
from .folder_notes import PartitionKey
from .stored_config import LOG_CONFIG, decode_config

DAMAGED = "damaged"
_FIRST_SEGMENT = f"{0:020d}.log"
log = logs.get(__name__)


class FoundLog(NamedTuple):
    """The folder of a log to open."""

    key: PartitionKey
    topic_id: UUID
    config: LogConfig


class UnusableLog(NamedTuple):
    """A log that is not opened, and why.  `topic_id` is None when it is unknown."""

    topic_id: UUID | None
    reason: KafkaError


def parse_name(name: str) -> PartitionKey | None:
    """The partition of a folder's name; None for anything else."""
    topic, dash, partition = name.rpartition("-")
    return (topic, int(partition)) if dash and topic and partition.isdigit() and partition.isascii() else None


def inspect_log_folder(
    disk: Disk, path: Path, key: PartitionKey, config_of: Callable[[str], LogConfig] | None
) -> FoundLog | UnusableLog | None:
    """Returns None for the leftover of an interrupted creation.  `config_of(topic)` gives the configuration
    of a log that has no `log-config`.  Raises OSError, except for files that cannot be read."""
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
        topic_id = parse_value(disk.read(metadata), UUID)
    except CheckpointInvalid as error:
        return _unidentified(metadata, f"is damaged ({error})")
    if disk.exists(path / DAMAGED):
        text = disk.read(path / DAMAGED).decode(errors="replace")
        return UnusableLog(topic_id, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text))
    return FoundLog(key, topic_id, _config_at(disk, path, key[0], config_of))


def _unidentified(metadata: Path, what: str) -> UnusableLog:
    reason = (
        f"{metadata} {what}: the topic of these records is unknown. As soon as another "
        "replica leads, and the partition does not need "
        "this one, the log is set aside and fetched again. Without another replica: stop the "
        "node, and copy the file from "
        "another partition of this very topic, where it is the same; or move the folder away to "
        "begin with an empty partition."
    )
    return UnusableLog(None, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason))


def was_in_use(disk: Disk, path: Path) -> bool:
    """Whether the folder holds more than a creation that was interrupted before the identity leaves: that may
    have made the first segment.  A disk that lists the name of the identity and cannot find the file is not
    trusted either."""
    names = disk.list_names(path)
    segments = [name for name in names if name.endswith(".log")]
    return PARTITION_METADATA in names or any(
        name != _FIRST_SEGMENT or disk.size(path / name) for name in segments
    )


def _config_at(disk: Disk, path: Path, topic: str, config_of: Callable[[str], LogConfig] | None) -> LogConfig:
    if disk.exists(path / LOG_CONFIG):
        try:
            return decode_config(disk.read(path / LOG_CONFIG))
        except ValueError as error:
            log.warning("log_config_damaged", path=path / LOG_CONFIG, reason=error)
            # The log may have been compacted: its offset gaps are no loss.
            return replace(config_of(topic) if config_of is not None else LogConfig(), was_compacted=True)
    return config_of(topic) if config_of is not None else LogConfig()
