"""OffsetFetch (9): how far a group has read; an unknown group or partition is offset -1 without an error.

Version 8 asks for several groups; version 9 says as which member, at which epoch (KIP-848).  With
`require_stable` an undecided transactional offset is UNSTABLE_OFFSET_COMMIT (docs/semantics.md O3), so that a
consumer does not start from an offset that is about to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from ....coordinator.group.events import FetchedOffset, OffsetFetch
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import (
        OffsetFetchGroup,
        OffsetFetchRequest,
        OffsetFetchRequestV1,
        OffsetFetchRequestV9,
        OffsetFetchTopic,
    )


async def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> Fields:
    require_stable = getattr(request, "require_stable", False)
    if context.api_version >= 8:
        groups, turns = [], CooperativeYield(context)
        for group in cast("OffsetFetchRequestV9", request).groups:
            await turns.before_next()
            found = await _fetch(broker, context, group.group_id, group.topics, require_stable, group)
            groups.append({"group_id": group.group_id, **found})
        return {"throttle_time": 0, "groups": groups}
    of_one = cast("OffsetFetchRequestV1", request)
    return {
        "throttle_time": 0,
        **await _fetch(broker, context, of_one.group_id, of_one.topics, require_stable),
    }


async def _fetch(
    broker: Broker,
    context: RequestContext,
    group_id: str,
    topics: Sequence[OffsetFetchTopic] | None,
    require_stable: bool,
    asking: OffsetFetchGroup | None = None,
) -> dict[str, object]:
    """asking: what bears the member's id and epoch, since version 9."""
    wanted: tuple[tuple[str, int], ...] | None = (
        None if topics is None else tuple((t.name, index) for t in topics for index in t.partition_indexes)
    )
    names = () if topics is None else tuple(topic.name for topic in topics)
    try:
        broker.permissions.require(context, "group", group_id)
        member_id, epoch = getattr(asking, "member_id", None), getattr(asking, "member_epoch", -1)
        offsets = (
            await broker.groups.ask(group_id, OffsetFetch(group_id, wanted, require_stable, member_id, epoch))
        ).offsets
    except KafkaError as error:
        says_all = context.api_version >= 2  # the error of the group
        failed = {} if says_all else dict.fromkeys(wanted or (), FetchedOffset(error=error.code))
        return {"error_code": error.code, "topics": _by_topic(failed, () if says_all else names)}
    allows = partial(broker.permissions.allows, context, "topic")
    if wanted is None:
        found = {key: each for key, each in offsets.items() if allows(key[0])}
    else:
        refused = {str(name): broker.permissions.refusal(context, "topic", name) for name in names}
        found = {
            key: FetchedOffset(error=code) if (code := refused[key[0]]) else offsets.get(key, FetchedOffset())
            for key in wanted
        }
    return {"error_code": ErrorCode.NONE, "topics": _by_topic(found, names)}


def _by_topic(offsets: dict[tuple[str, int], FetchedOffset], asked: Iterable[str]) -> list[dict[str, object]]:
    """Every topic that was asked for is in the answer, also one of which no partition was named."""
    topics: dict[str, list[dict[str, object]]] = {name: [] for name in asked}
    for (name, index), found in offsets.items():
        topics.setdefault(name, []).append(
            {
                "partition_index": index,
                "committed_offset": found.offset,
                "committed_leader_epoch": found.leader_epoch,
                "metadata": found.metadata,
                "error_code": found.error,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
