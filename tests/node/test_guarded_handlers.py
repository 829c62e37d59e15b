"""Checks that stand between a request and a log in this node: each is seen to hold, because nothing behind it
would notice."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.controller.state.model import BrokerState
from tidegate.node.cluster.internal_topics import CONSUMER_OFFSETS
from tidegate.node.coordinators.coordinator_host import ReplicatedStateLog
from tidegate.node.coordinators.group_coordination import GroupCoordination
from tidegate.node.coordinators.marker_writing import Marker, MarkerWrites
from tidegate.node.coordinators.transaction_coordination import TransactionCoordination
from tidegate.node.handlers.cluster import metadata
from tidegate.node.handlers.groups import find_coordinator
from tidegate.node.handlers.log import fetch, produce
from tidegate.node.serving.described_topics import DescribedTopics
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.rejected_sequences import RejectedSequences
from tidegate.node.serving.requests import Deferred, Encoded, RequestContext
from tidegate.node.serving.throttling import Throttling
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.lease import LeadershipLease
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.turns import Account
from tidegate.security.quotas import QuotaEntity, QuotaKind
from tidegate.security.records import SecurityRecords
from tidegate.storage.producers.producer_state import ProducerEntry
from tidegate.storage.topic_config import LogConfig
from tidegate.tests.permissions import ALL_ALLOWED
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tidegate.wire.produce import ProduceResponsePartition, encode_produce_request
from tidegate.wire.records import NewRecord, encode_batch, parse_header


class Appends:
    """A replica manager that only notes what is appended."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.guards = 0
        self.holds_session = True
        self.lease = LeadershipLease(1, lambda: self.holds_session)
        self.config = LogConfig()

    def replica(self, topic: str, partition: int) -> Any:
        return SimpleNamespace(leader_epoch=6)

    def append_now(self, topic: str, partition: int, batch: Any, **fields: Any) -> Any:
        self.made.append(fields)
        return SimpleNamespace(
            first_offset=1, next_offset=2, append_time_ms=-1, log_start_offset=0, duplicate=False
        )

    def leader_log(self, topic: str, partition: int) -> Any:
        return self

    @property
    def producers(self) -> Any:
        return self

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        return False

    def start_verification(self, producer_id: int, epoch: int, sequence: int) -> str:
        self.guards += 1
        return f"guard {self.guards}"


def test_a_coordinator_appends_only_under_the_leadership_it_loaded_for() -> None:
    """docs/semantics.md E11: between its decision and the append the partition may have been lost and won
    again."""
    appends = Appends()
    ReplicatedStateLog("state", cast(ReplicaManager, appends)).append(0, 5, b"")
    assert appends.made[0]["expected_leader_epoch"] == 5
    assert appends.made[0]["required_acks"] == -1


@pytest.mark.parametrize("accepts", [False, True])
async def test_no_marker_is_appended_to_offsets_that_no_shard_follows(accepts: bool) -> None:
    """docs/semantics.md O6: the shard would never hear of it, and keep the offsets of the transaction
    undecided."""
    appends = Appends()
    groups = SimpleNamespace(
        accepts_markers=lambda index, epoch: accepts, marker_appended=lambda *args: args[-1](None)
    )
    marker = Marker(1, 0, 0, commit=True, transaction_version=2)
    writes = MarkerWrites(cast(Any, appends), cast(Any, groups), ManualClock())
    writes.append(marker, CONSUMER_OFFSETS, 3)
    await writes.all_known()
    (code,) = writes.codes.values()
    if accepts:
        assert code is ErrorCode.NONE
        assert appends.made[0]["expected_leader_epoch"] == 6
    else:
        assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert appends.made == []


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_a_marker_is_written_when_it_is_committed_and_not_before(outcome: ErrorCode) -> None:
    """The coordinator completes the transaction then; a marker that a new leader does not have would never
    come again."""
    appends, waiting = Appends(), []
    cast(Any, appends).when_committed = lambda *args: waiting.append(args)
    writes = MarkerWrites(cast(Any, appends), cast(Any, None), ManualClock())
    writes.append(Marker(1, 0, 0, commit=True, transaction_version=2), "t", 3)
    assert writes.codes == {}
    assert appends.made[0]["required_acks"] == -1
    topic, index, leader_epoch, next_offset, _, settle = waiting[0]
    assert (topic, index, leader_epoch, next_offset) == ("t", 3, 6, 2)
    settle(outcome)
    await writes.all_known()
    assert writes.codes == {(1, "t", 3): outcome}


