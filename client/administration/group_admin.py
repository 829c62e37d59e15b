"""Groups as an administrator lists and changes them: set or delete offsets, remove members, delete groups.

The client repeats requests that change a group after a lost answer; "already done" then counts as success.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode
from ..connecting.cluster import Cluster, CoordinatorKind, require_none, top_level_code
from ..connecting.errors import GroupChanged, RequestError
from ..requests.offset_requests import commit_offsets
from ..requests.transaction_requests import GroupMetadata, Offsets
from .all_coordinators import ask_all
from .descriptions import GroupListing

# The lowest versions that have these filters.
LIST_GROUPS_BY_STATE: Final = 4
LIST_GROUPS_BY_TYPE: Final = 5


async def list_groups(
    cluster: Cluster, states: Collection[str], types: Collection[str], timeout_s: float
) -> list[GroupListing]:
    """The groups of all coordinators, optionally only those in certain states (KIP-518), or of certain
    types (KIP-848): classic, consumer."""
    found: dict[str, GroupListing] = {}
    fields = {"states_filter": sorted(states), "types_filter": sorted(types)}
    lowest = LIST_GROUPS_BY_TYPE if types else LIST_GROUPS_BY_STATE if states else 0
    for _, answer in await ask_all(cluster, ApiKey.LIST_GROUPS, fields, timeout_s, lowest=lowest):
        require_none(top_level_code(answer), "listing groups")
        for group in answer.groups:
            state, kind = getattr(group, "group_state", ""), getattr(group, "group_type", "")
            found[group.group_id] = GroupListing(group.group_id, group.protocol_type, state, kind)
    return [found[name] for name in sorted(found)]


async def delete_group(cluster: Cluster, group_id: str, timeout_s: float) -> None:
    """Raises RequestError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""

    def code_of(answer: Any) -> ErrorCode:
        return top_level_code(answer.results[0])

    answer, lost = await _ask(
        cluster, group_id, ApiKey.DELETE_GROUPS, {"groups_names": [group_id]}, code_of, timeout_s
    )
    code = code_of(answer)
    if not (lost and code is ErrorCode.GROUP_ID_NOT_FOUND):
        require_none(code, f"deleting group {group_id!r}")


async def delete_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[tuple[str, int]], timeout_s: float
) -> None:
    """Raises RequestError: GROUP_SUBSCRIBED_TO_TOPIC for topics of the group's members.  The other partitions
    are done then."""
    topics: defaultdict[str, list[dict[str, int]]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append({"partition_index": partition})
    wanted = [{"name": name, "partitions": numbers} for name, numbers in topics.items()]
    fields = {"group_id": group_id, "topics": wanted}
    answer, _ = await _ask(cluster, group_id, ApiKey.OFFSET_DELETE, fields, top_level_code, timeout_s)
    require_none(top_level_code(answer), f"deleting offsets of group {group_id!r}")
    for topic in answer.topics:
        for entry in topic.partitions:
            where = f"{topic.name}-{entry.partition_index}"
            require_none(top_level_code(entry), f"deleting the offset of group {group_id!r} for {where}")


async def set_offsets(cluster: Cluster, group_id: str, offsets: Offsets, timeout_s: float) -> None:
    """Raises RequestError NON_EMPTY_GROUP: while a group has members, only they commit."""
    try:
        await commit_offsets(cluster, GroupMetadata(group_id), offsets, timeout_s=timeout_s)
    except GroupChanged:
        message = f"setting offsets of group {group_id!r}: it has members, stop them first"
        raise RequestError(ErrorCode.NON_EMPTY_GROUP, message) from None


async def remove_members(
    cluster: Cluster, group_id: str, instance_ids: Iterable[str], member_ids: Iterable[str], timeout_s: float
) -> None:
    """Raises RequestError UNKNOWN_MEMBER_ID for a member that is not in the group; the coordinator removes
    the others."""
    named = [{"member_id": "", "group_instance_id": name} for name in instance_ids]
    members = named + [{"member_id": member, "group_instance_id": None} for member in member_ids]
    if not members:
        return
    fields = {"group_id": group_id, "members": members}
    answer, lost = await _ask(
        cluster, group_id, ApiKey.LEAVE_GROUP, fields, top_level_code, timeout_s, lowest=3
    )
    require_none(top_level_code(answer), f"removing members of group {group_id!r}")
    for entry in answer.members:
        code, action = (
            top_level_code(entry),
            f"removing {entry.group_instance_id or entry.member_id!r} from group {group_id!r}",
        )
        if code is not ErrorCode.UNKNOWN_MEMBER_ID:
            require_none(code, action)
        elif not lost:
            raise RequestError(
                code, f"{action}: there is no such member (`tidegate groups describe` shows them)"
            )


async def _ask(
    cluster: Cluster,
    group_id: str,
    api_key: ApiKey,
    fields: dict[str, Any],
    code_of: Any,
    timeout_s: float,
    **bounds: Any,
) -> tuple[Any, bool]:
    """The coordinator's answer, and whether the answer of an earlier attempt was lost."""
    lost: list[str] = []
    answer = await cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group_id,
        api_key,
        fields,
        deadline_s=cluster.clock.monotonic() + timeout_s,
        code_of=code_of,
        on_lost=lost.append,
        **bounds,
    )
    return answer, bool(lost)
