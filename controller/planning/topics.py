"""Plans topics: creation, deletion, more partitions, configuration.

Functions of the state and the request.  An error of one topic is that topic's answer and does not affect the
other topics.

Repeating a request changes nothing: half of a topic's id is derived from the request's id, so a retry
recognises the topic that its first attempt made; the other half is new each time, so that a retry that comes
after a deletion makes another topic, and not the deleted one again, whose records a replica that was away may
still have.  The other requests travel under their id and are applied once (`proposers.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...storage.topic_config import parsed_topic_config
from ...wire.errors import ErrorCode, KafkaError
from ..raft.voter import COMMAND_BYTES_MAX
from ..state.cluster_state import ClusterState
from ..state.features import require_setting_levels
from ..state.model import ALL_NODES, INTERNAL_TOPICS, PartitionState, TopicState, topic_name_problem
from ..state.topic_defaults import controllers_defaults, inherited
from .partitions.elections import Wanted, change_operations
from .partitions.placement import Load, check_assignments, place
from .planner import ControllerConfig
from .settings.topic_settings import (
    check_may_be_flushed,
    check_state_topic,
    check_stays_compacted,
    future_config,
)

SLICE_TOPICS_MAX = 200
SLICE_PARTITIONS_MAX = 1000
"""The size of one slice of CreateTopics, some 30 ms of planning; its last topic may exceed it."""
_NAMESPACE = UUID("6f9c4d0e-5a0b-4c0f-9a57-74696465672e")


@dataclass(slots=True)
class TopicPlan:
    """One topic's answer and its operation (None: an error, nothing to do, or only validation), with the
    operations that follow it in the same command."""

    result: rpc.TopicResult
    operation: pb.Operation | None = None
    following: list[pb.Operation] = field(default_factory=list)

    @property
    def operations(self) -> list[pb.Operation]:
        return [] if self.operation is None else [self.operation, *self.following]

    def refuse(self, error: ErrorCode, message: str) -> None:
        self.operation = None
        self.result.ClearField("topic_id")
        self.result.error, self.result.message = int(error), message


@dataclass(slots=True)
class TopicPlans:
    """The plans of a request, or of one slice of it."""

    topics: list[TopicPlan] = field(default_factory=list)
    partitions: int = 0  # that are made
    reason: str = ""
    request_id: rpc.RequestId = field(default_factory=rpc.RequestId)
    recorded: bool = False  # the log records the request even if it changes nothing (`plan.Plan`)

    @property
    def changing(self) -> list[TopicPlan]:
        return [plan for plan in self.topics if plan.operation is not None]

    @property
    def operations(self) -> list[pb.Operation]:
        return [operation for plan in self.topics for operation in plan.operations]

    @property
    def results(self) -> list[rpc.TopicResult]:
        return [plan.result for plan in self.topics]

    def commands(self, controller_epoch: int) -> list[pb.Command]:
        """All operations as one command under the request's id: applied once, however often the client sends
        it, and never after an answer that nothing is to be done.  Raises INVALID_REQUEST."""
        command = _command(controller_epoch, self.topics, self.request_id)
        if command.ByteSize() > COMMAND_BYTES_MAX:
            message = "the request is too large for one metadata command: split it"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        named = bool(self.request_id.client_id) and self.recorded
        return [command] if command.operations or named else []

    def commands_one_a_topic(self, controller_epoch: int) -> list[pb.Command]:
        """One for each of `changing`; refuses a topic that is too large for a command."""
        commands = []
        for plan in self.changing:
            command = _command(controller_epoch, [plan])
            size = command.ByteSize()
            if size <= COMMAND_BYTES_MAX:
                commands.append(command)
                continue
            message = (
                f"the topic's description has {size} bytes, at most {COMMAND_BYTES_MAX} can be: add "
                "partitions in steps"
            )
            plan.refuse(ErrorCode.INVALID_REQUEST, message)
        return commands


def _command(
    controller_epoch: int, plans: Sequence[TopicPlan], request_id: rpc.RequestId | None = None
) -> pb.Command:
    """One that would be too large goes without the operations that follow, which are optional."""
    command = pb.Command(controller_epoch=controller_epoch)
    if request_id is not None:
        command.proposer, command.sequence = request_id.client_id, request_id.sequence
    command.operations.extend(operation for plan in plans for operation in plan.operations)
    if command.ByteSize() > COMMAND_BYTES_MAX:
        del command.operations[:]
        command.operations.extend(plan.operation for plan in plans if plan.operation is not None)
    return command


def _refusal(name: str, error: KafkaError, raw_id: bytes = b"") -> TopicPlan:
    return TopicPlan(
        rpc.TopicResult(name=name, topic_id=raw_id, error=int(error.code), message=error.message)
    )


def _success(topic: TopicState, partitions: int | None = None) -> rpc.TopicResult:
    factor = len(topic.partitions[0].future_replicas) if topic.partitions else 0
    count = len(topic.partitions) if partitions is None else partitions
    return rpc.TopicResult(
        name=topic.name, topic_id=topic.topic_id.bytes, partitions=count, replication_factor=factor
    )


def new_topic_id(request_id: rpc.RequestId, name: str, fresh: UUID) -> UUID:
    """An id for the topic that this request makes; `fresh` is used nowhere else."""
    return UUID(bytes=_mark_of(request_id, name) + fresh.bytes[8:])


def was_made_by(request_id: rpc.RequestId, topic: TopicState) -> bool:
    """Whether this request has made the topic, in an attempt whose answer was lost."""
    return bool(request_id.client_id) and topic.topic_id.bytes[:8] == _mark_of(request_id, topic.name)


def _mark_of(request_id: rpc.RequestId, name: str) -> bytes:
    return uuid5(_NAMESPACE, f"{request_id.client_id}/{request_id.sequence}/{name}").bytes[:8]


# ---- create ------------------------------------------------------------------------------------------------


def plan_creation(
    state: ClusterState,
    config: ControllerConfig,
    request: rpc.CreateTopicsRequest,
    fresh_id: Callable[[], UUID],
    done: TopicPlans | None = None,
) -> TopicPlans:
    """The next slice of the request, after what is `done` of it.  `fresh_id` gives an id that was never used.

    Partition assignments are made here, over the brokers that are registered, and travel in the command.
    """
    done = done or TopicPlans()
    plans, load = TopicPlans(), Load.of(state.topics.values())
    names = Counter(topic.name for topic in request.topics)
    taken = {_metric_name(name): name for name in state.topics}
    for topic in request.topics[len(done.topics) :]:
        if len(plans.topics) >= SLICE_TOPICS_MAX or plans.partitions >= SLICE_PARTITIONS_MAX:
            break
        try:
            _refuse_repetition(names, topic.name)
            count = max(
                config.default_partitions if topic.partitions == -1 else topic.partitions,
                len(topic.assignments),
            )
            if count <= config.partitions_per_request_max:  # or else it is refused for itself
                _check_total(config, done.partitions + plans.partitions + count)
            plan = _plan_topic(state, config, request, topic, fresh_id(), load, taken)
            plans.partitions += count
            plans.topics.append(plan)
            taken[_metric_name(topic.name)] = topic.name
        except KafkaError as error:
            plans.topics.append(_refusal(topic.name, error))
    return plans


def _plan_topic(
    state: ClusterState,
    config: ControllerConfig,
    request: rpc.CreateTopicsRequest,
    wanted: rpc.NewTopic,
    fresh_id: UUID,
    load: Load,
    taken: Mapping[str, str],
) -> TopicPlan:
    _check_name(wanted.name, request.allow_internal)
    topic_id = new_topic_id(request.request_id, wanted.name, fresh_id)
    existing = state.topics.get(wanted.name)
    if existing is not None:
        if was_made_by(request.request_id, existing):
            return TopicPlan(_success(existing))
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
    other = taken.get(_metric_name(wanted.name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{wanted.name}' collides with existing topic: {other}"
        )
    topic_config = parsed_topic_config(wanted.config)
    require_setting_levels(state.features, topic_config)
    if wanted.name in INTERNAL_TOPICS:
        check_state_topic(wanted.name, topic_config)
    partitions = _new_partitions(state, config, wanted, load)
    factor = len(partitions[0].replicas)
    result = rpc.TopicResult(
        name=wanted.name, topic_id=topic_id.bytes, partitions=len(partitions), replication_factor=factor
    )
    if request.validate_only:
        return TopicPlan(result)
    entries = [pb.ConfigEntry(key=key, value=topic_config[key]) for key in sorted(topic_config)]
    creation = pb.CreateTopic(
        topic_id=topic_id.bytes, name=wanted.name, config=entries, partitions=partitions
    )
    defaults = {} if wanted.name in INTERNAL_TOPICS else controllers_defaults(state.node_configs)
    topic = TopicState(wanted.name, topic_id, topic_config, defaults=defaults)
    return TopicPlan(
        result, pb.Operation(create_topic=creation), eligible_from_the_start(topic, enumerate(partitions))
    )


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _refuse_repetition(names: Counter[str], name: str) -> None:
    if names[name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name!r} is in this request more than once")


def _check_name(name: str, allow_internal: bool) -> None:
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in INTERNAL_TOPICS and not allow_internal:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} is made by the brokers when they need it"
        )


def _new_partitions(
    state: ClusterState, config: ControllerConfig, wanted: rpc.NewTopic, load: Load
) -> list[pb.NewPartition]:
    if wanted.assignments:
        if wanted.partitions not in (-1, 0) or wanted.replication_factor not in (-1, 0):
            message = "give either assignments or counts (-1 for both counts when the replicas are assigned)"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        assignments = check_assignments([list(a.replicas) for a in wanted.assignments], state.brokers)
    else:
        count = config.default_partitions if wanted.partitions == -1 else wanted.partitions
        factor = (
            config.default_replication_factor
            if wanted.replication_factor == -1
            else wanted.replication_factor
        )
        _check_count(config, count)
        assignments = place(count, factor, state.registered_brokers(), load)
    _check_count(config, len(assignments))
    return [_new_partition(state, replicas) for replicas in assignments]


def _check_count(config: ControllerConfig, count: int) -> None:
    if not 1 <= count <= config.partitions_per_request_max:
        message = f"{count} partitions: a topic is made with 1 to {config.partitions_per_request_max}"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)


def _check_total(config: ControllerConfig, planned: int) -> None:
    """Bounds one plan, because planning blocks the event loop: no heartbeat is answered meanwhile."""
    if planned > config.partitions_per_request_max:
        message = f"one request makes at most {config.partitions_per_request_max} partitions: send several"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)


def _new_partition(state: ClusterState, replicas: Sequence[int]) -> pb.NewPartition:
    isr = [node_id for node_id in replicas if state.brokers[node_id].active]
    if not isr:
        message = f"none of the replicas {list(replicas)} is available"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return pb.NewPartition(replicas=replicas, isr=isr)


def eligible_from_the_start(
    topic: TopicState, made: Iterable[tuple[int, pb.NewPartition]]
) -> list[pb.Operation]:
    """The ELR of new partitions whose ISR is below min.insync.replicas: no record can be committed there yet,
    so the replicas outside the ISR have every committed record as well, and may lead (KIP-966).  Without
    this, a partition that was created while brokers were away would be lost with its only active replica.

    A separate operation, which every version knows, in the same entry: no replica has led before it."""
    wanted = []
    for number, new in made:
        isr, replicas = tuple(new.isr), tuple(new.replicas)
        present = PartitionState(replicas, isr, leader=isr[0])
        elr = tuple(node_id for node_id in replicas if node_id not in isr)
        if elr and len(isr) < topic.min_in_sync_replicas(present.settled_replicas):
            wanted.append(Wanted(topic, number, present, present.leader, isr, elr, present.leader))
    return list(change_operations(wanted))


# ---- delete, enlarge, configure ----------------------------------------------------------------------------


def plan_deletion(
    state: ClusterState, request: rpc.DeleteTopicsRequest, *, applied_before: bool
) -> TopicPlans:
    """`applied_before`: this request was carried out already, so a topic that is gone is the success of that
    time."""
    plans, seen = TopicPlans(reason="delete topics", request_id=request.request_id), set[UUID]()
    by_name: list[tuple[str | bytes, TopicState | None]] = [
        (name, state.topics.get(name)) for name in request.names
    ]
    by_id = [(raw, state.topic_by_raw_id(raw)) for raw in request.topic_ids]
    for asked, topic in (*by_name, *by_id):
        name, raw_id = (asked, b"") if isinstance(asked, str) else ("", asked)
        if topic is None or topic.topic_id in seen:
            if applied_before:
                plans.topics.append(TopicPlan(rpc.TopicResult(name=name, topic_id=raw_id)))
                continue
            code = ErrorCode.UNKNOWN_TOPIC_ID if raw_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = "there is no topic with this id" if raw_id else f"topic {name!r} does not exist"
            plans.topics.append(_refusal(name, KafkaError(code, message), raw_id))
        elif topic.internal:
            message = f"{topic.name!r} holds the coordinators' state: it cannot be deleted"
            plans.topics.append(
                _refusal(topic.name, KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message), raw_id)
            )
        else:
            seen.add(topic.topic_id)
            deletion = pb.Operation(delete_topic=pb.DeleteTopic(topic_id=topic.topic_id.bytes))
            plans.topics.append(TopicPlan(_success(topic), None if applied_before else deletion))
    return plans


def plan_enlargement(
    state: ClusterState,
    config: ControllerConfig,
    request: rpc.CreatePartitionsRequest,
    *,
    applied_before: bool,
) -> TopicPlans:
    plans = TopicPlans(reason="create partitions", request_id=request.request_id)
    load, names = Load.of(state.topics.values()), Counter(topic.name for topic in request.topics)
    for wanted in request.topics:
        try:
            _refuse_repetition(names, wanted.name)
            present = state.topics.get(wanted.name)
            more = wanted.total - (0 if present is None else len(present.partitions))
            if wanted.total <= config.partitions_per_request_max:  # or else it is refused for itself
                _check_total(config, plans.partitions + more)
            plans.topics.append(_plan_more(state, config, request, wanted, load, applied_before))
            plans.partitions += more
        except KafkaError as error:
            plans.topics.append(_refusal(wanted.name, error))
    return plans


def _plan_more(
    state: ClusterState,
    config: ControllerConfig,
    request: rpc.CreatePartitionsRequest,
    wanted: rpc.PartitionsToCreate,
    load: Load,
    applied_before: bool,
) -> TopicPlan:
    topic = _existing(state, wanted.name)
    if topic.internal:
        message = (
            f"the number of partitions of {topic.name!r} never changes: keys would lose their coordinator"
        )
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    present = len(topic.partitions)
    if applied_before and present >= wanted.total:
        return TopicPlan(_success(topic))
    if wanted.total <= present:
        message = (
            f"The topic {topic.name} currently has {present} partition(s); {wanted.total} would not be "
            "an increase."
        )
        if wanted.total == present:
            message = f"Topic already has {present} partition(s)."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    _check_count(config, wanted.total)
    if wanted.assignments:
        if len(wanted.assignments) != wanted.total - present:
            message = (
                f"Attempted to add {wanted.total - present} additional partition(s), but only "
                f"{len(wanted.assignments)} assignment(s) were specified."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        assignments = check_assignments([list(a.replicas) for a in wanted.assignments], state.brokers)
    else:
        factor = len(topic.partitions[0].future_replicas)
        assignments = place(wanted.total - present, factor, state.registered_brokers(), load)
    if request.validate_only:
        return TopicPlan(_success(topic, wanted.total))
    partitions = [_new_partition(state, replicas) for replicas in assignments]
    enlargement = pb.CreatePartitions(
        topic_id=topic.topic_id.bytes, expected_partitions=present, partitions=partitions
    )
    following = eligible_from_the_start(topic, enumerate(partitions, start=present))
    return TopicPlan(_success(topic, wanted.total), pb.Operation(create_partitions=enlargement), following)


def plan_configuration(state: ClusterState, request: rpc.AlterConfigsRequest) -> TopicPlans:
    """The configuration as it will be is validated as a whole."""
    plans = TopicPlans(reason="alter configs", request_id=request.request_id)
    names = Counter(topic.name for topic in request.topics)
    for change in request.topics:
        try:
            _refuse_repetition(names, change.name)
            plans.topics.append(_plan_config(state, request, change))
        except KafkaError as error:
            plans.topics.append(_refusal(change.name, error))
    return plans


def _plan_config(
    state: ClusterState, request: rpc.AlterConfigsRequest, change: rpc.ConfigChange
) -> TopicPlan:
    topic = _existing(state, change.name)
    future = future_config(topic.config, change)
    changed = {key: text for key, text in future.items() if topic.config.get(key) != text}
    changed = parsed_topic_config(changed, over=future)
    require_setting_levels(state.features, changed)
    future |= changed
    if topic.internal:
        check_state_topic(topic.name, future, topic)
    follows = {} if topic.internal else inherited(state.node_configs, ALL_NODES)
    check_stays_compacted(topic.name, {**follows, **topic.config}, {**follows, **future})
    check_may_be_flushed(topic, future)
    if request.validate_only or future == topic.config:
        return TopicPlan(_success(topic))
    entries = [
        pb.ConfigEntry(key=key, value=future[key])
        for key in sorted(future)
        if topic.config.get(key) != future[key]
    ]
    remove = sorted(key for key in topic.config if key not in future)
    alteration = pb.ChangeTopicConfig(topic_id=topic.topic_id.bytes, set=entries, remove=remove)
    return TopicPlan(_success(topic), pb.Operation(change_topic_config=alteration))


def _existing(state: ClusterState, name: str) -> TopicState:
    topic = state.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic
