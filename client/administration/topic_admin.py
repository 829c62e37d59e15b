"""Topics and their settings: the requests behind `Admin`'s methods of the same names.

The client repeats a request that changes something only when the first attempt certainly had no effect, or
when "already exists" (after a lost answer) means success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..connecting.cluster import Backoff, Cluster, require_none
from ..connecting.errors import ConnectionFailed, RequestError, error_for
from ..connecting.metadata import TopicView
from .descriptions import ConfigEntry, NewTopic, TopicDescription

TOPIC_RESOURCE: Final = 2
DEFAULT_CONFIG_SOURCE: Final = 5
SET_CONFIG: Final = 0
DELETE_CONFIG: Final = 1


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], timeout_s: float, *, wait: bool = True
) -> None:
    """Creates topics; with `wait`, returns when the node that this client asks knows a leader of every
    partition.

    A topic that the controller refuses does not prevent the others: the error says which topics were
    created.
    """
    fields = {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "assignments": [],
                "configs": [{"name": name, "value": str(value)} for name, value in topic.config.items()],
            }
            for topic in topics
        ],
        "timeout": int(timeout_s * 1000),
        "validate_only": False,
    }
    await _change(
        cluster,
        timeout_s,
        ApiKey.CREATE_TOPICS,
        fields,
        "topics",
        "creating topic",
        ErrorCode.TOPIC_ALREADY_EXISTS,
    )
    if wait:
        await _wait_for_leaders(cluster, timeout_s, [topic.name for topic in topics])


async def delete_topics(cluster: Cluster, names: Sequence[str], timeout_s: float) -> None:
    """Deletes topics with all their data."""
    fields = {"topic_names": list(names), "timeout": int(timeout_s * 1000)}
    await _change(
        cluster,
        timeout_s,
        ApiKey.DELETE_TOPICS,
        fields,
        "responses",
        "deleting topic",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        highest=5,
    )
    cluster.view = cluster.view.without_topics(names)


async def create_partitions(
    cluster: Cluster, counts: Mapping[str, int], timeout_s: float, *, wait: bool = True
) -> None:
    """Raises topics to `count` partitions.  Keys then go to other partitions than before."""
    fields = {
        "topics": [{"name": name, "count": count, "assignments": None} for name, count in counts.items()],
        "timeout": int(timeout_s * 1000),
        "validate_only": False,
    }
    await _change(
        cluster, timeout_s, ApiKey.CREATE_PARTITIONS, fields, "results", "adding partitions to topic", None
    )
    if wait:
        await _wait_for_leaders(cluster, timeout_s, list(counts), counts)


async def list_topics(cluster: Cluster, *, internal: bool = False) -> list[TopicView]:
    """All topics, by name."""
    await cluster.refresh(None)
    views = sorted(cluster.view.topics.values(), key=lambda view: view.name)
    return [view for view in views if internal or not view.internal]


async def describe_topics(
    cluster: Cluster, names: Iterable[str], *, config: bool = True
) -> list[TopicDescription]:
    """Partitions and settings.  Raises RequestError for a topic that does not exist."""
    wanted = list(names)
    cluster.view = cluster.view.without_topics(wanted)  # a recreated topic's epochs restart
    await cluster.refresh(wanted)
    views: list[TopicView] = []
    for name in wanted:
        view = cluster.view.topics.get(name)
        code = view.error if view is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if view is None or code is not ErrorCode.NONE:
            error = error_for(code, f"topic {name!r}")
            raise RequestError(code, error.message)
        views.append(view)
    settings = await describe_configs(cluster, wanted) if config else {}
    return [
        TopicDescription(
            view.name, view.internal, list(view.partitions.values()), settings.get(view.name, ())
        )
        for view in views
    ]


async def describe_configs(cluster: Cluster, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
    """The settings of topics, defaults included."""
    resources = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None} for name in names
    ]
    answer = await cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": resources})
    found: dict[str, list[ConfigEntry]] = {}
    for result in answer.results:
        code = ErrorCode.from_wire(int(result.error_code))
        require_none(code, f"settings of topic {result.resource_name!r}", result.error_message)
        found[result.resource_name] = [
            ConfigEntry(
                entry.name,
                entry.value,
                int(entry.config_source) == DEFAULT_CONFIG_SOURCE,
                bool(entry.read_only),
            )
            for entry in result.configs
        ]
    return found


async def alter_config(cluster: Cluster, name: str, changes: Mapping[str, str | None]) -> None:
    """Sets a topic's settings; None resets a setting to its default."""
    configs = [
        {"name": key, "config_operation": DELETE_CONFIG if value is None else SET_CONFIG, "value": value}
        for key, value in changes.items()
    ]
    resources = [{"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": configs}]
    fields = {"resources": resources, "validate_only": False}
    answer = await cluster.ask_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
    for result in answer.responses:
        code = ErrorCode.from_wire(int(result.error_code))
        require_none(code, f"settings of topic {result.resource_name!r}", result.error_message)


async def _change(
    cluster: Cluster,
    timeout_s: float,
    api_key: ApiKey,
    fields: Mapping[str, Any],
    results: str,
    what: str,
    settled: ErrorCode | None,
    *,
    highest: int | None = None,
) -> None:
    """Sends one change to the controller.  The code `settled` means success when an earlier attempt's
    answer was lost."""
    deadline_s, backoff, lost = cluster.clock.monotonic() + timeout_s, Backoff(cluster.clock), False
    while True:
        said: str | None = None
        try:
            answer = await cluster.ask_controller(api_key, fields, highest=highest)
        except ConnectionFailed as error:
            code, said, lost = error.code, error.message, True
            if settled is None:
                raise
        else:
            code = ErrorCode.NONE
            refusals: list[KafkaError] = []
            done: list[str] = []
            for result in getattr(answer, results):
                found = ErrorCode.from_wire(int(result.error_code))
                if found is ErrorCode.NONE or (lost and found is settled):
                    done.append(result.name)
                elif found not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):
                    refusals.append(
                        error_for(found, f"{what} {result.name!r}", getattr(result, "error_message", None))
                    )
                else:
                    code, lost = found, lost or found is ErrorCode.REQUEST_TIMED_OUT
            if refusals:
                raise _refusal(refusals, done)
            if code is ErrorCode.NONE:
                return
            await cluster.refresh(())
        await cluster.pause(backoff, deadline_s, code, what, said)


async def _wait_for_leaders(
    cluster: Cluster, timeout_s: float, names: Sequence[str], counts: Mapping[str, int] | None = None
) -> None:
    deadline_s, backoff = cluster.clock.monotonic() + timeout_s, Backoff(cluster.clock)
    while True:
        await cluster.refresh(names)
        views = [cluster.view.topics.get(name) for name in names]
        if all(
            view is not None
            and view.partitions
            and len(view.partitions) >= (counts or {}).get(view.name, 1)
            and all(cluster.view.leader(view.name, number) >= 0 for number in view.partitions)
            for view in views
        ):
            return
        await cluster.pause(
            backoff,
            deadline_s,
            ErrorCode.LEADER_NOT_AVAILABLE,
            f"waiting for the leaders of {', '.join(names)}",
        )


def _refusal(refusals: Sequence[KafkaError], done: Sequence[str]) -> KafkaError:
    """One error for a request of several items, with the code of the first failed one."""
    first = refusals[0]
    message = "; ".join(refusal.message for refusal in refusals)
    if done:
        message += f"; it was done for {', '.join(done)}"
    # The broker has decided: the client must not repeat the request, even if the code is retriable.
    return RequestError(first.code, message) if first.code.retriable else type(first)(first.code, message)
