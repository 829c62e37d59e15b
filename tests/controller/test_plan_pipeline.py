"""Plans on uncommitted commands (`controller/service/pipeline.py`): answers wait for the commit, and clients
delay no election.

A log whose commits the test decides, or that takes its time for each, in virtual time, below the real service
and controller.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from random import Random
from typing import Any, TypeVar, cast

import pytest
from tidegate.chaos.sim.quorum.commands import KINDS, Commands
from tidegate.chaos.sim.replication.clock import VirtualClock
from tidegate.chaos.sim.replication.virtual_loop import VirtualLoop
from tidegate.controller.planning import topics
from tidegate.controller.planning.brokers.sessions import BrokerSessions
from tidegate.controller.planning.pinned_cuts import UNCONFIRMED_MS
from tidegate.controller.planning.planner import ControllerConfig, ControllerPlanner
from tidegate.controller.service import pipeline as planning
from tidegate.controller.service.controller_leadership import ControllerLeadership
from tidegate.controller.service.metadata_log import MetadataLog, NotController
from tidegate.controller.service.pipeline import PlanPipeline
from tidegate.controller.service.service import ControllerService
from tidegate.controller.state import cluster_state
from tidegate.controller.state.changes import Changes
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ApplyResult, Value
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode

from .controller_cluster import registration

SESSION_S = 6.0
T = TypeVar("T")


class HeldLog:
    """Commits the submitted commands on request; with `commit_s`, one command after the other by itself."""

    node_id, leader_id, term, is_active, commit_s = 1, 1, 1, True, 0.0
    voters = (1,)

    def __init__(self, loop: VirtualLoop) -> None:
        self.state = ClusterState()
        self.held: list[tuple[bytes, asyncio.Future[ApplyResult]]] = []
        self._loop = loop
        self._committing = False

    @property
    def applied_index(self) -> int:
        return self.state.index

    def on_role_change(self, listener: object) -> None:
        self.listener = listener

    def propose(self, command: bytes) -> asyncio.Future[ApplyResult]:
        if not self.is_active:
            raise NotController(self.leader_id)
        future: asyncio.Future[ApplyResult] = self._loop.create_future()
        self.held.append((command, future))
        if self.commit_s and not self._committing:
            self._committing = True
            self._loop.call_later(self.commit_s, self._commit_next)
        return future

    def _commit_next(self) -> None:
        self.commit(1)
        self._committing = bool(self.held)
        if self.held:
            self._loop.call_later(self.commit_s, self._commit_next)

    def commit(self, count: int = -1) -> None:
        """The first of them, or all."""
        count = len(self.held) if count < 0 else count
        ended, self.held = self.held[:count], self.held[count:]
        for command, future in ended:
            result = self.state.apply(self.state.index + 1, self.term, command)
            if not future.done():
                future.set_result(result)

    def lose(self) -> None:
        """The leadership loses every command in flight."""
        lost, self.held, self.is_active = self.held, [], False
        for _, future in lost:
            future.set_exception(NotController(2))


class Controller:
    """The active one, with its service and timers."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.loop = VirtualLoop()
        self.log = HeldLog(self.loop)
        metadata, clock = cast(MetadataLog, self.log), VirtualClock(self.loop, Random(1))
        config = config or ControllerConfig(session_timeout_ms=int(SESSION_S * 1000))
        self.service = ControllerService(metadata, config, clock)
        self.controller = ControllerLeadership(metadata, self.service, config, clock, "blue", self._dies)
        self.log.commit_s = 0.001
        self.run_for(0.001)
        self.start(self._begin())
        self.run_for(1.0)
        self.log.commit_s = 0.0
        assert not self.log.held

    def _dies(self, reason: str) -> None:
        raise AssertionError(reason)

    async def _begin(self) -> None:
        self.controller._role_changed(True)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work)

    def run_for(self, seconds: float) -> None:
        assert not self.loop.run_until(lambda: False, self.loop.time() + seconds)
        assert self.loop.unhandled == []

    def settle(self) -> None:
        """Everything that can happen now."""
        self.run_for(0.0)

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Commits whatever comes until `work` is done."""
        task = self.start(work)
        for _ in range(20):
            self.settle()
            self.log.commit()
        assert task.done()
        return task.result()

    def join(self, node_id: int) -> int:
        reply = self.finish(self.service.RegisterBroker(registration(node_id), None))
        self.finish(self.beat(node_id, reply.broker_epoch))
        assert not self.log.state.brokers[node_id].fenced
        return int(reply.broker_epoch)

    async def beat(self, node_id: int, broker_epoch: int) -> rpc.HeartbeatReply:
        index = self.log.applied_index
        request = rpc.HeartbeatRequest(node_id=node_id, broker_epoch=broker_epoch, applied_index=index)
        return await self.service.Heartbeat(request, None)

    async def go_on_beating(self, node_id: int, broker_epoch: int) -> None:
        while True:
            await self.beat(node_id, broker_epoch)
            await asyncio.sleep(0.5)

    def create(self, *names: str, client: str = "c") -> Coroutine[Any, Any, rpc.CreateTopicsReply]:
        wanted = [rpc.NewTopic(name=name, partitions=1, replication_factor=1) for name in names]
        request = rpc.CreateTopicsRequest(
            request_id=rpc.RequestId(client_id=client, sequence=1), topics=wanted
        )
        return self.service.CreateTopics(request, None)

    def producer_ids(self, broker_epoch: int) -> Coroutine[Any, Any, rpc.AllocateProducerIdsReply]:
        request = rpc.AllocateProducerIdsRequest(node_id=1, broker_epoch=broker_epoch)
        return self.service.AllocateProducerIds(request, None)


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller()
    yield controller
    controller.loop.close()


def test_requests_that_come_together_are_committed_together(controller: Controller) -> None:
    epoch = controller.join(1)
    asked = [controller.start(controller.producer_ids(epoch)) for _ in range(16)]
    controller.settle()
    assert len(controller.log.held) == 16
    assert not any(task.done() for task in asked)
    controller.log.commit()
    controller.settle()
    firsts = [task.result().first_id for task in asked]
    assert len(set(firsts)) == 16
    assert max(firsts) - min(firsts) == 15 * asked[0].result().count


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("fate", ["committed", "lost"])
def test_a_refusal_waits_for_what_it_rests_on(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, fate: str, waits: bool
) -> None:
    """The topic "exists" only when its creation is committed: with the leadership it may be gone.  Ablation:
    the answer does not wait."""
    if not waits:

        async def at_once(self: PlanPipeline, rests_on: object) -> None:
            pass

        monkeypatch.setattr(PlanPipeline, "wait_committed", at_once)
    controller.join(1)
    first = controller.start(controller.create("t"))
    controller.settle()
    second = controller.start(controller.create("t", client="another"))
    controller.settle()
    assert not first.done()
    assert second.done() != waits
    if fate == "lost":
        controller.log.lose()
    else:
        controller.log.commit()
    controller.settle()
    reply = second.result()
    if fate == "committed":
        assert reply.topics[0].error == ErrorCode.TOPIC_ALREADY_EXISTS
        assert not first.result().topics[0].error
    else:
        assert (reply.status.error == ErrorCode.NOT_CONTROLLER) == waits


def test_a_request_repeated_while_in_flight_is_one_request(controller: Controller) -> None:
    controller.join(1)
    asked = [controller.start(controller.create("t")) for _ in range(2)]
    controller.settle()
    assert len(controller.log.held) == 1
    controller.log.commit()
    controller.settle()
    assert asked[0].result().topics[0].topic_id == asked[1].result().topics[0].topic_id != b""


def test_a_superseded_broker_gets_its_error_only_after_the_commit(controller: Controller) -> None:
    """A broker ends itself when it hears of its successor."""
    epoch = controller.join(1)
    controller.start(controller.service.RegisterBroker(registration(1, "second"), None))
    controller.settle()
    beat = controller.start(controller.beat(1, epoch))
    controller.settle()
    assert controller.log.held
    assert not beat.done()
    controller.log.lose()
    controller.settle()
    assert beat.result().status.error == ErrorCode.NOT_CONTROLLER


def test_a_heartbeat_during_the_brokers_unregistration_gets_an_error(controller: Controller) -> None:
    epoch = controller.finish(controller.service.RegisterBroker(registration(2), None)).broker_epoch
    request = rpc.HeartbeatRequest(
        node_id=2, broker_epoch=epoch, offline_replicas=[rpc.ReplicasOfTopic(topic_id=bytes(16))]
    )
    request.offline_replicas[0].partitions.append(0)
    beat = controller.start(controller.service.Heartbeat(request, None))
    controller.settle()
    controller.start(controller.service.UnregisterBroker(rpc.UnregisterBrokerRequest(node_id=2), None))
    controller.settle()
    assert len(controller.log.held) == 2
    controller.log.commit()
    controller.settle()
    assert beat.result().status.error == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_heartbeats_that_change_nothing_wait_for_nothing(controller: Controller) -> None:
    epoch = controller.join(1)
    controller.start(controller.create("t"))
    controller.settle()
    beat = controller.start(controller.beat(1, epoch))
    controller.settle()
    assert controller.log.held
    assert not beat.result().fenced


def test_two_processes_with_one_node_id_never_get_each_others_epoch(controller: Controller) -> None:
    """Both registrations are committed by the same sync: the first one is superseded when it is answered."""
    asked = [
        controller.start(controller.service.RegisterBroker(registration(3, name), None))
        for name in ("first", "second")
    ]
    controller.settle()
    assert len(controller.log.held) == 2
    controller.log.commit()
    controller.settle()
    first, second = (task.result() for task in asked)
    assert first.status.error == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert first.broker_epoch == 0
    assert second.broker_epoch == controller.log.state.brokers[3].broker_epoch


def leaving(
    controller: Controller, node_id: int, *, offline: bool = False
) -> Coroutine[Any, Any, rpc.HeartbeatReply]:
    state = controller.log.state
    epoch, replicas = (
        state.brokers[node_id].broker_epoch,
        [rpc.ReplicasOfTopic(topic_id=bytes(16), partitions=[0])],
    )
    request = rpc.HeartbeatRequest(
        node_id=node_id, broker_epoch=epoch, applied_index=state.index, wants_shutdown=True
    )
    request.offline_replicas.extend(replicas if offline else [])
    return controller.service.Heartbeat(request, None)


def test_a_controlled_shutdown_waits_for_brokers_from_its_own_entry_on(controller: Controller) -> None:
    """Not from an earlier one that the same heartbeat brought about: others would still ask the broker when
    it stops."""
    controller.join(1)
    controller.join(2)
    session = controller.service.require_planner().sessions.by_id[1]
    controller.finish(leaving(controller, 1, offline=True))
    assert not controller.log.state.brokers[1].shutting_down
    assert session.shutdown_index == 0
    controller.finish(leaving(controller, 1, offline=True))
    assert controller.log.state.brokers[1].shutting_down
    assert session.shutdown_index == controller.log.state.index


def test_an_uncommitted_controlled_shutdown_lets_no_broker_stop(controller: Controller) -> None:
    epochs = {node_id: controller.join(node_id) for node_id in (1, 2)}
    for node_id, epoch in epochs.items():
        controller.finish(controller.beat(node_id, epoch))
    for _ in range(2):
        controller.start(leaving(controller, 1))
        controller.settle()
    assert len(controller.log.held) == 1, "the fencing that lets it stop is not even planned"
    controller.log.commit()
    controller.settle()
    assert not controller.log.state.brokers[1].fenced


def test_a_new_broker_is_not_called_unfenced_before_that_is_committed(controller: Controller) -> None:
    epoch = controller.finish(controller.service.RegisterBroker(registration(2), None)).broker_epoch
    controller.start(controller.beat(2, epoch))
    controller.settle()
    again = controller.start(controller.beat(2, epoch))
    controller.settle()
    assert len(controller.log.held) == 1
    assert again.result().fenced


def allocation(epoch: int) -> pb.Operation:
    return pb.Operation(allocate_producer_ids=pb.AllocateProducerIds(node_id=1, broker_epoch=epoch, count=1))


@pytest.fixture
def plans(controller: Controller) -> PlanPipeline:
    return controller.service._pipeline


def test_an_outcome_that_differs_from_the_prediction_renews_it(
    controller: Controller, plans: PlanPipeline
) -> None:
    """An entry that this controller did not propose (a voter returns) moves the index, which is a new
    broker's epoch."""
    operation = pb.Operation(
        register_broker=pb.RegisterBroker(node_id=5, incarnation="first", expected_broker_epoch=-1)
    )

    async def propose() -> None:
        plans.propose(pb.Command(operations=[operation]))
        foreseen = plans.state.brokers[5].broker_epoch
        later = plans.propose(pb.Command(operations=[allocation(foreseen)]))
        controller.log.state.apply(controller.log.state.index + 1, 1, b"")
        controller.log.commit(1)
        epoch = plans.state.brokers[5].broker_epoch
        assert epoch == controller.log.state.brokers[5].broker_epoch == foreseen + 1
        assert not later.future.done()
        assert plans.state.index == controller.log.state.index + 1

    controller.finish(propose())
    assert plans.state is controller.log.state
    assert plans.newest is None


