"""Every setting in the manifests is one that the node knows, and every pod gets a configuration that the node
accepts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tidegate.node.settings.configuration import Configuration, ConfigurationError, load
from tidegate.node.settings.definitions import SETTINGS

from .manifests import CLUSTERS, config_map, environment
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
    assert in_file | in_environment <= set(SETTINGS)
    assert not in_file & in_environment, "one place for each setting"


@pytest.mark.parametrize(("folder", "ordinal"), PODS)
def test_every_pod_gets_a_configuration_that_the_node_accepts(folder: str, ordinal: int) -> None:
    configuration = configure(folder, ordinal)
    name = f"tidegate-{ordinal}.tidegate-nodes"
    assert configuration.node_id == ordinal
    assert configuration.is_broker
    assert configuration.is_controller
    listeners = configuration.listeners
    assert [str(each) for each in listeners.advertised] == [f"PLAINTEXT://{name}.production.svc:9092"]
    assert str(listeners.advertised_grpc) == f"GRPC://{name}.production.svc:9093"
    [own] = [voter for voter in configuration.voters if voter.node_id == ordinal]
    assert str(own.quorum) == f"{name}:9094"
    assert str(own.grpc) == f"{name}:9093"
    assert len(configuration.voters) == CLUSTERS[folder]
    assert configuration.data_dirs == (Path("/var/lib/tidegate/data"),)


def test_service_links_would_stop_the_node() -> None:
    """Why `enableServiceLinks` must stay off: this is what Kubernetes adds for a Service named tidegate."""
    file = config_map("base", "tidegate")["node.toml"].encode()
    linked = {**environment("base", "tidegate"), "TIDEGATE_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(ConfigurationError, match=r"service\.host"):
        load(file, environment=linked, hostname="tidegate-0")


def test_a_misspelt_setting_in_the_file_stops_the_node() -> None:
    file = (
        config_map("base", "tidegate")["node.toml"]
        .replace("min.insync.replicas", "min.in.sync.replicas")
        .encode()
    )
    with pytest.raises(ConfigurationError, match=r"min\.insync\.replicas"):
        load(file, environment=environment("base", "tidegate"), hostname="tidegate-0")
