"""Coordinators learn the same from a cleaned log as from the log as it was: gaps, emptied batches and
tombstones in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.controller.state.features import SUPPORTED
from tidegate.controller.state.model import METADATA_VERSION
from tidegate.coordinator.group.classic.records import (
    GroupValue,
    MemberValue,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from tidegate.coordinator.group.events import GroupConfig
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.coordinator.transaction.events import TransactionConfig
from tidegate.coordinator.transaction.records import encode_key, encode_value
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionMetadata, TransactionPartition, TransactionState
from tidegate.node.cluster.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE, settings
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.wire.records import ControlType, NewRecord, encode_batch, encode_marker, iterate_headers

from .test_configuration import loaded

NOW_MS = 1_700_000_000_000
GROUPS = [f"group{n}" for n in range(4)]
PLACES = [(f"topic{n % 2}", n) for n in range(5)]

EVERY_KEY = {encode_offset_key(group, *place) for group in GROUPS for place in PLACES}


class StateLog:
    """A state topic's log, with segments of a few batches."""

    def __init__(self, topic: str) -> None:
        config = replace(
            LogConfig.from_topic_config(settings(topic, loaded())[2]),
            segment_bytes=1500,
            delete_retention_ms=1000,
        )
        self.disk = LyingDisk()
        self.log = Log.open(
            self.disk,
            Path("/data/state-0"),
            topic=topic,
            partition=0,
            config=config,
            clean=False,
            recovery_point=0,
        )
        self.now_ms = NOW_MS
        self.horizon_ms: int | None = None

    def append(self, *records: tuple[bytes, bytes | None], pid: int = -1, epoch: int = -1) -> None:
        self.now_ms += 1
        data = encode_batch(
            [NewRecord(key, value, (), self.now_ms) for key, value in records],
            producer_id=pid, producer_epoch=epoch, transactional=pid >= 0,
        )  # fmt: skip
        self._append(data)

    def end(self, pid: int, epoch: int, kind: ControlType) -> None:
        self._append(encode_marker(kind, pid, epoch, 0, self.now_ms), version=2)

    def _append(self, data: bytes, version: int = 0) -> None:
        self.log.append_leader(
            data,
            leader_epoch=3,
            origin=AppendOrigin.COORDINATOR,
            now_ms=self.now_ms,
            transaction_version=version,
        )

    def high_watermark(self, _partition: int) -> int:
        return self.log.high_watermark

    def settle(self) -> None:
        self.log.flush_now()
        self.log.set_high_watermark(self.log.log_end_offset)

    def clean(self) -> None:
        self.settle()
        self.now_ms += 2000
        result = clean_now(self.log, self.disk, self.now_ms, key_map_bytes=2000, horizon_ms=self.horizon_ms)
        if result is not None:
            self.horizon_ms = result.next_horizon_ms

    def load(self, shard: Any) -> Any:
        """As `CoordinatorHost` does it, a few batches at a time."""
        runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
            "state",
            lambda *_: shard,
            self,  # type: ignore[arg-type]
            lambda *_: None,
            steady_ms=lambda: self.now_ms,
        )
        self.settle()
        end, position = self.log.log_end_offset, self.log.log_start_offset
        runtime.begin_load(0, 3, end, position)
        while 0 <= position < end:
            position = runtime.load_batches(0, 3, self.log.read(position, 600, upper_offset=end).data)
        runtime.finish_load(0, 3)
        return shard


def offsets_of(state: StateLog) -> Any:
    shard = state.load(GroupShard(GroupConfig()))
    committed = {name: shard.offsets.of_group(name) for name in GROUPS}
    pending = {name: shard.offsets.undecided(name) for name in GROUPS}
    return (
        committed,
        pending,
        shard.offsets.open_producers(),
        {name: vars_of(group) for name, group in shard.groups.classic.items()},
    )


def vars_of(group: Any) -> Any:
    return (group.generation, group.protocol_type, sorted(group.members))


def offset_record(random: Random, undecided: set[bytes]) -> tuple[bytes, bytes | None]:
    """A committed offset, or its deletion: the latter never while a transaction may still commit one there
    (docs/semantics.md O4)."""
    topic, partition = random.choice(PLACES)
    key = encode_offset_key(random.choice(GROUPS), topic, partition)
    if random.random() < 0.2 and key not in undecided:
        return key, None
    return key, encode_offset_value(OffsetValue(random.randrange(1000), 1, "note", NOW_MS))


