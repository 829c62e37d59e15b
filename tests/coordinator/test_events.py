"""From each event of the coordinators to the rows of its tables, and to the simulator that sends it.

A group has one of two kinds, with a table each: a new event says here by which rows both judge it, and mypy
names each `match` that has no arm for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, get_args

import pytest
from tidegate.chaos.sim.transactions.faults import CUTS, TV1, Faults
from tidegate.chaos.sim.transactions.world import World as TransactionWorld
from tidegate.coordinator.group.classic.events import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from tidegate.coordinator.group.classic.state import GroupRequest
from tidegate.coordinator.group.consumer.events import (
    ConsumerGroupHeartbeat,
    ConsumerGroupTimer,
    DescribeConsumerGroup,
)
from tidegate.coordinator.group.consumer.group import NOTHING
from tidegate.coordinator.group.consumer.state import MemberRequest
from tidegate.coordinator.group.events import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    ExpireOffsets,
    GroupEvent,
    GroupTimer,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    SilenceTimer,
    TopicsDeleted,
    TxnOffsetCommit,
    group_ids_of,
)
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import Context, CoordinatorRecord
from tidegate.coordinator.transaction import cut_events as cuts
from tidegate.coordinator.transaction import events as transaction
from tidegate.coordinator.transaction import job_events as jobs
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import READ_STATES, Stimulus
from tidegate.coordinator.transaction.validation import transactional_ids_of
from tidegate.wire.errors import KafkaError

from . import test_transaction_table as transaction_table
from .consumer_group_driver import G
from .mixed_group_simulator import MixedWorld
from .test_group_migration import ONE, Mixed, settled, subscription

C, M, T = GroupRequest, MemberRequest, Stimulus
MEMBERS = (M.JOIN, M.HEARTBEAT, M.LEAVE, M.LEAVE_FOR_A_WHILE)

GROUP_ROWS: dict[type, tuple[tuple[GroupRequest, ...], tuple[MemberRequest, ...]]] = {
    # event: its rows of classic groups, its rows of consumer groups.  The classic protocol inside of a
    # consumer group has a table of its own (`test_classic_members_table.py`).
    JoinGroup: ((C.JOIN_NEW, C.JOIN_KNOWN), ()),
    SyncGroup: ((C.SYNC,), ()),
    Heartbeat: ((C.HEARTBEAT,), ()),
    LeaveGroup: ((C.LEAVE,), ()),
    ConsumerGroupHeartbeat: ((), MEMBERS),
    OffsetCommit: ((C.COMMIT_MEMBER, C.COMMIT_SIMPLE), (M.COMMIT,)),
    TxnOffsetCommit: ((C.COMMIT_TRANSACTION,), (M.COMMIT_IN_TRANSACTION,)),
    OffsetFetch: ((C.FETCH_OFFSETS,), (M.FETCH_OFFSETS,)),
    DeleteOffsets: ((C.DELETE_OFFSETS,), ()),
    DeleteGroup: ((C.DELETE_GROUP,), ()),
    DescribeGroup: ((C.DESCRIBE,), ()),
    ExpireOffsets: ((C.EXPIRE_OFFSETS,), ()),
    DescribeConsumerGroup: ((), ()),
    ListGroups: ((), ()),
    TopicsDeleted: ((), ()),
    GroupTimer: ((), ()),
    ConsumerGroupTimer: ((), ()),
    SilenceTimer: ((), ()),
}
TRANSACTION_ROWS: dict[type, tuple[Stimulus, ...]] = {
    transaction.InitProducerId: (T.INIT_PRODUCER_ID, T.INIT_KEEPING),
    transaction.PrepareTransaction: (T.PREPARE,),
    transaction.AddPartitions: (T.ADD_PARTITIONS, T.VERIFY_PARTITIONS),
    transaction.AddOffsets: (T.ADD_PARTITIONS,),
    transaction.EndTxn: (T.COMMIT_TV1, T.ABORT_TV1, T.COMMIT, T.ABORT, T.COMMIT_REPEATED, T.ABORT_REPEATED),
    transaction.MarkersWritten: (T.MARKERS_WRITTEN,),
    transaction.TimeoutTransaction: (T.TIMEOUT,),
    transaction.ExpireTransactions: (T.EXPIRE,),
    transaction.DescribeTransactions: (T.DESCRIBE,),
    jobs.OpenAttempt: (T.INIT_PRODUCER_ID,),
    jobs.PrepareAttempt: (T.PREPARE,),
    jobs.CarryOutJob: (T.JOB_COMMITTED, T.JOB_ABORTED),
    **dict.fromkeys(
        (
            jobs.RenewJob,
            jobs.CommitJob,
            jobs.AbortJob,
            jobs.TimeoutJob,
            jobs.ForgetJobs,
            jobs.ListJobs,
            jobs.DescribeJob,
        ),
        (),
    ),
    transaction.ListTransactions: (),
    transaction.ExpireAwaitingCompletion: (),
    **dict.fromkeys((cuts.HoldDecisions, cuts.ReleaseDecisions, cuts.ExpireHolds), ()),
}


def test_every_event_has_its_rows_and_every_row_an_event() -> None:
    assert GROUP_ROWS.keys() == set(get_args(GroupEvent))
    assert {row for rows, _ in GROUP_ROWS.values() for row in rows} == set(GroupRequest)
    assert {row for _, rows in GROUP_ROWS.values() for row in rows} == set(MemberRequest)
    assert TRANSACTION_ROWS.keys() == set(get_args(transaction.TransactionEvent))
    assert {row for rows in TRANSACTION_ROWS.values() for row in rows} == set(Stimulus)


# --- the rows that an event looks up ------------------------------------------------------------------------


def preparing(groups: Mixed) -> None:
    groups.stable_classic()
    groups.classic("", new_member_id="n")


def left(groups: Mixed) -> None:
    groups.stable_classic()
    groups.leave("m")
    groups.ask(OffsetCommit(G, ONE))


def consumers_left(groups: Mixed) -> None:
    groups.join("c")
    groups.beat("c", -1)


GROUPS: dict[str, Callable[[Mixed], object]] = {
    "none": lambda _groups: None,
    "classic, completing": lambda groups: groups.classic("", new_member_id="m"),
    "classic, stable": lambda groups: groups.stable_classic(),
    "classic, preparing": preparing,
    "classic, empty": left,
    "consumers, and a classic member": settled,
    "consumers, empty": consumers_left,
}
PROTOCOLS = (("range", subscription("flights")),)
CALLERS = (("m", 1), ("m", 2), ("c", 2), ("", -1))
"""Member ids with their generations, or epochs."""
PLAYED: dict[type, tuple[GroupEvent, ...]] = {
    # each is asked of each group
    JoinGroup: tuple(
        JoinGroup(G, name, None, "c", "/h", 30_000, 60_000, "consumer", PROTOCOLS, "new", False)
        for name in ("", "m", "c")
    ),
    SyncGroup: tuple(SyncGroup(G, generation, name) for name, generation in CALLERS),
    Heartbeat: tuple(Heartbeat(G, generation, name) for name, generation in CALLERS),
    LeaveGroup: tuple(LeaveGroup(G, (LeavingMember(name),)) for name in ("m", "c")),
    ConsumerGroupHeartbeat: tuple(
        ConsumerGroupHeartbeat(
            G,
            "c",
            epoch,
            "i" if epoch == -2 else None,
            rebalance_timeout_ms=9,
            topic_names=("t",),
            owned=NOTHING,
        )
        for epoch in (0, 2, -1, -2)
    ),
    OffsetCommit: tuple(OffsetCommit(G, ONE, epoch, name) for name, epoch in CALLERS),
    TxnOffsetCommit: tuple(TxnOffsetCommit(G, 7, 0, ONE, epoch, name) for name, epoch in CALLERS),
    OffsetFetch: tuple(OffsetFetch(G, None, member_id=name or None, member_epoch=at) for name, at in CALLERS),
    DeleteOffsets: (DeleteOffsets(G, (("flights", 0),)),),
    DeleteGroup: (DeleteGroup(G),),
    DescribeGroup: (DescribeGroup(G),),
    ExpireOffsets: (ExpireOffsets((G,)),),
    DescribeConsumerGroup: (DescribeConsumerGroup(G),),
    ListGroups: (ListGroups(),),
    TopicsDeleted: (TopicsDeleted(frozenset({"flights"})),),
    GroupTimer: (GroupTimer(G),),
    ConsumerGroupTimer: (ConsumerGroupTimer(G),),
    SilenceTimer: (SilenceTimer(),),
}


class Noting(dict[tuple[Any, Any], Any]):
    """A table that notes the rows which are looked up."""

    def __init__(self, table: dict[tuple[Any, Any], Any], rows: set[Any]) -> None:
        super().__init__(table)
        self.rows = rows

    def __getitem__(self, pair: tuple[Any, Any]) -> Any:
        self.rows.add(pair[1])
        return super().__getitem__(pair)


@pytest.mark.parametrize("event_type", get_args(GroupEvent), ids=lambda event_type: event_type.__name__)
def test_an_event_looks_up_its_rows_and_no_others(event_type: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rows it looks up none: what it does is the same in each state, or has another table."""
    rows = set[Any]()
    for name, module in list(sys.modules.items()):
        if name.startswith("tidegate.coordinator.group.") and hasattr(module, "RULES"):
            monkeypatch.setattr(module, "RULES", Noting(module.RULES, rows))
    found = set[Any]()
    for make in GROUPS.values():
        for event in PLAYED[event_type]:
            groups = Mixed()
            make(groups)
            rows.clear()
            for now_ms in (groups.now_ms, groups.now_ms + 120_000):  # all deadlines are over then
                with suppress(KafkaError):
                    groups.shard.handle(event, Context(now_ms, 99, 1, 99))
            found |= rows
    declared = {row for of_kind in GROUP_ROWS[event_type] for row in of_kind}
    assert found == declared, "GROUP_ROWS says by which rows it is judged"


