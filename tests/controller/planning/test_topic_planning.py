"""The requests of users about topics, and the error of each invalid one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from tidegate.controller.planning import topics
from tidegate.controller.planning.partitions.placement import Load, place
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.settings import topic_settings
from tidegate.controller.planning.settings.topic_settings import future_config
from tidegate.controller.state.model import INTERNAL_TOPICS, BrokerState
from tidegate.controller.state.validation import violations
from tidegate.proto import controller_pb2 as rpc
from tidegate.storage.topic_config import TOPIC_CONFIGS
from tidegate.wire.errors import ErrorCode, KafkaError

from .test_planner import PlannerCluster


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3)
    return controller


def create(
    controller: PlannerCluster, *wanted: rpc.NewTopic, client: str = "c", sequence: int = 1, **fields: bool
) -> list[rpc.TopicResult]:
    request = rpc.CreateTopicsRequest(
        request_id=rpc.RequestId(client_id=client, sequence=sequence), topics=wanted, **fields
    )
    done = topics.TopicPlans()
    while len(done.topics) < len(wanted):
        part = topics.plan_creation(controller.state, controller.config, request, uuid4, done)
        controller.carry_out(Plan(part.operations))
        done.topics += part.topics
        done.partitions += part.partitions
    return done.results


def simple(name: str = "t", partitions: int = 2, factor: int = 2, **config: str) -> rpc.NewTopic:
    return rpc.NewTopic(name=name, partitions=partitions, replication_factor=factor, config=config)


def test_a_topic_is_made_with_defaults_and_each_problem_is_its_own_answer(controller: PlannerCluster) -> None:
    results = create(
        controller,
        simple("good"),
        simple("bad name"),
        rpc.NewTopic(name="plain", partitions=-1, replication_factor=-1),
    )
    assert [result.error for result in results] == [0, int(ErrorCode.INVALID_TOPIC_EXCEPTION), 0]
    assert len(controller.state.topics["plain"].partitions) == 1
    assert controller.state.topics["good"].topic_id.bytes == results[0].topic_id


@pytest.mark.parametrize("text", ["+2", "0000000002", " 2 "])
def test_a_number_is_kept_in_one_way_however_it_is_written(controller: PlannerCluster, text: str) -> None:
    """The controller and the leader read `min.insync.replicas` each for itself (KIP-966)."""
    create(controller, simple("t", 1, 3, **{"min.insync.replicas": text}))
    assert controller.state.topics["t"].config == {"min.insync.replicas": "2"}
    assert not settings_change(controller, "t", set={"retention.ms": text}).error
    assert controller.state.topics["t"].config["retention.ms"] == "2"


@pytest.mark.parametrize("text", ["0_2", "٢", "2.0", "9" * 5000])
def test_what_java_reads_as_no_number_is_none(controller: PlannerCluster, text: str) -> None:
    (result,) = create(controller, simple("t", 1, 3, **{"min.insync.replicas": text}))
    assert result.error == ErrorCode.INVALID_CONFIG
    assert len(result.message) < 300


def test_one_request_creates_no_more_partitions_than_one_plan_may(controller: PlannerCluster) -> None:
    """A few hundred bytes could keep the controller from every heartbeat for minutes."""
    most = controller.config.partitions_per_request_max
    wanted = [simple("a", most - 5, 1), simple("b", 6, 1), simple("c", 5, 1), simple("huge", most + 1, 1)]
    errors = [ErrorCode(result.error) for result in create(controller, *wanted)]
    assert errors == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
    ]
    assert sorted(controller.state.topics) == ["a", "c"]


def test_a_request_for_many_topics_is_planned_in_slices(controller: PlannerCluster) -> None:
    """Heartbeats and elections come between them."""
    small = [simple(f"small-{number}", 1, 1) for number in range(topics.SLICE_TOPICS_MAX + 1)]
    large = [simple(f"large-{number}", topics.SLICE_PARTITIONS_MAX - 1, 1) for number in range(4)]
    for wanted, sizes in ((small, [topics.SLICE_TOPICS_MAX, 1]), (large, [2, 2])):
        request, done = rpc.CreateTopicsRequest(topics=wanted), topics.TopicPlans()
        for size in sizes:
            part = topics.plan_creation(controller.state, controller.config, request, uuid4, done)
            assert len(part.topics) == size
            assert not any(result.error for result in part.results)
            done.topics += part.topics
            done.partitions += part.partitions
        assert [result.name for result in done.results] == [topic.name for topic in wanted]


def test_one_request_adds_no_more_partitions_than_can_be_planned_in_one_go(
    controller: PlannerCluster,
) -> None:
    create(controller, *(simple(name, 1, 1) for name in "abc"))
    most = controller.config.partitions_per_request_max
    wanted = [
        rpc.PartitionsToCreate(name=name, total=total)
        for name, total in (("a", most - 4), ("b", 8), ("c", 6))
    ]
    plans = topics.plan_enlargement(
        controller.state, controller.config, rpc.CreatePartitionsRequest(topics=wanted), applied_before=False
    )
    assert [result.error for result in plans.results] == [0, int(ErrorCode.INVALID_PARTITIONS), 0]


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (simple("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (simple("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "'..'"),
        (simple("ü", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII"),
        (simple("x" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "249"),
        (simple("t", 0, 1), ErrorCode.INVALID_PARTITIONS, "0 partitions"),
        (simple("t", 10**6, 1), ErrorCode.INVALID_PARTITIONS, "1000000"),
        (simple("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "at least 1"),
        (simple("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR, "only 3 broker(s) are registered"),
        (simple("t", 1, 1, **{"retention.mss": "1"}), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (simple("t", 1, 1, **{"min.insync.replicas": "x"}), ErrorCode.INVALID_CONFIG, "min.insync.replicas"),
        (simple("__consumer_offsets", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION, "brokers"),
        (
            rpc.NewTopic(name="t", partitions=3, assignments=[{"replicas": [1]}]),  # type: ignore[list-item]
            ErrorCode.INVALID_REQUEST,
            "either",
        ),
        (
            rpc.NewTopic(name="t", assignments=[{"replicas": [1, 1]}]),  # type: ignore[list-item]
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "distinct",
        ),
        (
            rpc.NewTopic(name="t", assignments=[{"replicas": [9]}]),  # type: ignore[list-item]
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "broker 9",
        ),
        (
            rpc.NewTopic(name="t", assignments=[{"replicas": [1]}, {"replicas": [1, 2]}]),  # type: ignore[list-item]
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "same number",
        ),
    ],
)
def test_bad_topics_are_refused_with_a_reason(
    controller: PlannerCluster, wanted: rpc.NewTopic, error: ErrorCode, says: str
) -> None:
    (result,) = create(controller, wanted)
    assert result.error == int(error)
    assert says in result.message
    assert not controller.state.topics


def test_a_retry_gets_the_topic_of_its_first_attempt_another_request_not(
    controller: PlannerCluster,
) -> None:
    (first,) = create(controller, simple())
    (retry,) = create(controller, simple())
    assert retry == first
    (other,) = create(controller, simple(), sequence=2)
    assert other.error == int(ErrorCode.TOPIC_ALREADY_EXISTS)


def test_validation_alone_makes_nothing(controller: PlannerCluster) -> None:
    (result,) = create(controller, simple(), validate_only=True)
    assert not result.error
    assert not controller.state.topics


def test_only_brokers_create_internal_topics_and_no_client_changes_them(controller: PlannerCluster) -> None:
    (result,) = create(controller, simple("__transaction_state"), allow_internal=True)
    assert not result.error
    request = rpc.DeleteTopicsRequest(names=["__transaction_state"])
    (refused,) = topics.plan_deletion(controller.state, request, applied_before=False).results
    assert refused.error == int(ErrorCode.INVALID_TOPIC_EXCEPTION)
    more = rpc.CreatePartitionsRequest(topics=[rpc.PartitionsToCreate(name="__transaction_state", total=9)])
    (refused,) = topics.plan_enlargement(
        controller.state, controller.config, more, applied_before=False
    ).results
    assert refused.error == int(ErrorCode.INVALID_TOPIC_EXCEPTION)


def test_deletion_by_name_and_id_and_its_retry(controller: PlannerCluster) -> None:
    a, b = create(controller, simple("a"), simple("b"))
    request = rpc.DeleteTopicsRequest(names=["a", "nope"], topic_ids=[b.topic_id])
    plans = topics.plan_deletion(controller.state, request, applied_before=False)
    assert [result.error for result in plans.results] == [0, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0]
    controller.carry_out(Plan(plans.operations))
    assert not controller.state.topics
    assert controller.state.topic_by_raw_id(a.topic_id) is None
    again = topics.plan_deletion(controller.state, request, applied_before=True)
    assert not again.operations
    assert not any(result.error for result in again.results)


def test_partitions_are_added_and_never_taken_away(controller: PlannerCluster) -> None:
    create(controller, simple("t", 2, 2))

    def enlarge(total: int, before: bool = False) -> rpc.TopicResult:
        request = rpc.CreatePartitionsRequest(topics=[rpc.PartitionsToCreate(name="t", total=total)])
        plans = topics.plan_enlargement(controller.state, controller.config, request, applied_before=before)
        controller.carry_out(Plan(plans.operations))
        return plans.results[0]

    assert not enlarge(5).error
    assert len(controller.state.topics["t"].partitions) == 5
    assert enlarge(5).error == int(ErrorCode.INVALID_PARTITIONS)
    assert not enlarge(5, before=True).error
    assert enlarge(3).error == int(ErrorCode.INVALID_PARTITIONS)


def test_a_compacted_topic_stays_compacted(controller: PlannerCluster) -> None:
    """Its logs have gaps, which logs that are not compacted may not have."""
    create(controller, simple("t", **{"cleanup.policy": "compact"}))  # type: ignore[arg-type]

    def refused(**change: Any) -> str:
        request = rpc.AlterConfigsRequest(topics=[rpc.ConfigChange(name="t", **change)])
        plans = topics.plan_configuration(controller.state, request)
        controller.carry_out(Plan(plans.operations))
        return str(plans.results[0].message)

    assert "cleanup.policy=compact,delete" in refused(set={"cleanup.policy": "delete"})
    assert "has to stay so" in refused(remove=["cleanup.policy"])
    assert refused(set={"cleanup.policy": "compact,delete"}) == ""
    assert "has to stay so" in refused(subtract={"cleanup.policy": "compact"})
    assert controller.state.topics["t"].config["cleanup.policy"] == "compact,delete"


def test_configurations_are_validated_as_they_will_be(controller: PlannerCluster) -> None:
    create(controller, simple("t", **{"retention.ms": "5", "cleanup.policy": "compact"}))  # type: ignore[arg-type]

    def configure(**change: Any) -> rpc.TopicResult:
        request = rpc.AlterConfigsRequest(topics=[rpc.ConfigChange(name="t", **change)])
        plans = topics.plan_configuration(controller.state, request)
        controller.carry_out(Plan(plans.operations))
        return plans.results[0]

    assert not configure(set={"segment.bytes": "1048576"}, remove=["retention.ms"]).error
    assert controller.state.topics["t"].config == {"cleanup.policy": "compact", "segment.bytes": "1048576"}
    assert configure(set={"segment.byte": "1"}).error == int(ErrorCode.INVALID_CONFIG)
    assert not configure(set={"retention.ms": "9", "cleanup.policy": "compact"}, replace_all=True).error
    assert controller.state.topics["t"].config == {"retention.ms": "9", "cleanup.policy": "compact"}


def settings_change(controller: PlannerCluster, name: str, **change: Any) -> rpc.TopicResult:
    request = rpc.AlterConfigsRequest(topics=[rpc.ConfigChange(name=name, **change)])
    plans = topics.plan_configuration(controller.state, request)
    controller.carry_out(Plan(plans.operations))
    return plans.results[0]


def test_lists_are_appended_to_and_taken_from(controller: PlannerCluster) -> None:
    create(controller, simple("t"))
    config = controller.state.topics["t"].config
    assert not settings_change(controller, "t", append={"cleanup.policy": "compact"}).error
    assert controller.state.topics["t"].config == config | {"cleanup.policy": "delete,compact"}, (
        "the default was a value, too"
    )
    assert not settings_change(controller, "t", append={"cleanup.policy": "compact"}).error
    assert not settings_change(controller, "t", subtract={"cleanup.policy": "delete"}).error
    assert controller.state.topics["t"].config == config | {"cleanup.policy": "compact"}
    nothing_left = settings_change(controller, "t", subtract={"cleanup.policy": "compact"})
    assert nothing_left.error == ErrorCode.INVALID_CONFIG
    assert "has to stay so" in nothing_left.message
    no_list = settings_change(controller, "t", append={"segment.bytes": "1"})
    assert no_list.error == ErrorCode.INVALID_CONFIG
    assert "no list" in no_list.message


@pytest.mark.parametrize(
    "second", [{"remove": ["segment.ms"]}, {"append": {"segment.ms": "1"}}, {"subtract": {"segment.ms": "1"}}]
)
def test_one_key_is_changed_once_in_a_request(controller: PlannerCluster, second: dict[str, object]) -> None:
    create(controller, simple("t"))
    refused = settings_change(controller, "t", set={"segment.ms": "5"}, **second)
    assert refused.error == ErrorCode.INVALID_REQUEST
    assert "segment.ms more than once" in refused.message
    assert "segment.ms" not in controller.state.topics["t"].config


def test_a_request_with_very_many_keys_is_looked_at_in_one_pass() -> None:
    """Nothing else happens in the controller meanwhile: every key compared with every other took it out of
    controller."""
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    change = SimpleNamespace(
        set={}, remove=[Key(f"k{n}") for n in range(2000)], append={}, subtract={}, replace_all=True
    )
    assert future_config({}, cast(rpc.ConfigChange, change)) == {}
    assert compared < 10 * len(change.remove)


def test_a_topic_named_twice_in_a_request_is_rejected_both_times(controller: PlannerCluster) -> None:
    create(controller, simple("t", 1), simple("other", 1))
    more = rpc.CreatePartitionsRequest(
        topics=[{"name": "t", "total": 3}, {"name": "other", "total": 2}, {"name": "t", "total": 4}]  # type: ignore[list-item]
    )
    plans = topics.plan_enlargement(controller.state, controller.config, more, applied_before=False)
    assert [result.error for result in plans.results] == [
        ErrorCode.INVALID_REQUEST,
        0,
        ErrorCode.INVALID_REQUEST,
    ]
    controller.carry_out(Plan(plans.operations))
    assert len(controller.state.topics["t"].partitions) == 1
    assert len(controller.state.topics["other"].partitions) == 2
    change = rpc.AlterConfigsRequest(topics=[{"name": "t", "set": {"segment.ms": "5"}}] * 2)  # type: ignore[list-item]
    assert [r.error for r in topics.plan_configuration(controller.state, change).results] == [
        ErrorCode.INVALID_REQUEST
    ] * 2


def test_names_that_differ_only_in_dots_and_underscores_collide(controller: PlannerCluster) -> None:
    create(controller, simple("a.b", 1))
    (refused,) = create(controller, simple("a_b", 1), sequence=2)
    assert refused.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "existing topic: a.b" in refused.message
    first, second = create(controller, simple("c_d.e", 1), simple("c.d_e", 1), sequence=3)
    assert not first.error
    assert second.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    (same,) = create(controller, simple("a.b", 1), sequence=4)
    assert same.error == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_message_does_not_say_its_code_again(controller: PlannerCluster) -> None:
    (refused,) = create(controller, simple("t", 0))
    assert refused.message.startswith("0 partitions")


# ---- state topics ------------------------------------------------------------------------------------------

STATE_TOPIC = {
    "cleanup.policy": "compact", "compression.type": "producer", "unclean.leader.election.enable": "false",
    "flush.policy": "always", "min.insync.replicas": "2",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"set": {"flush.policy": "os"}}, "flush.policy stays 'always'"),
        ({"set": {"unclean.leader.election.enable": "TRUE"}}, "unclean.leader.election.enable stays"),
        ({"set": {"cleanup.policy": "delete"}}, "cleanup.policy stays 'compact'"),
        ({"append": {"cleanup.policy": "delete"}}, "cleanup.policy stays 'compact'"),
        ({"remove": ["cleanup.policy"]}, "cleanup.policy cannot be changed"),
        ({"remove": ["min.insync.replicas"]}, "at least 2"),
        ({"set": {"min.insync.replicas": "1"}}, "at least 2"),
        ({"set": {"max.message.bytes": "1000"}}, "at least 1048588"),
        ({"set": {"delete.retention.ms": "0"}}, "delete.retention.ms cannot be changed"),
        ({"set": {"retention.ms": "1"}}, "retention.ms cannot be changed"),
        ({"set": {"segment.bytes": "1048576"}, "replace_all": True}, "cannot be changed"),
    ],
)
def test_a_state_topic_never_becomes_unsafe(
    controller: PlannerCluster, name: str, change: dict[str, object], says: str
) -> None:
    create(controller, simple(name, 1, 3, **STATE_TOPIC), allow_internal=True)
    refused = settings_change(controller, name, **change)
    assert refused.error == ErrorCode.POLICY_VIOLATION
    assert says in refused.message
    assert controller.state.topics[name].config == STATE_TOPIC


def test_a_state_topic_takes_what_no_promise_rests_on(controller: PlannerCluster) -> None:
    create(controller, simple("__consumer_offsets", 1, 3, **STATE_TOPIC), allow_internal=True)
    for key, value in {
        "segment.bytes": "1048576",
        "min.insync.replicas": "3",
        "max.message.bytes": "2000000",
    }.items():
        assert not settings_change(controller, "__consumer_offsets", set={key: value}).error
    assert not settings_change(controller, "__consumer_offsets", set={"min.insync.replicas": "2"}).error, (
        "back to a majority"
    )


FIXED_IN_STATE_TOPICS = {
    "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "delete.retention.ms", "flush.messages", "flush.ms", "local.retention.bytes", "local.retention.ms",
    "max.compaction.lag.ms", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
    "message.timestamp.type", "min.compaction.lag.ms", "record.check", "remote.log.copy.disable",
    "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes", "retention.ms",
}  # fmt: skip
"""They say what the log keeps, or how it stores and flushes what the coordinators wrote, or do nothing."""


def test_every_setting_is_free_in_a_state_topic_or_has_a_floor_or_is_fixed() -> None:
    free, floors = topic_settings._STATE_TOPIC_FREE, topic_settings._STATE_TOPIC_FLOORS
    decided = [*topic_settings._STATE_TOPIC_VALUES, *free, *floors, *FIXED_IN_STATE_TOPICS]
    assert sorted(decided) == sorted(TOPIC_CONFIGS), (
        "may an operator change it in a state topic? Then it belongs into `_STATE_TOPIC_FREE` or "
        "`_STATE_TOPIC_FLOORS`, else into FIXED_IN_STATE_TOPICS"
    )


@pytest.mark.parametrize(
    "unsafe",
    [{"flush.policy": "os"}, {"cleanup.policy": "delete"}, {"unclean.leader.election.enable": "true"}],
)
def test_a_state_topic_is_not_made_unsafe(controller: PlannerCluster, unsafe: dict[str, str]) -> None:
    (refused,) = create(
        controller, simple("__consumer_offsets", 1, 1, **(STATE_TOPIC | unsafe)), allow_internal=True
    )
    assert refused.error == ErrorCode.POLICY_VIOLATION


# ---- placement ---------------------------------------------------------------------------------------------


def brokers(count: int, racks: int = 0) -> list[BrokerState]:
    return [
        BrokerState(n, "i", n, False, f"rack-{n % racks}" if racks else "", "h", 1, "h", 1)
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize(("partitions", "factor", "count"), [(12, 3, 3), (30, 3, 5), (7, 2, 4), (100, 3, 10)])
def test_replicas_and_leaderships_are_spread_evenly(partitions: int, factor: int, count: int) -> None:
    placed = place(partitions, factor, brokers(count), Load())
    assert all(len(set(replicas)) == factor for replicas in placed)
    for loads, difference in ((Counter(r[0] for r in placed), 1), (Counter(n for r in placed for n in r), 2)):
        assert max(loads.values()) - min(loads[n] for n in range(1, count + 1)) <= difference


def test_many_small_topics_are_spread_like_one_large_one() -> None:
    load, leaders = Load(), Counter[int]()
    for _ in range(30):
        leaders.update(replicas[0] for replicas in place(1, 2, brokers(3), load))
    assert set(leaders.values()) == {10}


def test_every_rack_gets_a_replica_when_there_are_enough() -> None:
    for replicas in place(24, 3, brokers(6, racks=3), Load()):
        assert len({node_id % 3 for node_id in replicas}) == 3


def test_the_partitions_of_a_lost_leader_fall_to_different_brokers() -> None:
    placed = place(60, 3, brokers(6), Load())
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == 1)
    assert len(heirs) >= 2


def test_too_few_brokers_are_named_in_the_refusal() -> None:
    with pytest.raises(KafkaError, match="because only 2 broker"):
        place(1, 3, brokers(2), Load())


def away(broker: BrokerState, *, going: bool = False) -> BrokerState:
    return replace(broker, fenced=not going, shutting_down=going)


@pytest.mark.parametrize("going", [False, True])
def test_a_broker_that_is_away_never_leads_and_gets_replicas_last(going: bool) -> None:
    one, two, three, four = brokers(4)
    for replicas in place(12, 3, [one, away(two, going=going), three, four], Load()):
        assert 2 not in replicas, "the others suffice"
    for replicas in place(12, 3, [one, away(two, going=going), three], Load()):
        assert replicas[2] == 2
        assert set(replicas) == {1, 2, 3}
    placed = place(12, 4, [one, away(two, going=going), three, away(four)], Load())
    assert all(set(replicas[2:]) == {2, 4} for replicas in placed)
    assert Counter(replicas[0] for replicas in placed) == {1: 6, 3: 6}


def test_racks_are_kept_apart_also_with_a_broker_that_is_away() -> None:
    """As in Kafka: it comes back, and where replicas are stays."""
    found = [replace(each, rack="ab"[each.node_id == 3]) for each in brokers(3)]
    for replicas in place(6, 2, [*found[:2], away(found[2])], Load()):
        assert replicas[0] in (1, 2)
        assert replicas[1] == 3


def test_nothing_is_placed_while_no_broker_can_lead() -> None:
    with pytest.raises(KafkaError, match="none can lead") as refused:
        place(1, 1, [away(each) for each in brokers(2)], Load())
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_topics_are_made_and_enlarged_with_a_replica_away_outside_the_isr(controller: PlannerCluster) -> None:
    controller.lose(3)
    create(controller, simple("t", 2, 3))
    more = rpc.CreatePartitionsRequest(topics=[{"name": "t", "total": 4}])  # type: ignore[list-item]
    plans = topics.plan_enlargement(controller.state, controller.config, more, applied_before=False)
    controller.carry_out(Plan(plans.operations))
    partitions = controller.state.topics["t"].partitions
    assert len(partitions) == 4
    assert not violations(controller.state)
    for partition in partitions.values():
        assert partition.replicas[2] == 3
        assert set(partition.isr) == {1, 2}
        assert partition.leader in (1, 2)
        assert not partition.elr
    controller.lose(1, 2)
    (refused,) = create(controller, simple("none", 1, 3), sequence=2)
    assert refused.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "none can lead" in refused.message
    (assigned,) = create(
        controller,
        rpc.NewTopic(name="mine", assignments=[{"replicas": [3, 1]}]),  # type: ignore[list-item]
        sequence=3,
    )
    assert assigned.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def delete(controller: PlannerCluster, name: str) -> None:
    plans = topics.plan_deletion(
        controller.state, rpc.DeleteTopicsRequest(names=[name]), applied_before=False
    )
    controller.carry_out(Plan(plans.operations))
    assert name not in controller.state.topics


def test_a_request_that_comes_again_after_a_deletion_makes_another_topic(controller: PlannerCluster) -> None:
    """Its first answer was lost.  A replica that was away meanwhile has records of the deleted topic, and
    would take the new one for it by its id: what was acknowledged since would be overwritten by them."""
    (first,) = create(controller, simple())
    (again,) = create(controller, simple())
    assert not again.error, "while it is there, it is the one"
    assert again.topic_id == first.topic_id, "while it is there, it is the one"
    delete(controller, "t")
    (anew,) = create(controller, simple())
    assert not anew.error
    assert anew.topic_id != first.topic_id
    (by_another,) = create(controller, simple(), client="d")
    assert by_another.error == ErrorCode.TOPIC_ALREADY_EXISTS


def test_what_a_later_version_set_stays_beside_what_is_changed_now(controller: PlannerCluster) -> None:
    """The active controller may be of an older version than the one that took the setting."""
    create(controller, simple("t", 1, 1))
    controller.state.topics["t"].config.update({"retention.parsecs": "12", "cleanup.policy": "compact,shred"})

    def change(**fields: object) -> rpc.TopicResult:
        request = rpc.AlterConfigsRequest(topics=[rpc.ConfigChange(name="t", **fields)])  # type: ignore[arg-type]
        plans = topics.plan_configuration(controller.state, request)
        controller.carry_out(Plan(plans.operations))
        return plans.results[0]

    assert change(set={"segment.ms": "5"}).error == ErrorCode.NONE
    expected = {"retention.parsecs": "12", "cleanup.policy": "compact,shred", "segment.ms": "5"}
    assert controller.state.topics["t"].config == expected
    refused = change(set={"retention.parsecs": "13"})
    assert refused.error == ErrorCode.INVALID_CONFIG
    assert "Unknown topic config name" in refused.message
    assert change(remove=["retention.parsecs"]).error == ErrorCode.NONE
    assert "retention.parsecs" not in controller.state.topics["t"].config


@pytest.mark.parametrize(
    ("away", "config", "isr", "elr"),
    [
        ((), {"min.insync.replicas": "2"}, (1, 2, 3), ()),
        ((3,), {"min.insync.replicas": "2"}, (1, 2), ()),
        ((2, 3), {"min.insync.replicas": "2"}, (1,), (2, 3)),
        ((2, 3), {"min.insync.replicas": "9"}, (1,), (2, 3)),
        ((3,), {"min.insync.replicas": "3"}, (1, 2), (3,)),
        ((2, 3), {}, (1,), ()),
    ],
)
def test_what_cannot_commit_from_the_start_may_be_led_by_any_replica(
    away: tuple[int, ...], config: dict[str, str], isr: tuple[int, ...], elr: tuple[int, ...]
) -> None:
    """Below min.insync.replicas the high watermark stands still (KIP-966): a replica that is away has every
    committed record."""
    controller = PlannerCluster()
    controller.join(1, 2, 3)
    if away:
        controller.lose(*away)
    assignment = rpc.Assignment(replicas=[1, 2, 3])
    made = rpc.NewTopic(
        name="t", partitions=-1, replication_factor=-1, assignments=[assignment], config=config
    )
    assert not create(controller, made)[0].error
    more = rpc.CreatePartitionsRequest(
        topics=[rpc.PartitionsToCreate(name="t", total=2, assignments=[assignment])]
    )
    controller.carry_out(
        Plan(
            topics.plan_enlargement(
                controller.state, controller.config, more, applied_before=False
            ).operations
        )
    )
    for partition in controller.state.topics["t"].partitions.values():
        assert (partition.leader, partition.leader_epoch, partition.isr, partition.elr) == (1, 0, isr, elr)


def test_a_new_partition_outlives_the_only_broker_that_was_there(controller: PlannerCluster) -> None:
    controller.disks[1] = "old disk"
    controller.register(1, "with a disk")
    controller.beat(1)
    controller.lose(2, 3)
    create(controller, simple("t", 1, 3, **{"min.insync.replicas": "2"}))
    controller.lose(1)
    controller.beat(2)
    assert controller.partition().leader == 2, (
        "nothing was committed: the one that was there is not waited for"
    )
    controller.lose(2)
    controller.register(1, "again", directory="new disk")
    controller.beat(1)
    controller.beat(3)
    assert controller.partition().leader in (2, 3)