def test_a_lost_command_leaves_the_predicted_state(controller: Controller, plans: PlanPipeline) -> None:
    epoch = controller.join(1)
    before = controller.log.state.next_producer_id

    async def propose() -> None:
        proposed = [plans.propose(pb.Command(operations=[allocation(epoch)])) for _ in range(3)]
        assert plans.state.next_producer_id == before + 3
        proposed[0].future.set_exception(NotController(2))
        assert plans.state.next_producer_id == before + 2

    controller.finish(propose())


def test_nothing_is_proposed_after_a_command_that_will_be_refused(
    controller: Controller, plans: PlanPipeline
) -> None:
    """Later commands of a plan rely on earlier ones."""
    epoch = controller.join(1)

    async def propose() -> None:
        commands = [pb.Command(operations=[allocation(each)]) for each in (epoch, epoch + 1000, epoch)]
        proposed = plans.propose_in_order(commands)
        controller.log.commit()
        errors = [(await plans.outcome(each)).error for each in proposed]
        assert errors == [ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH]

    controller.finish(propose())


class Untried(ClusterState):
    """A copy that nothing is tried on."""

    def apply(self, index: int, term: int, command: bytes) -> ApplyResult:
        with suppress(ZeroDivisionError):
            return super().apply(index, term, command)
        return ApplyResult(index, term)

    @classmethod
    def of(cls, state: ClusterState) -> ClusterState:
        copy = cls()
        copy.restore(state.encode())
        return copy


