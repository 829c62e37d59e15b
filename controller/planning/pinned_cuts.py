"""What a request makes of pinned cuts, and which of them have expired.  Pure.

A pin is confirmed when every broker with a replica of what it names has reported, in its heartbeats, that
each of its logs keeps it (docs/semantics.md C16).

A follower takes over the log start of a leader that has not applied the pin, and the leader may come back
from a crash with the lower one that it had noted.  So a report counts only when its broker had applied the
metadata up to an entry from which on no named partition has got another leader epoch or other replicas.
Then, of each such partition:

* the leader of this epoch is a replica, and has reported as leader of this epoch that it starts at or below
  the pin and has applied it.  A leader's log start never falls, and the leader raises it no more: it was that
  low in each answer that it has given in this epoch, or will give;
* a follower that reports is in this epoch, so it uses no answer of an earlier one afterwards: what an earlier
  leader made it lose is in its report;
* so the leader of the next epoch, which is one of them, starts that low as well, and so on.  A replica that
  is added later copies one of them.

Times are the active controller's, so that all nodes agree about the end of a pin: an entry of the log ends
it.  They are steady (`Clock.steady_ms`): an administrator who sets the controller's clock ends no pin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..state.cluster_state import ClusterState
from ..state.features import require_level
from ..state.model import PINNED_CUTS_LEVEL
from ..state.pinned_cuts import (
    PINNED_CUT_BYTES_MAX,
    PINNED_CUTS_MAX,
    PinnedCut,
    decode_cut,
    too_large,
    with_pin_id,
)
from .brokers.sessions import BrokerSessions, Leaderships
from .plan import Plan

UNCONFIRMED_MS: Final = 60_000
"""How long a pin stays without a confirmation: longer than a node waits for it."""
UNCONFIRMED_MAX: Final = 10
"""Each broker looks at all that they name for each of its heartbeats."""


@dataclass(slots=True)
class PinPlan(Plan):
    """The plan of a request about the pin `pin_id`."""

    pin_id: str = ""


def plan_pinned_cut(
    state: ClusterState,
    sessions: BrokerSessions,
    request: rpc.ChangePinnedCutRequest,
    retention_ms_max: int,
    now_ms: int,
    *,
    applied_before: bool,
) -> PinPlan:
    """`retention_ms_max`: `cut.retention.max.ms`; `applied_before`: the request is a copy of one that is
    done.  Raises KafkaError."""
    require_level(state.features, PINNED_CUTS_LEVEL)
    kind = request.WhichOneof("kind")
    if kind not in ("pin", "confirm", "unpin"):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the request says neither pin, confirm nor unpin")
    pin_id = request.pin.pin_id if kind == "pin" else getattr(request, kind)
    if applied_before:
        return PinPlan(pin_id=pin_id)
    plan = PinPlan([], f"{kind} a cut", request.request_id, pin_id)
    if kind == "unpin":
        change = pb.ChangePinnedCuts(remove=[pin_id])
    else:
        if not 0 < request.retention_ms <= retention_ms_max:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a cut cannot be pinned for {request.retention_ms} ms: cut.retention.max.ms is "
                f"{retention_ms_max}",
            )
        if kind == "pin":
            change = pb.ChangePinnedCuts(pin=[_pinned(state, request.pin, now_ms)])
        else:
            change = pb.ChangePinnedCuts(confirm=[_confirmed(state, sessions, pin_id, request.retention_ms)])
    plan.operations.append(pb.Operation(change_pinned_cuts=change))
    return plan


def plan_expired_cuts(state: ClusterState, now_ms: int) -> Plan:
    """Ends the pins whose time is over."""
    expired = sorted(each.pin_id for each in state.pinned_cuts.values() if each.expires_at_ms <= now_ms)
    if not expired:
        return Plan()
    change = pb.ChangePinnedCuts(remove=expired)
    return Plan([pb.Operation(change_pinned_cuts=change)], "pins of cuts have expired")


def _pinned(state: ClusterState, wanted: pb.PinnedCutRecord, now_ms: int) -> pb.PinnedCutRecord:
    if wanted.name in state.pinned_cuts and state.pinned_cuts[wanted.name].pin_id != wanted.pin_id:
        raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"a cut is pinned as {wanted.name!r} already")
    if len(state.pinned_cuts) >= PINNED_CUTS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"a cluster has at most {PINNED_CUTS_MAX} pinned cuts: unpin one, or let one expire",
        )
    record = pb.PinnedCutRecord()
    record.CopyFrom(wanted)
    record.pinned_ms, record.expires_at_ms, record.is_confirmed = now_ms, now_ms + UNCONFIRMED_MS, False
    if record.ByteSize() > PINNED_CUT_BYTES_MAX:  # before each entry is looked at
        raise KafkaError(ErrorCode.POLICY_VIOLATION, too_large(record.ByteSize()))
    unconfirmed = {each.pin_id for each in state.pinned_cuts.values() if not each.is_confirmed}
    if len(unconfirmed - {wanted.pin_id}) >= UNCONFIRMED_MAX:
        raise KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"{UNCONFIRMED_MAX} cuts are being pinned at present: try again in a moment",
        )
    for each in wanted.topics:
        topic = state.topic_by_raw_id(each.topic_id)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"{each.name} is not the topic any more that the cut was taken of"
            )
        unknown = [one.partition for one in each.partitions if one.partition not in topic.partitions]
        if unknown:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {unknown[0]}"
            )
    try:
        decode_cut(wanted)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is no cut: {error}") from error
    return record


def _confirmed(
    state: ClusterState, sessions: BrokerSessions, pin_id: str, retention_ms: int
) -> pb.PinConfirmation:
    found = with_pin_id(state.pinned_cuts, pin_id)
    if found is None:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "the pin has gone before it was confirmed")
    if not found.is_confirmed:
        _require_kept(state, sessions, found)
    return pb.PinConfirmation(pin_id=pin_id, expires_at_ms=found.pinned_ms + retention_ms)


def nodes_to_confirm(state: ClusterState, cut: PinnedCut) -> set[int]:
    """Every broker that has a replica of what the cut names.  Raises UNKNOWN_TOPIC_ID."""
    found: set[int] = set()
    for topic in cut.topics:
        present = state.topic_by_id(topic.topic_id)
        if present is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic.name} was deleted meanwhile")
        for number in topic.partitions:
            found.update(present.partitions[number].replicas)
    return found


def leaderships(state: ClusterState, cut: PinnedCut) -> Leaderships:
    """Of what the cut names, in its order; of the topics that are not deleted."""
    named = ((state.topic_by_id(topic_id), number) for topic_id, number in cut.partitions())
    found = [topic.partitions[number] for topic, number in named if topic is not None]
    return (tuple(each.leader_epoch for each in found), *(each.replicas for each in found))


def _require_kept(state: ClusterState, sessions: BrokerSessions, cut: PinnedCut) -> None:
    """Raises OFFSET_OUT_OF_RANGE when a replica has lost something, REQUEST_TIMED_OUT while a report is
    missing that is new enough."""
    pins = [each.pin_id for each in state.pinned_cuts.values()]
    since = sessions.unchanged_since(cut.pin_id, leaderships(state, cut), state.index, pins)
    missing = []
    for node_id in sorted(nodes_to_confirm(state, cut)):
        session = sessions.by_id.get(node_id)
        lost = None if session is None else session.pins.get(cut.pin_id)
        if lost:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"broker {node_id}: {lost}")
        if session is None or lost is None or session.pins_index < since:
            missing.append(node_id)
    if missing:
        message = f"brokers {missing} have not reported that their replicas keep the cut {cut.name!r}"
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)
