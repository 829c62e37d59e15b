"""Which listeners a node has, by what its settings and its roles say; Kafka's sentences where Kafka refuses,
as a Kafka 4.1.1 said them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidegate.node.settings.configuration import load
from tidegate.node.settings.definitions import LISTENERS_DEFAULT
from tidegate.runtime.connections.tls import ClientAuth, TlsFiles

from .test_configuration import MINIMAL, loaded, refused, toml

OTHERS = ("GRPC://127.0.0.1:9093", "CONTROLLER://127.0.0.1:9094", "METRICS://127.0.0.1:9095")
MAP = ["GRPC:PLAINTEXT", "CONTROLLER:PLAINTEXT", "METRICS:PLAINTEXT", "PLAINTEXT:PLAINTEXT"]


def listeners(*kafka: str, others: tuple[str, ...] = OTHERS) -> list[str]:
    return [*kafka, *others]


def texts(found: Any) -> list[str]:
    return [str(each) for each in found]


def test_a_node_listens_on_loopback_unless_its_file_says_more() -> None:
    found = loaded().listeners
    assert texts(found.all) == list(LISTENERS_DEFAULT)
    assert texts(found.advertised) == ["PLAINTEXT://127.0.0.1:9092"]
    assert str(found.advertised_grpc) == "GRPC://127.0.0.1:9093"
    assert found.inter_broker == found.advertised[0]


def test_a_node_has_by_default_the_listeners_of_its_roles() -> None:
    broker = loaded(process__roles=["broker"]).listeners
    assert broker.controller is None
    assert [each.name for each in broker.all] == ["PLAINTEXT", "GRPC", "METRICS"]
    controller = loaded(process__roles=["controller"]).listeners
    assert (controller.kafka, controller.advertised, controller.inter_broker) == ((), (), None)
    assert [each.name for each in controller.all] == ["GRPC", "CONTROLLER", "METRICS"]


def test_a_broker_has_several_listeners_one_of_them_for_brokers() -> None:
    found = loaded(
        listeners=listeners("CLIENTS://:9092", "REPLICATION://:9096"),
        advertised__listeners=["CLIENTS://pub:1", "replication://node:2", "GRPC://node:3"],
        listener__security__protocol__map=["CLIENTS:PLAINTEXT", "REPLICATION:PLAINTEXT", *MAP],
        inter__broker__listener__name="replication",
    ).listeners
    assert texts(found.kafka) == ["CLIENTS://:9092", "REPLICATION://:9096"]
    assert texts(found.advertised) == ["CLIENTS://pub:1", "REPLICATION://node:2"]
    assert str(found.inter_broker) == "REPLICATION://node:2"
    assert str(found.advertised_grpc) == "GRPC://node:3"


def test_listeners_have_the_names_that_their_settings_say() -> None:
    found = loaded(
        listeners=["PLAINTEXT://a:1", "BULK://a:2", "quorum://a:3", "HTTP://a:4"],
        grpc__listener__name="bulk",
        metrics__listener__name="HTTP",
        controller__listener__names=["QUORUM"],
    ).listeners
    assert (str(found.grpc), str(found.controller), str(found.metrics)) == (
        "BULK://a:2",
        "QUORUM://a:3",
        "HTTP://a:4",
    )


@pytest.mark.parametrize(
    ("changes", "message"),  # Kafka's sentences
    [
        (
            {"listeners": listeners("PLAINTEXT://localhost")},
            "Unable to parse PLAINTEXT://localhost to a broker endpoint",
        ),
        ({"listeners": listeners("9092")}, "Unable to parse a listener name from 9092"),
        (
            {"listeners": listeners("PLAINTEXT://localhost:9092", "EXTERNAL://localhost:9096")},
            "No security protocol defined for listener EXTERNAL",
        ),
        (
            {"listeners": listeners("PLAINTEXT://localhost:9092"),
             "listener__security__protocol__map": ["PLAINTEXT:PLAINTEXT", *MAP[:1], *MAP[2:]]},
            "No security protocol defined for listener CONTROLLER",
        ),
        (
            {"listeners": listeners("PLAINTEXT://0.0.0.0:9092")},
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable "
            "IP address.",
        ),
        (
            {"advertised__listeners": ["PLAINTEXT://0.0.0.0:1", "GRPC://a:2"]},
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable "
            "IP address.",
        ),
        (
            {"listeners": []},
            "controller.listener.names must contain at least one value appearing in the 'listeners' "
            "configuration when running the KRaft controller role",
        ),
        (
            {"listeners": list(OTHERS)},
            "There must be at least one broker advertised listener. Perhaps all listeners appear in "
            "controller.listener.names?",
        ),
        (
            {"advertised__listeners": ["GRPC://a:2"]},
            "There must be at least one broker advertised listener. Perhaps all listeners appear in "
            "controller.listener.names?",
        ),
        (
            {"inter__broker__listener__name": "INTERNAL"},
            "Listener with name INTERNAL defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map.",
        ),
        (
            {"inter__broker__listener__name": "CONTROLLER"},
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
            "options based on currently configured listeners are PLAINTEXT",
        ),
        (
            {"inter__broker__listener__name": ""},
            "The provided listener name is null or empty string",
        ),
        (
            {"advertised__listeners": ["PLAINTEXT://x:1", "EXTERNAL://x:1", "GRPC://x:2"],
             "listener__security__protocol__map": [*MAP, "EXTERNAL:PLAINTEXT"]},
            "advertised.listeners listener names must be equal to or a subset of the ones defined "
            "in listeners. "
            "Found PLAINTEXT,EXTERNAL,GRPC. The valid options based on the current configuration are "
            "PLAINTEXT,GRPC,CONTROLLER,METRICS",
        ),
        (
            {"process__roles": ["broker"], "listeners": listeners("PLAINTEXT://localhost:9092")},
            "controller.listener.names must not contain a value appearing in the 'listeners' "
            "configuration when "
            "running KRaft with just the broker role",
        ),
    ],
)  # fmt: skip
def test_listeners_that_kafka_refuses_are_refused_in_kafkas_words(
    changes: dict[str, Any], message: str
) -> None:
    assert refused(**changes) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"listener__security__protocol__map": ["GRPC:SASL_PLAINTEXT", *MAP[1:]]},
            "listener GRPC has the security protocol SASL_PLAINTEXT (listener.security.protocol.map): over "
            "gRPC clients show tokens, which need TLS: PLAINTEXT, SSL or SASL_SSL",
        ),
        (
            {"listeners": listeners("SASL_SSL://a:9096", others=OTHERS),
             "inter__broker__listener__name": "SASL_SSL",
             "listener__security__protocol__map": ["SASL_SSL:SASL_SSL", *MAP]},
            "listener SASL_SSL has the security protocol SASL_SSL (listener.security.protocol.map): nodes "
            "prove to each other who they are by certificates, so it is SSL or PLAINTEXT",
        ),
        (
            {"listener__security__protocol__map": ["CONTROLLER:SASL_SSL", *(MAP[:1] + MAP[2:])]},
            "listener CONTROLLER has the security protocol SASL_SSL (listener.security.protocol.map): nodes "
            "prove to each other who they are by certificates, so it is SSL or PLAINTEXT",
        ),
        (
            {"listener__security__protocol__map": ["METRICS:SASL_SSL", *(MAP[:2] + MAP[3:])]},
            "listener METRICS has the security protocol SASL_SSL (listener.security.protocol.map): HTTP "
            "knows no SASL, so it is SSL or PLAINTEXT",
        ),
        (
            {"controller__grpc__listener__name": "NODES_GRPC"},
            "listeners has none with the name that controller.grpc.listener.name says: add it as "
            "NAME://host:port",
        ),
        (
            {"listeners": listeners("PLAINTEXT://:9092")},
            "advertised.listeners must name a host for the listener PLAINTEXT: without one it means every "
            "interface of this machine, and clients need one address to connect to",
        ),
        (
            {"advertised__listeners": ["PLAINTEXT://node:1"]},
            "advertised.listeners must name the listener GRPC (grpc.listener.name), too: Spark reaches this "
            "node there",
        ),
        (
            {"listeners": ["PLAINTEXT://a:1", *OTHERS[:2]]},
            "listeners has none with the name that metrics.listener.name says: add it as NAME://host:port",
        ),
        (
            {"metrics__listener__name": "GRPC"},
            "controller.listener.names, grpc.listener.name, controller.grpc.listener.name and "
            "metrics.listener.name must name different listeners",
        ),
        (
            {"process__roles": ["controller"], "listeners": listeners("PLAINTEXT://a:1")},
            "The listeners config must only contain listeners of controller.listener.names, "
            "grpc.listener.name "
            "and metrics.listener.name when process.roles=controller: PLAINTEXT is for clients of a broker",
        ),
        (
            {"listeners": listeners("PLAINTEXT://a:1", "OTHER://a:2"),
             "listener__security__protocol__map": ["OTHER:PLAINTEXT", *MAP],
             "controller__listener__names": ["CONTROLLER", "OTHER"]},
            "the metadata quorum has one listener: controller.listener.names names OTHER,CONTROLLER",
        ),
    ],
)  # fmt: skip
def test_what_a_node_of_ours_cannot_have_is_refused_too(changes: dict[str, Any], message: str) -> None:
    assert refused(**changes) == message


NODES_MAP = [
    "BROKERS:SSL",
    "CONTROLLER:SSL",
    "NODES_GRPC:SSL",
    "GRPC:PLAINTEXT",
    "METRICS:PLAINTEXT",
    "PLAINTEXT:PLAINTEXT",
]
SECURED: dict[str, Any] = {
    "insecure": False,
    "listeners": [
        "PLAINTEXT://0.0.0.0:1", "BROKERS://0.0.0.0:2", "GRPC://0.0.0.0:3", "CONTROLLER://0.0.0.0:4",
        "NODES_GRPC://0.0.0.0:5", "METRICS://0.0.0.0:6",
    ],
    "advertised__listeners": ["PLAINTEXT://a:1", "BROKERS://a:2", "GRPC://a:3"],
    "listener__security__protocol__map": NODES_MAP,
    "inter__broker__listener__name": "BROKERS",
    "controller__grpc__listener__name": "nodes_grpc",
    "ssl__keystore__location": "/tls/node-{node.id}.pem",
    "ssl__truststore__location": "/tls/ca.pem",
}  # fmt: skip


def test_listeners_for_nodes_have_certificates_and_need_no_word_then() -> None:
    found = loaded(**SECURED)
    assert texts(found.listeners.for_nodes) == [
        "BROKERS://0.0.0.0:2", "CONTROLLER://0.0.0.0:4", "NODES_GRPC://0.0.0.0:5"
    ]  # fmt: skip
    assert found.listeners.open_to_others == ()
    assert texts(found.listeners.own_controller_grpc) == ["NODES_GRPC://0.0.0.0:5"]
    files = TlsFiles(Path("/tls/node-1.pem"), None, Path("/tls/ca.pem"))
    assert found.node_tls == dict.fromkeys(("BROKERS", "CONTROLLER", "NODES_GRPC"), files)
    assert found.listener_security["BROKERS"].client_auth is ClientAuth.REQUIRED


def test_a_broker_alone_connects_to_controllers_by_the_same_settings() -> None:
    without = [each for each in SECURED["listeners"] if not each.startswith(("CONTROLLER", "NODES"))]
    found = loaded(**SECURED | {"process__roles": ["broker"], "listeners": without})
    assert texts(found.listeners.for_nodes) == ["BROKERS://0.0.0.0:2"]
    assert found.node_tls.keys() == {"BROKERS", "NODES_GRPC"}


def test_a_listener_for_nodes_has_files_of_its_own_when_its_name_says_so() -> None:
    found = load(
        toml(
            MINIMAL | {key.replace("__", "."): value for key, value in SECURED.items()}
            | {"listener.name.controller.ssl.keystore.location": "/tls/quorum-{node.id}.pem"}
        ), environment={},
    )  # fmt: skip
    assert found.node_tls["CONTROLLER"].certificate == Path("/tls/quorum-1.pem")
    assert found.node_tls["BROKERS"].certificate == Path("/tls/node-1.pem")


def test_certificates_of_clients_are_required_from_nodes_with_their_authorities() -> None:
    changes = SECURED | {"ssl__truststore__location": None}
    assert "set ssl.truststore.location to the authorities" in refused(**changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"listener__security__protocol__map": ["BROKERS:PLAINTEXT", *NODES_MAP[1:]]},
         "BROKERS://0.0.0.0:2: "),
        ({"listener__security__protocol__map": ["CONTROLLER:PLAINTEXT", *(NODES_MAP[:1] + NODES_MAP[2:])]},
         "CONTROLLER://0.0.0.0:4: "),
        ({"listener__security__protocol__map": ["NODES_GRPC:PLAINTEXT", *(NODES_MAP[:2] + NODES_MAP[3:])]},
         "NODES_GRPC://0.0.0.0:5: "),
        ({"controller__grpc__listener__name": None,
          "listeners": [each for each in SECURED["listeners"] if not each.startswith("NODES")]},
         "GRPC://0.0.0.0:3: "),
    ],
)  # fmt: skip
def test_a_node_that_others_could_speak_for_needs_a_word(changes: dict[str, Any], named: str) -> None:
    """... also where only one of its listeners for nodes is open."""
    said = refused(**SECURED | changes)
    assert said.startswith(named)
    assert "set insecure = true" in said
    found = loaded(**SECURED | changes | {"insecure": True})
    assert [f"{each}: " for each in found.listeners.open_to_others] == [named]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_on_loopback_nodes_need_no_certificates(host: str) -> None:
    names = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS")
    own = [f"{name}://{host}:{port}" for port, name in enumerate(names, 1)]
    assert loaded(insecure=False, listeners=own).listeners.open_to_others == ()
