"""What topics inherit: settings of brokers that hold for every topic without a value of its own (Kafka's
synonyms).  Pure.

A broker's own value comes before that for all brokers, and a topic's own before both.  State topics inherit
nothing: they are made with what the coordinators rely on.

What the controller itself acts on (`CONTROLLERS_DEFAULTS`) is one value for all brokers, and part of every
`TopicState`: all nodes apply an entry of the metadata log with the same one.  For min.insync.replicas the
cluster has such a value from level RESOURCES_LEVEL on, as Kafka has since ELR (KIP-966): the controller that
makes the cluster, or raises it to that level, takes it from its own file.  Before that, brokers write the
value of their file into each topic that they make.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...proto import metadata_pb2 as pb
from .broker_settings import BROKER_SETTINGS
from .model import (
    ALL_NODES,
    MIN_IN_SYNC_REPLICAS_CONFIG,
    RESOURCES_LEVEL,
    UNCLEAN_ELECTION_CONFIG,
    metadata_level,
)

NodeConfigs = Mapping[int, Mapping[str, str]]
CONTROLLERS_DEFAULTS: Final = (MIN_IN_SYNC_REPLICAS_CONFIG, UNCLEAN_ELECTION_CONFIG)
_BELOW_ZERO: Final = {"retention.ms": "-1", "flush.ms": "0"}
"""What a broker's value below the topic's least one means."""


def inherited(node_configs: NodeConfigs, node_id: int) -> dict[str, str]:
    """Topic key -> value, of what is set for this broker or for all.  A value that this version cannot read
    is left out."""
    merged = {**node_configs.get(ALL_NODES, {}), **node_configs.get(node_id, {})}
    found = {}
    for name, text in merged.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None or not setting.topic_key:
            continue
        value = (
            _BELOW_ZERO[setting.topic_key]
            if text.startswith("-") and setting.topic_key in _BELOW_ZERO
            else text
        )
        try:
            found[setting.topic_key] = setting.parse(value)
        except ValueError:
            continue
    return found


def controllers_defaults(node_configs: NodeConfigs) -> dict[str, str]:
    """Those that are part of every `TopicState`."""
    of_all = inherited({ALL_NODES: node_configs.get(ALL_NODES, {})}, ALL_NODES)
    return {key: of_all[key] for key in CONTROLLERS_DEFAULTS if key in of_all}


def missing_defaults(
    features: Mapping[str, int], node_configs: NodeConfigs, min_insync_replicas: int
) -> list[pb.Operation]:
    """What a cluster of level RESOURCES_LEVEL has set for all nodes from its first moment on."""
    if metadata_level(features) < RESOURCES_LEVEL or MIN_IN_SYNC_REPLICAS_CONFIG in node_configs.get(
        ALL_NODES, {}
    ):
        return []
    entry = pb.ConfigEntry(key=MIN_IN_SYNC_REPLICAS_CONFIG, value=str(min_insync_replicas))
    return [pb.Operation(change_node_config=pb.ChangeNodeConfig(node_id=ALL_NODES, set=[entry]))]
