"""DescribeConfigs (32): the settings of topics, and of this node, with where each value comes from."""

from __future__ import annotations

import json
from typing import Any, Final

from ...storage.topic_config import TOPIC_CONFIGS
from ...wire.errors import ErrorCode
from ..broker import Broker
from ..configuration import SETTINGS
from ..requests import Fields, RequestContext

TOPIC: Final = 2
BROKER: Final = 4
_SOURCE_TOPIC: Final = 1
_SOURCE_STATIC_BROKER: Final = 4
_SOURCE_DEFAULT: Final = 5
_KINDS: Final = {bool: 1, str: 2, int: 3, list: 7}


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    return {
        "throttle_time": 0,
        "results": [
            _describe(broker, resource.resource_type, resource.resource_name, resource.configuration_keys)
            for resource in request.resources
        ],
    }


def _describe(broker: Broker, kind: int, name: str, keys: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"error_code": ErrorCode.NONE, "error_message": None, "resource_type": kind, "resource_name": name}
    wanted = None if keys is None else set(keys)
    if kind == TOPIC:
        topic = broker.state.topics.get(name)
        if topic is None:
            return answer | _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return answer | {"configs": _of_topic(topic.config, wanted)}
    if kind == BROKER:
        if name not in ("", str(broker.node_id)):
            return answer | _failed(ErrorCode.INVALID_REQUEST, f"this is node {broker.node_id}: ask node {name} itself")
        return answer | {"configs": _of_node(broker, wanted)}
    return answer | _failed(ErrorCode.INVALID_REQUEST, f"unknown resource type {kind}: 2 is a topic, 4 a broker")


def _failed(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "configs": []}


def _of_topic(overrides: dict[str, str], wanted: set[str] | None) -> list[dict[str, Any]]:
    return [
        _entry(
            key,
            overrides.get(key, config.default),
            _SOURCE_TOPIC if key in overrides else _SOURCE_DEFAULT,
            config.type.value,
            config.documentation,
            read_only=False,
        )
        for key, config in TOPIC_CONFIGS.items()
        if wanted is None or key in wanted
    ]


def _of_node(broker: Broker, wanted: set[str] | None) -> list[dict[str, Any]]:
    values = broker.configuration.values
    return [
        _entry(
            key,
            ",".join(values[key]) if isinstance(values[key], list) else _text(values[key]),
            _SOURCE_DEFAULT if values[key] == setting.default else _SOURCE_STATIC_BROKER,
            _KINDS[setting.kind],
            setting.doc,
            read_only=True,
        )
        for key, setting in SETTINGS.items()
        if wanted is None or key in wanted
    ]


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def _entry(name: str, value: str | None, source: int, kind: int, doc: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": kind,
        "documentation": doc,
    }
