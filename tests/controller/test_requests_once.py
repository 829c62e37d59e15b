"""A request with an id is carried out once: a copy of it that comes late undoes nothing that was ordered
since.

The ablation is the same request without an id, as earlier versions send it: a retry is another request then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from tidegate.controller.planning.partitions import elections
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.planner import ControllerConfig
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.service.metadata_log import NotController
from tidegate.controller.state import proposers
from tidegate.controller.state.model import PartitionState
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime.clock import SystemClock
from tidegate.security.acls import AclOperation, PatternType, PermissionType, ResourceType
from tidegate.security.delegation_tokens import TokenSettings, token_hmac
from tidegate.wire.errors import ErrorCode, KafkaError

from .controller_cluster import registration
from .planning.test_pinned_cuts import record as pinned_cut
from .test_plan_pipeline import Controller
from .test_security_commands import ACL

FEATURE = "transaction.version"
TOKENS = TokenSettings(secret=b"secret")
REQUESTS = {each.name: each.input_type for each in rpc.DESCRIPTOR.services_by_name["Controller"].methods}
NAMED = {name for name, request in REQUESTS.items() if "request_id" in request.fields_by_name}
# a late copy is refused by what it compares: epochs, numbers of attempts and heartbeats; one for producer ids
# takes a further block
COMPARED = {"RegisterBroker", "Heartbeat", "AlterPartitions", "AllocateProducerIds"}
# known by the topic that it has made (`was_made_by`): a copy that comes after the deletion makes another one
KNOWN_BY_ITS_TOPIC = {"CreateTopics"}
READING = {"ReadBarrier", "FollowMetadata", "DescribeQuorum"}
# a late copy charges a client's quota once more, and changes no metadata
CHARGING = {"ChargeMutations"}


@pytest.fixture
def controller() -> Iterator[Controller]:
    """Brokers 1 to 4; the topics "t" and "u" are on 1, 2 and 3."""
    controller = Controller(ControllerConfig(session_timeout_ms=6000, tokens=TOKENS))
    for node_id in (1, 2, 3, 4):
        controller.join(node_id)
    for name in ("t", "u"):
        topic = rpc.NewTopic(
            name=name, partitions=-1, replication_factor=-1, assignments=[rpc.Assignment(replicas=[1, 2, 3])]
        )
        assert (
            controller.finish(
                controller.service.CreateTopics(rpc.CreateTopicsRequest(topics=[topic]), None)
            ).status.error
            == 0
        )
    yield controller
    controller.loop.close()


def send(controller: Controller, request: Any) -> Any:
    copy = type(request).FromString(request.SerializeToString())
    return controller.finish(getattr(controller.service, kind_of(request))(copy, None))


def kind_of(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")


def partition(controller: Controller, topic: str = "t") -> PartitionState:
    found = controller.log.state.partition(topic, 0)
    assert found is not None
    return found


def moves(*replicas: int, **topics: tuple[int, ...]) -> rpc.ReassignPartitionsRequest:
    wanted = {"t": replicas, **topics}
    partitions = [rpc.Reassignment(topic=topic, partition=0, replicas=wanted[topic]) for topic in wanted]
    return rpc.ReassignPartitionsRequest(partitions=partitions)


def end_of_move() -> rpc.ReassignPartitionsRequest:
    return rpc.ReassignPartitionsRequest(partitions=[rpc.Reassignment(topic="t", partition=0, cancel=True)])


def election(unclean: bool = False) -> rpc.ElectLeadersRequest:
    return rpc.ElectLeadersRequest(unclean=unclean, partitions=[rpc.PartitionName(topic="t", partition=0)])


def level(value: int) -> rpc.UpdateFeaturesRequest:
    return rpc.UpdateFeaturesRequest(updates=[rpc.FeatureUpdate(name=FEATURE, level=value, downgrade=True)])


def setting(value: str) -> rpc.AlterConfigsRequest:
    return rpc.AlterConfigsRequest(topics=[rpc.ConfigChange(name="t", set={"retention.ms": value})])


def creation(name: str) -> rpc.CreateTopicsRequest:
    return rpc.CreateTopicsRequest(topics=[rpc.NewTopic(name=name, partitions=1, replication_factor=1)])


def deletion(name: str) -> rpc.DeleteTopicsRequest:
    return rpc.DeleteTopicsRequest(names=[name])


def enlargement(name: str) -> rpc.CreatePartitionsRequest:
    return rpc.CreatePartitionsRequest(topics=[rpc.PartitionsToCreate(name=name, total=2)])


def acl(*, goes: bool = False) -> rpc.ChangeSecurityRequest:
    if not goes:
        return rpc.ChangeSecurityRequest(create_acls=[ACL])
    any_type, any_pattern = int(ResourceType.ANY), int(PatternType.ANY)
    every = rpc.AclFilter(
        resource_type=any_type, pattern_type=any_pattern,
        operation=int(AclOperation.ANY), permission=int(PermissionType.ANY),
    )  # fmt: skip
    return rpc.ChangeSecurityRequest(delete_acls=[every])


def token(token_id: str) -> rpc.ChangeDelegationTokenRequest:
    wanted = rpc.TokenToCreate(token_id=token_id, owner="User:alice", max_lifetime_ms=-1)
    return rpc.ChangeDelegationTokenRequest(requester="User:alice", create=wanted)


def end_of_token(token_id: str, period_ms: int) -> rpc.ChangeDelegationTokenRequest:
    end = rpc.TokenEnd(hmac=token_hmac(TOKENS.secret, token_id), period_ms=period_ms)
    return rpc.ChangeDelegationTokenRequest(requester="User:alice", expire=end)


def renewal(token_id: str) -> rpc.ChangeDelegationTokenRequest:
    longer = rpc.TokenEnd(hmac=token_hmac(TOKENS.secret, token_id), period_ms=1_000_000)
    return rpc.ChangeDelegationTokenRequest(requester="User:alice", renew=longer)


def end_of(controller: Controller, token_id: str) -> int | None:
    found = controller.log.state.security.tokens.get(token_id)
    return None if found is None else found.expires_at_ms


def pin_now(controller: Controller) -> None:
    record = pinned_cut(topic_id=controller.log.state.topics["t"].topic_id)
    change = pb.Operation(change_pinned_cuts=pb.ChangePinnedCuts(pin=[record]))
    pipeline = controller.service._pipeline
    pipeline.propose_in_order(Plan([change]).commands(pipeline.term))
    controller.log.commit()


def four_stops(controller: Controller) -> None:
    pipeline = controller.service._pipeline
    stop = controller.service.require_planner().fence([4], "stopped")
    pipeline.propose_in_order(stop.commands(pipeline.term))
    controller.log.commit()


def four_is_another(controller: Controller) -> None:
    assert send(controller, registration(4, "another machine")).status.error == 0


CASES: dict[str, tuple[list[Any], Any, list[Any], Callable[[Controller], Any]]] = {
    # before, the request, what is ordered since, what must stay as it is then
    "a move": ([], moves(3, 1, 2), [moves(2, 1, 3)], lambda c: partition(c).replicas),
    "a move that changes nothing": ([], moves(1, 2, 3), [moves(2, 1, 3)], lambda c: partition(c).replicas),
    "the end of a move": ([moves(1, 2, 4)], end_of_move(), [moves(1, 2, 4)], lambda c: partition(c).target),
    "an election": ([moves(2, 1, 3)], election(), [moves(3, 1, 2)], lambda c: partition(c).leader),
    "an election that is not needed": ([], election(), [moves(3, 1, 2)], lambda c: partition(c).leader),
    "a feature level": ([], level(1), [level(2)], lambda c: c.log.state.features[FEATURE]),
    "a feature level that is so already": ([level(1)], level(1), [level(2)],
        lambda c: c.log.state.features[FEATURE]),
    "a topic that goes": ([], deletion("u"), [creation("u")], lambda c: "u" in c.log.state.topics),
    "more partitions": ([], enlargement("u"), [deletion("u"), creation("u")],
                        lambda c: len(c.log.state.topics["u"].partitions)),
    "a broker that goes": ([four_stops], rpc.UnregisterBrokerRequest(node_id=4), [four_is_another],
                           lambda c: 4 in c.log.state.brokers),
    "a setting that is so already": ([setting("1000")], setting("1000"), [setting("2000")],
                                     lambda c: c.log.state.topics["t"].config["retention.ms"]),
    "a cut that is unpinned": ([pin_now], rpc.ChangePinnedCutRequest(unpin="a"), [pin_now],
                               lambda c: set(c.log.state.pinned_cuts)),
    "an ACL": ([], acl(), [acl(goes=True)], lambda c: c.log.state.security.acls),
    "a token": ([], token("a"), [end_of_token("a", -1)], lambda c: end_of(c, "a")),
    "a token that lives longer": ([token("a")], renewal("a"), [end_of_token("a", 1000)],
                                  lambda c: end_of(c, "a")),
    "a token that ends sooner": ([token("a")], end_of_token("a", 1000), [renewal("a")],
                                 lambda c: end_of(c, "a")),
}  # fmt: skip


def carry_out(controller: Controller, orders: list[Any]) -> None:
    for order in orders:
        if callable(order):
            order(controller)
        else:
            reply = send(controller, order)
            assert reply.status.error == 0
            assert not any(each.error for each in getattr(reply, "results", ()))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_late_copy_of_a_request_undoes_no_later_change(
    controller: Controller, case: str, named: bool
) -> None:
    before, original, since, look = CASES[case]
    request = type(original).FromString(original.SerializeToString())
    if named:
        request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    carry_out(controller, before)
    assert send(controller, request).status.error == 0
    carry_out(controller, since)
    ordered = look(controller)
    send(controller, request)
    assert (look(controller) == ordered) == named


@pytest.mark.parametrize("case", CASES)
def test_a_retry_is_answered_as_the_attempt_whose_answer_was_lost(controller: Controller, case: str) -> None:
    """Also at once, while the first one is in flight; and it is one command."""
    before, original, _, _ = CASES[case]
    request = type(original).FromString(original.SerializeToString())
    request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    carry_out(controller, before)
    carry = getattr(controller.service, kind_of(request))
    attempts = [controller.start(carry(request, None)) for _ in range(2)]
    controller.settle()
    assert len(controller.log.held) == 1
    assert not any(attempt.done() for attempt in attempts)
    controller.log.commit()
    controller.settle()
    replies = [attempt.result() for attempt in attempts] + [send(controller, request)]
    assert controller.log.held == []
    for reply in replies:
        errors = [each.error for each in (*getattr(reply, "results", ()), *getattr(reply, "topics", ()))]
        assert reply.status.error == 0
        assert set(errors) <= {0, int(ErrorCode.ELECTION_NOT_NEEDED)}
        asked = [getattr(request, name, ()) for name in ("partitions", "topics", "names", "create_acls")]
        assert len(errors) == sum(map(len, asked))


def test_a_late_retry_learns_which_partitions_are_not_as_requested(controller: Controller) -> None:
    """Refused then, or changed since: never that they are."""
    request = moves(3, 1, 2, u=(1, 2, 9))
    request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    refused = int(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    assert [each.error for each in send(controller, request).results] == [0, refused]
    assert [each.error for each in send(controller, request).results] == [0, refused]
    four_stops(controller)
    assert send(controller, registration(9)).status.error == 0
    carry_out(controller, [moves(2, 1, 3)])
    changed = int(ErrorCode.INVALID_UPDATE_VERSION)
    assert [each.error for each in send(controller, request).results] == [changed, changed]
    assert partition(controller, "u").replicas == (1, 2, 3)


def test_a_request_that_was_refused_may_be_sent_again(controller: Controller) -> None:
    """It was not carried out, and its retry gets no answer that it was."""
    request = moves(1, 2, 9)
    request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    assert send(controller, request).results[0].error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert send(controller, registration(9)).status.error == 0
    assert send(controller, request).results[0].error == 0
    assert partition(controller).target == (1, 2, 9)


def test_validation_alone_is_not_remembered(controller: Controller) -> None:
    request = level(1)
    request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    request.validate_only = True
    before = controller.log.applied_index
    assert send(controller, request).status.error == 0
    assert controller.log.applied_index == before
    change = setting("7")
    change.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=2))
    change.validate_only = True
    assert send(controller, change).status.error == 0
    assert controller.log.applied_index == before


@pytest.fixture
def small_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partition travels in a command of its own."""
    monkeypatch.setattr(elections, "CHANGES_PER_COMMAND_MAX", 1)
    monkeypatch.setattr(Plan.commands, "__defaults__", (1,))


