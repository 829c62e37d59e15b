"""The error messages of a consumer group's coordinator, in the words of Kafka 4.1: clients write them into
their logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ....wire.errors import ErrorCode, KafkaError
from .events import ConsumerGroupConfig, ConsumerGroupHeartbeat
from .group import ConsumerGroup
from .patterns import UnsupportedPattern, topic_pattern
from .state import JOINING_EPOCH, STATIC_LEAVING_EPOCH, Action, MemberRequest, Situation

_HEARTBEATS: Final = (
    MemberRequest.JOIN,
    MemberRequest.HEARTBEAT,
    MemberRequest.LEAVE,
    MemberRequest.LEAVE_FOR_A_WHILE,
)


def not_found(group_id: str, *, is_other_kind: bool, wanted: str = "Group") -> KafkaError:
    """GROUP_ID_NOT_FOUND: there is no such consumer group, or one of another kind."""
    problem = (
        f"Group {group_id} is not a consumer group." if is_other_kind else f"{wanted} {group_id} not found."
    )
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, problem)


def refusal(
    action: Action,
    situation: Situation,
    request: MemberRequest,
    group_id: str,
    group: ConsumerGroup | None,
    member_id: str,
    instance_id: str | None,
    epoch: int,
) -> KafkaError | None:
    """The error of a rejecting action; None for every other action."""
    if action is Action.AS_CLASSIC:
        raise AssertionError(f"group {group_id}: {request.value} of a classic group was not judged as one")
    code = ErrorCode.__members__.get(action.value) if action is not Action.PROCEED else None
    if code is None:
        return None
    holder = "" if group is None else group.instances.get(instance_id or "", "")
    match action:
        case Action.REFUSE_NO_GROUP:
            wanted = "Consumer group" if request is MemberRequest.HEARTBEAT else "Group"
            return not_found(group_id, is_other_kind=situation is Situation.CLASSIC, wanted=wanted)
        case Action.REFUSE_UNKNOWN if instance_id is not None and request in _HEARTBEATS:
            return KafkaError(code, f"Instance id {instance_id} is unknown.")
        case Action.REFUSE_UNKNOWN:
            return KafkaError(code, f"Member {member_id} is not a member of group {group_id}.")
        case Action.REFUSE_EPOCH if group is not None:
            known = group.current_of(member_id).epoch if member_id in group.members else STATIC_LEAVING_EPOCH
            what = "greater" if epoch > known else "smaller"
            return KafkaError(
                code,
                f"The consumer group member has a {what} member epoch ({epoch}) than the one known by the "
                f"group coordinator ({known}). The member must abandon all its partitions and rejoin.",
            )
        case Action.REFUSE_HELD if group is not None:
            problem = f"cannot join the group because the instance id is owned by {holder} member."
            return KafkaError(code, f"Static member {member_id} with instance id {instance_id} {problem}")
        case Action.REFUSE_INSTANCE if group is not None:
            problem = f"was fenced by member {holder}."
            return KafkaError(code, f"Static member {member_id} with instance id {instance_id} {problem}")
        case _:
            about = f"{situation.value} {member_id!r} at epoch {epoch}: {action.value}"
            return KafkaError(code, f"group {group_id}, {about}")


def check_heartbeat(event: ConsumerGroupHeartbeat, config: ConsumerGroupConfig) -> None:
    """Rejects a heartbeat that no group can take: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR,
    INVALID_REGULAR_EXPRESSION."""
    problem = next(_problems(event), None)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if event.assignor is not None and event.assignor not in config.assignors:
        message = (
            f"ServerAssignor {event.assignor} is not supported. Supported assignors: "
            f"{', '.join(config.assignors)}."
        )
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    if event.topic_regex:
        try:
            topic_pattern(event.topic_regex)
        except UnsupportedPattern as error:
            message = (
                f"SubscribedTopicRegex `{event.topic_regex}` is not a valid regular expression: {error}."
            )
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error


def _problems(event: ConsumerGroupHeartbeat) -> Iterator[str]:
    if not event.member_id:
        yield "MemberId can't be empty."
    if not event.group_id:
        yield "GroupId can't be empty."
    if event.instance_id == "":
        yield "InstanceId can't be empty."
    if event.rack_id == "":
        yield "RackId can't be empty."
    if event.member_epoch < STATIC_LEAVING_EPOCH:
        yield "MemberEpoch is invalid."
    if event.member_epoch == STATIC_LEAVING_EPOCH and event.instance_id is None:
        yield "InstanceId can't be null."
    if event.member_epoch == JOINING_EPOCH:
        if event.rebalance_timeout_ms < 0:
            yield "RebalanceTimeoutMs must be provided in first request."
        if event.owned is None or event.owned:
            yield "TopicPartitions must be empty when (re-)joining."
        if event.topic_names is None and event.topic_regex is None:
            yield "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
