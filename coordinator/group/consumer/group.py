"""One consumer group, as its records say (KIP-848).

Every key has a slot of its own, and a record fills or empties just that slot: after compaction has removed
older values, the remaining records give the same group.  `apply` is the only mutator: of a group that is
loaded, of the live group, and of the copy from which the coordinator derives its records (`Draft`).  `apply`
also maintains the derived tables `holders` and `instances`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy

from ...outcome import CoordinatorRecord
from . import records
from .events import Partitions, TopicIdPartition, TopicShape
from .records import CurrentAssignment, Key, MemberMetadata, RecordKind, Value
from .state import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroupState,
    MemberRequest,
    MemberState,
    Situation,
)

NOTHING: Partitions = frozenset()
_NOT_YET = CurrentAssignment(JOINING_EPOCH, JOINING_EPOCH)


class ConsumerGroup:
    """`epoch` and `target_epoch` are 0 until a record sets them.  `holders`: partition -> the member that
    owns or still revokes it."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.topics: dict[str, TopicShape] = {}
        self.members: dict[str, MemberMetadata] = {}
        self.target_epoch = 0
        self.target: dict[str, Partitions] = {}
        self.current: dict[str, CurrentAssignment] = {}
        self.holders: dict[TopicIdPartition, str] = {}
        self.instances: dict[str, str] = {}

    def copy(self) -> ConsumerGroup:
        """Shares the values, which are never changed in place."""
        made = copy(self)
        made.topics, made.members, made.target = dict(self.topics), dict(self.members), dict(self.target)
        made.current, made.holders, made.instances = (
            dict(self.current),
            dict(self.holders),
            dict(self.instances),
        )
        return made

    # --- replay ---------------------------------------------------------------------------------------------

    def apply(self, key: Key, value: Value | None) -> None:
        match key.kind, value:
            case RecordKind.GROUP, int() | None:
                self.epoch = value or 0
            case RecordKind.TOPICS, dict() | None:
                self.topics = value or {}
            case RecordKind.TARGET_EPOCH, int() | None:
                self.target_epoch = value or 0
            case RecordKind.MEMBER, MemberMetadata() | None:
                self._apply_member(key.member_id, value)
            case RecordKind.TARGET, frozenset():
                self.target[key.member_id] = value
            case RecordKind.TARGET, None:
                self.target.pop(key.member_id, None)
            case RecordKind.CURRENT, CurrentAssignment() | None:
                self._apply_current(key.member_id, value)
            case _:
                raise AssertionError(f"{key}: {value!r} is no value of that kind")

    def _apply_member(self, member_id: str, member: MemberMetadata | None) -> None:
        before = self.members.pop(member_id, None)
        if (
            before is not None
            and before.instance_id is not None
            and self.instances.get(before.instance_id) == member_id
        ):
            del self.instances[before.instance_id]
        if member is not None:
            self.members[member_id] = member
            if member.instance_id is not None:
                self.instances[member.instance_id] = member_id

    def _apply_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.current.pop(member_id, None)
        for partition in before.held if before is not None else ():
            if self.holders.get(partition) == member_id:
                del self.holders[partition]
        if current is not None:
            self.current[member_id] = current
            self.holders.update(dict.fromkeys(current.held, member_id))

    # --- views ----------------------------------------------------------------------------------------------

    @property
    def is_blank(self) -> bool:
        """Whether no record of the group is left: then the group does not exist."""
        return not (
            self.epoch or self.topics or self.members or self.target_epoch or self.target or self.current
        )

    def record_keys(self) -> Iterator[Key]:
        """The keys of all records of the group."""
        for kind in (RecordKind.GROUP, RecordKind.TOPICS, RecordKind.TARGET_EPOCH):
            yield Key(kind, self.group_id)
        for kind, slots in (
            (RecordKind.CURRENT, self.current),
            (RecordKind.TARGET, self.target),
            (RecordKind.MEMBER, self.members),
        ):
            yield from (Key(kind, self.group_id, member_id) for member_id in slots)

    def current_of(self, member_id: str) -> CurrentAssignment:
        return self.current.get(member_id, _NOT_YET)

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self._is_reconciled(member_id) for member_id in self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def _is_reconciled(self, member_id: str) -> bool:
        current = self.current_of(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def is_classic(self, member_id: str) -> bool:
        """Whether the member uses the classic protocol."""
        member = self.members.get(member_id)
        return member is not None and member.classic is not None

    @property
    def is_all_classic(self) -> bool:
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    @property
    def is_settled(self) -> bool:
        """Whether every member has its assignment of the newest target."""
        return self.epoch == self.target_epoch and all(
            self._is_reconciled(member_id) for member_id in self.members
        )

    def subscribed_topics(self) -> set[str]:
        """The names in the subscriptions, and the topics that the regular expressions last matched."""
        return {name for member in self.members.values() for name in member.topic_names} | self.topics.keys()

    def assignor(self, known: tuple[str, ...]) -> str:
        """The assignor that most members ask for; at a tie, or when none asks, the first of `known`."""
        asked = Counter(member.assignor for member in self.members.values() if member.assignor in known)
        return max(known, key=lambda name: (asked[name], -known.index(name)))

    def situation(
        self,
        request: MemberRequest,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        owned: Partitions | None,
    ) -> Situation:
        """The relation of a caller with this identity to the group."""
        if (
            instance_id is not None
            and instance_id not in self.instances
            and request is not MemberRequest.JOIN
        ):
            return Situation.STRANGER
        if instance_id is not None:
            holder = self.instances.get(instance_id, member_id)
            left = self.current_of(holder).epoch == STATIC_LEAVING_EPOCH
            replaceable = left or self.is_classic(holder)
            if holder != member_id and not (replaceable and request is MemberRequest.JOIN):
                return Situation.INSTANCE_HELD
            if holder in self.members and left:
                return Situation.INSTANCE_LEFT
            if holder != member_id:
                # a classic member, which does not tell when it leaves for a while
                return Situation.INSTANCE_LEFT
        if member_id not in self.members:
            return Situation.STRANGER
        current = self.current_of(member_id)
        if current.epoch == STATIC_LEAVING_EPOCH:
            return Situation.INSTANCE_LEFT
        if epoch == current.epoch:
            return Situation.CURRENT
        if epoch > current.epoch:
            return Situation.NEWER
        missed = epoch == current.previous_epoch and owned is not None and owned <= current.held
        return Situation.PREVIOUS if missed else Situation.OLDER


class Draft:
    """The changes that one request makes to a group: each is applied to a copy, as `replay` will apply it,
    and kept as a record. The group itself does not change; the copy is made at the first change.  `level`:
    the finalised one, by which a record may be refused (UNSUPPORTED_VERSION)."""

    def __init__(self, group: ConsumerGroup, level: int) -> None:
        self._present = group
        self._level = level
        self._copy: ConsumerGroup | None = None
        self.records: list[CoordinatorRecord] = []

    @property
    def group(self) -> ConsumerGroup:
        """The group with all changes so far; read only."""
        return self._copy or self._present

    def write(self, kind: RecordKind, value: Value, member_id: str = "") -> None:
        self._change(Key(kind, self.group.group_id, member_id), value)

    def erase(self, key: Key) -> None:
        self._change(key, None)

    def _change(self, key: Key, value: Value | None) -> None:
        if self._copy is None:
            self._copy = self._present.copy()
        self._copy.apply(key, value)
        data = None if value is None else records.encode_value(key.kind, value, self._level)
        self.records.append(CoordinatorRecord(records.encode_key(key), data))

    def write_targets(self, targets: Mapping[str, Partitions]) -> None:
        """Writes the target assignments that differ from the present ones."""
        for member_id in sorted(targets):
            if self.group.target.get(member_id) != targets[member_id]:
                self.write(RecordKind.TARGET, targets[member_id], member_id)
