"""A node's settings: where they come from, which of them win, and that whatever is wrong is said in one clear
line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tidegate.controller.state.resource_settings import CONSUMER_HEARTBEAT, CONSUMER_SESSION, GROUP_LIMITS
from tidegate.node.serving.described_settings import DescribedSettings
from tidegate.node.settings.configuration import Address, Configuration, ConfigurationError, load
from tidegate.node.settings.definitions import FORMER_SETTINGS, SETTINGS

MINIMAL: dict[str, Any] = {
    "node.id": 1,
    "insecure": True,
    "cluster.id": "test",
    "log.dirs": ["/data"],
    "controller.quorum.voters": ["1@127.0.0.1:9094:9093"],
}


PRODUCT = ("node", "controller", "replication", "coordinator", "storage", "runtime", "wire")


def toml(values: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items()).encode()


def loaded(
    *overrides: str, environment: dict[str, str] | None = None, hostname: str = "host", **changes: Any
) -> Configuration:
    values = MINIMAL | {key.replace("__", "."): value for key, value in changes.items()}
    values = {key: value for key, value in values.items() if value is not None}
    return load(toml(values), environment=environment or {}, overrides=overrides, hostname=hostname)


def refused(*overrides: str, **changes: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        loaded(*overrides, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestPrecedence:
    """Defaults < file < environment < command line."""

    def test_defaults_hold_where_nothing_is_said(self) -> None:
        assert loaded().integer("num.partitions") == SETTINGS["num.partitions"].default

    def test_nothing_prints_a_secret(self) -> None:
        assert "hunter2" not in repr(loaded(delegation__token__secret__key="hunter2"))

    def test_the_file_wins_over_defaults(self) -> None:
        assert loaded(num__partitions=7).integer("num.partitions") == 7

    def test_the_environment_wins_over_the_file(self) -> None:
        found = loaded(num__partitions=7, environment={"TIDEGATE_NUM_PARTITIONS": "8", "OTHER": "x"})
        assert found.integer("num.partitions") == 8

    def test_the_command_line_wins_over_all(self) -> None:
        found = loaded("num.partitions = 9", num__partitions=7, environment={"TIDEGATE_NUM_PARTITIONS": "8"})
        assert found.integer("num.partitions") == 9

    def test_tables_and_dotted_and_quoted_keys_mean_the_same(self) -> None:
        text = toml(MINIMAL).decode()
        for line in ('"num.partitions" = 5', "num.partitions = 5", "[num]\npartitions = 5"):
            assert load(f"{text}{line}\n".encode(), environment={}).integer("num.partitions") == 5

    def test_variables_of_ours_that_are_no_settings_are_left_alone(self) -> None:
        loaded(environment={"TIDEGATE_FAULT_POINTS": "1", "TIDEGATE_BOOTSTRAP": "x:1"})

    def test_lists_flags_and_numbers_are_read_from_text(self) -> None:
        found = loaded("process.roles=controller , broker", "auto.create.topics.enable=TRUE")
        assert found.values["process.roles"] == ["controller", "broker"]
        assert found.flag("auto.create.topics.enable")
        assert loaded("broker.session.timeout.ms=7500").seconds("broker.session.timeout.ms") == 7.5


class TestMistakes:
    """Every kind of mistake, and the words for it."""

    @pytest.mark.parametrize(
        ("wrong", "meant"),
        [
            ("min.insync.replica", "min.insync.replicas"),
            ("node.di", "node.id"),
            ("listener", "listeners"),
        ],
    )
    def test_a_misspelt_key_is_answered_with_the_intended_one(self, wrong: str, meant: str) -> None:
        for source, message in (
            ("the configuration file", refused(**{wrong.replace(".", "__"): 1})),
            ("--set", refused(f"{wrong}=1")),
        ):
            assert message == f"unknown setting {wrong!r} in {source}: did you mean {meant!r}?"

    @pytest.mark.parametrize(("former", "present"), FORMER_SETTINGS.items())
    def test_a_former_name_is_answered_with_the_present_one(self, former: str, present: str) -> None:
        for source, message in (
            ("the configuration file", refused(**{former.replace(".", "__"): "x"})),
            ("--set", refused(f"{former}=x")),
        ):
            assert message == f"{former!r} in {source} is a former setting's name: write {present} instead"
        assert former not in SETTINGS

    def test_a_misspelt_variable_of_the_environment_is_named(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"in the environment \(TIDEGATE_NODE_IDD\): did you mean 'node.id'"
        ):
            loaded(environment={"TIDEGATE_NODE_IDD": "1"})

    def test_a_key_like_nothing_known_is_pointed_to_the_list(self) -> None:
        assert "`tidegate-node --settings` lists them all" in refused(xyzzy=1)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"node__id": None}, "node.id is missing: give every node of the cluster its own number"),
            (
                {"cluster__id": None},
                "cluster.id is missing: choose a name for the cluster, the same on all of its nodes",
            ),
            ({"log__dirs": None}, "log.dirs is missing: name at least one folder for the data"),
            ({"log__dirs": ["/a", "/b", "/a"]}, "log.dirs names a folder twice: /a, /b, /a"),
            (
                {"controller__quorum__voters": None},
                "controller.quorum.voters is missing: name all controllers as id@host:quorum-port:grpc-port",
            ),
            (
                {"controller__quorum__voters": ["1@host:1"]},
                "controller.quorum.voters: '1@host:1' is not of the form id@host:quorum-port:grpc-port",
            ),
            (
                {"controller__quorum__voters": ["1@a:1:2", "1@b:1:2"]},
                "controller.quorum.voters names a node twice: [1, 1]",
            ),
            (
                {"controller__quorum__voters": ["1@a:1:2", "2@b:1:2"]},
                "controller.quorum.voters names 2 controllers: 1, 3 or 5 make a quorum, other nodes "
                "are brokers only",
            ),
            (
                {"node__id": 2},
                "this node (2) has the role controller but is not among controller.quorum.voters [1]",
            ),
            ({"node__id": "1"}, "node.id = '1': int is needed, this is str"),
            ({"node__id": True}, "node.id = True: int is needed, this is bool"),
            ({"node__id": -1}, "node.id = -1: must lie between 0 and 2147483647"),
            (
                {"process__roles": ["broker", "king"]},
                "process.roles = ['broker', 'king']: choose from broker, controller",
            ),
            ({"process__roles": []}, "process.roles = []: choose from broker, controller"),
            ({"log__dirs": [1]}, "log.dirs: text is needed, not 1"),
            ({"listeners": "PLAINTEXT://a:1"}, "listeners = 'PLAINTEXT://a:1': list is needed, this is str"),
            ({"listeners": [9092]}, "listeners: text is needed, not 9092"),
            (
                {"broker__session__timeout__ms": 1500},
                "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms",
            ),
            (
                {"group__consumer__heartbeat__interval__ms": 30_000},
                "group.consumer.session.timeout.ms must be at least twice "
                "group.consumer.heartbeat.interval.ms",
            ),
            (
                {"group__consumer__max__session__timeout__ms": 44_999},
                "group.consumer.max.session.timeout.ms must be greater than or equal to "
                "group.consumer.min.session.timeout.ms",
            ),
            (
                {"group__consumer__min__heartbeat__interval__ms": 15_001},
                "group.consumer.max.heartbeat.interval.ms must be greater than or equal to "
                "group.consumer.min.heartbeat.interval.ms",
            ),
            (
                {"group__consumer__assignors": ["magic"]},
                "group.consumer.assignors = ['magic']: choose from range, uniform",
            ),
            (
                {"group__consumer__migration__policy": "sideways"},
                "group.consumer.migration.policy = 'sideways': choose from bidirectional, upgrade, "
                "downgrade, disabled",
            ),
            ({"group__consumer__assignors": []}, "group.consumer.assignors = []: choose from range, uniform"),
            ({"log__format": "xml"}, "log.format = 'xml': text or json"),
            (
                {"replica__selector__class": "mine"},
                "replica.selector.class = 'mine': choose from "
                "org.apache.kafka.common.replica.RackAwareReplicaSelector, "
                "org.apache.kafka.common.replica.LeaderSelector",
            ),
            ({"log__level": "LOUD"}, "log.level = 'LOUD': DEBUG, INFO, WARNING or ERROR"),
            (
                {"controller__quorum__voters": ["1@.dom:9094:9093"]},
                "controller.quorum.voters = '1@.dom:9094:9093': the host '.dom' cannot be looked up: label "
                "empty or too long",
            ),
        ],
    )
    def test_a_mistake_in_the_file_is_explained(self, changes: dict[str, Any], message: str) -> None:
        assert refused(**changes) == message

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("num.partitions=many", "num.partitions = 'many': a whole number is needed"),
            ("num.partitions", "--set num.partitions: write it as key=value"),
            ("auto.create.topics.enable=yes", "auto.create.topics.enable = 'yes': write true or false"),
            ("num.partitions=0", "num.partitions = 0: must lie between 1 and 10000"),
        ],
    )
    def test_a_mistake_on_the_command_line_is_explained(self, override: str, message: str) -> None:
        assert refused(override) == message

    def test_a_file_that_is_not_toml_says_where(self) -> None:
        with pytest.raises(ConfigurationError, match=r"the configuration file is not TOML: .*line 1"):
            load(b"node.id = = 1", environment={})
        with pytest.raises(ConfigurationError, match="not TOML"):
            load(b"\xff\xfe", environment={})


class TestAddresses:
    """Voters and placeholders (listeners: `test_node_listeners.py`)."""

    def test_ipv6_is_written_in_brackets(self) -> None:
        (voter,) = loaded(controller__quorum__voters=["1@[::1]:9094:9093"]).voters
        assert voter.quorum == Address("::1", 9094)
        assert str(voter.quorum) == "[::1]:9094"

    def test_one_configuration_serves_all_pods_of_a_stateful_set(self) -> None:
        found = loaded(
            node__id=None,
            node__id__from__hostname=True,
            log__dirs=["/data/{node.id}"],
            listeners=["PLAINTEXT://:9092", "GRPC://:9093", "CONTROLLER://:9094", "METRICS://:9095"],
            advertised__listeners=[
                "PLAINTEXT://{hostname}.tidegate:9092",
                "GRPC://{hostname}.tidegate:9093",
            ],
            controller__quorum__voters=[f"{n}@tidegate-{n}.tidegate:9094:9093" for n in range(3)],
            hostname="tidegate-2",
        )
        assert found.node_id == 2
        assert str(found.listeners.inter_broker) == "PLAINTEXT://tidegate-2.tidegate:9092"
        assert str(found.data_dirs[0]) == "/data/2"
        assert [str(voter.quorum) for voter in found.voters] == [
            f"tidegate-{n}.tidegate:9094" for n in range(3)
        ]

    def test_a_host_name_without_a_number_gives_no_node_id(self) -> None:
        message = refused(node__id=None, node__id__from__hostname=True, hostname="pod")
        assert message == "node.id.from.hostname: the host name 'pod' does not end in a number"

    def test_a_given_node_id_wins_over_the_host_name(self) -> None:
        assert loaded(node__id__from__hostname=True, hostname="pod-9").node_id == 1


def test_every_setting_has_a_sentence_and_a_default_within_its_bounds() -> None:
    for key, setting in SETTINGS.items():
        assert setting.doc.endswith("."), key
        assert setting.default is None or isinstance(setting.default, setting.kind), key
        if setting.kind is int and setting.default is not None:
            assert setting.minimum is not None
            assert setting.maximum is not None
            assert setting.minimum <= setting.default <= setting.maximum, key  # type: ignore[operator]


def test_every_setting_is_read_by_some_module() -> None:
    """A documented setting without effect would mislead operators unnoticed."""
    root = Path(__file__).parents[2]
    definitions = root / "node" / "settings" / "definitions.py"
    names_of_listeners, _, _ = definitions.read_text().partition("SETTINGS: Final")
    paths = (path for name in PRODUCT for path in (root / name).rglob("*.py") if path != definitions)
    read = "\n".join([names_of_listeners, *(path.read_text() for path in paths)])
    # internal_topics.py puts the names of the state topics' settings together
    composed = ("transaction.state.log.", "offsets.topic.")
    unread = [key for key in SETTINGS if f'"{key}"' not in read and not key.startswith(composed)]
    assert unread == []
    assert 'f"{prefix}.num.partitions"' in read


def test_the_bounds_of_groups_settings_are_the_nodes() -> None:
    limits = loaded(
        group__consumer__min__session__timeout__ms=1000, group__consumer__max__heartbeat__interval__ms=20_000
    )
    assert limits.group_limits() == {
        **GROUP_LIMITS, CONSUMER_SESSION: (1000, 60_000), CONSUMER_HEARTBEAT: (5000, 20_000),
    }  # fmt: skip
    assert loaded().group_limits() == GROUP_LIMITS, "Kafka's"


def test_a_secret_is_shown_by_no_description_and_no_error() -> None:
    jaas = "listener.name.sasl_ssl.plain.sasl.jaas.config"
    described = DescribedSettings(loaded(ssl__key__password="s3cret"), {}).of_broker()
    (found,) = [each for each in described if each.name == "ssl.key.password"]
    assert (found.shown, found.secret, found.kind) == (None, True, 9)
    assert [value for _, value, _ in found.synonyms] == [None, None]
    assert "s3cret" not in repr(described)
    for text in ('"ssl.key.password" = ["s3cret"]', f'"{jaas}" = ["s3cret"]', f'"{jaas}" = "s3cret"'):
        with pytest.raises(ConfigurationError) as refused:
            load(text.encode(), environment={"TIDEGATE_NODE_ID": "1"})
        assert "s3cret" not in str(refused.value)