def group_record(random: Random) -> tuple[bytes, bytes | None]:
    name = random.choice(GROUPS)
    if random.random() < 0.2:
        return encode_group_key(name), None
    member = MemberValue(f"m{random.randrange(3)}", None, "client", "host", 1000, 1000, b"s", b"a")
    return encode_group_key(name), encode_group_value(
        GroupValue("consumer", random.randrange(9), "range", member.member_id, NOW_MS, (member,))
    )


@pytest.mark.parametrize("seed", range(8))
def test_committed_offsets_are_the_same_from_a_cleaned_log(seed: int) -> None:
    random, state = Random(seed), StateLog(CONSUMER_OFFSETS)
    epochs = dict.fromkeys((1, 2, 3), 0)
    pending: dict[int, set[bytes]] = {}
    for _ in range(300):
        pid, dice = random.choice(list(epochs)), random.random()
        undecided = {key for keys in pending.values() for key in keys}
        if dice < 0.4:
            state.append(*(offset_record(random, undecided) for _ in range(random.randrange(1, 4))))
        elif dice < 0.5:
            state.append(group_record(random))
        elif dice < 0.8:
            records = [offset_record(random, EVERY_KEY) for _ in range(random.randrange(1, 4))]
            state.append(*records, pid=pid, epoch=epochs[pid])
            pending.setdefault(pid, set()).update(key for key, _ in records)
        elif pid in pending:
            epochs[pid] += 1
            state.end(pid, epochs[pid], random.choice((ControlType.COMMIT, ControlType.ABORT)))
            del pending[pid]
        if random.random() < 0.03:
            before = offsets_of(state)
            state.clean()
            assert offsets_of(state) == before
    for pid in sorted(pending):
        state.end(pid, epochs[pid] + 1, ControlType.ABORT)
    state.log.roll()
    before, size = offsets_of(state), state.log.size_bytes
    for _ in range(4):
        state.clean()
        assert offsets_of(state) == before
    assert state.log.size_bytes < size


NEWEST = SUPPORTED[METADATA_VERSION][1]


def transactions_of(state: StateLog) -> Any:
    shard = state.load(TransactionShard(TransactionConfig(), lambda: None, 3))
    return shard.transactions, set(shard.ongoing), set(shard.prepared), set(shard.decided)


@pytest.mark.parametrize("seed", range(4))
def test_transactions_are_the_same_from_a_cleaned_log(seed: int) -> None:
    random, state = Random(seed), StateLog(TRANSACTION_STATE)
    stored = [
        s for s in TransactionState if s not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
    ]
    for _ in range(400):
        name = f"app{random.randrange(8)}"
        metadata = TransactionMetadata(
            transactional_id=name,
            producer_id=random.randrange(100),
            producer_epoch=random.randrange(9),
            timeout_ms=1000,
            state=random.choice(stored),
            last_update_ms=NOW_MS,
            partitions=frozenset({TransactionPartition("flights", random.randrange(5))}),
        )
        state.append((encode_key(name), None if random.random() < 0.2 else encode_value(metadata, NEWEST)))
        if random.random() < 0.03:
            before = transactions_of(state)
            state.clean()
            assert transactions_of(state) == before
    state.log.roll()
    before, size = transactions_of(state), state.log.size_bytes
    for _ in range(3):
        state.clean()
        assert transactions_of(state) == before
    assert state.log.size_bytes < size


def test_a_state_log_that_is_nothing_but_deletions_loads_as_empty() -> None:
    state = StateLog(CONSUMER_OFFSETS)
    for number in range(40):
        state.append(
            (encode_offset_key("g", "t", number), encode_offset_value(OffsetValue(1, 1, "", NOW_MS)))
        )
    for number in range(40):
        state.append((encode_offset_key("g", "t", number), None))
    state.log.roll()
    for _ in range(3):
        state.clean()
    batches = [header for _, header in iterate_headers(state.log.read(0, 1 << 20, upper_offset=80).data)]
    # the end has not moved
    assert [(header.record_count, header.next_offset) for header in batches] == [(0, 80)]
    shard = state.load(GroupShard(GroupConfig()))
    assert not shard.offsets.of_group("g")
    assert shard.offsets.get("g", ("t", 1)) is None