class WhyNot(Enum):
    """The reasons why no simulator sends an event; the tests hold each."""

    READS = "it writes nothing"
    CELLS = "it has rows, each cell of which is played"


SENT = {
    ConsumerGroupHeartbeat, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch,
    TopicsDeleted, GroupTimer, ConsumerGroupTimer, SilenceTimer,
    transaction.InitProducerId, transaction.AddPartitions, transaction.PrepareTransaction,
    transaction.EndTxn, transaction.MarkersWritten,
    transaction.TimeoutTransaction, transaction.ExpireAwaitingCompletion,
    jobs.OpenAttempt, jobs.PrepareAttempt, jobs.RenewJob, jobs.CommitJob, jobs.AbortJob, jobs.TimeoutJob,
    jobs.CarryOutJob, jobs.ForgetJobs,
    cuts.HoldDecisions, cuts.ReleaseDecisions, cuts.ExpireHolds,
}  # fmt: skip
NOT_SENT: dict[type, WhyNot] = {
    ListGroups: WhyNot.READS,
    DescribeGroup: WhyNot.READS,
    DescribeConsumerGroup: WhyNot.READS,
    transaction.ListTransactions: WhyNot.READS,
    transaction.DescribeTransactions: WhyNot.READS,
    jobs.ListJobs: WhyNot.READS,
    jobs.DescribeJob: WhyNot.READS,
    TxnOffsetCommit: WhyNot.CELLS,  # in the simulator of transactions the offsets are a partition's records
    DeleteOffsets: WhyNot.CELLS,
    DeleteGroup: WhyNot.CELLS,
    ExpireOffsets: WhyNot.CELLS,  # it comes after days
    transaction.AddOffsets: WhyNot.CELLS,  # it is an AddPartitions of one partition
    transaction.ExpireTransactions: WhyNot.CELLS,  # it comes after days
}


