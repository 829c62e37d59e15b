"""Configurations of logs that are not on the disk yet.

A log's configuration is stored beside the log (`stored_config`).  When the disk has no room for it, the next
checkpoint tries again, and until then no offset gap may get into a log whose stored configuration does not
allow them: recovery would take the gap for lost data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...runtime import logs
from ...runtime.disk import Disk
from ..log.log import Log, LogConfig
from .folder_notes import PartitionKey
from .stored_config import LOG_CONFIG, encode_config

log = logs.get(__name__)


class PendingConfigs:
    """See the module's text."""

    def __init__(
        self, disk: Disk, logs_in_use: Mapping[PartitionKey, Log], on_failure: Callable[[OSError], None]
    ) -> None:
        self._disk = disk
        self._logs = logs_in_use
        self._on_failure = on_failure
        self._due: dict[PartitionKey, LogConfig] = {}

    def note(self, changed: Log, config: LogConfig) -> LogConfig:
        """Writes a log's new configuration; returns the configuration that applies until that succeeds."""
        before = changed.config
        self._due[changed.topic, changed.partition] = config
        try:
            self.write()
        except OSError as error:
            log.warning("log_config_not_written", log=changed.name, reason=error)
            self._on_failure(error)
            if config.may_have_offset_gaps and not before.may_have_offset_gaps:
                return replace(
                    config, cleanup_policy=before.cleanup_policy, was_compacted=before.was_compacted
                )
        return config

    def write(self) -> None:
        """Writes all that wait.  Raises OSError; the rest waits on."""
        for key, config in tuple(self._due.items()):
            known = self._logs.get(key)
            if known is not None:
                self._disk.write_atomic(known.directory / LOG_CONFIG, encode_config(config))
                known.config = config
            del self._due[key]

    def forget(self, key: PartitionKey) -> None:
        """The log is deleted, or moves away."""
        self._due.pop(key, None)
