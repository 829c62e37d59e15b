"""The shards look at their own invariants: each planted corruption is found, and stops the shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tidegate.coordinator.group.classic.events import JoinGroup, SyncGroup
from tidegate.coordinator.group.classic.membership import ClassicGroup
from tidegate.coordinator.group.classic.records import OffsetKey, OffsetValue
from tidegate.coordinator.group.classic.state import GroupState
from tidegate.coordinator.group.consumer.events import ConsumerGroupHeartbeat
from tidegate.coordinator.group.consumer.group import ConsumerGroup
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.group.events import GroupConfig, OffsetFetch
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.transaction.events import (
    AddPartitions,
    DescribeTransactions,
    EndTxn,
    InitProducerId,
    MarkersWritten,
    TransactionConfig,
)
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import (
    TransactionPartition,
    TransactionState,
)
from tidegate.wire.errors import ErrorCode

from .coordinator_doubles import Catalog, Driver, code_of

PLACE = TransactionPartition("t", 0, UUID(int=1))
OPEN, DECIDED, DONE = "open", "decided", "done"


# --- the transaction shard ----------------------------------------------------------------------------------


class Transactions(Driver):
    """Three ids: one with an open transaction, one that is decided, one that is complete."""

    def __init__(self) -> None:
        ids = iter(range(7, 100))
        self.made: list[TransactionShard] = []

        def make(_partition: int, epoch: int) -> TransactionShard:
            self.made.append(TransactionShard(TransactionConfig(), lambda: next(ids), epoch))
            return self.made[-1]

        super().__init__(make)
        self.load()
        for name in (OPEN, DECIDED, DONE):
            producer = self.ask(InitProducerId(name, 60_000))
            self.ask(AddPartitions(name, producer.producer_id, producer.producer_epoch, (PLACE,), 2))
            if name != OPEN:
                self.ask(EndTxn(name, producer.producer_id, producer.producer_epoch, True, 2))
        self.runtime.submit(0, self._marked(DONE), None)
        self.commit()

    def _marked(self, name: str) -> Any:
        return next(MarkersWritten(e.identity) for _, _, e in self.effects if e.transactional_id == name)

    @property
    def shard(self) -> TransactionShard:
        return self.made[-1]


def entry(name: str, **changes: Any) -> Callable[[TransactionShard], None]:
    def plant(shard: TransactionShard) -> None:
        shard.transactions[name] = replace(shard.transactions[name], **changes)

    return plant


TRANSACTIONS: dict[str, tuple[str, Callable[[TransactionShard], None], str]] = {
    "an open transaction left its index": (OPEN, lambda s: s.ongoing.clear(), "index of open"),
    "a decided one left its index": (DECIDED, lambda s: s.decided.clear(), "index of decided"),
    "an open one has no partitions": (OPEN, entry(OPEN, partitions=frozenset()), "partitions are enlisted"),
    "a complete one has partitions": (DONE, entry(DONE, partitions=frozenset({PLACE})), "partitions are"),
    "an epoch fell": (DECIDED, entry(DECIDED, producer_epoch=0, last_producer_epoch=-1), "epoch fell"),
    "an epoch past the last": (DONE, entry(DONE, producer_epoch=32768), "out of range"),
    "the last epoch without a next id": (DECIDED, entry(DECIDED, producer_epoch=32767), "belong together"),
    "COMPLETE without PREPARE": (OPEN, lambda s: completed(s, OPEN), "followed ONGOING"),
    "a stored DEAD": (DONE, entry(DONE, state=TransactionState.DEAD), "never stored"),
    "another producer id": (OPEN, entry(OPEN, producer_id=99), "without a rotation"),
    "no start": (OPEN, entry(OPEN, start_ms=-1), "no start"),
    "a forgotten entry": (OPEN, lambda s: forgotten(s, OPEN), "a tombstone followed ONGOING"),
}


def completed(shard: TransactionShard, name: str) -> None:
    entry(name, state=TransactionState.COMPLETE_COMMIT, partitions=frozenset())(shard)
    shard.ongoing.pop(name)


def forgotten(shard: TransactionShard, name: str) -> None:
    del shard.transactions[name]
    shard.ongoing.pop(name)


def test_a_sound_transaction_shard_is_valid() -> None:
    transactions = Transactions()
    transactions.shard.validate()
    assert {each.state for each in transactions.shard.transactions.values()} == {
        TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
    }  # fmt: skip


@pytest.mark.parametrize("what", list(TRANSACTIONS))
def test_a_corrupt_transaction_stops_its_shard(what: str) -> None:
    name, plant, found = TRANSACTIONS[what]
    transactions = Transactions()
    plant(transactions.shard)
    errors: list[AssertionError] = []
    transactions.runtime._around.on_invalid = errors.append
    assert code_of(transactions.ask(DescribeTransactions(name))) is ErrorCode.NOT_COORDINATOR
    assert found in transactions.failures[0][2]
    assert len(errors) == 1, "the node stops"


def test_an_event_is_checked_for_its_own_transactional_id_alone() -> None:
    """So the check costs the same however many ids the partition has; `validate()` looks at all."""
    transactions = Transactions()
    transactions.shard.ongoing.clear()
    assert code_of(transactions.ask(DescribeTransactions(DONE))) is ErrorCode.NONE
    with pytest.raises(AssertionError, match="index of open"):
        transactions.shard.validate()


def test_two_transactional_ids_never_share_a_producer_id() -> None:
    shard = Transactions().shard
    entry(OPEN, producer_id=shard.transactions[DONE].producer_id)(shard)
    with pytest.raises(AssertionError, match="both have producer id"):
        shard.validate()


def test_an_index_names_no_unknown_id() -> None:
    shard = Transactions().shard
    shard.decided["nobody"] = None
    with pytest.raises(AssertionError, match="unknown transactional ids"):
        shard.validate()


def test_without_the_setting_no_shard_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    transactions = Transactions()
    calls: list[object] = []
    monkeypatch.setattr(TransactionShard, "validate", lambda self, event=None: calls.append(event))
    transactions.ask(DescribeTransactions(DONE))
    assert len(calls) == 1
    around = transactions.runtime._around
    around.config = replace(around.config, validate=False)
    transactions.ask(DescribeTransactions(DONE))
    assert len(calls) == 1


# --- the group shard ----------------------------------------------------------------------------------------


class BothTypes(Driver):
    """A classic group `c` with two members that are stable, a consumer group `k` with two that are, too, and
    an offset of `c` in an open transaction."""

    def __init__(self) -> None:
        self.made: list[GroupShard] = []

        def make(_partition: int, _epoch: int) -> GroupShard:
            self.made.append(GroupShard(GroupConfig(), Catalog(t=4)))
            return self.made[-1]

        super().__init__(make)
        self.load()
        for number in (1, 2):
            self.submit(number, self._join(number))
        for _ in range(2):  # the first rebalance waits for more members
            self.tick(3_000)
        self.commit()
        group = self.classic
        names = tuple(group.members)
        for name in names:
            assignments = tuple((each, b"x") for each in names) if name == group.leader else ()
            self.submit(name, SyncGroup("c", group.generation, name, None, "consumer", "range", assignments))
        self.commit()
        for _ in range(3):
            for name in ("m1", "m2"):
                epoch = self.consumers.current_of(name).epoch if self.has_consumers(name) else 0
                owned = self.consumers.current_of(name).assigned if epoch else frozenset()
                beat = ConsumerGroupHeartbeat(
                    "k", name, epoch, None, rebalance_timeout_ms=30_000, topic_names=("t",), owned=owned
                )
                self.ask(beat)
        self.shard.offsets.replay_transactional(7, OffsetKey("c", "t", 0), OffsetValue(1, -1, "", 0), 0)

    @staticmethod
    def _join(number: int) -> JoinGroup:
        return JoinGroup(
            group_id="c", member_id="", group_instance_id=None, protocol_type="consumer",
            protocols=(("range", b""),), session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
            client_id="", client_host="", new_member_id=f"c{number}", require_known_member_id=False,
        )  # fmt: skip

    def has_consumers(self, name: str) -> bool:
        found = self.shard.groups.consumers.groups.get("k")
        return found is not None and name in found.members

    @property
    def shard(self) -> GroupShard:
        return self.made[-1]

    @property
    def classic(self) -> ClassicGroup:
        return self.shard.groups.classic["c"]

    @property
    def consumers(self) -> ConsumerGroup:
        return self.shard.groups.consumers.groups["k"]


def current(**changes: Any) -> Callable[[BothTypes], None]:
    def plant(groups: BothTypes) -> None:
        groups.consumers.current["m1"] = replace(groups.consumers.current["m1"], **changes)

    return plant


def given_twice(groups: BothTypes) -> None:
    group = groups.consumers
    both = group.current["m1"].assigned | group.current["m2"].assigned
    group.current["m2"] = replace(group.current["m2"], assigned=both)


GROUPS: dict[str, tuple[str, Callable[[BothTypes], None], str]] = {
    "a partition is given to two": ("k", given_twice, "is held by m1 and m2"),
    "a holder is forgotten": ("k", lambda g: g.consumers.holders.popitem(), "table of holders"),  # type: ignore[dict-item]
    "a target twice": ("k", lambda g: g.consumers.target.update(m2=g.consumers.target["m1"]), "target of"),
    "a target of a member that left": ("k", lambda g: g.consumers.target.update(m9=frozenset()), "is gone"),
    "a target epoch past the group's": (
        "k", lambda g: setattr(g.consumers, "target_epoch", 99), "past the group epoch"),
    "a member's epoch past the target's": ("k", current(epoch=99), "past that of the target"),
    "a member's epoch fell": ("k", current(epoch=1, previous_epoch=0), "its epoch fell"),
    "the group epoch fell": ("k", lambda g: set_epochs(g.consumers, 1), "the epochs fell"),
    "a state without its revocation": ("k", current(state=MemberState.UNREVOKED_PARTITIONS), "revokes 0"),
    "a partition of no topic": ("k", lambda g: g.consumers.topics.clear(), "of no topic"),
    "a leader that is no member": ("c", lambda g: setattr(g.classic, "leader", "x"), "leader x is not"),
    "a static member of no table": (
        "c", lambda g: g.classic.static_members.update(i="c1"), "table of static members"),
    "an empty group that is stable": ("c", lambda g: emptied(g.classic), "a group with 0 members is Stable"),
    "a rebalance without end": (
        "c", lambda g: setattr(g.classic, "state", GroupState.PREPARING_REBALANCE), "has no end"),
    "a JoinGroup that waits in a stable group": (
        "c", lambda g: setattr(next(iter(g.classic.members.values())), "join_token", 5), "a JoinGroup waits"),
    "a deadline that no timer has": ("c", lambda g: g.shard.groups._deadlines.clear(), "table of deadlines"),
    "an undecided offset of no transaction": (
        "c", lambda g: g.shard.offsets._pending.clear(), "undecided"),
}  # fmt: skip


def set_epochs(group: ConsumerGroup, epoch: int) -> None:
    group.epoch = group.target_epoch = epoch
    for name, each in group.current.items():
        group.current[name] = replace(each, epoch=epoch)


def emptied(group: ClassicGroup) -> None:
    group.members.clear()
    group.leader = None


def test_a_sound_group_shard_is_valid() -> None:
    groups = BothTypes()
    groups.shard.validate()
    assert groups.classic.state is GroupState.STABLE
    assert all(len(groups.consumers.current_of(name).assigned) == 2 for name in ("m1", "m2"))
    assert groups.consumers.epoch > 1


@pytest.mark.parametrize("what", list(GROUPS))
def test_a_corrupt_group_stops_its_shard(what: str) -> None:
    group_id, plant, found = GROUPS[what]
    groups = BothTypes()
    plant(groups)
    assert code_of(groups.ask(OffsetFetch(group_id, None))) is ErrorCode.NOT_COORDINATOR
    assert found in groups.failures[0][2]
    with pytest.raises(AssertionError):
        groups.shard.validate()