def fails_when_applied(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def defect(state: ClusterState, operation: object, changes: Changes) -> Value:
        raise ZeroDivisionError

    monkeypatch.setitem(cluster_state._HANDLERS, kind, defect)


@pytest.mark.parametrize("tried", [True, False])
def test_a_command_that_cannot_be_applied_fails_its_request_alone(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    """In the log every node would stop at it, after each restart again.  Ablation: it is proposed untried."""
    epoch = controller.join(1)
    if not tried:
        monkeypatch.setattr(ClusterState, "copy", lambda state: Untried.of(state))
    ids = controller.start(controller.producer_ids(epoch))
    controller.settle()
    fails_when_applied(monkeypatch, "create_topic")
    created = controller.start(controller.create("t"))
    controller.settle()
    if not tried:
        with pytest.raises(ZeroDivisionError):
            controller.log.commit()
        return
    assert len(controller.log.held) == 1
    controller.log.commit()
    controller.settle()
    assert ids.result().status.error == ErrorCode.NONE
    assert created.result().status.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "create_topic cannot be applied" in created.result().status.message
    assert controller.finish(controller.producer_ids(epoch)).status.error == ErrorCode.NONE


def test_a_term_whose_first_command_cannot_be_applied_ends_its_node_and_not_the_others(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of another version may lead: the log does not hold the command."""
    died: list[str] = []
    controller.controller._die = died.append
    fails_when_applied(monkeypatch, "become_controller")
    controller.log.term = 2
    controller.start(controller._begin())
    controller.settle()
    assert controller.log.held == []
    assert "become_controller cannot be applied" in died[0]


def test_a_client_that_gives_up_waiting_for_space_has_changed_nothing(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "COMMANDS_MAX", 1)
    controller.join(1)
    controller.start(controller.create("a"))
    controller.settle()
    later = [controller.start(controller.create(name)) for name in ("b", "c")]
    controller.run_for(planning.PROPOSAL_S_MAX + 0.1)
    assert [task.result().status.error for task in later] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert "nothing was changed" in later[0].result().status.message
    controller.log.commit()
    assert sorted(controller.log.state.topics) == ["a"]


def test_the_end_of_the_leadership_ends_the_wait_for_space(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "COMMANDS_MAX", 1)
    controller.join(1)
    controller.start(controller.create("a"))
    controller.settle()
    waiting = controller.start(controller.create("b"))
    controller.settle()
    controller.service.end()
    controller.settle()
    assert waiting.result().status.error == ErrorCode.NOT_CONTROLLER


def test_clients_wait_for_room_of_bytes_too_which_is_given_back(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few large commands are as long on their way as many small ones; what is committed takes no room any
    more."""
    monkeypatch.setattr(planning, "BYTES_MAX", 300)
    controller.join(1)
    for turn in range(4):  # far more than the bound in the end
        large = controller.start(
            controller.create(f"large-{turn}-" + "x" * 200, f"more-{turn}-" + "y" * 200, client=f"a{turn}")
        )
        controller.settle()
        assert len(controller.log.held) == 2
        small = controller.start(controller.create(f"small-{turn}", client=f"b{turn}"))
        controller.settle()
        assert len(controller.log.held) == 2, "it waits"
        for _ in range(3):
            controller.log.commit()
            controller.settle()
        assert large.result().status.error == small.result().status.error == ErrorCode.NONE


def test_clients_get_room_in_the_order_in_which_they_came(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else one that asks again and again could keep another out for ever."""
    monkeypatch.setattr(planning, "COMMANDS_MAX", 1)
    controller.join(1)
    for name in "abcd":
        controller.start(controller.create(name, client=name))
        controller.settle()
    made = []
    for turn in range(8):
        (command,) = [command for command, _ in controller.log.held]
        made += [operation.create_topic.name for operation in pb.Command.FromString(command).operations]
        controller.log.commit()
        if turn < 4:  # at the very moment when there is room
            controller.start(controller.create(f"late-{turn}", client=f"late-{turn}"))
        controller.settle()
    assert made == [*"abcd", *(f"late-{turn}" for turn in range(4))]


@pytest.mark.parametrize("bound", ["BROKER_COMMANDS_MAX", "BROKER_BYTES_MAX"])
def test_what_brokers_ask_for_is_bounded_below_what_fencing_needs(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """By count and by bytes; heartbeats that change nothing are answered even so, and what is committed gives
    its place back."""
    epoch = controller.join(1)
    monkeypatch.setattr(planning, bound, 4 if bound == "BROKER_COMMANDS_MAX" else 30)
    asked = [controller.start(controller.producer_ids(epoch)) for _ in range(40)]
    controller.settle()
    in_flight = len(controller.log.held)
    assert 2 <= in_flight <= 5
    refused = [task.result().status for task in asked if task.done()]
    assert len(refused) == 40 - in_flight
    assert {status.error for status in refused} == {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    beat = controller.start(controller.beat(1, epoch))
    controller.settle()
    assert beat.result().status.error == ErrorCode.NONE
    controller.run_for(SESSION_S + 1.0)
    assert len(controller.log.held) == in_flight + 1, "the fencing of a broker that fell silent"
    controller.log.commit()
    controller.settle()
    assert controller.log.state.brokers[1].fenced
    assert controller.finish(controller.producer_ids(epoch)).status.error == ErrorCode.NONE


def test_brokers_do_not_wait_behind_clients(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "COMMANDS_MAX", 1)
    epoch = controller.join(1)
    for name in "abc":
        controller.start(controller.create(name, client=name))
    controller.settle()
    assert len(controller.log.held) == 1
    controller.start(controller.producer_ids(epoch))
    controller.settle()
    assert len(controller.log.held) == 2


CREATED_AT_ONCE = 3000
CLIENTS = 3
COMMIT_S = 0.002


@pytest.mark.parametrize("bounded", [True, False])
def test_clients_that_create_topics_without_a_pause_do_not_hold_up_fencing(
    monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """The bound: the commands in flight, one slice of each client, and the tick. Ablation: every request is
    planned at once."""
    if not bounded:
        monkeypatch.setattr(planning, "COMMANDS_MAX", 10**9)
        monkeypatch.setattr(planning, "BYTES_MAX", 10**12)
        monkeypatch.setattr(topics, "SLICE_TOPICS_MAX", 10**9)
        monkeypatch.setattr(topics, "SLICE_PARTITIONS_MAX", 10**9)
    controller = Controller()
    controller.start(controller.go_on_beating(1, controller.join(1)))
    controller.join(2)
    silent_since, controller.log.commit_s = controller.loop.time(), COMMIT_S

    async def create_without_pause(client: str) -> None:
        for number in range(100):
            reply = await controller.create(
                *(f"{client}-{number}-{each}" for each in range(CREATED_AT_ONCE)), client=client
            )
            assert reply.status.error == ErrorCode.NONE
            assert not any(topic.error for topic in reply.topics)

    for number in range(CLIENTS):
        controller.start(create_without_pause(f"client{number}"))
    ahead = planning.COMMANDS_MAX + topics.SLICE_TOPICS_MAX if bounded else 0
    bound_s = SESSION_S + 2 * 0.25 + ahead * COMMIT_S
    fenced = controller.loop.run_until(
        lambda: controller.log.state.brokers[2].fenced, silent_since + max(bound_s, SESSION_S + 2)
    )
    assert fenced == bounded
    assert len(controller.log.state.topics) > 500
    assert not controller.log.state.brokers[1].fenced
    controller.loop.close()


def test_a_controller_that_was_inactive_for_a_while_goes_on_fencing(controller: Controller) -> None:
    """A flush of its journal hangs, and no other leader is elected (a quorum of one): its term and its
    planner go on."""
    controller.join(1)
    controller.log.is_active = False
    controller.run_for(2.0)
    controller.log.is_active, controller.log.commit_s = True, COMMIT_S
    controller.run_for(SESSION_S + 1.0)
    assert controller.log.state.brokers[1].fenced


def test_a_tick_does_not_repeat_a_plan_in_flight(controller: Controller) -> None:
    controller.join(1)
    controller.run_for(SESSION_S + 3.0)
    assert len(controller.log.held) == 1
    controller.log.commit()
    assert controller.log.state.brokers[1].fenced


def second_heartbeat_of_a_broker_that_is_being_fenced(
    controller: Controller,
) -> asyncio.Task[rpc.HeartbeatReply]:
    """The first one asks for the end of the fencing, and waits for that; the broker does not wait so long,
    and asks again."""
    epoch = controller.join(1)
    controller.run_for(SESSION_S + 1.0)
    controller.start(controller.beat(1, epoch))
    controller.settle()
    second = controller.start(controller.beat(1, epoch))
    controller.settle()
    assert len(controller.log.held) == 2
    assert not controller.log.state.brokers[1].fenced
    return second


def test_a_heartbeat_during_fencing_does_not_extend_the_lease(controller: Controller) -> None:
    """It would have a session again, on metadata without the elections that its silence has brought
    (docs/semantics.md M7)."""
    second = second_heartbeat_of_a_broker_that_is_being_fenced(controller)
    assert not second.done()
    before = controller.log.applied_index
    controller.log.commit()
    controller.settle()
    assert second.result().metadata_index == before + 2
    assert not second.result().fenced


def test_ablation_a_heartbeat_that_never_waits_renews_an_expired_session(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerSessions, "is_being_fenced", lambda sessions, node_id: False)
    second = second_heartbeat_of_a_broker_that_is_being_fenced(controller)
    assert not second.result().fenced
    assert second.result().metadata_index == controller.log.applied_index


@pytest.mark.parametrize("looks", [True, False])
def test_a_term_that_ends_while_it_begins_starts_no_planner(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """Its first command is committed in the very turn in which the term ends: the cancellation comes too late
    to be raised.  It would answer under the next term, and its timers would never end.  Ablation: it takes
    itself for the present one."""
    log, leadership = controller.log, controller.controller
    ticking: list[ControllerPlanner] = []
    tick = ControllerPlanner.tick
    monkeypatch.setattr(
        ControllerPlanner, "tick", lambda self, now: (ticking.append(self), tick(self, now))[1]
    )

    async def begin(term: int) -> None:
        log.term = term
        leadership._role_changed(False)
        leadership._role_changed(True)

    controller.start(begin(2))
    controller.settle()
    assert len(log.held) == 1

    async def committed_and_over() -> None:
        if not looks:
            monkeypatch.setattr(asyncio, "current_task", lambda: leadership._term_task)
        log.commit()
        await begin(3)

    controller.start(committed_and_over())
    controller.settle()
    assert len(log.held) == 1
    reply = controller.start(controller.create("t"))
    controller.settle()
    assert reply.done()
    assert (reply.result().status.error == ErrorCode.NOT_CONTROLLER) == looks
    log.commit()
    ticking.clear()
    controller.run_for(1.0)
    assert len({id(planner) for planner in ticking}) == (1 if looks else 2)


def test_a_clock_that_is_set_ends_no_pin_and_a_minute_does(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin that ends takes away what it kept: no administrator does that by a step of the time."""
    controller.join(1)
    controller.finish(controller.create("t"))
    topic = pb.PinnedTopicRecord(topic_id=controller.log.state.topics["t"].topic_id.bytes, name="t")
    topic.partitions.add(partition=0)
    wanted = pb.PinnedCutRecord(name="nightly", pin_id="p", topics=[topic])
    request = rpc.ChangePinnedCutRequest(pin=wanted, retention_ms=1000)
    assert controller.finish(controller.service.ChangePinnedCut(request, None)).status.error == 0
    controller.log.commit_s = 0.001
    wall_ms = VirtualClock.wall_ms
    monkeypatch.setattr(VirtualClock, "wall_ms", lambda self: wall_ms(self) + 3_600_000)
    controller.run_for(UNCONFIRMED_MS / 1000 - 2)
    assert "nightly" in controller.log.state.pinned_cuts
    controller.run_for(4.0)
    assert controller.log.state.pinned_cuts == {}


def test_what_is_tried_on_a_copy_leaves_the_state_as_it_is() -> None:
    """Operations of every kind, planned and not."""
    commands, state, applied = Commands(Random(3)), ClusterState(), set[str]()
    for count in itertools.count():
        if applied == set(KINDS):
            break
        if count % 1000 == 999:
            state = ClusterState()  # a level that fell for good leaves some kinds out
        command = commands.draw(state, 1)
        tried, before = state.copy(), state.encode()
        predicted = tried.apply(state.index + 1, 1, command.SerializeToString())
        assert state.encode() == before
        assert state.apply(state.index + 1, 1, command.SerializeToString()) == predicted
        assert state.encode() == tried.encode()
        applied.update(str(each.WhichOneof("kind")) for each in command.operations if predicted.ok)
        assert count < 20_000, set(KINDS) - applied
