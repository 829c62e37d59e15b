"""A configuration that comes while a log runs holds for it as for one that was opened with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum
from typing import Any

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy, FlushPolicy, TimestampType

from .workload import FOLDER, append, batch, open_log

BEFORE = LogConfig(segment_bytes=100_000)
OF_THE_START = {
    "max_producer_ids": "a setting of the node's file alone: it is the same from a log's opening to its close"
}
"""Field of `LogConfig` -> why no running log gets another value."""
CHANGES: Mapping[str, object] = {
    "flush_policy": FlushPolicy.OS,
    "timestamp_type": TimestampType.LOG_APPEND_TIME,
    "cleanup_policy": frozenset({CleanupPolicy.COMPACT}),
    "compression_type": "zstd",
    "min_cleanable_dirty_ratio": 0.25,
    "record_check": False,
    "was_compacted": True,
}
"""Where another value is not the number beside it."""


def changed(name: str) -> LogConfig:
    change: dict[str, Any] = {name: CHANGES[name] if name in CHANGES else getattr(BEFORE, name) - 1}
    return replace(BEFORE, **change)


def copies(log: Log) -> dict[str, Any]:
    """The configuration of the log, and every plain value that its parts keep beside it."""
    active = log.local.segments.active
    parts = (log, log.producers, log.local, log.local.segments, active, active.indexes, active.counts)
    return {"config": log.config} | {
        f"{number} {type(part).__name__}.{name}": value
        for number, part in enumerate(parts)
        for name in names_of(part)
        if isinstance(value := getattr(part, name, None), int | float | str | Enum)
    }


def names_of(part: object) -> set[str]:
    slots = {name for each in type(part).__mro__ for name in getattr(each, "__slots__", ())}
    return slots | set(getattr(part, "__dict__", {}))


def ran(config: LogConfig, after: LogConfig) -> dict[str, Any]:
    disk = LyingDisk()
    disk.make_directory(FOLDER.parent)
    log = open_log(disk, config=config)
    append(log, batch(3))
    if after is not config:
        log.update_config(after)
    assert log.roll()
    try:
        return copies(log)
    finally:
        log.close(clean=False)


@pytest.mark.parametrize("name", [each.name for each in fields(LogConfig) if each.init])
def test_a_running_log_goes_by_each_field_that_changes(name: str) -> None:
    after = changed(name)
    running, opened = ran(BEFORE, after), ran(after, after)
    if name in OF_THE_START:
        assert running != opened, "it comes to a running log: it needs no reason"
    else:
        assert running == opened
    assert ran(BEFORE, BEFORE)["config"] != opened["config"]


def test_what_is_copied_out_of_the_configuration_is_seen() -> None:
    def differing(name: str) -> set[str]:
        before, after = ran(BEFORE, BEFORE), ran(changed(name), changed(name))
        return {key.split(" ")[-1] for key in before if before[key] != after[key]} - {"config"}

    assert differing("producer_id_expiration_ms") == {"ProducerState.expiration_ms"}
    assert differing("index_interval_bytes")
