"""What records make of a group shard: `replay` alone changes it, and memory has what a load of the log finds
(docs/semantics.md T21).

Each attribute of the shard and its parts stands here, as replayed or as volatile: for a new one the tests ask
until it does.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from tidegate.coordinator.group.classic.membership import ClassicGroup
from tidegate.coordinator.group.classic.state import GroupState
from tidegate.coordinator.group.consumer.group import ConsumerGroup
from tidegate.coordinator.group.consumer.groups import ConsumerGroups
from tidegate.coordinator.group.events import GroupEvent, GroupOutcome
from tidegate.coordinator.group.group_offsets import GroupOffsets
from tidegate.coordinator.group.groups import Groups
from tidegate.coordinator.group.offsets import OffsetStore
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import Context
from tidegate.coordinator.silence import Silences

from .group_fields import held_against_the_tables

REPLAYED: dict[type, set[str]] = {
    GroupShard: {"offsets", "groups"},
    OffsetStore: {"_committed", "_pending", "_undecided"},
    Groups: {"classic", "consumers", "silences"},
    ClassicGroup: {"is_stored", "stored_members", "state_since_ms"},
    ConsumerGroups: {"groups"},
    ConsumerGroup: {
        "group_id", "epoch", "topics", "members", "target_epoch", "target", "current", "holders", "instances",
    },
    Silences: {"notes"},
}  # fmt: skip
VOLATILE: dict[type, set[str]] = {
    GroupShard: {"config", "_group_offsets", "_catalog", "_batch_bytes_max"},
    GroupOffsets: {
        "config", "offsets", "_groups", "_finalised_level", "_batch_bytes_max", "_deleted_topics",
        "_next_expiration_scan_ms",
    },
    Groups: {
        "config", "_offsets", "_catalog", "_finalised_level", "_batch_bytes_max", "_is_live",
        "_deadlines", "_downgrades", "_validated",
    },
    # the members of a rebalance, of which `generation_of` has those that are stored
    ClassicGroup: {
        "group_id", "state", "generation", "protocol_type", "protocol", "leader", "members", "static_members",
        "pending_members", "unsynced", "join_deadline_ms", "sync_deadline_ms", "initial_window_ms",
        "joined_in_window",
    },
    ConsumerGroups: {"config", "_group_timeouts", "_finalised_level", "_catalog", "_volatile", "_deadlines"},
    Silences: {"_grace_periods", "_began_ms", "_next_ms"},
}  # fmt: skip


def replayed_state(thing: Any) -> Any:
    """A copy of what replay has made of `thing`."""
    kind = type(thing)
    if kind in REPLAYED:
        return {name: replayed_state(getattr(thing, name)) for name in REPLAYED[kind]}
    if isinstance(thing, dict):
        return {
            key: replayed_state(value)
            for key, value in thing.items()
            if not isinstance(value, ClassicGroup) or value.is_stored
        }
    return frozenset(thing) if isinstance(thing, set) else thing


def check_attributes(thing: Any) -> None:
    kind = type(thing)
    names = {each.name for each in fields(thing)} if is_dataclass(thing) else set(vars(thing))
    stated = REPLAYED.get(kind, set()) | VOLATILE.get(kind, set())
    assert names == stated, (
        f"{kind.__name__}: say in replayed_state.py whether replay alone changes {names ^ stated}"
    )


def generation_of(group: ClassicGroup) -> Any:
    """The record of a group that is in no rebalance, as the group itself has it."""
    settled = group.state in (GroupState.STABLE, GroupState.EMPTY)
    return group.to_value(group.state_since_ms, None) if settled else None


def checked(shard: GroupShard, violations: list[str]) -> GroupShard:
    """The shard; `violations` gets a line for each event at which `handle` changes what `replay` alone may
    change, and for each field that a record of a consumer group does not have as `group_fields.py` says."""
    groups, handle = shard.groups, shard.handle
    for part in (shard, shard.offsets, shard._group_offsets, groups, groups.consumers, groups.silences):
        check_attributes(part)
    check_attributes(ClassicGroup("g"))
    check_attributes(ConsumerGroup("g"))

    def unchanged(event: GroupEvent, context: Context) -> GroupOutcome:
        before = replayed_state(shard)
        try:
            return handle(event, context)
        finally:
            if replayed_state(shard) != before:
                violations.append(f"handle has changed what only replay may change: {event}")

    shard.handle = unchanged
    return held_against_the_tables(shard, violations)


def check_load(live: GroupShard, loaded: GroupShard) -> None:
    """Memory is what a load of the log finds."""
    for name, found in replayed_state(loaded).items():
        has = replayed_state(live)[name]
        assert found == has, f"{name}: a load finds {found}, memory has {has}"
    for group_id, group in live.groups.classic.items():
        if group.is_stored and (has := generation_of(group)) is not None:
            found = generation_of(loaded.groups.classic[group_id])
            assert found == has, f"{group_id}: a load finds {found}, memory has {has}"
