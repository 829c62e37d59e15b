"""Finds gRPC addresses by a node's Kafka address: the bootstrap of a reader or a sink may be
either, since all commands take the Kafka one.

Two requests of the Kafka protocol: Metadata names the brokers, and DescribeConfigs of one of them has the
address of its gRPC listener.  That node names the rest of the cluster.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from ...runtime.connections.listeners import ListenerError, parse_listener
from ...runtime.logs import get
from ...runtime.network import AnswersInHttp2, ask_frame
from ...wire.api import ApiKey
from ...wire.errors import KafkaError

log = get(__name__)

ANSWER_TIMEOUT_S: Final = 2.0
ASKED_MAX: Final = 3  # of the brokers that are named: some may be down
_METADATA_VERSION: Final = 9
_CONFIGS_VERSION: Final = 1
_BROKER_RESOURCE: Final = 4
_NAME_SETTING: Final = "grpc.listener.name"
_LISTENER_SETTINGS: Final = ("advertised.listeners", "listeners")
# Nodes of the version before have one setting for each listener.
_FORMER_SETTINGS: Final = ("advertised.grpc", "listeners.grpc")
_CLIENT_ID: Final = "tidegate-reader"


def grpc_addresses(address: str) -> tuple[str, ...]:
    """The gRPC address of a broker of the cluster whose Kafka listener `address` (host:port) is; none when
    neither the address nor any broker that it names speaks the Kafka protocol. Takes some seconds at most.
    Raises AnswersInHttp2 for a gRPC listener."""
    try:
        answer = _ask(address, ApiKey.METADATA, _METADATA_VERSION, {"topics": []})
    except AnswersInHttp2:
        raise
    except (OSError, KafkaError) as error:
        log.debug("no_kafka_listener", address=address, reason=error)
        return ()
    brokers = sorted(answer.brokers, key=lambda broker: f"{broker.host}:{broker.port}" != address)
    for broker in itertools.islice(brokers, ASKED_MAX):
        try:
            found = _grpc_address(f"{broker.host}:{broker.port}", int(broker.node_id))
        except (OSError, KafkaError, ListenerError) as error:
            log.debug("broker_not_asked", broker=int(broker.node_id), reason=error)
            continue
        if found:
            return (found,)
    return ()


def _grpc_address(address: str, node_id: int) -> str:
    """The gRPC address that this broker advertises; empty without one.  Raises OSError, KafkaError,
    ListenerError."""
    resource = {
        "resource_type": _BROKER_RESOURCE,
        "resource_name": str(node_id),
        "configuration_keys": [_NAME_SETTING, *_LISTENER_SETTINGS, *_FORMER_SETTINGS],
    }
    fields = {"resources": [resource], "include_synonyms": False}
    (result,) = _ask(address, ApiKey.DESCRIBE_CONFIGS, _CONFIGS_VERSION, fields).results
    values = {str(entry.name): entry.value or "" for entry in result.configs}
    for setting in _LISTENER_SETTINGS:
        for entry in filter(None, values.get(setting, "").split(",")):
            listener = parse_listener(entry.strip())
            if listener.name == values.get(_NAME_SETTING, "").upper():
                return listener.address
    return next((values[name] for name in _FORMER_SETTINGS if values.get(name)), "")


def _ask(address: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    from ...wire import codec  # half a second of imports; a read by gRPC addresses does without

    host, _, port = address.rpartition(":")
    request = codec.request_header(api_key, version, 0, _CLIENT_ID) + codec.request(api_key, version, fields)
    return codec.decode_response(
        api_key, version, ask_frame(host.strip("[]"), int(port), request, ANSWER_TIMEOUT_S)
    )[1]