def _named_from_the_first_on(self: Plan, controller_epoch: int, bytes_max: int = 1) -> Iterator[pb.Command]:
    for operation in self.operations:
        proposer, sequence = self.request_id.client_id, self.request_id.sequence
        yield pb.Command(
            controller_epoch=controller_epoch, operations=[operation], proposer=proposer, sequence=sequence
        )
        self.request_id = rpc.RequestId()


@pytest.mark.parametrize("last", [True, False])
def test_a_retry_finishes_a_request_that_was_applied_in_part(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, small_commands: None, last: bool
) -> None:
    """The last of its commands carries its id.  Ablation: the first one does."""
    if not last:
        monkeypatch.setattr(Plan, "commands", _named_from_the_first_on)
    request = moves(3, 1, 2, u=(3, 2, 1))
    request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    first = controller.start(controller.service.ReassignPartitions(request, None))
    controller.settle()
    assert len(controller.log.held) == 2
    controller.log.commit(1)
    controller.log.held.pop()[1].set_exception(NotController(2))
    controller.settle()
    assert first.result().status.error == ErrorCode.NOT_CONTROLLER
    send(controller, request)
    replicas = [partition(controller, name).replicas for name in ("t", "u")]
    assert (replicas == [(3, 1, 2), (3, 2, 1)]) == last


