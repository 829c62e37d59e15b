"""All settings of topics, and those of brokers that Kafka changes at run time, are Kafka's, or differ for a
stated reason.

`data/kafka-4.1.1-settings.json` is what a Kafka 4.1.1 answered; `python -m bench.kafka_settings` asks one
again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from tidegate.controller.planning.settings.node_settings import plan_node_configuration
from tidegate.controller.state.broker_settings import BROKER_SETTINGS
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ALL_NODES
from tidegate.node.serving.described_settings import SOURCE_DYNAMIC_ALL_BROKERS, DescribedSettings
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.storage.topic_config import TOPIC_CONFIGS, parsed_topic_config
from tidegate.wire.errors import KafkaError

from .test_configuration import loaded

KAFKA: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "kafka-4.1.1-settings.json").read_text()
)
SOURCE_STATIC: Final = 4

OWN_TOPIC_SETTINGS: Final = {
    "flush.policy": "acknowledged is what is on disks, or what is replicated: Kafka has only the latter",
    "record.check": "spares a leader the walk over the records of trusted producers",
}
OTHER_TOPIC_VALUES: Final = {
    ("segment.bytes", "1024"): "small segments are no harm; Kafka has internal.segment.bytes for tests"
}

SECURITY: Final = ("sasl.", "ssl.")
"""In the file; the certificates that they name are read again when they change."""
NOT_DYNAMIC: Final = {
    "background.threads": "there are no such threads",
    "listener.security.protocol.map": "listeners are in the file",
    "listeners": "listeners are in the file",
    "log.cleaner.io.buffer.load.factor": "the cleaner's key map is filled as far as it can be",
    "log.cleaner.io.buffer.size": "the cleaner reads chunks of its own size",
    "log.cleaner.threads": "one cleaner a node",
    "max.connection.creation.rate": "connections are bounded, not their rate",
    "metric.reporters": "metrics are read at /metrics",
    "num.io.threads": "requests are answered on one event loop",
    "num.network.threads": "requests are answered on one event loop",
    "num.recovery.threads.per.data.dir": "of use at the start alone: in the file",
    "num.replica.fetchers": "one fetcher for each leader node",
    "principal.builder.class": "no plug-ins",
    "remote.fetch.max.wait.ms": "no tiered storage",
    "remote.list.offsets.request.timeout.ms": "no tiered storage",
    "transaction.partition.verification.enable": "never off",
}
OTHER_BROKER_VALUES: Final = {
    ("log.cleaner.dedupe.buffer.size", "1048576"): "Kafka counts 1 MiB for each thread as too little",
    ("log.segment.bytes", "1024"): "as segment.bytes",
    ("log.cleaner.io.max.bytes.per.second", "-1"): "no rate is below 0",
    ("log.cleaner.io.max.bytes.per.second", "-2"): "no rate is below 0",
    ("log.cleaner.io.max.bytes.per.second", "-3"): "no rate is below 0",
}
ONE_FOR_ALL_BROKERS: Final = {
    "log.cleanup.policy": (
        "replicas of a compacted log have gaps that those of another would take for lost data"
    ),
    "unclean.leader.election.enable": "the controller decides, for all brokers",
}
OTHER_BROKER_DEFAULTS: Final = {
    "auto.create.topics.enable": "a misspelt name makes no topic",
    "broker.heartbeat.interval.ms": "sessions are shorter",
    "broker.id": "only node.id is written down",
    "broker.session.timeout.ms": "sessions are shorter",
    "controller.listener.names": "Kafka's usual name, where Kafka has none",
    "controller.quorum.voters": "there are no voters that are found at run time",
    "default.replication.factor": "three replicas unless it is said otherwise",
    "inter.broker.listener.name": "what Kafka's security.inter.broker.protocol comes to",
    "leader.imbalance.check.interval.seconds": "leaderships return sooner",
    "listeners": "on loopback, and one for each service of a node",
    "log.cleaner.io.max.bytes.per.second": "the cleaner leaves the disk to clients",
    "max.connections": "each costs memory",
    "offsets.topic.num.partitions": "fewer, as each costs more here",
    "process.roles": "a node is broker and controller unless its file says less",
    "queued.max.request.bytes": "memory is always bounded",
    "sasl.enabled.mechanisms": "passwords never stand in a file",
    "sasl.oauthbearer.expected.audience": "empty, where Kafka has none",
    "sasl.oauthbearer.expected.issuer": "empty, where Kafka has none",
    "sasl.oauthbearer.jwks.endpoint.url": "empty, where Kafka has none",
    "ssl.keystore.location": "PEM files, not key stores of Java",
    "ssl.keystore.type": "PEM files, not key stores of Java",
    "ssl.truststore.location": "PEM files, not key stores of Java",
    "ssl.truststore.type": "PEM files, not key stores of Java",
    "replica.selector.class": "a consumer that names its rack reads nearby",
    "replica.lag.time.max.ms": "a follower that hangs holds writes up for less long",
    "group.coordinator.rebalance.protocols": "no groups of Kafka Streams' own protocol",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "late transactions are aborted sooner",
    "transaction.state.log.min.isr": "two, whatever the number of brokers",
    "transaction.state.log.num.partitions": "fewer, as each costs more here",
    "transaction.state.log.replication.factor": "three replicas unless it is said otherwise",
    "offsets.topic.replication.factor": "three replicas unless it is said otherwise",
}


def state_of_one_broker() -> ClusterState:
    state = ClusterState()
    bootstrap = pb.Bootstrap(
        cluster_id="c", metadata_id="m", features=[pb.Feature(name="tidegate.metadata.version", level=4)]
    )
    register = pb.RegisterBroker(node_id=1, incarnation="i", expected_broker_epoch=-1)
    entry = pb.ConfigEntry(key="min.insync.replicas", value="1")
    settings = pb.ChangeNodeConfig(node_id=ALL_NODES, set=[entry])
    operations = [
        pb.Operation(bootstrap=bootstrap),
        pb.Operation(register_broker=register),
        pb.Operation(change_node_config=settings),
    ]
    assert state.apply(2, 1, pb.Command(operations=operations).SerializeToString()).ok
    return state


def topic_code(config: dict[str, str]) -> int:
    try:
        parsed_topic_config(config)
    except KafkaError as error:
        return int(error.code)
    return 0


# ---- topics ------------------------------------------------------------------------------------------------


def test_topics_have_exactly_kafkas_settings_and_two_of_our_own() -> None:
    assert TOPIC_CONFIGS.keys() == {row["name"] for row in KAFKA["topic"]} | OWN_TOPIC_SETTINGS.keys()
    assert all(row.documentation for row in TOPIC_CONFIGS.values())


def test_a_topic_without_settings_is_described_as_kafka_describes_it() -> None:
    state = state_of_one_broker()
    ours = {each.name: each for each in DescribedSettings(loaded(), state.node_configs).of_new_topic("t", {})}
    for row in KAFKA["topic"]:
        # what the file of that Kafka said
        synonyms = [each for each in row["synonyms"] if each[2] != SOURCE_STATIC]
        source = synonyms[0][2] if synonyms else 5
        value = synonyms[0][1] if synonyms else row["value"]
        found = ours[row["name"]]
        assert (found.kind, found.value, found.source, found.read_only) == (
            row["type"],
            value,
            source,
            False,
        ), row["name"]
        assert [list(each) for each in found.synonyms] == synonyms, row["name"]


@pytest.mark.parametrize("name", sorted(KAFKA["topic_values"]))
def test_a_topic_setting_takes_and_refuses_what_kafka_does(name: str) -> None:
    values = {
        value: code
        for value, code in KAFKA["topic_values"][name].items()
        if (name, value) not in OTHER_TOPIC_VALUES
    }
    assert {value: topic_code({name: value}) for value in values} == values


def test_topic_settings_that_go_together_are_judged_as_kafka_judges_them() -> None:
    assert [[config, topic_code(config)] for config, _code in KAFKA["topic_combinations"]] == KAFKA[
        "topic_combinations"
    ]


# ---- brokers -----------------------------------------------------------------------------------------------


def broker_code(state: ClusterState, broker: str, name: str, value: str) -> int:
    change = rpc.ConfigChange(name=broker, set={name: value})
    return (
        plan_node_configuration(state, rpc.AlterConfigsRequest(nodes=[change], validate_only=True))
        .results[0]
        .error
    )


@pytest.mark.parametrize(
    "name", sorted(KAFKA["broker_values"].keys() - NOT_DYNAMIC.keys() - {"no.such.setting"})
)
def test_a_broker_setting_takes_and_refuses_at_run_time_what_kafka_does(name: str) -> None:
    state = state_of_one_broker()
    for broker, kafka in (("1", KAFKA["broker_values"]), ("", KAFKA["default_broker_values"])):
        if broker and name in ONE_FOR_ALL_BROKERS:
            continue
        values = {
            value: code for value, code in kafka[name].items() if (name, value) not in OTHER_BROKER_VALUES
        }
        assert {value: broker_code(state, broker, name, value) for value in values} == values, broker


def test_what_kafka_changes_at_run_time_changes_here_or_has_a_reason() -> None:
    dynamic = {row["name"] for row in KAFKA["broker"] if not row["read_only"]}
    meant = {name for name in dynamic if not name.startswith((*SECURITY, "remote.log."))} - NOT_DYNAMIC.keys()
    assert meant <= BROKER_SETTINGS.keys()
    assert not BROKER_SETTINGS.keys() & NOT_DYNAMIC.keys()


def test_a_broker_shows_kafkas_settings_with_kafkas_types_and_defaults() -> None:
    state, kafka = state_of_one_broker(), {row["name"]: row for row in KAFKA["broker"]}
    described = DescribedSettings(loaded(), state.node_configs).of_broker()
    assert len({each.name for each in described}) == len(described)
    other = {}
    for found in described:
        row = kafka.get(found.name)
        if row is None:
            continue
        assert found.kind == row["type"], found.name
        stays = found.name in NOT_DYNAMIC or found.name.startswith(SECURITY)
        assert found.read_only == row["read_only"] or stays, found.name
        default = next((value for name, value, source in row["synonyms"] if source == 5), None)
        if found.name in OTHER_BROKER_DEFAULTS:
            continue
        ours = next((value for name, value, source in found.synonyms if source == 5), None)
        other[found.name] = (ours, default)
    assert not {name: values for name, values in other.items() if values[0] != values[1]}


def test_listeners_are_described_under_kafkas_names_as_in_the_file() -> None:
    listeners = [
        "CLIENTS://:9092", "REPLICATION://:9096", "GRPC://:9093", "CONTROLLER://:9094", "METRICS://:9095"
    ]  # fmt: skip
    protocols = [f"{each.partition(':')[0]}:PLAINTEXT" for each in listeners]
    advertised = ["CLIENTS://{hostname}:1", "REPLICATION://{hostname}:2", "GRPC://{hostname}:3"]
    configuration = loaded(
        listeners=listeners,
        advertised__listeners=advertised,
        listener__security__protocol__map=protocols,
        inter__broker__listener__name="REPLICATION",
    )
    described = {each.name: each for each in DescribedSettings(configuration, {}).of_broker()}
    shown = {
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised).replace("{hostname}", "host"),
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": "REPLICATION",
    }
    for name, value in shown.items():
        assert described[name].synonyms[0] == (name, value, SOURCE_STATIC)
        assert described[name].kind == next(row["type"] for row in KAFKA["broker"] if row["name"] == name)
    assert described["controller.listener.names"].value == "CONTROLLER"


def test_every_broker_setting_of_kafka_with_a_topic_default_is_shown() -> None:
    described = {each.name for each in DescribedSettings(loaded(), {}).of_broker()}
    assert {row.broker_name for row in TOPIC_CONFIGS.values()} - {""} <= described


def test_a_value_shows_where_it_comes_from_and_what_it_stands_before() -> None:
    own, of_all = (
        {"log.retention.ms": "5", "max.connections": "7"},
        {"log.retention.ms": "6", "min.insync.replicas": "2"},
    )
    described = DescribedSettings(loaded(max__connections=9), {1: own, ALL_NODES: of_all})
    brokers = {each.name: each for each in described.of_broker()}
    assert brokers["log.retention.ms"].synonyms == [
        ("log.retention.ms", "5", 2), ("log.retention.ms", "6", 3), ("log.retention.hours", "168", 5)
    ]  # fmt: skip
    assert brokers["max.connections"].synonyms == [
        ("max.connections", "7", 2), ("max.connections", "9", 4), ("max.connections", "10000", 5)
    ]  # fmt: skip
    topics = {each.name: each for each in described.of_new_topic("t", {"retention.ms": "4"})}
    assert topics["retention.ms"].synonyms[:2] == [("retention.ms", "4", 1), ("log.retention.ms", "5", 2)]
    assert (topics["min.insync.replicas"].value, topics["min.insync.replicas"].source) == (
        "2",
        SOURCE_DYNAMIC_ALL_BROKERS,
    )
    assert [each.name for each in described.of_all_brokers()] == ["log.retention.ms", "min.insync.replicas"]
    states = {each.name: each for each in described.of_new_topic("__consumer_offsets", {})}
    assert (states["retention.ms"].value, states["retention.ms"].synonyms) == ("604800000", [])


def test_what_a_file_says_is_shown_as_its_word_even_when_it_is_the_default() -> None:
    (found,) = (
        each
        for each in DescribedSettings(loaded(num__partitions=1), {}).of_broker()
        if each.name == "num.partitions"
    )
    assert found.synonyms == [("num.partitions", "1", SOURCE_STATIC), ("num.partitions", "1", 5)]
    (found,) = (each for each in DescribedSettings(loaded(), {}).of_broker() if each.name == "num.partitions")
    assert found.synonyms == [("num.partitions", "1", 5)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1000000", "1000000.0"),
        ("33554432", "3.3554432E7"),
        ("0.50", "0.5"),
        ("1e7", "1.0E7"),
        ("1e-4", "1.0E-4"),
        ("0", "0.0"),
    ],
)
def test_a_double_is_shown_as_java_writes_it(text: str, shown: str) -> None:
    described = DescribedSettings(loaded(), {ALL_NODES: {"log.cleaner.io.max.bytes.per.second": text}})
    (found,) = described.of_all_brokers()
    assert (found.shown, found.synonyms[0][1]) == (shown, text)
