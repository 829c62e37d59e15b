"""Consumer groups under faults (KIP-848): seeded runs on the real core, and the safeguards switched off one
by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidegate.coordinator.group.consumer import groups
from tidegate.coordinator.group.consumer.group import ConsumerGroup, Draft
from tidegate.coordinator.group.consumer.groups import ConsumerGroups
from tidegate.coordinator.group.consumer.reconcile import reconcile
from tidegate.coordinator.group.consumer.records import RecordKind
from tidegate.coordinator.group.consumer.state import Action
from tidegate.coordinator.group.levels import NEWEST_LEVEL
from tidegate.coordinator.outcome import CoordinatorRecord
from tidegate.coordinator.running_shard import TurnClock
from tidegate.coordinator.runtime import CoordinatorRuntime

from .consumer_group_simulator import World
from .coordinator_doubles import Catalog

STEPS = 400


@pytest.mark.parametrize("seed", range(40))
def test_partitions_have_one_reader_and_everything_is_read_in_the_end(seed: int) -> None:
    assert World(seed).run(STEPS) == []


@pytest.mark.parametrize("seed", range(20))
def test_so_it_is_when_members_that_come_together_wait_for_one_target(seed: int) -> None:
    assert World(seed, members=8, assignment_interval_ms=1_500).run(STEPS) == []


def test_the_runs_are_worth_something() -> None:
    """Coordinators move, members are fenced, instances come back to their places."""
    worlds = [World(seed) for seed in range(8)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.moves for world in worlds) > 20
    assert sum(world.fenced for world in worlds) > 8
    assert sum(world.handed_over for world in worlds) > 4
    assert sum(world.group.epoch for world in worlds) > 150


def test_a_seed_is_one_history() -> None:
    first, second = World(7), World(7)
    first.run(STEPS)
    second.run(STEPS)
    assert first.log.records() == second.log.records()


# --- ablations ----------------------------------------------------------------------------------------------


def broken_in_some_run(**world: Any) -> str:
    """The first violation in a few runs that the clients notice; empty when they noticed nothing."""
    for seed in range(12):
        violations = World(seed, validates=False, **world).run(STEPS)
        if violations:
            return violations[0]
    return ""


def test_giving_what_another_still_holds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(member_id: str, current: Any, owned: Any, target: Any, epoch: int, holders: Any) -> Any:
        return reconcile(member_id, current, owned, target, epoch, {})

    monkeypatch.setattr(groups, "reconcile", greedy)
    assert "is read by" in broken_in_some_run()


def test_the_shards_own_invariants_notice_it_before_a_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(member_id: str, current: Any, owned: Any, target: Any, epoch: int, holders: Any) -> Any:
        return reconcile(member_id, current, owned, target, epoch, {})

    monkeypatch.setattr(groups, "reconcile", greedy)
    found = [violation for seed in range(6) for violation in World(seed).run(STEPS)[:1]]
    assert any("an invariant of the shard" in each and "is held by" in each for each in found)


def test_taking_revocation_for_granted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(member_id: str, current: Any, owned: Any, target: Any, epoch: int, holders: Any) -> Any:
        return reconcile(member_id, current, frozenset(), target, epoch, holders)

    monkeypatch.setattr(groups, "reconcile", hasty)
    assert "is read by" in broken_in_some_run()


def test_counting_what_must_be_revoked_as_free_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = ConsumerGroup._apply_current

    def forgetful(self: ConsumerGroup, member_id: str, current: Any) -> None:
        apply(self, member_id, current)
        for partition in () if current is None else current.revoking:
            self.holders.pop(partition, None)

    monkeypatch.setattr(ConsumerGroup, "_apply_current", forgetful)
    assert "is read by" in broken_in_some_run()


@pytest.mark.parametrize(
    "kind",
    [RecordKind.GROUP, RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT],
    ids=lambda kind: kind.name.lower(),
)
def test_a_change_that_is_not_written_is_noticed(monkeypatch: pytest.MonkeyPatch, kind: RecordKind) -> None:
    """What only the copy knows never becomes state: a bump that is not written is made again and again, or
    never."""
    change: Callable[..., None] = Draft._change

    def unwritten(self: Draft, key: Any, value: Any) -> None:
        change(self, key, value)
        if key.kind is kind:
            self.records.pop()

    monkeypatch.setattr(Draft, "_change", unwritten)
    assert broken_in_some_run()


def test_state_beside_the_log_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing the group itself while deciding: a refused append, or the next coordinator, does not know of
    it."""
    draft = Draft.__init__

    def in_place(self: Draft, group: ConsumerGroup, level: int) -> None:
        draft(self, group, level)
        self._copy = group

    monkeypatch.setattr(Draft, "__init__", in_place)
    assert broken_in_some_run()


def test_members_that_are_never_given_up_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerGroups, "due", lambda self, now_ms: [])
    assert "members" in broken_in_some_run()


def test_an_instance_that_left_and_is_never_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session goes on running after a leave for a while: KIP-848 keeps the place, but not for ever."""
    leave: Callable[..., Any] = ConsumerGroups._leave

    def for_ever(self: ConsumerGroups, draft: Draft, event: Any, action: Action) -> Any:
        if action is Action.KEEP_PLACE:
            self._volatile[event.group_id].sessions.pop(event.member_id, None)
        return leave(self, draft, event, action)

    monkeypatch.setattr(ConsumerGroups, "_leave", for_ever)
    assert "members" in broken_in_some_run()


def test_ablation_new_metadata_that_groups_ignore_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that changes and does not say so."""
    change: Callable[..., None] = Catalog.set

    def quietly(self: Catalog, name: str, partitions: int) -> None:
        change(self, name, partitions)
        self.version = 1

    monkeypatch.setattr(Catalog, "set", quietly)
    assert "partitions of" in broken_in_some_run()


def test_losing_what_was_committed_is_noticed() -> None:
    """docs/semantics.md G12: an answer to a member, which is committed, must not be lost with the coordinator
    that sent it.  With few members a partition that another one is given is soon one that is still read."""
    assert "is read by" in broken_in_some_run(safe_commit=False, members=2)


def test_a_record_is_what_the_ablations_drop() -> None:
    """They would notice nothing if drafts did not keep records."""
    draft = Draft(ConsumerGroup("g"), NEWEST_LEVEL)
    draft.write(RecordKind.GROUP, 1)
    assert len(draft.records) == 1
    assert isinstance(draft.records[0], CoordinatorRecord)


def test_a_coordinators_time_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that coordinates nothing is not ticked: with the time of its last tick it would begin sessions
    that are over already."""
    tick, read = CoordinatorRuntime.tick, TurnClock.read

    def only_here(self: Any, **options: Any) -> None:
        read(self._clock)
        tick(self, **options)

    monkeypatch.setattr(TurnClock, "read", lambda self: None)
    monkeypatch.setattr(CoordinatorRuntime, "tick", only_here)
    assert "after its last request" in broken_in_some_run()
