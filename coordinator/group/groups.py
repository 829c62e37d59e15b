"""The groups of one shard, of both types, and the requests of their members (docs/semantics.md, chapter G).

A group has one type at a time: a classic group (`classic/`), or a consumer group (`consumer/`, KIP-848).  A
group without members changes its type when a member of the other protocol joins; a group with members
migrates as `migration.py` says, and a consumer group may have members of both protocols.

The outcome of each generation is durable: the shard writes it, and `replay` applies it.  Requests that wait
for a rebalance are volatile, and the requests themselves change them (`classic/membership.py`,
`classic/rebalance.py`); when an append fails, the waiting members get the error and ask again, and the
generation in the log is still the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...wire.errors import ErrorCode, KafkaError
from .. import silence
from ..batches import batch_bytes
from ..outcome import Context, CoordinatorRecord, Reply, Wait, Write
from . import migration, views
from .classic import rebalance, records
from .classic import validation as classic_validation
from .classic.events import Acknowledged, Heartbeat, JoinGroup, LeaveGroup, LeaveReply, SyncGroup
from .classic.membership import FOREVER_MS, ClassicGroup
from .classic.rebalance import Change
from .classic.state import GroupRequest, GroupState
from .consumer import classic_members
from .consumer import validation as consumer_validation
from .consumer.events import ConsumerGroupHeartbeat, ConsumerGroupTimer, TopicCatalog
from .consumer.group import Draft
from .consumer.groups import ConsumerGroups, GroupTimeouts, NoTopics
from .consumer.records import CLASSIC_TAG, FIELDS_STORED_FROM, RecordKind
from .consumer.refusals import check_heartbeat
from .consumer.state import JOINING_EPOCH
from .consumer.validation import NO_EPOCHS, Epochs, epochs_of, succession_violations
from .events import (
    DescribeGroupReply,
    GroupConfig,
    GroupEvent,
    GroupOutcome,
    GroupReply,
    GroupTimer,
    ListGroups,
    ListGroupsReply,
    SilenceTimer,
    heard_member,
)
from .offsets import OffsetStore

ClassicEvent = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | GroupTimer


class Groups:
    """The classic groups, the consumer groups, and what is known of silent members."""

    def __init__(
        self,
        config: GroupConfig,
        offsets: OffsetStore,
        catalog: TopicCatalog | None,
        finalised_level: Callable[[], int],
        group_timeouts: GroupTimeouts,
        batch_bytes_max: Callable[[], int],
    ) -> None:
        """`offsets`: a group without members exists as long as it has offsets.  The other parameters are
        those of `GroupShard`."""
        self.config = config
        self.classic: dict[str, ClassicGroup] = {}
        self.consumers = ConsumerGroups(config.consumer, catalog, group_timeouts, finalised_level)
        self.silences = silence.Silences()
        self._offsets = offsets
        self._catalog: TopicCatalog = catalog or NoTopics()
        self._finalised_level = finalised_level
        self._batch_bytes_max = batch_bytes_max
        self._is_live = False
        self._deadlines: dict[str, int] = {}
        self._downgrades: dict[str, ClassicGroup] = {}  # whose record the runtime is appending
        # the epochs that the last `validate` has seen; empty where nothing calls it
        self._validated: dict[str, Epochs] = {}

    # --- replay ---------------------------------------------------------------------------------------------

    def replay_group(self, group_id: str, data: bytes | None) -> None:
        if data is None:
            self.classic.pop(group_id, None)
            self._deadlines.pop(group_id, None)
            return
        made = self._downgrades.pop(group_id, None)
        if made is not None:
            self.classic[group_id] = made
            self._deadlines[group_id] = made.next_deadline_ms()
        group = self.classic.setdefault(group_id, ClassicGroup(group_id))
        if self._is_live:
            group.confirm(records.decode_group_value(data))
        else:
            group.restore(records.decode_group_value(data))

    def activated(self, now_ms: int) -> list[list[CoordinatorRecord]]:
        """This coordinator begins to serve: the records that it owes each group."""
        self._is_live = True
        units = [self._begin_sessions(group, now_ms) for group in list(self.classic.values())]
        self.consumers.activated(now_ms, self.silences)
        return units

    def _begin_sessions(self, group: ClassicGroup, now_ms: int) -> list[CoordinatorRecord]:
        """Every member gets a full session to find this coordinator (but see `silence.py`).  Members that
        left under the former coordinator are removed, and the others join again."""
        for member in group.members.values():
            member.session_deadline_ms = self.silences.begin_classic_grace_period(
                group.group_id, member.member_id, member.session_timeout_ms, now_ms
            )
        change = Change()
        left = self.silences.departed_members(group.group_id)
        for member_id in left:
            rebalance.remove_member(group, member_id, now_ms, self.config.classic, change)
        # they were members of the consumer group that became this one
        if left and group.state is GroupState.STABLE:
            rebalance.prepare(group, now_ms, self.config.classic, change)
        self._store_group(group)
        return self._written(group, change, now_ms)

    def resumed(self, now_ms: int, away_ms: int) -> None:
        for group in self.classic.values():
            rebalance.resume(group, now_ms, away_ms)
            if group.group_id in self._deadlines:
                self._deadlines[group.group_id] = group.next_deadline_ms()
        self.consumers.resumed(now_ms, away_ms)
        self.silences.resumed(away_ms)

    def due(self, now_ms: int) -> list[GroupEvent]:
        events: list[GroupEvent] = [
            GroupTimer(group_id) for group_id, deadline in self._deadlines.items() if deadline <= now_ms
        ]
        events += self.consumers.due(now_ms)
        if self.silences.is_due(now_ms):
            events.append(SilenceTimer())
        return events

    def forget_failed_downgrades(self) -> None:
        """Before a request: a downgrade that is left over belongs to an append that failed."""
        self._downgrades.clear()

    # --- members of the classic protocol --------------------------------------------------------------------

    def on_classic_request(self, event: ClassicEvent, context: Context) -> GroupOutcome:
        if not event.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if isinstance(event, JoinGroup):
            rebalance.check_session(event, self.config.classic)
        group = self.classic.get(event.group_id)
        if group is None and self.has_consumers(event.group_id) and not isinstance(event, GroupTimer):
            return self._classic_member(event, context)
        kind_before = self.consumers.tombstones(event.group_id)  # of a former consumer group without members
        if group is None:
            if isinstance(event, JoinGroup) and not event.member_id:
                group = ClassicGroup(event.group_id)
            else:
                return self._without_group(event)
        change = Change()
        try:
            self._move(group, event, context, change)
        except KafkaError as error:
            change.reply = error
        # all but a heartbeat, which only extends a deadline: the stored one is still a lower bound
        if not isinstance(event, Heartbeat):
            self._store_group(group)
        written = kind_before if group.members or group.pending_members else []
        written += self._written(group, change, context.now_ms)
        if heard_member(event) in group.members:
            written += self._silence_ended(event)
        if change.reply is None:
            return Wait(written, change.answers)
        return Write(written, change.reply, answers=change.answers)

    def _written(self, group: ClassicGroup, change: Change, now_ms: int) -> list[CoordinatorRecord]:
        """The record of the new generation; without one, notes about members of the stored generation that
        have left."""
        if not change.write:
            return self.silences.left(
                group.group_id, [name for name in change.removed if name in group.stored_members], now_ms
            )
        value = records.encode_group_value(group.to_value(now_ms, change.assignment), self._finalised_level())
        generation = CoordinatorRecord(records.encode_group_key(group.group_id), value)
        return [generation, *self.silences.forget_all_but(group.group_id, group.members)]

    def _silence_ended(self, event: ClassicEvent | ConsumerGroupHeartbeat) -> list[CoordinatorRecord]:
        """The tombstone of the silence note of the member that the event is heard from."""
        member_id = heard_member(event)
        return [] if member_id is None else self.silences.request_received(event.group_id, member_id)

    def on_silence_timer(self, now_ms: int) -> GroupOutcome:
        return Write(self.silences.on_timer(now_ms, self._is_member), Acknowledged())

    def _is_member(self, group_id: str, member_id: str) -> bool:
        group, consumers = self.classic.get(group_id), self.consumers.groups.get(group_id)
        return (group is not None and member_id in group.members) or (
            consumers is not None and member_id in consumers.members
        )

    def _move(
        self,
        group: ClassicGroup,
        event: ClassicEvent,
        context: Context,
        change: Change,
    ) -> None:
        match event:
            case JoinGroup():
                rebalance.join(group, event, context.token, context.now_ms, self.config.classic, change)
            case SyncGroup():
                rebalance.sync(group, event, context.token, context.now_ms, change)
            case Heartbeat():
                rebalance.heartbeat(group, event, context.now_ms, change)
            case LeaveGroup():
                rebalance.leave(group, event, context.now_ms, self.config.classic, change)
            case GroupTimer():
                rebalance.advance(group, context.now_ms, self.config.classic, change)
                change.reply = Acknowledged()

    # --- both protocols in one group (migration.py) ---------------------------------------------------------

    def _knows_classic_members(self) -> bool:
        """Whether every node that may coordinate supports classic members in consumer groups."""
        stored_from = FIELDS_STORED_FROM[RecordKind.MEMBER, CLASSIC_TAG]
        return stored_from is None or stored_from <= self._finalised_level()

    def _classic_member(
        self, event: JoinGroup | SyncGroup | Heartbeat | LeaveGroup, context: Context
    ) -> GroupOutcome:
        """A request of a classic member to a consumer group."""
        draft = self.consumers.draft(self.consumers.groups[event.group_id])
        reply: GroupReply | KafkaError
        notes_removed = self._silence_ended(event)
        try:
            match event:
                case JoinGroup():
                    if not self._knows_classic_members():
                        message = (
                            f"{event.group_id} is a consumer group with members: set group.protocol=consumer"
                        )
                        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
                    draft, reply = classic_members.join(self.consumers, self._catalog, event, context)
                case SyncGroup():
                    reply = classic_members.sync(self.consumers, event, context)
                case Heartbeat():
                    classic_members.heartbeat(self.consumers, event, context)
                    reply = Acknowledged()
                case LeaveGroup():
                    draft, reply = classic_members.leave(self.consumers, event)
        except KafkaError as error:
            reply = error
        joined = isinstance(event, JoinGroup)
        return Write(self._settled(draft, context.now_ms, joined=joined) + notes_removed, reply)

    def _settled(self, draft: Draft, now_ms: int, *, joined: bool) -> list[CoordinatorRecord]:
        """The records of a draft; or instead those of the classic group that it becomes, when the last member
        of the consumer protocol left, or (`joined`) became a classic member while every member has its target
        assignment."""
        group, group_id = draft.group, draft.group.group_id
        written = draft.records
        may = written and group.is_all_classic and (group.is_settled or not joined)
        if may and migration.may_downgrade(self.config, group, self._batch_bytes_max()):
            present = self.consumers.groups[group_id]
            made = migration.downgraded(group, group.epoch if joined else present.epoch, now_ms)
            generation = records.encode_group_value(made.to_value(now_ms, None), self._finalised_level())
            value = CoordinatorRecord(records.encode_group_key(group_id), generation)
            notes = self.silences.forget_all_but(group_id, made.members)
            if not joined:  # by these notes a next coordinator knows that the other members must join again
                notes += self.silences.left(group_id, present.members.keys() - made.members.keys(), now_ms)
            instead = [*self.consumers.tombstones(group_id), value, *notes]
            # otherwise it stays a consumer group: the log takes all or nothing
            if batch_bytes(instead) <= self._batch_bytes_max():
                if not joined:
                    rebalance.prepare(made, now_ms, self.config.classic, Change())
                self._downgrades[group_id] = made
                return instead
        if group_id in self.silences.notes:
            written = written + self.silences.forget_all_but(group_id, group.members)
        return written

    def on_consumer_heartbeat(self, event: ConsumerGroupHeartbeat, context: Context) -> GroupOutcome:
        check_heartbeat(event, self.config.consumer)
        group = self.classic.get(event.group_id)
        classic = group is not None and bool(group.members or group.pending_members)
        if event.member_epoch != JOINING_EPOCH and event.group_id not in self.consumers.groups:
            classic = self.state_of(event.group_id) is not GroupState.DEAD
        converted: Draft | None = None
        change = Change()
        if (
            classic
            and group is not None
            and event.member_epoch == JOINING_EPOCH
            and self.config.migration_policy.goes_up
            and self._knows_classic_members()
        ):
            converted = migration.upgraded(
                group, self._catalog, self.config.consumer.max_size, self._finalised_level()
            )
            classic = False
        draft, reply = self.consumers.heartbeat(event, context, classic=classic, converted=converted)
        if converted is not None and group is not None:
            migration.check_upgrade_fits(group, draft.records, self._batch_bytes_max())
            rebalance.dissolve(group, change)
            for member_id in group.members:
                if member_id in draft.group.members:
                    self.consumers.watch(draft.group, member_id, context.now_ms)
        tombstone = self._classic_tombstone(event.group_id) if draft.records else []
        notes_removed = self._silence_ended(event)
        written = [*tombstone, *self._settled(draft, context.now_ms, joined=False), *notes_removed]
        return Write(written, reply, answers=change.answers)

    def on_consumer_timer(self, event: ConsumerGroupTimer, context: Context) -> GroupOutcome:
        draft = self.consumers.on_timer(event, context)
        return Write(self._settled(draft, context.now_ms, joined=False), Acknowledged())

    def _without_group(self, event: ClassicEvent) -> GroupOutcome:
        match event:
            case GroupTimer():
                return Reply(Acknowledged())
            case LeaveGroup():
                results = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in event.members)
                return Reply(LeaveReply(results))
            case JoinGroup() | SyncGroup() | Heartbeat():
                message = f"group {event.group_id} is not known: join again"
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)

    def _store_group(self, group: ClassicGroup) -> None:
        """Stores the group and its next deadline; drops a group that never had a member."""
        if (
            group.state is GroupState.EMPTY
            and not group.is_stored
            and not group.pending_members
            and group.generation == 0
        ):
            self.classic.pop(group.group_id, None)
            self._deadlines.pop(group.group_id, None)
            return
        self.classic[group.group_id] = group
        deadline_ms = group.next_deadline_ms()
        if deadline_ms == FOREVER_MS:
            self._deadlines.pop(group.group_id, None)
        else:
            self._deadlines[group.group_id] = deadline_ms

    # --- views ----------------------------------------------------------------------------------------------

    def state_of(self, group_id: str) -> GroupState:
        """A group without members but with offsets is Empty; an unknown group is Dead."""
        group = self.classic.get(group_id)
        if group is not None:
            return group.state
        return GroupState.EMPTY if self._offsets.knows(group_id) else GroupState.DEAD

    def is_consumer_kind(self, group_id: str) -> bool:
        return group_id in self.consumers.groups and group_id not in self.classic

    def has_consumers(self, group_id: str) -> bool:
        group = self.consumers.groups.get(group_id)
        return group is not None and bool(group.members)

    def names(self) -> Iterable[str]:
        return dict.fromkeys([*self.classic, *self.consumers.groups, *self._offsets.groups()])

    # --- tombstones -----------------------------------------------------------------------------------------

    def _classic_tombstone(self, group_id: str) -> list[CoordinatorRecord]:
        return (
            [CoordinatorRecord(records.encode_group_key(group_id), None)] if group_id in self.classic else []
        )

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstones of a group without members, of either type."""
        return (
            self._classic_tombstone(group_id)
            + self.consumers.tombstones(group_id)
            + self.silences.forget(group_id)
        )

    # --- ListGroups, DescribeGroups -------------------------------------------------------------------------

    def list_groups(self, event: ListGroups) -> GroupOutcome:
        listings = [
            views.consumer_listing(group_id, self.consumers.state_of(group_id))
            if self.is_consumer_kind(group_id)
            else views.classic_listing(group_id, self.classic.get(group_id), self.state_of(group_id))
            for group_id in self.names()
        ]
        return Reply(ListGroupsReply(tuple(each for each in listings if views.is_wanted(each, event))))

    def describe(self, group_id: str) -> GroupOutcome:
        group, problem, state = self.classic.get(group_id), "", self.state_of(group_id)
        rebalance.act(state, GroupRequest.DESCRIBE, group_id)
        if group is not None:
            return Reply(views.description(group))
        # not a classic group: DescribeGroups answers as for an unknown one
        if self.is_consumer_kind(group_id):
            state, problem = GroupState.DEAD, f"Group {group_id} is not a classic group."
        elif state is GroupState.DEAD:
            problem = f"Group {group_id} not found."
        return Reply(DescribeGroupReply(group_id, state, problem=problem))

    def describe_consumers(self, group_id: str) -> GroupOutcome:
        known = self.state_of(group_id) is not GroupState.DEAD
        return Reply(self.consumers.describe(group_id, is_other_kind=known))

    # --- invariants -----------------------------------------------------------------------------------------

    def validate(self, group_ids: Iterable[str] | None) -> None:
        """Raises AssertionError when an invariant of these groups does not hold, or, with None, of any group
        (`classic/validation.py`, `consumer/validation.py`)."""
        names = [*self.names(), *self._validated] if group_ids is None else group_ids
        for name in dict.fromkeys(names):
            found = next(self._violations(name), None)
            assert found is None, f"group {name}: {found}"
            consumers = self.consumers.groups.get(name)
            if consumers is None:
                self._validated.pop(name, None)
            else:
                self._validated[name] = epochs_of(consumers)

    def _violations(self, name: str) -> Iterator[str]:
        group, consumers = self.classic.get(name), self.consumers.groups.get(name)
        if group is not None:
            yield from classic_validation.violations(group)
            if group.group_id != name or self._deadlines.get(name, FOREVER_MS) > group.next_deadline_ms():
                yield "the table of deadlines, or of groups, disagrees with the group"
        if consumers is not None:
            yield from consumer_validation.violations(consumers)
            yield from succession_violations(self._validated.get(name, NO_EPOCHS), consumers)
            if consumers.group_id != name or consumers.is_blank:
                yield "the table of consumer groups disagrees with the group"
            if consumers.members and group is not None and group.members:
                yield "the group has members of both types"