@pytest.mark.parametrize("looks", [True, False])
def test_a_request_that_is_too_old_to_be_known_is_not_carried_out_in_part(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, small_commands: None, looks: bool
) -> None:
    """Only its last command would be refused when it is applied.  Ablation: the plan does not check it."""
    if not looks:
        monkeypatch.setattr(type(controller.service), "_applied_before", lambda self, request_id: False)
    monkeypatch.setattr(proposers, "WINDOW", 2)
    for sequence, value in enumerate(("1", "2", "3", "4"), 10):
        change = setting(value)
        change.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=sequence))
        assert send(controller, change).topics[0].error == 0
    request = moves(3, 1, 2, u=(3, 2, 1))
    request.request_id.CopyFrom(rpc.RequestId(client_id="operator", sequence=1))
    assert send(controller, request).status.error == ErrorCode.INVALID_REQUEST
    assert (partition(controller).replicas == (1, 2, 3)) == looks


def test_every_request_that_has_an_id_has_a_case_here_and_every_other_a_reason() -> None:
    assert {kind_of(request) for _, request, _, _ in CASES.values()} == NAMED - KNOWN_BY_ITS_TOPIC
    assert REQUESTS.keys() - NAMED == COMPARED | READING | CHARGING


async def test_every_request_that_changes_something_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    async def send_nowhere(
        self: ControllerClient, kind: type[Any], method: str, request: Any, timeout_s: float, **_: Any
    ) -> Any:
        sent.append(request)
        return cast(Any, kind)()

    monkeypatch.setattr(ControllerClient, "_call", send_nowhere)
    client = ControllerClient({1: "nowhere:1"}, SystemClock())
    for name in sorted(NAMED):
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        await getattr(client, method)(getattr(rpc, f"{name}Request")())
    assert [request.request_id.sequence for request in sent] == [*range(1, len(NAMED) + 1)]
    await client.elect_leaders(next(each for each in sent if isinstance(each, rpc.ElectLeadersRequest)))
    assert sent[-1].request_id.sequence == len(sent), "another call is another request"
    assert len({request.request_id.client_id for request in sent}) == 1
    assert sent[0].request_id.client_id


