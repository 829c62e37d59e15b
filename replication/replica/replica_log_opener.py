"""Opens the logs of this node's replicas: finds them in the data folders, or creates them, many at a time.

Creating a log waits for the disk several times.  `ready` returns the assignments whose logs exist; a thread
creates the other logs, and then the opener calls `apply` with those assignments.  Meanwhile the metadata may
change:

    newer metadata of the partition    `apply` gets the newest assignment
    the topic is deleted               the opener removes the log after its creation
    ... and created again              the opener creates the new topic's log after that
    the data folder fails              the replica is offline, as when an existing log does not open
    the node stops                     it waits for the thread; the logs stay for the next start

While its log is created a partition answers NOT_LEADER_OR_FOLLOWER, which every client retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import log_failure, spawn
from ...storage.directory.creation import Creation, NewLog
from ...storage.folders.data_folders import DataFolders
from ...storage.log.log import Log, LogConfig
from ...storage.topic_config import unread_settings
from ...wire.errors import ErrorCode, KafkaError
from ..partition.assignment import Assignment

Key = tuple[str, int]

_log = logs.get(__name__)

WARNED_OF_MAX = 100
SETTING_SHOWN_MAX = 200


class ReplicaLogOpener:
    """See the module's docstring.  All methods run on the loop's thread."""

    def __init__(
        self,
        node_id: int,
        directory: DataFolders,
        clock: Clock,
        producer_id_expiration_ms: Callable[[], int],
        apply: Callable[[Sequence[Assignment]], None],
        on_failed: Callable[[str, int, str], None],
        *,
        in_background: bool,
    ) -> None:
        """Without `in_background`, `ready` creates the logs itself, before it returns."""
        self._node_id = node_id
        self._directory = directory
        self._clock = clock
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._apply = apply
        self._on_failed = on_failed
        self._in_background = in_background
        self._failed: dict[Key, str] = {}  # replicas whose logs did not open, with the reason
        # the newest assignment of each log in creation; None: its topic was deleted
        self._making: dict[Key, Assignment | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known_config: tuple[Mapping[str, str], int, LogConfig] | None = None
        self._warned_of: set[str] = set()
        self._closing = False

    def log_config(self, assignment: Assignment) -> LogConfig:
        """The log configuration of the assignment; partitions of a topic share one object."""
        known, expiration_ms = self._known_config, self._producer_id_expiration_ms()
        if known is None or known[0] is not assignment.config or known[1] != expiration_ms:
            config = LogConfig.from_topic_config(
                dict(assignment.config), producer_id_expiration_ms=expiration_ms
            )
            self._warn_of_unread(assignment)
            known = self._known_config = (assignment.config, expiration_ms, config)
        return known[2]

    def _warn_of_unread(self, assignment: Assignment) -> None:
        """One line for each setting, not for each topic that has it."""
        for name in unread_settings(assignment.config):
            if name not in self._warned_of and len(self._warned_of) < WARNED_OF_MAX:
                self._warned_of.add(name)
                text = assignment.config[name]
                _log.warning(
                    "topic_setting_unknown",
                    topic=assignment.topic,
                    setting=name,
                    value=text[:SETTING_SHOWN_MAX],
                )

    def require_possible(self, key: Key) -> None:
        """Raises KAFKA_STORAGE_ERROR for a replica whose log did not open, NOT_LEADER_OR_FOLLOWER while a
        thread creates it."""
        if why := self._failed.get(key):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why)
        if self._making.get(key) is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {key[0]}-{key[1]} is being made")

    # ---- making many ---------------------------------------------------------------------------------------

    def ready(self, assignments: Iterable[Assignment]) -> list[Assignment]:
        """The assignments whose logs exist, in order.  The opener creates the other logs and then calls
        `apply`."""
        found: list[Assignment] = []
        missing: dict[Key, Assignment] = {}
        for assignment in assignments:
            key = (assignment.topic, assignment.partition)
            self._failed.pop(key, None)  # the opener tries again, or the replica is not this node's any more
            if key in self._making:
                self._making[key] = assignment
            elif self._is_missing(assignment):
                missing[key] = assignment
            else:
                found.append(assignment)
        if missing and not self._closing:
            found += self._make(missing)
        return found

    def _is_missing(self, assignment: Assignment) -> bool:
        there = self._directory.topic_id_of(assignment.topic, assignment.partition)
        return (
            self._node_id in assignment.replicas
            and there != assignment.topic_id
            and not self.may_set_aside(assignment)
        )

    def _make(self, missing: dict[Key, Assignment]) -> list[Assignment]:
        """Creates the logs of `missing`, or lets a thread create them; returns the assignments whose logs
        exist now."""
        wanted = [
            NewLog(each.topic, each.topic_id, each.partition, self.log_config(each))
            for each in missing.values()
        ]
        try:
            creation = self._directory.begin_creation(wanted, now_ms=self._clock.wall_ms())
        except KafkaError as error:
            for key in missing:
                self.failed(key, error)
            return []
        self._making.update(missing)
        if not self._in_background:
            creation.run()
            return self._made(missing, creation)
        consequence = "these logs are not there before the node starts again"
        task = spawn(
            self._make_in_background(missing, creation),
            "log-creation",
            log_failure("log-creation", consequence=consequence),
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return []

    async def _make_in_background(self, missing: dict[Key, Assignment], creation: Creation) -> None:
        await asyncio.to_thread(creation.run)
        made = self._made(missing, creation)
        if not made or self._closing:
            return
        try:
            self._apply(made)
        except Exception as error:  # a defect: the replicas are offline, and `open_again` tries again
            _log.exception("replica_roles_not_applied", partitions=len(made))
            for each in made:
                why = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"it could not be applied: {error!r}")
                self.failed((each.topic, each.partition), why)

    def _made(self, missing: dict[Key, Assignment], creation: Creation) -> list[Assignment]:
        """The newest assignments of the created logs, and of those to try again; see the table in the
        module's docstring."""
        made: list[Assignment] = []
        for key, result in creation.finish().items():
            newest = self._making.pop(key)
            if newest is None or self._node_id not in newest.replicas:
                if isinstance(result, Log):
                    self.remove(key)
            elif isinstance(result, KafkaError) and newest.topic_id == missing[key].topic_id:
                self.failed(key, result)
            else:
                made.append(newest)
        return made

    # ---- one by one ----------------------------------------------------------------------------------------

    def open(self, assignment: Assignment) -> Log | None:
        """The log of a replica; None when it does not open.  Sets a damaged log aside, and creates an empty
        one in its place, when no committed record depends on it."""
        config = self.log_config(assignment)
        try:
            if self.may_set_aside(assignment):
                self._directory.set_aside(
                    assignment.topic, assignment.partition, now_ms=self._clock.wall_ms()
                )
            opened = self._directory.create(
                assignment.topic,
                assignment.topic_id,
                assignment.partition,
                config,
                now_ms=self._clock.wall_ms(),
            )
        except KafkaError as error:
            self.failed((assignment.topic, assignment.partition), error)
            return None
        opened.update_config(config)  # an existing log was opened with the configuration known at the start
        return opened

    def may_set_aside(self, assignment: Assignment) -> bool:
        """True for a damaged log, or one without a topic id, when another replica leads and this one is
        neither in the ISR nor an eligible leader."""
        key, damaged = (assignment.topic, assignment.partition), self._directory.damaged
        is_damaged = key in damaged and damaged[key] in (None, assignment.topic_id)
        return is_damaged and assignment.does_without(self._node_id)

    def failed(self, key: Key, error: KafkaError) -> None:
        self._failed[key] = str(error)
        _log.error("replica_not_opened", topic=key[0], partition=key[1], error=str(error))
        self._on_failed(key[0], key[1], str(error))

    def forget(self, key: Key, topic_id: UUID | None) -> None:
        """The partition was deleted or moved away: a log that a thread creates for it (with `topic_id`: for
        that topic) is removed after its creation."""
        making = self._making.get(key)
        if making is not None and topic_id in (None, making.topic_id):
            self._making[key] = None
        self._failed.pop(key, None)

    def remove(self, key: Key) -> None:
        """Deletes a log."""
        try:
            self._directory.delete(*key)
        except KafkaError as error:
            _log.error("partition_not_deleted", topic=key[0], partition=key[1], error=str(error))

    async def settled(self, timeout_s: float) -> None:
        """Returns when the creations in progress have ended.  Raises TimeoutError."""
        if self._tasks:
            _done, late = await asyncio.wait(tuple(self._tasks), timeout=timeout_s)
            if late:
                raise TimeoutError(f"logs are still being made after {timeout_s} s")

    async def close(self) -> None:
        """Waits for the creations in progress, and begins no more."""
        self._closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