def test_an_event_that_no_simulator_sends_writes_nothing_or_has_rows() -> None:
    for event_type, why in NOT_SENT.items():
        rows = [*GROUP_ROWS.get(event_type, ()), TRANSACTION_ROWS.get(event_type, ())]
        assert why is not WhyNot.CELLS or any(rows), (
            f"{event_type}: it has no rows, so a simulator must send it"
        )
        if why is WhyNot.READS:
            assert not [each for each in written_by(event_type) if each], f"{event_type} writes"


def written_by(event_type: type) -> Iterator[Sequence[CoordinatorRecord]]:
    """What it writes in each group, or in each state of a transaction."""
    for event in PLAYED.get(event_type, ()):
        for make in GROUPS.values():
            groups = Mixed()
            make(groups)
            with suppress(KafkaError):
                yield getattr(groups.shard.handle(event, Context(groups.now_ms, 99, 1, 99)), "records", ())
    if event_type in TRANSACTION_ROWS:
        asked = {
            transaction.ListTransactions: (), transaction.DescribeTransactions: (transaction_table.ID,),
            jobs.ListJobs: (), jobs.DescribeJob: (transaction_table.JOB,),
        }  # fmt: skip
        for state in READ_STATES:
            shard = transaction_table.make(state, version=2)
            yield transaction_table.decide(shard, event_type(*asked[event_type])).records


def test_a_simulator_sends_each_event_or_it_stands_here_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new event belongs into a simulator: `mixed_group_simulator.py`, or `requests.py` of chaos."""
    sent = set[type]()

    def noting(handle: Callable[..., Any]) -> Callable[..., Any]:
        def note(shard: Any, event: Any, context: Any) -> Any:
            sent.add(type(event))
            return handle(shard, event, context)

        return note

    monkeypatch.setattr(GroupShard, "handle", noting(GroupShard.handle))
    monkeypatch.setattr(TransactionShard, "handle", noting(TransactionShard.handle))
    for seed in range(2):
        MixedWorld(seed).run(300)
        TransactionWorld(seed).run(600)
        TransactionWorld(seed, TV1).run(600)
        TransactionWorld(seed, Faults(jobs=True, stall=0.02)).run(1_500)
        TransactionWorld(seed, CUTS).run(400)
    assert sent == SENT
    assert SENT | NOT_SENT.keys() == {*get_args(GroupEvent), *get_args(transaction.TransactionEvent)}
    assert not SENT & NOT_SENT.keys()


def test_an_event_names_what_it_is_about() -> None:
    assert group_ids_of(DeleteGroup("g")) == ("g",)
    assert group_ids_of(ExpireOffsets(("a", "b"))) == ("a", "b")
    assert group_ids_of(SilenceTimer()) == ()
    assert transactional_ids_of(transaction.ExpireTransactions(("a", "b"))) == ("a", "b")
