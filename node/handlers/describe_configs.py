"""DescribeConfigs (32): the settings of topics, and of this node, with where each value comes from.

Synonyms and documentation are in the answer only when they are asked for.  A node has no settings that are changed at run time:
"all nodes" (a broker resource without a name) has none at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ...controller.model import topic_name_problem
from ...storage.topic_config import TOPIC_CONFIGS
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..configuration import SETTINGS
from ..requests import Fields, RequestContext

TOPIC: Final = 2
BROKER: Final = 4
SOURCE_TOPIC: Final = 1
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
_KINDS: Final = {bool: 1, str: 2, int: 3, list: 7}


@dataclass(frozen=True, slots=True)
class _Setting:
    """`own`: the value that was given, None when the default counts."""

    name: str
    own: str | None
    own_source: int
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
            settings = _settings(broker, resource.resource_type, resource.resource_name)
        except KafkaError as error:
            results.append(answer | {"error_code": error.code, "error_message": error.message, "configs": []})
            continue
        keys = resource.configuration_keys  # none named: all are meant
        configs = [_entry(setting, synonyms, documentation) for setting in settings if not keys or setting.name in keys]
        results.append(answer | {"error_code": ErrorCode.NONE, "error_message": None, "configs": configs})
    return {"throttle_time": 0, "results": results}


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
        return _of_node(broker) if name else ()
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown resource type {kind}: 2 is a topic, 4 a broker")


def _of_topic(overrides: dict[str, str]) -> list[_Setting]:
    return [
        _Setting(key, overrides.get(key), SOURCE_TOPIC, row.default, row.type.value, row.documentation, read_only=False)
        for key, row in TOPIC_CONFIGS.items()
    ]


def _of_node(broker: Broker) -> list[_Setting]:
    values = broker.configuration.values
    return [
        _Setting(
            key,
            None if values[key] == row.default else _text(values[key]),
            SOURCE_STATIC_BROKER,
            _text(row.default),
            _KINDS[row.kind],
            row.doc,
            read_only=True,
        )
        for key, row in SETTINGS.items()
    ]


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        return ",".join(value)
    return None if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def _entry(setting: _Setting, synonyms: bool, documentation: bool) -> dict[str, Any]:
    values: list[tuple[str | None, int]] = [(setting.own, setting.own_source)] if setting.own is not None else []
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
