"""What DescribeConfigs tells of a consumer group's settings, and of a subscription to clients' metrics."""

from __future__ import annotations

from typing import Final

from ....controller.state.resource_settings import SETTINGS_OF, ResourceType
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker

_SOURCES: Final = {ResourceType.CLIENT_METRICS: 7, ResourceType.GROUP: 8}
_SOURCE_DEFAULT: Final = 5
_NO_NAME: Final = {
    ResourceType.CLIENT_METRICS: "Client metrics subscription name must not be empty",
    ResourceType.GROUP: "Group name must not be empty",
}


def resource_entries(
    broker: Broker, kind: ResourceType, name: str, synonyms: bool, documentation: bool
) -> list[dict[str, object]]:
    """One entry a setting, as the answer has them.  Which are there depends on no group or client: each name
    has settings."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, _NO_NAME[kind])
    given = broker.state.resource_configs.get((kind, name), {})
    entries = []
    for key, setting in SETTINGS_OF[kind].items():
        value = given.get(key, setting.default)
        source = _SOURCES[kind] if key in given else _SOURCE_DEFAULT
        named = synonyms and (key in given or kind is ResourceType.GROUP)  # as Kafka has it
        entries.append(
            {
                "name": key,
                "value": value,
                "read_only": False,
                "config_source": source,
                "is_sensitive": False,
                "synonyms": [{"name": key, "value": value, "source": source}] if named else [],
                "config_type": int(setting.kind),
                "documentation": setting.documentation if documentation else None,
            }
        )
    return entries
