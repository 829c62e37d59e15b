"""A coordinator's shards on this node: loaded in chunks from the local log, serving only what was loaded
whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.controller.state.model import METADATA_VERSION
from tidegate.coordinator.outcome import (
    Context,
    CoordinatorRecord,
    ProducerIdentity,
    ReplayedRecord,
    Reply,
    ShardOutcome,
    Wait,
    Write,
)
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.coordinator.shard_view import Phase
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.coordinators import coordinator_host
from tidegate.node.coordinators.coordinator_host import CoordinatorHost, ReplicatedStateLog
from tidegate.node.start_and_stop import stop
from tidegate.replication.manager import ReplicaManager
from tidegate.runtime.clock import Clock, ManualClock, SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, encode_batch

from .made_node import made_node


class Counting:
    """A shard that keeps the values it was given; the event "read" asks for them, "wait" waits for a later
    event, any other is written."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.absences: list[int] = []
        self.looks = 0

    def handle(self, event: str, context: Context) -> ShardOutcome[Any, None]:
        if event == "read":
            return Reply(list(self.values))
        if event == "wait":
            return Wait()
        return Write((CoordinatorRecord(b"k", event.encode()),), event)

    def replay(self, record: ReplayedRecord) -> None:
        assert record.value is not None
        if record.value == b"poison":
            raise ValueError("a record that cannot be understood")
        self.values.append(record.value)

    def replay_marker(self, producer: ProducerIdentity, commit: bool, offset: int) -> None: ...

    def activated(self, context: Context) -> Sequence[ShardOutcome[Any, None]]:
        return ()

    def resumed(self, now_ms: int, away_ms: int) -> None:
        self.absences.append(away_ms)

    def validate(self, event: str | None = None) -> None: ...

    def due(self, now_ms: int) -> Sequence[str]:
        self.looks += 1
        return ()


def _cannot_read(*_: object, **__: object) -> Any:
    raise OSError(5, "input/output error")


class Hosted:
    """A host over one real log; what is appended is committed when `commit` is called."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        self.holds_session = True
        self.leads = False
        self.clock = clock or SystemClock()
        self.failures: list[BaseException] = []
        self.log = Log.open(
            RealDisk(), directory / "state-0", topic="state", partition=0, config=LogConfig(), clean=False,
            recovery_point=0,
        )  # fmt: skip
        self.runtime: CoordinatorRuntime[str, Any, None] = CoordinatorRuntime(
            "state", lambda _partition, _epoch: Counting(), self, lambda *_: None,
            on_failed=lambda *failure: self.host.on_failed(*failure), steady_ms=self.clock.steady_ms,
        )  # fmt: skip
        self.host: CoordinatorHost[str, Any, None] = CoordinatorHost(
            "state",
            self.runtime,
            self.clock,
            holds_session=lambda: self.holds_session,
            leads=lambda _partition: self.leads,
            on_failure=self.failures.append,
        )

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        info = self.log.append_leader(
            bytearray(batch), leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR, now_ms=0
        )
        return info.next_offset

    def high_watermark(self, partition: int) -> int:
        return self.log.high_watermark

    def fill(self, *values: bytes) -> None:
        for value in values:
            self.append(0, 0, encode_batch([NewRecord(b"k", value, (), 1)]))
        self.log.set_high_watermark(self.log.log_end_offset)

    def commit(self) -> None:
        self.log.set_high_watermark(self.log.log_end_offset)
        self.host.on_high_watermark(0, self.log.high_watermark)

    async def until(self, phase: Phase) -> None:
        await eventually(lambda: self.runtime.phase(0) is phase)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[Hosted]:
    found = Hosted(tmp_path)
    found.host.start()
    yield found
    await found.host.stop()
    found.log.close(clean=False)


async def code_of(work: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await asyncio.wait_for(work, 10)
    return error.value.code


async def test_a_shard_is_loaded_in_chunks_and_the_loop_goes_on_meanwhile(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [f"value-{number}".encode() for number in range(200)]
    hosted.fill(*values)
    monkeypatch.setattr(coordinator_host, "LOAD_CHUNK_BYTES", 200)
    hosted.host.on_elected(0, 1, hosted.log)
    turns = 0
    while hosted.runtime.phase(0) is not Phase.ACTIVE:
        assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20
    assert await hosted.host.ask_partition(0, "read") == values


async def test_a_defect_in_the_ticks_is_reported(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ticks no member's session ends, and no transaction times out."""
    monkeypatch.setattr(hosted.runtime, "tick", None)
    hosted.host.on_elected(0, 1, hosted.log)
    await eventually(lambda: bool(hosted.failures))
    assert isinstance(hosted.failures[0], TypeError)