class SlicedCalls(ControllerClient):
    """Answers each call with what it asks for; from the slice `fails_at` on with an error."""

    def __init__(self, fails_at: int = 99) -> None:
        super().__init__({1: "nowhere:1"}, SystemClock())
        self.sent: list[Any] = []
        self.fails_at = fails_at

    async def _call(self, kind: type[Any], method: str, request: Any, *_: Any, **_named: Any) -> Any:
        if len(self.sent) == self.fails_at:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "later")
        self.sent.append(request)
        reply = kind(metadata_index=len(self.sent))
        for each in request.partitions:
            reply.results.add(topic=each.topic, partition=each.partition)
        return reply


def many_moves(*numbers: int) -> rpc.ReassignPartitionsRequest:
    partitions = [rpc.Reassignment(topic="t", partition=number, replicas=[1]) for number in numbers]
    return rpc.ReassignPartitionsRequest(partitions=partitions, keep_replication_factor=True)


async def test_a_large_request_for_moves_or_elections_goes_in_named_slices() -> None:
    """One for 100,000 partitions held the controller for a second."""
    client, numbers = SlicedCalls(), range(2500)
    reply = await client.reassign_partitions(many_moves(*numbers))
    assert [len(part.partitions) for part in client.sent] == [1000, 1000, 500]
    assert len({part.request_id.sequence for part in client.sent}) == 3
    assert all(part.keep_replication_factor for part in client.sent)
    assert ([each.partition for each in reply.results], reply.metadata_index) == ([*numbers], 3)
    names = [rpc.PartitionName(topic="t", partition=number) for number in numbers]
    await client.elect_leaders(rpc.ElectLeadersRequest(partitions=names, unclean=True))
    assert [len(part.partitions) for part in client.sent[3:]] == [1000, 1000, 500]
    assert all(part.unclean for part in client.sent[3:])


async def test_an_error_after_the_first_slice_answers_the_partitions_left() -> None:
    reply = await SlicedCalls(fails_at=1).reassign_partitions(many_moves(*range(2500)))
    errors = [each.error for each in reply.results]
    assert errors == [0] * 1000 + [int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)] * 1500
    with pytest.raises(KafkaError, match="later"):
        await SlicedCalls(fails_at=0).reassign_partitions(many_moves(*range(2500)))


async def test_a_request_that_names_a_partition_twice_is_refused_as_a_whole() -> None:
    client = SlicedCalls()
    await client.reassign_partitions(many_moves(*range(2500), 7))
    assert [len(part.partitions) for part in client.sent] == [2501]
