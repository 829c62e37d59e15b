"""The requests and deadlines of a classic group: join, sync, heartbeat, leave (KIP-345, KIP-394, KIP-814).

Every function takes the group, the time, and a `Change`, into which it puts the answers (by token) and
whether the shard must write the generation.  The log is the shard's.

A rebalance:  prepare -> (all joined, or the join deadline) -> next_generation -> answers to all joins
           -> the leader's sync -> `Change.assignment` -> record -> Stable and answers to all syncs.

`advance` runs the deadlines: a session that ends removes its member; the join deadline completes the join
without the members that did not rejoin (static members stay until their session ends); the sync deadline
removes the members that sent no SyncGroup. A member with a waiting request counts as alive.  A member that
was never in a generation is removed after `new_member_join_timeout_ms` all the same, because its client may
be gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....wire.errors import ErrorCode, KafkaError
from .events import (
    Acknowledged,
    ClassicGroupConfig,
    ClassicReply,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    SyncGroup,
    SyncReply,
)
from .membership import FOREVER_MS, NO_TOKEN, ClassicGroup, Member
from .state import RULES, GroupAction, GroupRequest, GroupState


@dataclass(slots=True)
class Change:
    """What one event leads to.  `reply` answers the caller; without it the caller waits, by its token.
    `answers`: to waiting callers, by their tokens.  `removed`: members that left or passed a deadline."""

    reply: ClassicReply | KafkaError | None = None
    answers: list[tuple[int, ClassicReply | KafkaError]] = field(default_factory=list)
    write: bool = False
    assignment: dict[str, bytes] | None = None
    removed: list[str] = field(default_factory=list)


def refusal(action: GroupAction, group_id: str) -> KafkaError | None:
    """The error that an action of the table stands for."""
    code = {
        GroupAction.REFUSE_UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
        GroupAction.REFUSE_REBALANCING: ErrorCode.REBALANCE_IN_PROGRESS,
        GroupAction.REFUSE_GENERATION: ErrorCode.ILLEGAL_GENERATION,
        GroupAction.REFUSE_NON_EMPTY: ErrorCode.NON_EMPTY_GROUP,
        GroupAction.REFUSE_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    }.get(action)
    return None if code is None else KafkaError(code, f"group {group_id}: {action.value}")


def act(state: GroupState, request: GroupRequest, group_id: str) -> GroupAction:
    """The table's action.  Raises KafkaError when it rejects."""
    action = RULES[(state, request)]
    error = refusal(action, group_id)
    if error is not None:
        raise error
    return action


# --- join ---------------------------------------------------------------------------------------------------


def check_session(event: JoinGroup, config: ClassicGroupConfig) -> None:
    """Raises INVALID_SESSION_TIMEOUT."""
    low, high = config.min_session_timeout_ms, config.max_session_timeout_ms
    if not low <= event.session_timeout_ms <= high:
        message = f"the session timeout {event.session_timeout_ms} ms must lie between {low} and {high} ms"
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, message)


