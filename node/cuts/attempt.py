"""One attempt to take a transaction-consistent cut: what it asks, and what follows from the answers.  Pure
(docs/cuts.md; docs/semantics.md, chapter K).

Order, each step after all answers to the one before:

    begin       the metadata, as this node has them: who leads what
    holds       every shard of __transaction_state decides no commit any more, and says which it has decided
    bounds      every leader of a partition says where it ends, and which transactions are open there
    releases    every shard decides again, and says whether it was held all the time
    finish      the metadata, as the quorum has them now: every partition has had the same leader all the time

Any answer that does not fit raises `GivenUp`: the caller releases what it has asked to hold, and begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from ...proto import cuts_pb2 as pb
from ...wire.errors import ErrorCode

TopicPartition = tuple[str, int]


class Reason(Enum):
    """Why an attempt is given up: labels of a metric."""

    SHARD = "shard"  # a coordinator did not answer, or refused
    LEADER = "leader"  # the leader of a partition did not answer, or refused
    HOLD = "hold"  # a shard was not held until the end
    METADATA = "metadata"  # leaders or partitions have changed


class GivenUp(Exception):
    """`code` of the answer that the attempt has failed by."""

    def __init__(self, reason: Reason, message: str, code: ErrorCode = ErrorCode.NONE) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code


@dataclass(slots=True, frozen=True)
class Leadership:
    """leader -1: none."""

    leader: int
    leader_epoch: int


@dataclass(slots=True, frozen=True)
class TopicView:
    """A topic in the metadata."""

    topic_id: UUID
    partitions: Mapping[int, Leadership]


@dataclass(slots=True, frozen=True)
class View:
    """state: __transaction_state, where it exists.  topics: those of the cut that exist."""

    state: TopicView | None
    topics: Mapping[str, TopicView]


class CutAttempt:
    """See the module's text."""

    def __init__(self, hold_id: str, hold_ms: int, view: View) -> None:
        self.hold_id = hold_id
        self._hold_ms = hold_ms
        self._view = view
        self._shards = {} if view.state is None else view.state.partitions
        self._held: dict[int, pb.HeldShard] = {}
        self._asked: set[int] = set()
        self._bounds: dict[TopicPartition, pb.PartitionBounds] = {}
        self._released: set[int] = set()
        for partition, place in self._shards.items():
            if place.leader < 0:
                raise GivenUp(Reason.SHARD, f"partition {partition} of __transaction_state has no leader")
        for name, topic in view.topics.items():
            for partition, place in topic.partitions.items():
                if place.leader < 0:
                    code = ErrorCode.LEADER_NOT_AVAILABLE
                    raise GivenUp(Reason.LEADER, f"{name}-{partition} has no leader", code)

    # --- holds ----------------------------------------------------------------------------------------------

    def holds(self) -> dict[int, pb.HoldDecisionsRequest]:
        """By the node that is asked."""
        found: dict[int, pb.HoldDecisionsRequest] = {}
        for partition, place in self._shards.items():
            request = found.setdefault(
                place.leader, pb.HoldDecisionsRequest(hold_id=self.hold_id, hold_ms=self._hold_ms)
            )
            request.shards.add(partition=partition, leader_epoch=place.leader_epoch)
        self._asked = set(self._shards)
        return found

    def held(self, reply: pb.HoldDecisionsReply) -> None:
        for shard in reply.shards:
            if shard.error_code:
                message = f"partition {shard.partition} of __transaction_state: {shard.error_message}"
                raise GivenUp(Reason.SHARD, message, ErrorCode.from_wire(shard.error_code))
            self._held[shard.partition] = shard

    # --- bounds ---------------------------------------------------------------------------------------------

    def bounds(self, timeout_ms: int) -> dict[int, pb.BoundsRequest]:
        """By the node that is asked; when every shard is held."""
        missing = self._shards.keys() - self._held.keys()
        if missing:
            raise GivenUp(Reason.SHARD, f"partitions {sorted(missing)} of __transaction_state did not answer")
        found: dict[int, pb.BoundsRequest] = {}
        for name, topic in self._view.topics.items():
            of_node: dict[int, pb.TopicBoundsRequest] = {}
            for partition, place in topic.partitions.items():
                if place.leader not in of_node:
                    request = found.setdefault(place.leader, pb.BoundsRequest(timeout_ms=timeout_ms))
                    of_node[place.leader] = request.topics.add(topic=name, topic_id=topic.topic_id.bytes)
                of_node[place.leader].partitions.add(partition=partition, leader_epoch=place.leader_epoch)
        return found

    def bounded(self, request: pb.BoundsRequest, reply: pb.BoundsReply) -> None:
        asked = [(topic.topic, each.partition) for topic in request.topics for each in topic.partitions]
        for (name, partition), bounds in zip(asked, reply.partitions, strict=False):
            if bounds.error_code:
                message = f"{name}-{partition}: {bounds.error_message}"
                raise GivenUp(Reason.LEADER, message, ErrorCode.from_wire(bounds.error_code))
            self._bounds[name, partition] = bounds

    # --- release --------------------------------------------------------------------------------------------

    def releases(self) -> dict[int, pb.ReleaseDecisionsRequest]:
        """By the node that is asked, of all shards that may be held; also of an attempt that is given up."""
        found: dict[int, pb.ReleaseDecisionsRequest] = {}
        for partition in sorted(self._asked):
            place = self._shards[partition]
            request = found.setdefault(place.leader, pb.ReleaseDecisionsRequest(hold_id=self.hold_id))
            held = self._held.get(partition)
            request.shards.add(
                partition=partition,
                leader_epoch=place.leader_epoch,
                until_ms=-1 if held is None else held.until_ms,
            )
        return found

    def released(self, reply: pb.ReleaseDecisionsReply) -> None:
        self._released |= {shard.partition for shard in reply.shards if shard.has_held}

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, cut_id: str, taken_ms: int, now: View) -> pb.Cut:
        """`now`: by a linearizable read that began after all answers."""
        self._require_all_bounds()
        self._require_held()
        self._require_same_coordinators(now)
        for name, topic in self._view.topics.items():
            self._require_same_partitions(name, topic, now.topics.get(name))
            self._require_same_leaders(name, topic, now.topics.get(name))
        decided = {each for shard in self._held.values() for each in shard.decided_producer_ids}
        cut = pb.Cut(cut_id=cut_id, taken_ms=taken_ms)
        for name, topic in self._view.topics.items():
            of_topic = cut.topics.add(name=name, topic_id=topic.topic_id.bytes)
            for partition in sorted(topic.partitions):
                bounds = self._bounds[name, partition]
                of_topic.partitions.add(
                    partition=partition,
                    start=bounds.log_start_offset,
                    end=bounds.high_watermark,
                    undecided=_outside(bounds, decided),
                )
        return cut

    def _require_all_bounds(self) -> None:
        asked = {(name, index) for name, topic in self._view.topics.items() for index in topic.partitions}
        if missing := sorted(asked - self._bounds.keys()):
            raise GivenUp(Reason.LEADER, f"the leader of {_named(missing)} did not answer")

    def _require_held(self) -> None:
        if broken := sorted(self._shards.keys() - self._released):
            raise GivenUp(Reason.HOLD, f"partitions {broken} of __transaction_state were not held to the end")

    def _require_same_coordinators(self, now: View) -> None:
        before = self._view.state
        if (before is None) != (now.state is None):
            raise GivenUp(Reason.METADATA, "__transaction_state was created meanwhile")
        if before is None or now.state is None:
            return
        after = now.state.partitions
        if before.topic_id != now.state.topic_id or before.partitions.keys() != after.keys():
            raise GivenUp(Reason.METADATA, "__transaction_state has changed meanwhile")
        for partition, held in self._held.items():
            if (
                not held.leader_epoch
                == before.partitions[partition].leader_epoch
                == after[partition].leader_epoch
            ):
                raise GivenUp(
                    Reason.METADATA, f"partition {partition} of __transaction_state has another leader now"
                )

    @staticmethod
    def _require_same_partitions(name: str, before: TopicView, after: TopicView | None) -> None:
        if after is None or after.topic_id != before.topic_id:
            raise GivenUp(Reason.METADATA, f"topic {name} was deleted meanwhile")
        if after.partitions.keys() != before.partitions.keys():
            raise GivenUp(Reason.METADATA, f"topic {name} has got more partitions meanwhile")

    def _require_same_leaders(self, name: str, before: TopicView, after: TopicView | None) -> None:
        for partition in before.partitions:
            epoch = self._bounds[name, partition].leader_epoch
            found = None if after is None else after.partitions.get(partition)
            if found is None or found.leader_epoch != epoch:
                raise GivenUp(Reason.METADATA, f"{name}-{partition} has another leader now")


def _outside(bounds: pb.PartitionBounds, decided: set[int]) -> Sequence[pb.UndecidedTransaction]:
    """An aborting transaction is outside, whatever was decided of its producer since."""
    found = [each for each in bounds.open if each.producer_id not in decided]
    return sorted([*found, *bounds.aborting], key=lambda each: each.first_offset)


def _named(partitions: Sequence[TopicPartition]) -> str:
    few = ", ".join(f"{name}-{index}" for name, index in partitions[:3])
    return few if len(partitions) <= 3 else f"{few} and {len(partitions) - 3} more"
