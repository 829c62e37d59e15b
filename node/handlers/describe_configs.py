"""DescribeConfigs (32): the settings of topics, of this node, of groups and of subscriptions to clients' metrics, with where each
value comes from.

Synonyms and documentation are in the answer only when they are asked for.  Of "all nodes" (a broker resource without a name) only
what was set at run time is shown, as KIP-226 has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ...controller.model import topic_name_problem
from ...controller.node_settings import DYNAMIC_SETTINGS
from ...controller.resource_settings import SETTINGS_OF, ResourceType
from ...controller.state import ALL_NODES
from ...storage.topic_config import TOPIC_CONFIGS
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..configuration import SETTINGS
from ..requests import Fields, RequestContext
from .resource_entries import resource_entries

TOPIC: Final = 2
BROKER: Final = 4
SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_ALL_BROKERS: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
_UNKNOWN_KIND: Final = 0
_KINDS: Final = {bool: 1, str: 2, int: 3, list: 7}


@dataclass(frozen=True, slots=True)
class _Setting:
    """`given`: values that were given, with their sources, the one that counts first; then comes the default."""

    name: str
    given: list[tuple[str, int]]
    default: str | None
    kind: int
    documentation: str
    read_only: bool


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    synonyms, documentation = request.include_synonyms, getattr(request, "include_documentation", False)
    results = []
    for resource in request.resources:
        answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            configs = _configs(broker, resource.resource_type, resource.resource_name, synonyms, documentation)
        except KafkaError as error:
            results.append(answer | {"error_code": error.code, "error_message": error.message, "configs": []})
            continue
        keys = resource.configuration_keys  # none named: all are meant
        wanted = [config for config in configs if not keys or config["name"] in keys]
        results.append(answer | {"error_code": ErrorCode.NONE, "error_message": None, "configs": wanted})
    return {"throttle_time": 0, "results": results}


def _configs(broker: Broker, kind: int, name: str, synonyms: bool, documentation: bool) -> list[dict[str, Any]]:
    if kind in SETTINGS_OF:
        return resource_entries(broker, ResourceType(kind), name, synonyms, documentation)
    return [_entry(setting, synonyms, documentation) for setting in _settings(broker, kind, name)]


def _settings(broker: Broker, kind: int, name: str) -> Iterable[_Setting]:
    if kind == TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        topic = broker.state.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return _of_topic(topic.config)
    if kind == BROKER:
        if name and name != str(broker.node_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is node {broker.node_id}: ask node {name} itself")
        return _of_node(broker) if name else _of_all_nodes(broker)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _of_topic(overrides: dict[str, str]) -> list[_Setting]:
    return [
        _Setting(
            key,
            [(overrides[key], SOURCE_TOPIC)] if key in overrides else [],
            row.default,
            row.type.value,
            row.documentation,
            read_only=False,
        )
        for key, row in TOPIC_CONFIGS.items()
    ] + [_unknown(key, [(overrides[key], SOURCE_TOPIC)]) for key in sorted(overrides.keys() - TOPIC_CONFIGS.keys())]


def _unknown(key: str, given: list[tuple[str, int]]) -> _Setting:
    """What a later version set; here it has no effect."""
    return _Setting(key, given, None, _UNKNOWN_KIND, "not known to this node's version: it has no effect here", read_only=False)


def _of_node(broker: Broker) -> list[_Setting]:
    values = broker.configuration.values
    settings = []
    for key, row in SETTINGS.items():
        given = _given(broker, key, ((broker.node_id, SOURCE_DYNAMIC_BROKER), (ALL_NODES, SOURCE_DYNAMIC_ALL_BROKERS)))
        static = _text(values[key])
        if values[key] != row.default and static is not None:
            given.append((static, SOURCE_STATIC_BROKER))
        read_only = key not in DYNAMIC_SETTINGS
        settings.append(_Setting(key, given, _text(row.default), _KINDS[row.kind], row.doc, read_only))
    return settings


def _of_all_nodes(broker: Broker) -> list[_Setting]:
    found = []
    for key in sorted(DYNAMIC_SETTINGS):
        given = _given(broker, key, ((ALL_NODES, SOURCE_DYNAMIC_ALL_BROKERS),))
        row = SETTINGS[key]
        if given:
            found.append(_Setting(key, given, _text(row.default), _KINDS[row.kind], row.doc, read_only=False))
    return found


def _given(broker: Broker, key: str, places: Iterable[tuple[int, int]]) -> list[tuple[str, int]]:
    """What was set at run time, by (node id, source)."""
    configs = broker.state.node_configs
    return [(configs[node_id][key], source) for node_id, source in places if key in configs.get(node_id, {})]


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        return ",".join(value)
    return None if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def _entry(setting: _Setting, synonyms: bool, documentation: bool) -> dict[str, Any]:
    values: list[tuple[str | None, int]] = [*setting.given]
    if setting.default is not None or not values:
        values.append((setting.default, SOURCE_DEFAULT))
    return {
        "name": setting.name,
        "value": values[0][0],
        "read_only": setting.read_only,
        "config_source": values[0][1],
        "is_sensitive": False,
        "synonyms": [{"name": setting.name, "value": value, "source": source} for value, source in values] if synonyms else [],
        "config_type": setting.kind,
        "documentation": setting.documentation if documentation else None,
    }