async def test_an_empty_log_is_served_at_once(hosted: Hosted) -> None:
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    assert await hosted.host.ask_partition(0, "read") == []


async def test_an_answer_waits_until_what_it_says_is_committed(hosted: Hosted) -> None:
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    asked = asyncio.create_task(hosted.host.ask_partition(0, "hello"))
    await eventually(lambda: hosted.log.log_end_offset)
    await asyncio.sleep(0.02)
    assert not asked.done()
    hosted.commit()
    assert await asyncio.wait_for(asked, 10) == "hello"


async def test_a_list_has_every_shard_or_fails(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard that failed does not make a cluster's lists impossible; one that is being loaded will be
    there in a moment."""
    hosted.fill(b"one")
    hosted.host.on_elected(0, 1, hosted.log)
    hosted.host.on_elected(1, 1, hosted.log)
    hosted.runtime.begin_load(2, 1, log_end_offset=5)
    assert await code_of(hosted.host.ask_all("read", whole=False)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    hosted.runtime.unload(2, 1)
    await hosted.until(Phase.ACTIVE)
    await eventually(lambda: hosted.runtime.phase(1) is Phase.ACTIVE)
    assert await hosted.host.ask_all("read", whole=False) == [[b"one"], [b"one"]]
    monkeypatch.setattr(coordinator_host, "RELOAD_S_MIN", 3600.0)
    hosted.runtime.fail(1, 1, "its log is damaged")
    assert hosted.runtime.phase(1) is Phase.FAILED
    assert await hosted.host.ask_all("read", whole=False) == [[b"one"]]
    code = await code_of(hosted.host.ask_all("read", whole=True))
    assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, (
        "what it lacks might be taken for what is not there"
    )
    hosted.holds_session = False
    assert await code_of(hosted.host.ask_all("read", whole=False)) is ErrorCode.NOT_COORDINATOR, (
        "others may coordinate now"
    )


async def test_a_log_that_cannot_be_parsed_is_never_served_as_empty(hosted: Hosted) -> None:
    hosted.fill(b"good", b"poison", b"good")
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.FAILED)
    assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.NOT_COORDINATOR
    assert await code_of(hosted.host.ask_partition(0, "write")) is ErrorCode.NOT_COORDINATOR
    assert hosted.log.log_end_offset == 3


async def test_a_coordinator_without_a_session_rejects_every_event(hosted: Hosted) -> None:
    """Another node may coordinate by now.  An old answer ("being completed: ask again") would hold the client
    here for ever."""
    hosted.fill(b"good")
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    assert await hosted.host.ask_partition(0, "read") == [b"good"]
    hosted.holds_session = False
    for event in ("read", "write"):
        assert await code_of(hosted.host.ask_partition(0, event)) is ErrorCode.NOT_COORDINATOR
    assert hosted.log.log_end_offset == 1
    hosted.holds_session = True
    assert await hosted.host.ask_partition(0, "read") == [b"good"]


async def test_requests_waiting_at_a_coordinator_fail_when_its_session_ends(hosted: Hosted) -> None:
    """A JoinGroup waits for the other members, which are sent to the successor: here no member joins for
    minutes."""
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    waiting = [asyncio.create_task(hosted.host.ask_partition(0, event)) for event in ("wait", "written")]
    await eventually(lambda: hosted.log.log_end_offset)
    await asyncio.sleep(2 * coordinator_host.TICK_S)
    assert not any(asked.done() for asked in waiting), "a client was sent away while this node coordinates"
    hosted.holds_session = False
    assert [await code_of(asked) for asked in waiting] == [ErrorCode.NOT_COORDINATOR] * 2
    hosted.holds_session = True
    hosted.commit()
    assert await asyncio.wait_for(hosted.host.ask_partition(0, "read"), 10) == [b"written"]


async def test_timers_pause_without_a_session_and_resume_by_its_length(hosted: Hosted) -> None:
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    (_, _, shard), *_ = hosted.runtime.shards()
    assert isinstance(shard, Counting)
    began = time.monotonic()
    hosted.holds_session = False
    await asyncio.sleep(2 * coordinator_host.TICK_S)
    looks = shard.looks
    await asyncio.sleep(3 * coordinator_host.TICK_S)
    assert shard.looks == looks
    assert shard.absences == []
    hosted.holds_session = True
    await eventually(lambda: shard.absences and shard.looks != looks)
    assert len(shard.absences) == 1
    assert 2 * coordinator_host.TICK_S <= shard.absences[0] / 1000 <= time.monotonic() - began


async def test_a_log_that_cannot_be_read_is_not_served(hosted: Hosted) -> None:
    hosted.fill(b"good")
    hosted.log.go_offline(OSError(5, "the disk is gone"))
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.FAILED)
    assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("trouble", ["load", "defect", "append"])
async def test_a_shard_that_failed_is_loaded_again_by_the_same_leader(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(coordinator_host, "RELOAD_S_MIN", 0.02)
    hosted.fill(b"one")
    with monkeypatch.context() as broken:
        if trouble == "load":
            broken.setattr(hosted.log, "read", _cannot_read)
        elif trouble == "defect":
            broken.setattr(hosted.runtime, "load_batches", None)
        hosted.host.on_elected(0, 1, hosted.log)
        if trouble == "append":
            await hosted.until(Phase.ACTIVE)
            # past the shard: it must notice
            hosted.append(0, 1, encode_batch([NewRecord(b"k", b"two", (), 1)]))
            assert await code_of(hosted.host.ask_partition(0, "three")) is ErrorCode.NOT_COORDINATOR
        await hosted.until(Phase.FAILED)
    hosted.log.set_high_watermark(hosted.log.log_end_offset)
    await hosted.until(Phase.ACTIVE)
    assert (await hosted.host.ask_partition(0, "read"))[0] == b"one"
    assert hosted.runtime.leader_epoch(0) == 1


@pytest.mark.parametrize("offline", [False, True])
def test_a_full_disk_refuses_one_request_and_a_failed_one_ends_the_shard(offline: bool) -> None:
    """Where nothing was written the state stands: reads are answered, and with room again no load is in the
    way."""

    def refused(*_: object, **__: object) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")

    replica = SimpleNamespace(log=SimpleNamespace(is_offline=offline))
    manager = SimpleNamespace(append_now=refused, replica=lambda *_: replica)
    with pytest.raises(KafkaError, match="no space left") as raised:
        ReplicatedStateLog("state", cast(ReplicaManager, manager)).append(0, 1, b"")
    expected = ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_ENOUGH_REPLICAS
    assert raised.value.code is expected


async def test_a_failed_shard_stays_down_once_another_node_leads(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_host, "RELOAD_S_MIN", 0.02)
    hosted.fill(b"good", b"poison")
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.FAILED)
    hosted.host.on_resigned(0, 2)
    await asyncio.gather(*hosted.host._loads.values(), return_exceptions=True)
    assert hosted.runtime.phase(0) is None
    assert not hosted.host._loads


async def test_timers_go_on_when_the_wall_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    hosted = Hosted(tmp_path, clock)
    seen: list[int] = []
    monkeypatch.setattr(Counting, "due", lambda self, now_ms: seen.append(now_ms) or ())
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    hosted.host.start()
    for step_ms in (0, 3_600_000, 0):  # an hour ahead, and corrected
        clock.wall_step_ms = step_ms
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(coordinator_host.TICK_S)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(seen) == 3
    assert seen[-1] - seen[0] == round(2000 * coordinator_host.TICK_S)
    await hosted.host.stop()
    hosted.log.close(clean=False)


async def test_resigning_fails_all_waiting_requests(hosted: Hosted) -> None:
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    asked = asyncio.create_task(hosted.host.ask_partition(0, "hello"))
    await eventually(lambda: hosted.log.log_end_offset)
    hosted.host.on_resigned(0, 2)
    assert await code_of(asked) is ErrorCode.NOT_COORDINATOR
    assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.NOT_COORDINATOR


async def test_resigning_during_the_load_ends_it(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted.fill(*(b"value" for _ in range(200)))
    monkeypatch.setattr(coordinator_host, "LOAD_CHUNK_BYTES", 200)
    hosted.host.on_elected(0, 1, hosted.log)
    await asyncio.sleep(0)
    hosted.host.on_resigned(0, 2)
    await asyncio.sleep(0.02)
    assert hosted.runtime.phase(0) is None
    hosted.host.on_elected(0, 3, hosted.log)
    await hosted.until(Phase.ACTIVE)
    assert len(await hosted.host.ask_partition(0, "read")) == 200


async def test_a_newer_election_during_the_load_begins_anew(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted.fill(*(b"value" for _ in range(100)))
    monkeypatch.setattr(coordinator_host, "LOAD_CHUNK_BYTES", 200)
    hosted.host.on_elected(0, 1, hosted.log)
    await asyncio.sleep(0)
    hosted.host.on_elected(0, 2, hosted.log)
    await hosted.until(Phase.ACTIVE)
    assert hosted.runtime.leader_epoch(0) == 2
    assert len(await hosted.host.ask_partition(0, "read")) == 100


async def test_a_leader_without_an_open_log_answers_load_in_progress(hosted: Hosted) -> None:
    """The first use of groups in a fresh cluster: the node that named this one had applied the same
    metadata."""
    assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.NOT_COORDINATOR
    hosted.leads = True
    assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    assert await hosted.host.ask_partition(0, "read") == []
    hosted.holds_session = False
    hosted.host.on_resigned(0, 2)
    assert await code_of(hosted.host.ask_partition(0, "read")) is ErrorCode.NOT_COORDINATOR, (
        "others may lead by now"
    )


class Metadata:
    """Each wait ends with the next entry; the last of them makes the topic known."""

    def __init__(self, state: Any, entries: int) -> None:
        self.state, self.left = state, entries

    @property
    def applied_index(self) -> int:
        return int(self.state.index)

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        if self.left == 0:
            raise TimeoutError
        self.left -= 1
        self.state.index = index
        if self.left == 0:
            self.state.topics["state"] = SimpleNamespace(partitions={0: None, 1: None})


@pytest.mark.parametrize("entries", [0, 3])
async def test_a_request_waits_for_the_metadata_of_the_state_topic(entries: int) -> None:
    metadata = cast(Any, Metadata(SimpleNamespace(index=7, topics={}), entries))
    cluster = ClusterView(1, metadata, cast(Any, None), ManualClock())
    if entries:
        assert await cluster.state_partitions("state") == 2
    else:
        assert await code_of(cluster.state_partitions("state")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("serving", "leader", "leads"), [(True, 1, True), (True, 2, False), (True, -1, False), (False, 1, False)]
)
def test_a_node_leads_what_its_metadata_say_once_it_serves(serving: bool, leader: int, leads: bool) -> None:
    topics = {"state": SimpleNamespace(partitions={0: SimpleNamespace(leader=leader)})}
    metadata = cast(Any, SimpleNamespace(state=SimpleNamespace(index=7, topics=topics)))
    cluster = ClusterView(1, metadata, cast(Any, None), ManualClock())
    cluster.serving = serving
    assert cluster.leads("state", 0) is leads
    assert not cluster.leads("state", 1)
    assert not cluster.leads("other", 0)


async def test_a_caller_that_went_away_does_no_harm(hosted: Hosted) -> None:
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    asked = asyncio.create_task(hosted.host.ask_partition(0, "hello"))
    await eventually(lambda: hosted.log.log_end_offset)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    hosted.commit()
    assert await hosted.host.ask_partition(0, "read") == [b"hello"]


async def test_stopping_answers_every_waiting_request(hosted: Hosted) -> None:
    hosted.host.on_elected(0, 1, hosted.log)
    await hosted.until(Phase.ACTIVE)
    asked = asyncio.create_task(hosted.host.ask_partition(0, "hello"))
    await eventually(lambda: hosted.log.log_end_offset)
    await hosted.host.stop()
    assert await code_of(asked) is ErrorCode.NOT_COORDINATOR


async def test_the_shards_of_a_node_know_the_finalised_level_as_it_is_now(tmp_path: Path) -> None:
    """What a coordinator of an older version could not read is written from its level on."""
    node = await made_node(tmp_path)
    try:
        transactions = node._broker.transactions._host.runtime._factory(0, 1)
        for level in (4, 5):
            node._parts.metadata.state = SimpleNamespace(features={METADATA_VERSION: level})
            assert transactions._finalised_level() == level
    finally:
        await stop(node.parts_in_order())
