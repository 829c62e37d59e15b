"""Members of both protocols in one group, and their offsets, under faults: seeded runs on the real core, and
the safeguards switched off one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidegate.coordinator.group.classic.records import OffsetKey, OffsetValue
from tidegate.coordinator.group.consumer import classic_members
from tidegate.coordinator.group.consumer.reconcile import reconcile
from tidegate.coordinator.group.group_offsets import GroupOffsets
from tidegate.coordinator.group.offsets import OffsetStore
from tidegate.coordinator.outcome import WriteOffsets

from .mixed_group_simulator import MixedWorld

STEPS = 400


@pytest.mark.parametrize("seed", range(20))
def test_partitions_have_one_reader_and_each_commit_is_found(seed: int) -> None:
    assert MixedWorld(seed).run(STEPS) == []


def test_the_runs_are_worth_something() -> None:
    """Classic members get assignments, commits are acknowledged and fetched, groups move both ways."""
    worlds = [MixedWorld(seed) for seed in range(5)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.classic_syncs for world in worlds) > 50
    assert sum(world.commits for world in worlds) > 1_000
    assert sum(world.fetches for world in worlds) > 10_000


# --- ablations ----------------------------------------------------------------------------------------------


def broken_in_some_run(**world: Any) -> str:
    """The first violation in a few runs that the clients notice; empty when they noticed nothing."""
    for seed in range(12):
        violations = MixedWorld(seed, validates=False, **world).run(STEPS)
        if violations:
            return violations[0]
    return ""


def test_an_acknowledged_commit_that_is_not_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    commit: Callable[..., Any] = GroupOffsets.commit

    def forgetful(self: GroupOffsets, event: Any, context: Any) -> Any:
        outcome = commit(self, event, context)
        return WriteOffsets((), outcome.reply) if event.offsets[0].offset % 50 == 0 else outcome

    monkeypatch.setattr(GroupOffsets, "commit", forgetful)
    assert "the offset of" in broken_in_some_run()


def test_an_older_commit_that_comes_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    replay: Callable[..., None] = OffsetStore.replay_commit

    def lowest(self: OffsetStore, key: OffsetKey, value: OffsetValue | None, record_offset: int) -> None:
        before = self.get(key.group_id, (key.topic, key.partition))
        if before is None or value is None or before.value.offset % 50:
            replay(self, key, value, record_offset)

    monkeypatch.setattr(OffsetStore, "replay_commit", lowest)
    assert "the offset of" in broken_in_some_run()


def test_losing_a_commit_with_its_coordinator_is_noticed() -> None:
    """docs/semantics.md G12."""
    assert broken_in_some_run(safe_commit=False)


def test_a_deleted_topic_that_takes_the_offsets_of_another_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delete: Callable[..., Any] = GroupOffsets.topics_deleted
    monkeypatch.setattr(
        GroupOffsets, "topics_deleted", lambda self, topics, now_ms: delete(self, topics | {"a"}, now_ms)
    )
    assert "the offset of" in broken_in_some_run()


def test_a_classic_member_whose_revocation_is_taken_for_granted_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(member_id: str, current: Any, owned: Any, target: Any, epoch: int, holders: Any) -> Any:
        return reconcile(member_id, current, frozenset(), target, epoch, holders)

    monkeypatch.setattr(classic_members, "reconcile", hasty)
    assert "is read by" in broken_in_some_run()
