"""The invariants of the simulated cluster, checked after every step of every process.

* One leader an epoch (`leaders`).
* A record is committed when a leader's high watermark has passed it; from then on it is in `committed`, for
  good: no leader is elected without it, no high watermark stands over another record, and every replica that
  may be elected without losing data (the ISR and the eligible leaders in the controller's state) durably has
  it, so that it survives a power cut of all nodes.
* At least `min.insync.replicas` nodes hold a record when it is committed.
* An acks=all acknowledgement is for a committed record.
* No record is accepted or acknowledged, for acks=all or acks=1, once the lease on leadership is over: a
  session after the last answered heartbeat was sent.  Nor once the controller has fenced the node for its
  silence, and let another lead: then at most a deposed controller may have kept the lease up, for
  `LEADER_FALLBACK_S`.
* Consumers are given committed records only.
* Records that an answered DeleteRecords removed do not return: no elected leader shows them, and every
  replica that may be elected without losing data has durably noted its log start.  No log starts above the
  offset of every DeleteRecords.
* After a reassignment at least min.insync.replicas of the remaining replicas have all committed records.
* A node that is out of room takes no records.
* The controller moves a leadership by choice only to a node that one of its followers has reached at its
  address; and at the end every leadership is with its preferred replica, where nodes ask for each other.
* The controller's state holds its own invariants (`ClusterState.violations`: the leader is in the ISR, ...).

An unclean election is a topic's choice to lose records.  It loses what its winner lacks (`_rebase`), once:
from its leader epoch on all of this holds again.  Records that the winner has not flushed may still be lost;
they count as lost by the same choice when another replica is elected before the flush
(`PartitionTruth.still_to_flush`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import NO_LEADER, ApplyResult, PartitionState, TopicState
from ....controller.state.validation import StateValidator
from ....replication.replica.replica import Replica
from ....storage.log.log import Log
from ....wire.records import iterate_headers
from ..runs import Broken
from .contents import Contents, Record, agree
from .names import Names
from .node import SimulatedNode
from .quorum import LEADER_FALLBACK_S

Key = tuple[UUID, int]


@dataclass(slots=True)
class PartitionTruth:
    """One partition of one topic (by its id: a topic created again is another one)."""

    name: str
    committed: list[Record] = field(default_factory=list)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)  # next offset, batch id
    deleted_below: int = 0  # the highest offset of an answered DeleteRecords
    gone_below: int = 0  # the highest offset of any DeleteRecords
    leaders: dict[int, int] = field(default_factory=dict)
    state: PartitionState | None = None
    flushed: bool = True
    min_insync_replicas: int = 1
    lossy_epoch: int = -1  # of the last unclean election
    awaits_lossy_leader: bool = False
    # former leaders: the epoch that began because they were silent
    silenced: dict[int, int] = field(default_factory=dict)
    still_to_flush: tuple[int, int] | None = None
    """Of the winner of the last unclean election: its flushed end, and the number of committed records. None:
    it has flushed all of them."""
    repeated: set[Record] = field(default_factory=set)
    _places: dict[Record, int] = field(default_factory=dict)

    @property
    def durable_length(self) -> int:
        """How many of the committed records every replica must have that may be elected without loss."""
        length = len(self.committed)
        return length if self.still_to_flush is None else min(length, self.still_to_flush[0])

    def commit(self, records: Sequence[Record]) -> None:
        """Appends these records. A record that was committed before is `repeated`, unless its first copy was
        deleted: a replica that is made after all records of a producer were deleted knows nothing of that
        producer, and takes its very first batch once more."""
        for offset, record in enumerate(records, len(self.committed)):
            before = self._places.get(record, offset)
            if self.gone_below <= before < len(self.committed) and self.committed[before] == record:
                self.repeated.add(record)
            self._places[record] = offset
        self.committed.extend(records)

    def counts(self, leader_epoch: int) -> bool:
        """Whether the committed records bind the leader of this epoch."""
        return not self.awaits_lossy_leader and leader_epoch >= self.lossy_epoch


class Truth:
    """See the module's text."""

    def __init__(
        self,
        nodes: Mapping[int, SimulatedNode],
        seen: Counter[str],
        names: Names | None = None,
    ) -> None:
        """`names`: how nodes find each other, where they ask before they are given leaderships by choice."""
        self.partitions: dict[Key, PartitionTruth] = {}
        self.fenced_at_s: dict[int, float] = {}
        self.contents = Contents()
        self.by_administrator = False  # an administrator makes the present commit, not a controller
        self._nodes = nodes
        self._names = names
        self._seen = seen
        self._validator = StateValidator()
        # node: its broker epoch when it lost its unflushed records, or its disk
        self._dirty: dict[int, int] = {}
        self._looked_at: dict[Key, dict[int, tuple[object, ...]]] = {}
        self._held: dict[tuple[Key, int], tuple[Log, int, int]] = {}

    # ---- what the controller decides -----------------------------------------------------------------------

    def on_commit(self, state: ClusterState, result: ApplyResult, now_s: float) -> None:
        for topic in result.deleted_topics:
            for number in topic.partitions:
                self.partitions.pop((topic.topic_id, number), None)
        silent: set[int] = set()
        for node_id in result.changed_brokers:
            broker = state.brokers[node_id]
            if broker.fenced and not broker.shutting_down:
                if node_id not in self.fenced_at_s:
                    self._check_fencing(node_id, now_s)
                    silent.add(node_id)
                self.fenced_at_s.setdefault(node_id, now_s)
            else:
                self.fenced_at_s.pop(node_id, None)
        try:
            self._validator.check(state, result)
        except AssertionError as error:
            raise Broken(str(error)) from error
        changed = set(result.changed_partitions)
        changed.update(
            (name, number) for name in result.changed_topics for number in state.topics[name].partitions
        )
        for name, number in sorted(changed):
            self._partition_changed(state, state.topics[name], number, silent)

    def _check_fencing(self, node_id: int, now_s: float) -> None:
        """A node is fenced for its silence only after its own lease has expired; a controller that was
        deposed may have extended the lease."""
        node = self._nodes[node_id]
        lease_s = node.lease_until_s - now_s
        if lease_s > 0 and now_s >= node.misled_until_s:
            raise Broken(f"node {node_id} is fenced {lease_s:.3f} s before its session is over")

    def _partition_changed(
        self, state: ClusterState, topic: TopicState, number: int, silent: Collection[int]
    ) -> None:
        truth = self.partitions.get((topic.topic_id, number))
        if truth is None:
            truth = self.partitions[topic.topic_id, number] = PartitionTruth(f"{topic.name}-{number}")
        old, new = truth.state, topic.partitions[number]
        truth.state = new
        truth.flushed = topic.flushed_before_acknowledged
        truth.min_insync_replicas = topic.min_in_sync_replicas(new.settled_replicas)
        if old is not None and not set(new.replicas).issuperset((*old.isr, *old.elr)):
            self._check_move(truth, new)
        if old is not None and new.leader != NO_LEADER and new.leader_epoch > old.leader_epoch:
            self._seen["elections"] += 1
            if old.leader in silent:
                truth.silenced[old.leader] = new.leader_epoch
            self._note_election(truth, old, new)
            self._check_choice(truth, state, old, new)
        for node_id, epoch in tuple(self._dirty.items()):
            broker = state.brokers.get(node_id)
            if broker is not None and broker.broker_epoch > epoch and self._in_sync_everywhere(node_id):
                del self._dirty[node_id]
        self.check_members(truth)

    def is_counted_on(self, node_id: int, cluster: ClusterState) -> bool:
        """Whether some partition may be led by this node's data alone, now or soon: until the node is fenced,
        the controller adds it to an ISR when a leader proposes it for its earlier fetches, or has proposed it
        and lost the answer."""
        broker = cluster.brokers.get(node_id)
        states = [truth.state for truth in self.partitions.values() if truth.state is not None]
        if not states or (broker is not None and broker.active):
            return True
        return any(node_id in (*state.isr, *state.elr, state.last_known_leader) for state in states)

    def _in_sync_everywhere(self, node_id: int) -> bool:
        states = [truth.state for truth in self.partitions.values() if truth.state is not None]
        return all(node_id in state.isr for state in states if node_id in state.replicas)

    def _check_move(self, truth: PartitionTruth, new: PartitionState) -> None:
        self._seen["replicas moved"] += 1
        length, where = truth.durable_length, new.replicas
        holders = [
            each
            for each in new.replicas
            if each in self._dirty or self._holds(self._nodes[each], truth, length)
        ]
        if len(holders) < truth.min_insync_replicas and not truth.awaits_lossy_leader:
            raise Broken(
                f"{truth.name}: a move has come to {where}, and only nodes {holders} hold {length} "
                "committed records"
            )

    def _check_choice(
        self, truth: PartitionTruth, state: ClusterState, old: PartitionState, new: PartitionState
    ) -> None:
        """The controller moved the leadership by choice: a follower must have reached the new leader at its
        present address."""
        former = state.brokers.get(old.leader)
        by_choice = (
            former is not None and former.active and old.leader in new.isr and old.leader != new.leader
        )
        if self._names is None or self.by_administrator or not by_choice:
            return
        self._seen["elections by choice"] += 1
        followers = [
            node_id for node_id in new.replicas if node_id != new.leader and state.brokers[node_id].active
        ]
        life = new.leader, state.brokers[new.leader].broker_epoch
        if not self._names.found(life) & set(followers):
            raise Broken(
                f"{truth.name}: node {new.leader} leads by choice, and none of its followers "
                f"{followers} has found it"
            )

    def _note_election(self, truth: PartitionTruth, old: PartitionState, new: PartitionState) -> None:
        known = (*old.isr, *old.elr)
        is_clean = new.leader in known or (not known and new.leader == old.last_known_leader)
        if is_clean and truth.still_to_flush is None:
            return
        self._seen["unclean elections"] += not is_clean
        truth.lossy_epoch, truth.awaits_lossy_leader, truth.still_to_flush = new.leader_epoch, True, None

    # ---- lost records --------------------------------------------------------------------------------------

    def node_lost_data(self, node_id: int, state: ClusterState) -> None:
        """Nothing that this node held counts, until it is in sync again."""
        broker = state.brokers.get(node_id)
        self._dirty[node_id] = -1 if broker is None else broker.broker_epoch

    def has_news_of_losses(self, state: ClusterState) -> bool:
        """Whether a node has lost its data and has not registered since: the controller still counts on
        it."""
        known = {
            node_id: state.brokers[node_id].broker_epoch
            for node_id in self._dirty
            if node_id in state.brokers
        }
        return any(known.get(node_id, -1) <= epoch for node_id, epoch in self._dirty.items())

    @property
    def dirty(self) -> frozenset[int]:
        return frozenset(self._dirty)

    # ---- what a step did -----------------------------------------------------------------------------------

    def look_at(self, node: SimulatedNode) -> None:
        """Everything of this node that changed since it was looked at last."""
        for replica in node.present_replicas():
            key = (replica.topic_id, replica.partition)
            truth = self.partitions.get(key)
            log = replica.log
            if truth is None or log.is_offline:
                continue
            try:
                replica.validate()
            except AssertionError as error:
                raise Broken(f"{truth.name}: node {node.node_id}: {error}") from error
            leader = replica.leader
            watermark = -1 if leader is None else leader.high_watermark
            starts = log.log_start_offset, log.noted_start_offset
            ends = log.high_watermark, log.log_end_offset, log.flushed_end_offset
            now = (log, leader, watermark, *ends, log.truncations, starts)
            looked_at = self._looked_at.setdefault(key, {})
            before = looked_at.get(node.node_id)
            if before == now:
                continue
            looked_at[node.node_id] = now
            held = log, log.truncations, log.log_end_offset
            known = self._held.get((key, node.node_id))
            if node.out_of_room and known is not None and known[:2] == held[:2] and known[2] < held[2]:
                raise Broken(f"{truth.name}: node {node.node_id} has taken records, and is out of room")
            self._held[key, node.node_id] = held
            self.contents.of(log)  # while it can be read: the power may go in the middle of the next change
            if log.log_start_offset > truth.gone_below:
                raise Broken(
                    f"{truth.name}: node {node.node_id} begins at {starts[0]}, and no client deleted so much"
                )
            if leader is not None:
                if before is None or before[1] is not leader:
                    self._on_leader(truth, node, replica)
                if before is None or before[1:3] != now[1:3]:
                    self._on_high_watermark(truth, node, replica)
                self._note_flushed(truth, replica)
            elif before is None or before[3] != now[3] or before[6] != now[6]:
                self._check_follower(truth, node, replica)

    def _on_leader(self, truth: PartitionTruth, node: SimulatedNode, replica: Replica) -> None:
        epoch = replica.leader_epoch
        other = truth.leaders.setdefault(epoch, node.node_id)
        if other != node.node_id:
            raise Broken(f"{truth.name}: nodes {other} and {node.node_id} both lead epoch {epoch}")
        if truth.awaits_lossy_leader and epoch >= truth.lossy_epoch:
            self._rebase(truth, replica)
        if truth.counts(epoch) and truth.state is not None and epoch == truth.state.leader_epoch:
            self._check_prefix(
                truth, replica, len(truth.committed), f"the new leader {node.node_id} of epoch {epoch}"
            )
            if replica.log.log_start_offset < truth.deleted_below:
                raise Broken(
                    f"{truth.name}: the new leader {node.node_id} of epoch {epoch} begins at "
                    f"{replica.log.log_start_offset},"
                    f" and records below {truth.deleted_below} were deleted"
                )

    def _rebase(self, truth: PartitionTruth, replica: Replica) -> None:
        held = self.contents.of(replica.log)
        kept = min(replica.log.log_start_offset, len(truth.committed))
        while kept < min(len(held), len(truth.committed)) and held[kept] == truth.committed[kept]:
            kept += 1
        self._seen["records lost by choice"] += len(truth.committed) - kept
        # The records below the winner's high watermark are committed again, whichever replicas had them.
        del truth.committed[kept:]
        truth.commit(held[kept : replica.require_leader().high_watermark])
        truth.acknowledged = [
            (next_offset, batch) for next_offset, batch in truth.acknowledged if next_offset <= kept
        ]
        truth.deleted_below = min(truth.deleted_below, replica.log.noted_start_offset)
        truth.awaits_lossy_leader = False
        flushed_end = replica.log.flushed_end_offset
        if truth.flushed and flushed_end < len(truth.committed):
            truth.still_to_flush = flushed_end, len(truth.committed)

    def _note_flushed(self, truth: PartitionTruth, replica: Replica) -> None:
        owed = truth.still_to_flush
        if (
            owed is not None
            and replica.leader_epoch == truth.lossy_epoch
            and replica.log.flushed_end_offset >= owed[1]
        ):
            truth.still_to_flush = None
            self.check_members(truth)

    def _on_high_watermark(self, truth: PartitionTruth, node: SimulatedNode, replica: Replica) -> None:
        leader = replica.require_leader()
        if not truth.counts(replica.leader_epoch):
            return
        new, old = leader.high_watermark, len(truth.committed)
        subject = f"leader {node.node_id} of epoch {leader.leader_epoch}"
        self._check_prefix(truth, replica, min(old, new), subject)
        if new <= old:
            return
        truth.commit(self.contents.of(replica.log)[old:new])
        # A node without its data may have vouched for it while it still had it: it counts among the losses
        # that are provided for.
        holders = [
            each
            for each, other in self._nodes.items()
            if each in self._dirty or self._holds(other, truth, new)
        ]
        if len(holders) < min(leader.min_insync_replicas, truth.min_insync_replicas):
            raise Broken(f"{truth.name}: {subject} committed up to {new}, but only nodes {holders} hold that")
        self.check_members(truth)

    def _check_follower(self, truth: PartitionTruth, node: SimulatedNode, replica: Replica) -> None:
        log = replica.log
        if truth.counts(replica.leader_epoch) and (
            truth.lossy_epoch < 0 or log.latest_epoch >= truth.lossy_epoch
        ):
            self._check_prefix(truth, replica, log.high_watermark, f"node {node.node_id}")

    def _check_prefix(self, truth: PartitionTruth, replica: Replica, length: int, subject: str) -> None:
        if length > len(truth.committed):
            raise Broken(
                f"{truth.name}: {subject} has high watermark {length}, only {len(truth.committed)} "
                "records are committed"
            )
        held = self.contents.of(replica.log)
        if len(held) < length:
            raise Broken(f"{truth.name}: {subject} ends at {len(held)}, but {length} records are committed")
        if not agree(held, truth.committed, length, truth.gone_below, replica.log.log_start_offset):
            raise Broken(f"{truth.name}: {subject} differs from what was committed")

    # ---- the records of replicas ---------------------------------------------------------------------------

    def check_members(self, truth: PartitionTruth) -> None:
        """Every replica that may be elected without loss has all committed records."""
        state = truth.state
        if state is None or truth.awaits_lossy_leader:
            return
        for node_id in (*state.isr, *state.elr):
            if node_id not in self._dirty and not self._holds(
                self._nodes[node_id], truth, truth.durable_length
            ):
                kind = "ISR" if node_id in state.isr else "ELR"
                raise Broken(
                    f"{truth.name}: node {node_id} is in the {kind} "
                    f"{state.isr if kind == 'ISR' else state.elr}"
                    f" and does not hold all {truth.durable_length} committed records"
                )
            kept_start = self.contents.kept_start(self._nodes[node_id], self._key(truth))
            if node_id not in self._dirty and kept_start < truth.deleted_below:
                raise Broken(
                    f"{truth.name}: node {node_id} may lead, and would show records below "
                    f"{truth.deleted_below} again"
                )

    def _holds(self, node: SimulatedNode, truth: PartitionTruth, length: int) -> bool:
        """Whether the node would still have the first `length` committed records after the power went."""
        key = self._key(truth)
        held = self.contents.kept_by(node, key, truth.flushed)
        if held is None:
            return length == 0
        return agree(held, truth.committed, length, truth.gone_below, self.contents.kept_start(node, key))

    def _key(self, truth: PartitionTruth) -> Key:
        return next(key for key, each in self.partitions.items() if each is truth)

    # ---- answers to clients --------------------------------------------------------------------------------

    def appended(self, node: SimulatedNode, replica: Replica, now_s: float) -> None:
        self._seen["appended"] += 1
        self._check_lease(node, replica, now_s, "accepted a record")

    def acknowledged(
        self, node: SimulatedNode, replica: Replica, next_offset: int, batch_id: int, now_s: float
    ) -> None:
        self._check_lease(node, replica, now_s, "acknowledged a record")
        truth = self.partitions.get((replica.topic_id, replica.partition))
        if truth is None or not truth.counts(replica.leader_epoch):
            return
        self._seen["acknowledged"] += 1
        truth.acknowledged.append((next_offset, batch_id))
        self.check_acknowledged(truth, next_offset, batch_id)

    def _check_lease(self, node: SimulatedNode, replica: Replica, now_s: float, what: str) -> None:
        subject = f"{replica.topic}-{replica.partition}: node {node.node_id}"
        if now_s > node.lease_until_s:
            raise Broken(f"{subject} {what} {now_s - node.lease_until_s:.3f} s after its session ended")
        fenced_at_s = self.fenced_at_s.get(node.node_id, now_s)
        if now_s > fenced_at_s + LEADER_FALLBACK_S:
            raise Broken(f"{subject} {what} {now_s - fenced_at_s:.3f} s after its fencing")
        truth = self.partitions.get((replica.topic_id, replica.partition))
        successor = -1 if truth is None else truth.silenced.get(node.node_id, -1)
        if replica.leader_epoch < successor and now_s >= node.misled_until_s:
            raise Broken(
                f"{subject} {what} in epoch {replica.leader_epoch}, and had been silent until epoch "
                f"{successor} began"
            )

    def check_acknowledged(self, truth: PartitionTruth, next_offset: int, batch_id: int) -> None:
        if len(truth.committed) < next_offset or truth.committed[next_offset - 1][0] != batch_id:
            raise Broken(
                f"{truth.name}: batch {batch_id}, acknowledged up to {next_offset}, is not what is "
                "committed there"
            )

    def deletion_asked(self, replica: Replica, before_offset: int) -> None:
        truth = self.partitions.get((replica.topic_id, replica.partition))
        if truth is not None and replica.leader is not None and before_offset <= replica.high_watermark:
            truth.gone_below = max(truth.gone_below, before_offset)

    def deleted(self, node: SimulatedNode, replica: Replica, low: int) -> None:
        """A DeleteRecords was answered: `low` is the least log start of the in-sync replicas."""
        truth = self.partitions.get((replica.topic_id, replica.partition))
        if truth is None or not truth.counts(replica.leader_epoch):
            return
        self._seen["deleted"] += 1
        truth.deleted_below = max(truth.deleted_below, low)
        self.check_members(truth)

    def deleted_below(self, key: Key) -> int:
        """From now on the present leader must not send records below this offset."""
        truth = self.partitions.get(key)
        return 0 if truth is None else truth.deleted_below

    def consumed(
        self, key: Key, leader_epoch: int, offset: int, records: bytes | memoryview, deleted_below: int
    ) -> list[Record] | None:
        """The records of an answer, from `offset` on; None when its topic or epoch cannot be judged.
        `deleted_below`: the value at the time of the request."""
        truth = self.partitions.get(key)
        if truth is None or not truth.counts(leader_epoch):
            return None
        if offset < deleted_below and truth.state is not None and leader_epoch == truth.state.leader_epoch:
            raise Broken(
                f"{truth.name}: a consumer was given records at {offset}, and those below "
                f"{deleted_below} were deleted"
            )
        found: list[Record] = []
        for _, header in iterate_headers(records):
            first = max(0, offset - header.base_offset)
            found.extend(
                (header.base_timestamp, place) for place in range(first, header.last_offset_delta + 1)
            )
        if not agree(
            truth.committed[offset : offset + len(found)],
            found,
            len(found),
            max(0, truth.gone_below - offset),
        ):
            raise Broken(f"{truth.name}: a consumer was given records at {offset} that are not committed")
        return found

    # ---- at the end ----------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What keeps the cluster from being whole again: "" when nothing does."""
        if not self.partitions:
            return "there is no topic"
        for (topic_id, number), truth in self.partitions.items():
            state = truth.state
            assert state is not None
            if state.target:
                return f"{truth.name} is on its way from {state.settled_replicas} to {state.target}"
            kept = [
                each
                for each in self._nodes.values()
                if self.contents.log_of(each, (topic_id, number)) is not None
            ]
            if left_over := [each.node_id for each in kept if each.node_id not in state.replicas]:
                return f"{truth.name}: nodes {left_over} have it still, the replicas are {state.replicas}"
            if self._names is not None and state.leader != state.preferred_leader:
                return f"{truth.name} is led by {state.leader}, and not by {state.preferred_leader} again"
            if set(state.isr) != set(state.replicas):
                return f"{truth.name} has ISR {state.isr} of {state.replicas}, leader {state.leader}"
            leading = (
                self.contents.log_of(self._nodes[state.leader], (topic_id, number))
                if state.leader in self._nodes
                else None
            )
            for node_id in state.replicas:
                log = self.contents.log_of(self._nodes[node_id], (topic_id, number))
                if (
                    log is not None
                    and leading is not None
                    and log.noted_start_offset < leading.log_start_offset
                ):
                    return (
                        f"{truth.name}: node {node_id} has noted {log.noted_start_offset}, not "
                        f"{leading.log_start_offset}"
                    )
                if (
                    log is None
                    or log.log_end_offset != len(truth.committed)
                    or log.high_watermark != len(truth.committed)
                ):
                    return (
                        f"{truth.name}: node {node_id} has {log and dict(log.describe())} of "
                        f"{len(truth.committed)} committed"
                    )
        return ""

    def check_all(self, once: Iterable[int]) -> None:
        """After healing: equal logs, every acknowledged record in its place, every record of an idempotent
        producer once."""
        expected_once = frozenset(once)
        for (topic_id, number), truth in self.partitions.items():
            assert truth.state is not None
            for node_id in truth.state.replicas:
                log = self.contents.log_of(self._nodes[node_id], (topic_id, number))
                length = len(truth.committed)
                if (
                    log is None
                    or len(held := self.contents.of(log)) != length
                    or not agree(held, truth.committed, length, truth.gone_below, log.log_start_offset)
                ):
                    raise Broken(
                        f"{truth.name}: node {node_id} differs from what is committed, after healing"
                    )
            for next_offset, batch_id in truth.acknowledged:
                self.check_acknowledged(truth, next_offset, batch_id)
            times = Counter(truth.committed)
            twice = sorted(
                record for record in truth.repeated if times[record] > 1 and record[0] in expected_once
            )
            if twice:
                raise Broken(f"{truth.name}: {twice[0]} of an idempotent producer is committed twice")
