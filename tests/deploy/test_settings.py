"""Every setting in the manifests is one that the node knows, and every pod gets a configuration that the node
accepts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tidegate.node.settings.configuration import Configuration, ConfigurationError, load
from tidegate.node.settings.definitions import AUTHORIZER, SETTINGS
from tidegate.node.settings.security_settings import LISTENER_PREFIX, setting_of_listener, super_users
from tidegate.runtime.connections.listeners import SecurityProtocol
from tidegate.runtime.connections.tls import ClientAuth

from .manifests import BASE, CLUSTERS, SECURED, TRIAL, config_map, documents, environment, pod, pods
from .test_manifests import flat

PODS = [(folder, ordinal) for folder, nodes in CLUSTERS.items() for ordinal in range(nodes)]


def configure(folder: str, ordinal: int) -> Configuration:
    """What the node makes of a pod's file, environment and host name."""
    file = config_map(folder, "tidegate")["node.toml"].encode()
    return load(file, environment=environment(folder, "production"), hostname=f"tidegate-{ordinal}")


@pytest.mark.parametrize("folder", CLUSTERS)
def test_every_setting_is_known_to_the_node(folder: str) -> None:
    in_file = set(flat(tomllib.loads(config_map(folder, "tidegate")["node.toml"])))
    in_environment = {
        name.removeprefix("TIDEGATE_").lower().replace("_", ".")
        for name in environment(folder, "tidegate")
        if name.startswith("TIDEGATE_")
    }
    of_listeners = {key for key in in_file if key.startswith(LISTENER_PREFIX)}
    assert all(setting_of_listener(key) for key in of_listeners)
    assert (in_file | in_environment) - of_listeners <= set(SETTINGS)
    assert not in_file & in_environment, "one place for each setting"


@pytest.mark.parametrize(("folder", "ordinal"), PODS)
def test_every_pod_gets_a_configuration_that_the_node_accepts(folder: str, ordinal: int) -> None:
    configuration = configure(folder, ordinal)
    name = f"tidegate-{ordinal}.tidegate-nodes"
    assert configuration.node_id == ordinal
    assert configuration.is_broker
    assert configuration.is_controller
    listeners = configuration.listeners
    assert [str(each) for each in listeners.advertised] == [
        f"{listener}://{name}.production.svc:{port}"
        for listener, port in (("CLIENTS", 9092), ("BROKERS", 9096), ("ADMINISTRATORS", 9098))
    ]
    assert str(listeners.advertised_grpc) == f"GRPC://{name}.production.svc:9093"
    [own] = [voter for voter in configuration.voters if voter.node_id == ordinal]
    assert str(own.quorum) == f"{name}:9094"
    assert str(own.grpc) == f"{name}:9097"
    assert len(configuration.voters) == CLUSTERS[folder]
    assert configuration.data_dirs == (Path("/var/lib/tidegate/data"),)


@pytest.mark.parametrize("folder", SECURED)
def test_nothing_is_served_without_a_proven_identity(folder: str) -> None:
    configuration = configure(folder, 0)
    listeners = configuration.listeners
    assert not configuration.flag("insecure")
    assert listeners.open_to_others == ()
    assert {each.name: each.security_protocol.name for each in listeners.all} == {
        "CLIENTS": "SASL_SSL",
        "GRPC": "SASL_SSL",
        "BROKERS": "SSL",
        "CONTROLLER": "SSL",
        "CONTROLLER_GRPC": "SSL",
        "ADMINISTRATORS": "SSL",
        "METRICS": "PLAINTEXT",
    }
    security = configuration.listener_security
    for each in (security["CLIENTS"], security["GRPC"]):
        assert each.mechanisms == ("SCRAM-SHA-512",)
    assert security["BROKERS"].client_auth is security["ADMINISTRATORS"].client_auth is ClientAuth.REQUIRED
    assert configuration.node_tls.keys() == {"BROKERS", "CONTROLLER", "CONTROLLER_GRPC"}
    assert configuration.text("authorizer.class.name") == AUTHORIZER
    assert not configuration.flag("allow.everyone.if.no.acl.found")
    assert [str(each) for each in super_users(configuration.text("super.users"))] == ["User:CN=administrator"]


def test_the_trial_says_that_it_is_insecure_and_differs_in_nothing_else() -> None:
    trial, secured = (
        flat(tomllib.loads(config_map(folder, "tidegate")["node.toml"])) for folder in (TRIAL, BASE)
    )
    assert trial.pop("insecure") is True
    configuration = configure(TRIAL, 0)
    assert {each.security_protocol for each in configuration.listeners.all} == {SecurityProtocol.PLAINTEXT}
    of_security = {key for key in secured if key.split(".")[0] in ("ssl", "sasl", "listener", "super")}
    of_security |= {"authorizer.class.name"}
    assert trial.keys() | of_security == secured.keys()
    assert {key: value for key, value in trial.items() if key not in of_security} == {
        key: value for key, value in secured.items() if key not in of_security
    }
    for document in documents(TRIAL):
        assert document["metadata"]["annotations"]["tidegate.io/insecure"] == "true"
    assert list(pods(TRIAL)) == ["StatefulSet tidegate"]
    assert "initContainers" not in pod(TRIAL)["spec"]


def test_without_its_certificates_the_configuration_is_refused() -> None:
    """An operator may write PLAINTEXT for a listener of nodes."""
    file = config_map(BASE, "tidegate")["node.toml"].replace("BROKERS:SSL", "BROKERS:PLAINTEXT").encode()
    with pytest.raises(ConfigurationError, match="insecure = true"):
        load(file, environment=environment(BASE, "tidegate"), hostname="tidegate-0")


def test_service_links_would_stop_the_node() -> None:
    """Why `enableServiceLinks` must stay off: this is what Kubernetes adds for a Service named tidegate."""
    file = config_map(BASE, "tidegate")["node.toml"].encode()
    linked = {**environment(BASE, "tidegate"), "TIDEGATE_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(ConfigurationError, match=r"service\.host"):
        load(file, environment=linked, hostname="tidegate-0")


def test_a_misspelt_setting_in_the_file_stops_the_node() -> None:
    file = (
        config_map(BASE, "tidegate")["node.toml"]
        .replace("min.insync.replicas", "min.in.sync.replicas")
        .encode()
    )
    with pytest.raises(ConfigurationError, match=r"min\.insync\.replicas"):
        load(file, environment=environment(BASE, "tidegate"), hostname="tidegate-0")
