"""Elections that an operator asks for (ElectLeaders): preferred leaders, and unclean ones where the topic
allows them.

A function of the state and the request, by the election rules of `elections.py`: a request elects no replica
that could not be elected without it.  So an unclean election needs `unclean.leader.election.enable` on the
topic: the decision to lose records is visible in its settings.  A state topic has no such setting
(docs/semantics.md M16), and one exception, which loses no record that another replica may have: an operator
who has repaired the files of the only replica may ask for an election of this partition.

A request that was applied before elects no leader: a late unclean election would lose newer records.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....proto import controller_pb2 as rpc
from ....wire.errors import ErrorCode
from ...state.cluster_state import ClusterState
from ...state.model import NO_LEADER, UNCLEAN_ELECTION_CONFIG, PartitionState, TopicState
from ..brokers.reachability import Reached
from .elections import Wanted, able, elect, preferred_leader
from .partition_plan import PartitionKey, PartitionPlan

LOST = (
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    "the partition changed while the leader was elected: ask again",
)


def plan_elections(
    state: ClusterState,
    request: rpc.ElectLeadersRequest,
    *,
    applied_before: bool = False,
    reached: Reached | None = None,
) -> PartitionPlan:
    """One result a partition; with `every_partition` only for those where something was to be done."""
    elections = PartitionPlan("elections that were asked for", _is_elected, LOST)
    present = state.active_node_ids()
    for name, number in dict.fromkeys(_asked(state, request)):
        topic = state.topics.get(name)
        partition = None if topic is None else topic.partitions.get(number)
        if topic is None or partition is None:
            message = f"No such topic as {name}" if topic is None else f"No such partition as {name}-{number}"
            elections.results.append(_result(name, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
            continue
        serving = able(state, topic, number, present)
        if request.unclean:
            outcome = _unclean(topic, number, partition, serving, is_named=not request.every_partition)
        else:
            outcome = _preferred(topic, number, partition, serving, reached)
        if applied_before:
            outcome = _done_before(outcome)
        if isinstance(outcome, Wanted):
            elections.wanted[name, number] = outcome
            elections.results.append(_result(name, number))
        elif not (request.every_partition and outcome[0] is ErrorCode.ELECTION_NOT_NEEDED):
            elections.results.append(_result(name, number, *outcome))
    as_asked = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    if not applied_before and (
        request.every_partition or any(result.error in as_asked for result in elections.results)
    ):
        elections.request_id = request.request_id
    return elections


def _is_elected(partition: PartitionState, wanted: Wanted) -> bool:
    return partition.leader == wanted.leader


def _done_before(outcome: Wanted | tuple[ErrorCode, str]) -> tuple[ErrorCode, str]:
    """The answer for a partition whose election was applied before; `outcome`: the result that it would have
    now."""
    if isinstance(outcome, Wanted):
        message = (
            "this request was carried out before, and elects no leader again: send a new request if the "
            "election is still wanted"
        )
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    return (ErrorCode.NONE, "") if outcome[0] is ErrorCode.ELECTION_NOT_NEEDED else outcome


def _asked(state: ClusterState, request: rpc.ElectLeadersRequest) -> Iterable[PartitionKey]:
    if request.every_partition:
        return [(topic.name, number) for topic in state.topics.values() for number in topic.partitions]
    return [(wanted.topic, wanted.partition) for wanted in request.partitions]


def _preferred(
    topic: TopicState, number: int, partition: PartitionState, present: set[int], reached: Reached | None
) -> Wanted | tuple[ErrorCode, str]:
    if partition.leader == partition.preferred_leader:
        return ErrorCode.ELECTION_NOT_NEEDED, "the preferred replica leads already"
    wanted = preferred_leader(topic, number, partition, present, reached)
    if wanted is None:
        message = (
            f"the preferred replica {partition.preferred_leader} is absent, not in sync, or not reached "
            "by the others"
        )
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message
    return wanted


def _unclean(
    topic: TopicState, number: int, partition: PartitionState, present: set[int], *, is_named: bool
) -> Wanted | tuple[ErrorCode, str]:
    if partition.leader != NO_LEADER:
        return ErrorCode.ELECTION_NOT_NEEDED, f"node {partition.leader} leads"
    wanted = elect(topic, number, partition, present)
    if wanted is not None and wanted.leader != NO_LEADER:
        return wanted
    if topic.unclean_election_allowed:
        return (
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"none of the replicas {list(partition.replicas)} is present",
        )
    if topic.internal:
        return _mended(topic, number, partition, present, is_named=is_named)
    reason = f"set {UNCLEAN_ELECTION_CONFIG}=true on the topic first"
    message = (
        "no replica that is present holds every committed record; to lose records by an unclean "
        f"election: {reason}"
    )
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message


def _mended(
    topic: TopicState, number: int, partition: PartitionState, present: set[int], *, is_named: bool
) -> Wanted | tuple[ErrorCode, str]:
    """Elects the only replica of a state topic's partition at the operator's word; see the module
    docstring."""
    serving = [node for node in partition.replicas if node in present]
    counted_on = sorted({*partition.isr, *partition.elr, partition.last_known_leader} - {NO_LEADER})
    if counted_on:
        reason = f"start the nodes {counted_on}, which have its records"
    elif not is_named:
        reason = "name this partition alone, after its files were mended"
    elif len(partition.replicas) != 1:
        reason = (
            f"of its replicas {list(partition.replicas)}, any may have records that the others have not: "
            "mend their files"
        )
    elif not serving:
        reason = f"node {partition.replicas[0]} is absent"
    else:
        return Wanted(topic, number, partition, serving[0], (serving[0],), (), serving[0], unclean=True)
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"never by itself on a state topic: {reason}"


def _result(
    topic: str, partition: int, code: ErrorCode = ErrorCode.NONE, message: str = ""
) -> rpc.PartitionResult:
    return rpc.PartitionResult(topic=topic, partition=partition, error=int(code), message=message)