def join(
    group: ClassicGroup, event: JoinGroup, token: int, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    """JoinGroup.  The member gets its answer when the rebalance ends, or at once when the generation does not
    change."""
    known = event.member_id in group.members
    if not known and len(group.members) >= config.max_size and not _returns_static(group, event):
        group.pending_members.pop(event.member_id, None)
        message = f"group {event.group_id} has its {config.max_size} members (group.max.size)"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    if not group.supports(event.protocol_type, event.protocols):
        message = (
            f"group {event.group_id} uses {group.protocol_type}, {sorted(group.shared_protocols())}: no "
            "protocol in common"
        )
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    if not event.member_id:
        _join_unnamed(group, event, token, now_ms, config, change)
    elif event.member_id in group.pending_members and event.group_instance_id is None:
        _add_member(group, event, event.member_id, token, now_ms, config, change)
    else:
        _rejoin(group, event, token, now_ms, config, change)


def _returns_static(group: ClassicGroup, event: JoinGroup) -> bool:
    return event.group_instance_id is not None and event.group_instance_id in group.static_members


def _join_unnamed(
    group: ClassicGroup, event: JoinGroup, token: int, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    if event.group_instance_id is not None and event.group_instance_id in group.static_members:
        _replace_static(group, event, token, now_ms, config, change)
    elif event.group_instance_id is None and event.require_known_member_id:
        # KIP-394: a client that never learns its id must not become a member, because all other members would
        # wait for it.
        group.pending_members[event.new_member_id] = now_ms + event.session_timeout_ms
        change.reply = JoinReply(event.new_member_id, error=ErrorCode.MEMBER_ID_REQUIRED)
    else:
        _add_member(group, event, event.new_member_id, token, now_ms, config, change)


def _add_member(
    group: ClassicGroup,
    event: JoinGroup,
    member_id: str,
    token: int,
    now_ms: int,
    config: ClassicGroupConfig,
    change: Change,
) -> None:
    action = act(group.state, GroupRequest.JOIN_NEW, group.group_id)
    member = Member(
        member_id,
        event.group_instance_id,
        event.client_id,
        event.client_host,
        event.rebalance_timeout_ms,
        event.session_timeout_ms,
        event.protocols,
        session_deadline_ms=now_ms + config.new_member_join_timeout_ms,
        join_token=token,
        is_new=True,
    )
    if not group.members:
        group.protocol_type = event.protocol_type
    group.add(member)
    group.joined_in_window = True
    if action is GroupAction.ADD_AND_REBALANCE:
        prepare(group, now_ms, config, change)
    _complete_if_all_joined(group, now_ms, change)


def _rejoin(
    group: ClassicGroup, event: JoinGroup, token: int, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    member = group.check_member(event.member_id, event.group_instance_id)
    action = act(group.state, GroupRequest.JOIN_KNOWN, group.group_id)
    changed = member.protocols != event.protocols
    is_leader = group.leader == member.member_id
    if action is GroupAction.REBALANCE_IF_CHANGED and not changed:
        # The answer to the member's join was lost: the generation does not change.
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        change.reply = _join_reply(group, member.member_id, with_members=is_leader)
        return
    if action is GroupAction.REBALANCE_IF_LEADER_OR_CHANGED and not changed and not is_leader:
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        change.reply = _join_reply(group, member.member_id, with_members=False)
        return
    _update(member, event)
    _await_join(member, token, now_ms, change)
    if group.state is not GroupState.PREPARING_REBALANCE:
        prepare(group, now_ms, config, change)
    _complete_if_all_joined(group, now_ms, change)


def _update(member: Member, event: JoinGroup) -> None:
    member.protocols = event.protocols
    member.client_id, member.client_host = event.client_id, event.client_host
    member.rebalance_timeout_ms, member.session_timeout_ms = (
        event.rebalance_timeout_ms,
        event.session_timeout_ms,
    )


def _await_join(member: Member, token: int, now_ms: int, change: Change) -> None:
    """At most one pending join a member: an older one gets REBALANCE_IN_PROGRESS."""
    if member.join_token != NO_TOKEN:
        change.answers.append((member.join_token, _rebalancing("the member joined again")))
    member.join_token = token
    member.session_deadline_ms = max(member.session_deadline_ms, now_ms + member.session_timeout_ms)


def _replace_static(
    group: ClassicGroup, event: JoinGroup, token: int, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    """KIP-345: an instance came back.  Its former member id is fenced; a stable generation need not
    change."""
    assert event.group_instance_id is not None
    old_id, old_leader = group.static_members[event.group_instance_id], group.leader
    member = group.members[old_id]
    for pending in (member.join_token, member.sync_token):
        if pending != NO_TOKEN:
            message = (
                f"group {group.group_id}: instance {event.group_instance_id} is now {event.new_member_id}"
            )
            change.answers.append((pending, KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)))
    member.join_token = member.sync_token = NO_TOKEN
    before = group.protocol
    group.rename(old_id, event.new_member_id)
    _update(member, event)
    member.session_deadline_ms = now_ms + member.session_timeout_ms
    if group.state is GroupState.STABLE and group.choose_protocol() == before:
        change.write = True  # the new member id must survive this coordinator
        leads = group.leader == member.member_id
        change.reply = _join_reply(
            group, member.member_id, with_members=leads and event.supports_skipping_assignment
        )
        if leads and not event.supports_skipping_assignment:
            # With the old leader's id in the answer, the client takes itself for a follower and syncs instead
            # of assigning anew.
            change.reply = _join_reply(group, member.member_id, with_members=False, leader=old_leader)
        elif leads:
            change.reply = _join_reply(group, member.member_id, with_members=True, skip_assignment=True)
        return
    _await_join(member, token, now_ms, change)
    if group.state is not GroupState.PREPARING_REBALANCE:
        prepare(group, now_ms, config, change)
    _complete_if_all_joined(group, now_ms, change)


def _join_reply(
    group: ClassicGroup,
    member_id: str,
    *,
    with_members: bool,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinReply:
    return JoinReply(
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        (group.leader if leader is None else leader) or "",
        group.joined_members() if with_members else (),
        skip_assignment,
    )


# --- the rebalance ------------------------------------------------------------------------------------------


def _rebalancing(why: str) -> KafkaError:
    return KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{why}: join again")


def prepare(group: ClassicGroup, now_ms: int, config: ClassicGroupConfig, change: Change) -> None:
    """Begins a rebalance: all members must join again.  The first rebalance of an empty group waits a little
    for more members."""
    for member in group.members.values():
        if member.sync_token != NO_TOKEN:
            change.answers.append((member.sync_token, _rebalancing("the group rebalances")))
            member.sync_token = NO_TOKEN
            member.session_deadline_ms = now_ms + member.session_timeout_ms
    group.unsynced.clear()
    group.sync_deadline_ms = FOREVER_MS
    timeout_ms = group.rebalance_timeout_ms
    group.initial_window_ms = -1
    group.join_deadline_ms = now_ms + timeout_ms
    if group.state is GroupState.EMPTY and config.initial_rebalance_delay_ms > 0:
        delay_ms = min(config.initial_rebalance_delay_ms, timeout_ms)
        group.join_deadline_ms = now_ms + delay_ms
        group.initial_window_ms = timeout_ms - delay_ms
        group.joined_in_window = False
    group.enter(GroupState.PREPARING_REBALANCE)


def dissolve(group: ClassicGroup, change: Change) -> None:
    """The group becomes a consumer group: its waiting members get the error to join again, and join the
    consumer group."""
    for member in group.members.values():
        for token in (member.join_token, member.sync_token):
            if token != NO_TOKEN:
                change.answers.append((token, _rebalancing("the group is a consumer group now")))
        member.join_token = member.sync_token = NO_TOKEN


def _complete_if_all_joined(group: ClassicGroup, now_ms: int, change: Change) -> None:
    if group.state is GroupState.PREPARING_REBALANCE and group.initial_window_ms < 0 and group.all_joined:
        next_generation(group, now_ms, change)


def next_generation(group: ClassicGroup, now_ms: int, change: Change) -> None:
    """Ends the join phase with the members that have joined."""
    for member in [
        m for m in group.members.values() if m.join_token == NO_TOKEN and m.group_instance_id is None
    ]:
        group.remove(member.member_id)
    joined = [member for member in group.members.values() if member.join_token != NO_TOKEN]
    if group.members and not joined:
        # only static members, and none has joined again yet
        group.join_deadline_ms = now_ms + group.rebalance_timeout_ms
        return
    group.join_deadline_ms = FOREVER_MS
    group.initial_window_ms = -1
    group.generation += 1
    group.protocol = group.choose_protocol()
    if not group.members:
        group.leader = None
        group.enter(GroupState.EMPTY)
        change.write = True
        return
    if group.leader is None or group.members[group.leader].join_token == NO_TOKEN:
        group.leader = joined[0].member_id
    group.enter(GroupState.COMPLETING_REBALANCE)
    group.unsynced = set(group.members)
    group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms
    for member in joined:
        leads = member.member_id == group.leader
        change.answers.append((member.join_token, _join_reply(group, member.member_id, with_members=leads)))
        member.join_token = NO_TOKEN
        member.is_new = False
        member.session_deadline_ms = now_ms + member.session_timeout_ms


def remove_member(
    group: ClassicGroup, member_id: str, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    """Removes a member; the others rebalance."""
    member = group.remove(member_id)
    if member is None:
        return
    change.removed.append(member_id)
    for token in (member.join_token, member.sync_token):
        if token != NO_TOKEN:
            change.answers.append((token, group.unknown(f"member {member_id!r}")))
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare(group, now_ms, config, change)
    _complete_if_all_joined(group, now_ms, change)


# --- sync, heartbeat, leave ---------------------------------------------------------------------------------


def sync(group: ClassicGroup, event: SyncGroup, token: int, now_ms: int, change: Change) -> None:
    """SyncGroup.  The leader's request brings the assignment; the shard writes it before any member gets
    it."""
    member = group.check_member(event.member_id, event.group_instance_id)
    group.check_generation(event.generation)
    for said, present in ((event.protocol_type, group.protocol_type), (event.protocol_name, group.protocol)):
        if said is not None and said != present:
            message = f"group {group.group_id} agreed on {present}, not {said}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    member.session_deadline_ms = now_ms + member.session_timeout_ms
    action = act(group.state, GroupRequest.SYNC, group.group_id)
    group.unsynced.discard(member.member_id)
    if action is GroupAction.ANSWER_ASSIGNMENT:
        change.reply = SyncReply(group.protocol_type, group.protocol, member.assignment)
        return
    if member.sync_token != NO_TOKEN:
        change.answers.append((member.sync_token, _rebalancing("the member asked again")))
    member.sync_token = token
    if member.member_id != group.leader:
        return
    assignment = dict(event.assignments)
    change.assignment = {member_id: assignment.get(member_id, b"") for member_id in group.members}
    change.write = True
    for waiting in group.members.values():
        if waiting.sync_token != NO_TOKEN:
            answer = SyncReply(group.protocol_type, group.protocol, change.assignment[waiting.member_id])
            change.answers.append((waiting.sync_token, answer))
            waiting.sync_token = NO_TOKEN
            waiting.session_deadline_ms = now_ms + waiting.session_timeout_ms


def heartbeat(group: ClassicGroup, event: Heartbeat, now_ms: int, change: Change) -> None:
    """Heartbeat: extends the session, even when the answer is to join again."""
    member = group.check_member(event.member_id, event.group_instance_id)
    group.check_generation(event.generation)
    member.session_deadline_ms = now_ms + member.session_timeout_ms
    act(group.state, GroupRequest.HEARTBEAT, group.group_id)
    change.reply = Acknowledged()


def leave(
    group: ClassicGroup, event: LeaveGroup, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    """LeaveGroup, several members at once; each has its own result."""
    results: list[tuple[LeavingMember, ErrorCode]] = []
    for leaving in event.members:
        try:
            _leave_one(group, leaving, now_ms, config, change)
            results.append((leaving, ErrorCode.NONE))
        except KafkaError as error:
            results.append((leaving, error.code))
    _complete_if_all_joined(group, now_ms, change)
    change.reply = LeaveReply(tuple(results))


def _leave_one(
    group: ClassicGroup, leaving: LeavingMember, now_ms: int, config: ClassicGroupConfig, change: Change
) -> None:
    if leaving.member_id in group.pending_members:
        del group.pending_members[leaving.member_id]
        return
    member_id = leaving.member_id
    if not member_id and leaving.group_instance_id is not None:
        member_id = group.static_members.get(leaving.group_instance_id, "")
    member = group.check_member(member_id, leaving.group_instance_id)
    act(group.state, GroupRequest.LEAVE, group.group_id)
    remove_member(group, member.member_id, now_ms, config, change)


# --- time ---------------------------------------------------------------------------------------------------


def renew_sessions(group: ClassicGroup, now_ms: int) -> None:
    """Begins every member's session anew."""
    for member in group.members.values():
        member.session_deadline_ms = now_ms + member.session_timeout_ms


def resume(group: ClassicGroup, now_ms: int, away_ms: int) -> None:
    """The coordinator answered no request for `away_ms`: it begins every session anew and moves all other
    deadlines by that time."""
    renew_sessions(group, now_ms)
    group.join_deadline_ms = min(FOREVER_MS, group.join_deadline_ms + away_ms)
    group.sync_deadline_ms = min(FOREVER_MS, group.sync_deadline_ms + away_ms)
    for member_id in group.pending_members:
        group.pending_members[member_id] += away_ms


def advance(group: ClassicGroup, now_ms: int, config: ClassicGroupConfig, change: Change) -> None:
    """Acts on every deadline that has passed."""
    for member_id, deadline_ms in list(group.pending_members.items()):
        if deadline_ms <= now_ms:
            del group.pending_members[member_id]
    for member in list(group.members.values()):
        if member.session_deadline_ms > now_ms:
            continue
        if member.is_waiting and not member.is_new:
            member.session_deadline_ms = now_ms + member.session_timeout_ms
        else:
            remove_member(group, member.member_id, now_ms, config, change)
    if group.sync_deadline_ms <= now_ms:
        group.sync_deadline_ms = FOREVER_MS
        for member_id in list(group.unsynced):
            remove_member(group, member_id, now_ms, config, change)
    if group.state is GroupState.PREPARING_REBALANCE and group.join_deadline_ms <= now_ms:
        _end_join_window(group, now_ms, config, change)
    _complete_if_all_joined(group, now_ms, change)


def _end_join_window(group: ClassicGroup, now_ms: int, config: ClassicGroupConfig, change: Change) -> None:
    if group.initial_window_ms > 0 and group.joined_in_window:
        delay_ms = min(config.initial_rebalance_delay_ms, group.initial_window_ms)
        group.initial_window_ms -= delay_ms
        group.join_deadline_ms = now_ms + delay_ms
        group.joined_in_window = False
        return
    next_generation(group, now_ms, change)
