"""What holds of a classic group between two requests (docs/semantics.md, chapter G)."""

from __future__ import annotations

from collections.abc import Iterator

from .membership import FOREVER_MS, NO_TOKEN, ClassicGroup
from .state import GroupState


def violations(group: ClassicGroup) -> Iterator[str]:
    """Sentences about what does not hold."""
    members, state = group.members, group.state
    if any(member_id != member.member_id for member_id, member in members.items()):
        yield "a member stands under another id than its own"
    instances = {
        m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None
    }
    if instances != group.static_members:
        yield f"the instances are {instances}, and the table of static members is {group.static_members}"
    if (group.leader in members) != bool(members):
        yield f"the leader {group.leader} is not a member"
    if not members.keys().isdisjoint(group.pending_members):
        yield "a member has joined, and has yet to join"
    if not group.unsynced <= members.keys():
        yield "a member that is gone is to sync"
    if group.unsynced and state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        yield f"members are to sync while the group is {state.value}"
    if bool(members) != (state is not GroupState.EMPTY) and state is not GroupState.PREPARING_REBALANCE:
        yield f"a group with {len(members)} members is {state.value}"
    if state is GroupState.DEAD:
        yield "a dead group has an entry"
    joining = any(member.join_token != NO_TOKEN for member in members.values())
    if joining and state is not GroupState.PREPARING_REBALANCE:
        yield f"a JoinGroup waits while the group is {state.value}"
    syncing = any(member.sync_token != NO_TOKEN for member in members.values())
    if syncing and state is not GroupState.COMPLETING_REBALANCE:
        yield f"a SyncGroup waits while the group is {state.value}"
    if state is GroupState.PREPARING_REBALANCE and group.join_deadline_ms == FOREVER_MS:
        yield "the rebalance has no end"
    agreed = state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)
    if agreed and group.protocol is not None and group.protocol not in group.shared_protocols():
        yield f"a member does not support the protocol {group.protocol} of the generation"
