"""DescribeConfigs (32): the settings of topics, of this node and its loggers, of groups and of subscriptions
to clients' metrics, with where each value comes from.

Synonyms and documentation are in the answer only when they are asked for.  Of "all nodes" (a broker resource
without a name) only what was set at run time is shown, as KIP-226 has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....controller.state.model import topic_name_problem
from ....controller.state.resource_settings import SETTINGS_OF, ResourceType
from ....security.acls import CLUSTER_NAME
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.described_settings import Described, DescribedSettings
from ...serving.requests import Fields, RequestContext
from .broker_loggers import logger_entries
from .resource_entries import resource_entries

if TYPE_CHECKING:
    from ....wire.request_types import DescribeConfigsRequest

TOPIC: Final = 2
BROKER: Final = 4


async def handle(broker: Broker, context: RequestContext, request: DescribeConfigsRequest) -> Fields:
    synonyms, documentation = request.include_synonyms, getattr(request, "include_documentation", False)
    results = []
    for resource in request.resources:
        answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            subject = subject_of(resource.resource_type)
            broker.permissions.require(context, subject, name_of(subject, resource.resource_name))
            configs = _configs(
                broker, resource.resource_type, resource.resource_name, synonyms, documentation
            )
        except KafkaError as error:
            results.append(answer | {"error_code": error.code, "error_message": error.message, "configs": []})
            continue
        keys = resource.configuration_keys  # none named: all are meant
        wanted = [config for config in configs if not keys or config["name"] in keys]
        results.append(answer | {"error_code": ErrorCode.NONE, "error_message": None, "configs": wanted})
    return {"throttle_time": 0, "results": results}


def subject_of(resource_type: int) -> str:
    """Of `security/request_rights.py`."""
    return {TOPIC: "topic", int(ResourceType.GROUP): "group"}.get(resource_type, "cluster")


def name_of(subject: str, resource_name: str) -> str:
    """Settings of nodes are the cluster's."""
    return CLUSTER_NAME if subject == "cluster" else resource_name


def _configs(
    broker: Broker, kind: int, name: str, synonyms: bool, documentation: bool
) -> list[dict[str, object]]:
    if kind in SETTINGS_OF:
        return resource_entries(broker, ResourceType(kind), name, synonyms, documentation)
    if kind == ResourceType.BROKER_LOGGER:
        return logger_entries(broker, name, documentation)
    return [_entry(setting, synonyms, documentation) for setting in _settings(broker, kind, name)]


def _settings(broker: Broker, kind: int, name: str) -> list[Described]:
    described = DescribedSettings(broker.configuration, broker.state.node_configs)
    if kind == TOPIC:
        problem = topic_name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        topic = broker.state.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return described.of_topic(topic)
    if kind == BROKER:
        if name and name != str(broker.node_id):
            message = (
                f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name[:100]}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return described.of_broker() if name else described.of_all_brokers()
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _entry(setting: Described, synonyms: bool, documentation: bool) -> dict[str, object]:
    named = setting.synonyms if synonyms else []
    return {
        "name": setting.name,
        "value": setting.shown,
        "read_only": setting.read_only,
        "config_source": setting.source,
        "is_sensitive": setting.secret,
        "synonyms": [{"name": name, "value": value, "source": source} for name, value, source in named],
        "config_type": setting.kind,
        "documentation": setting.documentation if documentation else None,
    }