async def test_a_request_is_of_one_producer() -> None:
    """The coordinator is asked about one identity; its answer must not let another producer's batch in."""
    appends = Appends()
    asked: list[tuple[Any, ...]] = []

    async def ask(*question: Any, **_: Any) -> dict[Any, ErrorCode]:
        asked.append(question)
        return dict.fromkeys(question[3], ErrorCode.NONE)

    parts = []
    for index, producer_id in enumerate((7, 8)):
        identity: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "base_sequence": 0,
            "transactional": True,
        }
        batch = memoryview(encode_batch([NewRecord(None, b"v", (), 1)], **identity))
        parts.append(produce._Part("t", index, batch, ProduceResponsePartition(index), parse_header(batch)))
    broker = cast(Any, SimpleNamespace(replicas=appends, enlistment=SimpleNamespace(ask=ask)))
    question = produce._enlistment_of(broker, "tid", 12, parts)
    assert question is not None
    await question()
    assert [part.answer.error for part in parts] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert asked == [("tid", 7, 0, [("t", 0)])]


async def test_a_produce_takes_a_new_guard_before_each_question() -> None:
    """The marker of the previous transaction takes away a guard that was there before it."""
    appends = Appends()
    batch = memoryview(
        encode_batch(
            [NewRecord(None, b"v", (), 1)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    part = produce._Part("t", 0, batch, ProduceResponsePartition(0), parse_header(batch))

    async def ask(*_: Any, before_asking: Any, **__: Any) -> dict[Any, ErrorCode]:
        for _ in range(3):  # type: ignore[assignment]
            before_asking()
        return {("t", 0): ErrorCode.NONE}

    broker = cast(Any, SimpleNamespace(replicas=appends, enlistment=SimpleNamespace(ask=ask)))
    asked = produce._enlistment_of(broker, "tid", 12, [part])
    assert asked is not None
    await asked()
    await produce._append(broker, -1, part)
    assert appends.guards == 4
    assert appends.made[0]["guard"] == "guard 4"


@pytest.mark.parametrize("lost", ["before", "meanwhile"])
async def test_a_leader_without_a_session_sends_transactions_to_its_successor(lost: str) -> None:
    """It cannot reach the coordinator either: NOT_ENOUGH_REPLICAS would keep the producer here for as long as
    it is cut off."""
    appends = Appends()
    batch = memoryview(
        encode_batch(
            [NewRecord(None, b"v", (), 1)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    part = produce._Part("t", 0, batch, ProduceResponsePartition(0), parse_header(batch))
    asked = []

    async def ask(*_: Any, **__: Any) -> dict[Any, ErrorCode]:
        asked.append(1)
        appends.holds_session = False
        return {("t", 0): ErrorCode.NOT_ENOUGH_REPLICAS}

    appends.holds_session = lost == "meanwhile"
    broker = cast(Any, SimpleNamespace(replicas=appends, enlistment=SimpleNamespace(ask=ask)))
    question = produce._enlistment_of(broker, "tid", 12, [part])
    if question is not None:
        await question()
    assert part.answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(asked) == (1 if lost == "meanwhile" else 0)


def test_a_new_or_ended_leadership_cancels_the_markers_of_the_last() -> None:
    """docs/semantics.md T20: its successor finds them in the log; sent from here as well they may come after
    the next transaction."""
    calls: list[str] = []
    coordination = TransactionCoordination.__new__(TransactionCoordination)
    parts = cast(Any, coordination)
    parts._markers = SimpleNamespace(cancel=lambda partition: calls.append(f"cancel {partition}"))
    parts._host = SimpleNamespace(
        on_resigned=lambda partition, epoch: calls.append("resigned"),
        on_elected=lambda partition, epoch, log: calls.append("elected"),
        on_failed=lambda partition, epoch, reason: calls.append("failed"),
    )
    parts._refill_producer_ids = lambda: None
    coordination.on_resigned(4, 9)
    coordination.on_elected(5, 10, cast(Any, None))
    parts._on_failed(6, 10, "a reason")
    assert calls == ["resigned", "cancel 4", "cancel 5", "elected", "cancel 6", "failed"]


class Moving(Appends):
    """Refuses the first batch because the node does not lead yet; to the second it is a gap."""

    def append_now(self, topic: str, partition: int, batch: Any, **fields: Any) -> Any:
        first = not self.made
        self.made.append(fields)
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER if first else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "refused"
        )


async def test_a_batch_behind_a_refused_one_is_answered_with_its_error() -> None:
    """The wiring of rejected_sequences.py: out of order would make the client take a new epoch, and repeat
    what may be written."""
    broker = cast(
        Any,
        SimpleNamespace(
            replicas=Moving(),
            rejected_sequences=RejectedSequences(),
            permissions=ALL_ALLOWED,
            throttling=Throttling(dict, ManualClock(), may_act_as_node=lambda _: False),
            clock=ManualClock(),
            cluster=SimpleNamespace(topic_name=None),
            directory=None,
            reserves=SimpleNamespace(given_up=False),
            metrics=SimpleNamespace(bytes_in=lambda count: None),
        ),
    )
    codes = []
    for sequence in (10, 11):
        batch = encode_batch(
            [NewRecord(None, b"v", (), 1)], producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        body = encode_produce_request(
            9, [("t", [(0, batch)])], transactional_id=None, acks=-1, timeout_ms=1000
        )
        context = RequestContext(0, 9, 1, "client", "127.0.0.1")
        request = produce.begin(broker, context, memoryview(b"".join(bytes(part) for part in body)))
        assert request.verify is None
        answer = await request.execute()
        assert isinstance(answer, Encoded)
        codes.append(answer.outcome)
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


async def test_a_client_that_is_refused_as_a_follower_pays_for_its_fetch() -> None:
    """Else a client would evade its quota with fetches that name a replica."""
    limits = {(QuotaEntity.of({"user": None}), QuotaKind.REQUEST): 1.0}
    clock, account = ManualClock(), Account(0.0)
    account.use(5)
    broker = cast(
        Any,
        SimpleNamespace(
            permissions=Permissions(SecurityRecords, is_enabled=True),
            throttling=Throttling(lambda: limits, clock, may_act_as_node=lambda _: False),
            configuration=SimpleNamespace(integer=lambda key: 1),
            metrics=SimpleNamespace(bytes_out=lambda count: None),
        ),
    )
    wanted = FetchRequest(replica_id=2, topics=[("t", [FetchPartition(0, 0, max_bytes=1000)])])
    context = RequestContext(ApiKey.FETCH, 12, 1, "client", "127.0.0.1", account=account)
    deferred = await fetch.begin(broker, context, memoryview(encode_fetch_request(12, wanted))).execute()
    assert isinstance(deferred, Deferred)
    answer = await deferred.answer
    assert isinstance(answer, Encoded)
    assert answer.outcome is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert answer.throttle_ms > 0


def test_the_group_coordinator_reads_topics_and_passes_on_failed_shards() -> None:
    configuration = SimpleNamespace(
        integer=lambda key: 1000,
        texts=lambda key: ("uniform",),
        text=lambda key: "bidirectional",
        flag=lambda key: False,
    )
    topics = {"kept": SimpleNamespace(topic_id=UUID(int=1), partitions={0: None})}
    cluster, replicas, lifecycle = SimpleNamespace(state=SimpleNamespace(topics=topics)), None, None
    groups = GroupCoordination(
        cast(Any, configuration),
        cast(Any, cluster),
        cast(Any, replicas),
        cast(Any, lifecycle),
        ManualClock(),
        list[BaseException]().append,
    )
    runtime = groups._host.runtime
    shard = cast(Any, runtime)._factory(0, 1)
    assert shard._catalog.shapes({"kept", "deleted"}).keys() == {"kept"}
    failures: list[tuple[Any, ...]] = []
    cast(Any, groups._host).on_failed = lambda *failure: failures.append(failure)
    cast(Any, runtime)._around.on_failed(3, 9, "a reason")
    assert failures == [(3, 9, "a reason")]


def test_a_groups_own_settings_reach_its_shard() -> None:
    settings = {
        (32, "own"): {"consumer.session.timeout.ms": "60000"},
        (32, "odd"): {"share.session.timeout.ms": "50000"},
    }
    groups = GroupCoordination.__new__(GroupCoordination)
    groups._cluster = cast(Any, SimpleNamespace(state=SimpleNamespace(resource_configs=settings)))
    assert [groups._group_timeouts(name) for name in ("own", "odd", "none")] == [
        (60_000, None),
        (None, None),
        (None, None),
    ]


async def test_a_node_that_is_cut_off_names_no_coordinator() -> None:
    """It would name itself for as long as it does not hear of its successor; with a retriable error the
    client asks another node."""
    leader = BrokerState(1, "life", 5, False, "", "host", 9092, "host", 9093)
    topic = SimpleNamespace(partitions={0: SimpleNamespace(leader=1)})
    lifecycle = SimpleNamespace(holds_session=True)

    async def ensure(_: str) -> Any:
        return topic

    state = SimpleNamespace(brokers={1: leader})
    broker = cast(
        Any,
        SimpleNamespace(
            lifecycle=lifecycle,
            topics=SimpleNamespace(ensure_internal_topic=ensure),
            state=state,
            permissions=ALL_ALLOWED,
        ),
    )
    context, request = RequestContext(10, 3, 1, "c", "h"), SimpleNamespace(key="group", key_type=0)
    assert (await find_coordinator.handle(broker, context, request))["node_id"] == 1  # type: ignore[arg-type]

    async def cut_off_meanwhile(_: str) -> Any:
        lifecycle.holds_session = False
        return topic

    broker.topics.ensure_internal_topic = cut_off_meanwhile
    for _ in ("meanwhile", "from the start"):
        answer = await find_coordinator.handle(broker, context, request)  # type: ignore[arg-type]
        assert (answer["error_code"], answer["node_id"]) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize(
    ("entry", "is_refused"),
    [
        (None, False),
        (ProducerEntry(7, 3), False),
        (ProducerEntry(7, 3, transaction_first_offset=5), True),
        (ProducerEntry(7, 3, coordinator_epoch=1), True),
    ],
)
def test_a_leader_that_knows_no_owner_knows_a_transactional_producer(
    entry: ProducerEntry | None, is_refused: bool
) -> None:
    """A new leader has asked no coordinator yet, and the producer's first transaction is open."""
    log = SimpleNamespace(producers=SimpleNamespace(get=lambda _: entry))
    broker = SimpleNamespace(
        replicas=SimpleNamespace(leader_log=lambda *_: log),
        enlistment=SimpleNamespace(owner_of=lambda _: None),
    )
    part = SimpleNamespace(topic="t", partition=0)
    with pytest.raises(KafkaError, match="is transactional") if is_refused else nullcontext():
        produce._require_no_transactions(cast(Any, broker), cast(Any, part), 7)


@pytest.mark.parametrize(
    ("replicas", "alone"), [((1,), True), ((2, 1), False), ((1, 2), False), (None, False)]
)
def test_a_node_coordinates_alone_only_where_no_other_node_has_a_replica(
    replicas: tuple[int, ...] | None, alone: bool
) -> None:
    """Replicas of an assignment include those that a move adds; a deleted partition has no replica."""

    def replica(topic: str, partition: int) -> Any:
        if replicas is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved away")
        return SimpleNamespace(assignment=SimpleNamespace(replicas=replicas))

    coordination = TransactionCoordination.__new__(TransactionCoordination)
    coordination._cluster = cast(Any, SimpleNamespace(node_id=1))
    coordination._replicas = cast(Any, SimpleNamespace(replica=replica))
    assert coordination._is_only_replica(0) is alone


async def test_a_client_pays_for_metadata_and_for_the_topic_that_it_creates() -> None:
    """Else a client that asks for nothing but Metadata would evade the quotas of request time and of topics
    (KIP-599)."""
    whole = {QuotaKind.REQUEST: 1.0, QuotaKind.CONTROLLER_MUTATION: 1.0}
    limits = {(QuotaEntity.of({"user": None}), kind): limit for kind, limit in whole.items()}
    throttling = Throttling(lambda: limits, ManualClock(), may_act_as_node=lambda _: False)
    charged: list[Any] = []

    async def charge_mutations(request: Any) -> Any:
        charged.append((list(request.partitions), request.is_strict))
        return SimpleNamespace(admitted=1, pause_s=7.0)

    async def auto_create(_: str) -> ErrorCode:
        return ErrorCode.LEADER_NOT_AVAILABLE

    state = SimpleNamespace(
        topics={}, brokers={}, cluster_id="c", index=1, unfenced_brokers=list, topic_by_id=lambda _: None
    )
    topics = SimpleNamespace(would_create=lambda _: True, auto_create=auto_create)
    broker: Any = SimpleNamespace(
        state=state, cluster=SimpleNamespace(controller_id=1), permissions=ALL_ALLOWED, topics=topics,
        described_topics=DescribedTopics(), throttling=throttling,
        audit=SimpleNamespace(created=lambda *_: None),
        configuration=SimpleNamespace(integer=lambda _: 3),
        controller=SimpleNamespace(charge_mutations=charge_mutations),
    )  # fmt: skip

    async def pause_ms(used_s: float, wanted: list[Any] | None) -> int:
        account = Account(0.0)
        account.use(used_s)
        context = RequestContext(ApiKey.METADATA, 12, 1, "c", "h", account=account)
        request: Any = SimpleNamespace(topics=wanted, allow_auto_topic_creation=True)
        answer = await metadata.handle(broker, context, request)
        body = b"".join(bytes(part) for part in answer.buffers)
        assert int.from_bytes(body[:4], "big") == answer.throttle_ms, "the client is told"
        return answer.throttle_ms

    assert await pause_ms(0, None) == 0
    assert await pause_ms(0, [SimpleNamespace(name="new", topic_id=None)]) == 7000
    assert charged == [([3], False)]
    assert await pause_ms(5, None) > 0
