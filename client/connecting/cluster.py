"""The client's way to the cluster: bootstrap, metadata, connections, coordinators, retries.

Producer, consumer and admin client share only this class.  It decides to which broker a request goes and when
to try again; it never decides whether a request *may* be sent again: only the caller knows that.

Connections are kept per (node, purpose): a long-polling fetch must not hold up a commit (answers come in
order).  A node that could not be reached gets no request for a jittered, growing time.  One request at a time
refreshes the metadata; callers that need a refresh meanwhile wait for the same request.

A node that stopped may still be the leader in the client's metadata, and packets to its address may vanish:
an attempt to connect then lasts for its whole timeout.  So the client asks another node for the metadata when
it connects to a node again, and once a second while any attempt lasts: the caller follows a new leader at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from ...runtime import logs
from ...runtime.clock import Clock, SystemClock
from ...security.client_security import ClientSecurity
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from .connection import BrokerConnection
from .errors import ConnectionFailed, FatalError, RequestError, RetriableError, error_for
from .metadata import ClusterView, TopicView, parse_bootstrap

log = logs.get(__name__)

T = TypeVar("T")

BACKOFF_FIRST_S: Final = 0.02
BACKOFF_LAST_S: Final = 1.0
METADATA_VERSION_MAX: Final = 12
FIND_COORDINATOR_VERSION_MAX: Final = 3
METADATA_AGE_MAX_S: Final = 60.0
REFRESH_WHILE_CONNECTING_S: Final = 1.0
# Any node can answer these requests, so the client waits for a silent node less long than with a write.
LOOKUP_TIMEOUT_S: Final = 5.0


class CoordinatorKind(IntEnum):
    """FindCoordinator's key type."""

    GROUP = 0
    TRANSACTION = 1


class Backoff:
    """Delays that double from 20 ms to 1 s, each drawn from the upper half: retries of many clients spread
    out."""

    def __init__(
        self, clock: Clock, first_s: float = BACKOFF_FIRST_S, last_s: float = BACKOFF_LAST_S
    ) -> None:
        self._clock = clock
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s

    def next_s(self) -> float:
        delay = self._next_s * (0.5 + self._clock.random() / 2)
        self._next_s = min(self._next_s * 2, self._last_s)
        return delay

    def reset(self) -> None:
        self._next_s = self._first_s


class Cluster:
    """See the module's text.  `start` before use, `close` after; all methods on one event loop."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidegate",
        clock: Clock | None = None,
        connect_timeout_s: float = 5.0,
        request_timeout_s: float = 30.0,
        create_topics: bool = False,
        security: ClientSecurity | None = None,
    ) -> None:
        """`create_topics`: a metadata request may create a missing topic, if the brokers allow it."""
        self.bootstrap = bootstrap
        self.client_id = client_id
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.request_timeout_s = request_timeout_s
        self.view = ClusterView()
        self.features: dict[str, int] = {}
        self._features_epoch = -1
        self._addresses = parse_bootstrap(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._lookup_timeout_s = min(LOOKUP_TIMEOUT_S, request_timeout_s)
        self._create_topics = create_topics
        self.security = security
        self._connections: dict[tuple[int, str], BrokerConnection] = {}
        self._connecting: dict[tuple[int, str], asyncio.Task[BrokerConnection]] = {}
        self._reached: set[tuple[int, str]] = set()  # every key that had a connection
        # per node: the delays, and the time of the next attempt
        self._backoffs: dict[int, tuple[Backoff, float]] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._wanted_topics: set[str] = set()
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_topics: set[str] | None = set()  # the topics of the running refresh; None: all topics
        self._refreshed_at_s = float("-inf")
        self._listeners: list[Callable[[], None]] = []
        self._next_broker = 0
        self._closed = False

    # ---- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the first bootstrap address that answers.  Raises ConnectionFailed when none does."""
        await self.refresh(())

    async def close(self) -> None:
        """Closes all connections; open requests fail, new ones are refused."""
        self._closed = True
        tasks = [*self._connecting.values(), *([self._refresh] if self._refresh is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def on_metadata(self, listener: Callable[[], None]) -> None:
        """`listener()` runs after each refresh."""
        self._listeners.append(listener)

    # ---- connections ---------------------------------------------------------------------------------------

    async def connection(self, node_id: int, purpose: str = "data") -> BrokerConnection:
        """The connection to a node for a purpose, opened when there is none.  Raises ConnectionFailed."""
        self._require_open()
        key = (node_id, purpose)
        found = self._connections.get(key)
        if found is not None and not found.closed and not found.is_retiring:
            return found
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.create_task(self._connect(node_id, purpose), name=f"connect-{node_id}-{purpose}")
            self._connecting[key] = task
            task.add_done_callback(lambda done: self._connect_done(key, done))
        # Shielded: one caller's cancellation must not take the connection away from the others.
        return await self._shared(task)

    async def _shared(self, task: asyncio.Task[T]) -> T:
        """The result of a task that several callers wait for.  When `close` cancels the task, the caller is
        not cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.cancelled() and (current is None or not current.cancelling()):
                self._require_open()
            raise

    def _require_open(self) -> None:
        if self._closed:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the client is closed: make a new one")

    def _connect_done(self, key: tuple[int, str], task: asyncio.Task[BrokerConnection]) -> None:
        self._connecting.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved here; the callers that wait get it from the task

    def ready_connection(self, node_id: int, purpose: str = "data") -> BrokerConnection | None:
        """The connection if it is open now."""
        found = self._connections.get((node_id, purpose))
        return found if found is not None and not found.closed and not found.is_retiring else None

    async def _connect(self, node_id: int, purpose: str) -> BrokerConnection:
        address = self.view.brokers.get(node_id)
        if address is None:
            raise ConnectionFailed(
                ErrorCode.BROKER_NOT_AVAILABLE, f"node {node_id} is not in the cluster's metadata"
            )
        backoff, not_before_s = self._backoffs.get(node_id, (Backoff(self.clock), 0.0))
        wait_s = not_before_s - self.clock.monotonic()
        if wait_s > 0:
            await self.clock.sleep(wait_s)
        refreshing = asyncio.create_task(
            self._refresh_while_connecting(at_once=(node_id, purpose) in self._reached),
            name="metadata-meanwhile",
        )
        try:
            connection = await self._open(address.host, address.port)
        except ConnectionFailed:
            self._backoffs[node_id] = (backoff, self.clock.monotonic() + backoff.next_s())
            raise
        finally:
            refreshing.cancel()
        self._backoffs.pop(node_id, None)
        if self._closed:
            connection.close()
            self._require_open()
        self._connections[node_id, purpose] = connection
        self._reached.add((node_id, purpose))
        return connection

    async def _refresh_while_connecting(self, *, at_once: bool) -> None:
        """Refreshes the metadata of the known topics until it is cancelled."""
        if not at_once:
            await self.clock.sleep(REFRESH_WHILE_CONNECTING_S)
        while True:
            try:
                await self.refresh(self.view.topics)
            except KafkaError as error:
                log.debug("metadata_failed", reason=str(error))
            await self.clock.sleep(REFRESH_WHILE_CONNECTING_S)

    async def _open(self, host: str, port: int) -> BrokerConnection:
        self._require_open()
        connection = await BrokerConnection.open(
            host,
            port,
            client_id=self.client_id,
            connect_timeout_s=self._connect_timeout_s,
            request_timeout_s=self.request_timeout_s,
            security=self.security,
        )
        if connection.features_epoch >= self._features_epoch:
            self._features_epoch = connection.features_epoch
            self.features = connection.features
        return connection

    # ---- requests ------------------------------------------------------------------------------------------

    async def ask(
        self,
        node_id: int,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        purpose: str = "data",
        **bounds: Any,
    ) -> Any:
        """One request to one node, once."""
        return await (await self.connection(node_id, purpose)).request(api_key, fields, **bounds)

    async def ask_any(self, api_key: ApiKey, fields: Mapping[str, Any], **bounds: Any) -> Any:
        """One request to the first node that answers: known nodes first, then the bootstrap addresses."""
        failures: list[str] = []
        nodes = sorted(self.view.brokers)
        self._next_broker += 1
        turned = [nodes[(index + self._next_broker) % len(nodes)] for index in range(len(nodes))]
        # stable: nodes with an open connection first, those that were lost or are being connected to last
        turned.sort(key=self._distance)
        for node_id in turned:
            try:
                return await self.ask(node_id, api_key, fields, **bounds)
            except ConnectionFailed as error:
                failures.append(error.message)
        for host, port in self._addresses:
            try:
                connection = await self._open(host, port)
            except ConnectionFailed as error:
                failures.append(error.message)
                continue
            try:
                return await connection.request(api_key, fields, **bounds)
            except ConnectionFailed as error:
                failures.append(error.message)
            finally:
                connection.close()
        raise self._unreachable(failures)

    def _distance(self, node_id: int) -> int:
        if self.ready_connection(node_id) is not None:
            return 0
        doubtful = (
            node_id in self._backoffs
            or (node_id, "data") in self._reached
            or any(connecting == node_id for connecting, _ in self._connecting)
        )
        return 2 if doubtful else 1

    def _unreachable(self, failures: list[str]) -> ConnectionFailed:
        reasons = sorted({failure.rpartition(": ")[2] for failure in failures})
        # what a listener of TLS or SASL does with a client that speaks neither
        was_hung_up = self.security is None and any("closed the connection" in reason for reason in reasons)
        hint = (
            "is it secured? then name its properties (`--command-config`, or `security=`)"
            if was_hung_up
            else "is the node running? try `tidegate cluster status`"
        )
        return ConnectionFailed(
            ErrorCode.NETWORK_EXCEPTION, f"cannot reach any of {self.bootstrap}: {', '.join(reasons)}: {hint}"
        )

    async def ask_controller(self, api_key: ApiKey, fields: Mapping[str, Any], **bounds: Any) -> Any:
        """One request to the controller that the metadata names, or to any node, which forwards it."""
        if self.view.controller_id in self.view.brokers:
            try:
                return await self.ask(self.view.controller_id, api_key, fields, **bounds)
            except ConnectionFailed:
                await self.refresh(())
                raise
        await self.refresh(())
        return await self.ask_any(api_key, fields, **bounds)

    # ---- metadata ------------------------------------------------------------------------------------------

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Asks for the brokers and `topics` (None: all topics of the cluster).  Joins a running refresh that
        covers them."""
        self._require_open()
        wanted = None if topics is None else set(topics)
        while self._refresh is not None:
            running, covered = self._refresh, self._refresh_topics
            await self._shared(running)
            if covered is None or (wanted is not None and wanted <= covered):
                return
        names = None if wanted is None else sorted(wanted)
        self._refresh_topics = wanted
        task = asyncio.create_task(self._do_refresh(names), name="metadata")
        self._refresh = task
        task.add_done_callback(self._refresh_done)
        await self._shared(task)

    def _refresh_done(self, task: asyncio.Task[None]) -> None:
        self._refresh = None
        if not task.cancelled():
            task.exception()

    async def _do_refresh(self, names: list[str] | None) -> None:
        fields = {
            "topics": None if names is None else [{"name": name} for name in names],
            "allow_auto_topic_creation": self._create_topics,
        }
        answer = await self.ask_any(
            ApiKey.METADATA, fields, highest=METADATA_VERSION_MAX, timeout_s=self._lookup_timeout_s
        )
        self.view = self.view.merged(answer, all_topics=names is None)
        self._refreshed_at_s = self.clock.monotonic()
        for key in [key for key in self._connections if key[0] not in self.view.brokers]:
            self._connections.pop(key).close("the node left the cluster")
        for listener in self._listeners:
            listener()

    @property
    def metadata_is_old(self) -> bool:
        return self.clock.monotonic() - self._refreshed_at_s > METADATA_AGE_MAX_S

    async def topic(self, name: str, timeout_s: float) -> TopicView:
        """A topic; waits up to `timeout_s` for a topic that does not exist yet."""
        found = self.view.topics.get(name)
        if found is not None and found.error is ErrorCode.NONE and found.partitions:
            return found
        deadline_s = self.clock.monotonic() + timeout_s
        backoff = Backoff(self.clock)
        while True:
            await self.refresh([name])
            found = self.view.topics.get(name)
            if found is not None and found.error is ErrorCode.NONE and found.partitions:
                return found
            code = found.error if found is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not code.retriable and code is not ErrorCode.NONE:
                raise error_for(code, f"topic {name!r}")
            await self.pause(backoff, deadline_s, code, f"topic {name!r}")

    async def pause(
        self, backoff: Backoff, deadline_s: float, code: ErrorCode, what: str, said: str | None = None
    ) -> None:
        """Waits before the next attempt; after the deadline it raises the error for `code`."""
        self._require_open()
        delay_s = backoff.next_s()
        if self.clock.monotonic() + delay_s >= deadline_s:
            error = error_for(code, what, said)
            raise (
                error
                if isinstance(error, RetriableError | FatalError)
                else RetriableError(code, error.message)
            )
        await self.clock.sleep(delay_s)

    # ---- coordinators --------------------------------------------------------------------------------------

    async def coordinator(self, kind: CoordinatorKind, key: str, deadline_s: float) -> int:
        """The node that coordinates a group or a transactional id."""
        found = self._coordinators.get((kind, key))
        if found is not None and found in self.view.brokers and not self._was_lost(found):
            return found
        what = f"coordinator of {kind.name.lower()} {key!r}"
        backoff = Backoff(self.clock)
        while True:
            code, said = ErrorCode.COORDINATOR_NOT_AVAILABLE, None
            try:
                fields = {"key": key, "key_type": int(kind)}
                answer = await self.ask_any(
                    ApiKey.FIND_COORDINATOR,
                    fields,
                    highest=FIND_COORDINATOR_VERSION_MAX,
                    timeout_s=self._lookup_timeout_s,
                )
                code = ErrorCode.from_wire(int(answer.error_code))
                node_id = int(answer.node_id)
                if code is ErrorCode.NONE and node_id not in self.view.brokers:
                    await self.refresh(())
                if code is ErrorCode.NONE and node_id in self.view.brokers:
                    self._coordinators[kind, key] = node_id
                    return node_id
                code = code if code is not ErrorCode.NONE else ErrorCode.COORDINATOR_NOT_AVAILABLE
            except ConnectionFailed as error:
                code, said = error.code, error.message
            if (
                code not in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)
                and not code.retriable
            ):
                raise error_for(code, what)
            await self.pause(backoff, deadline_s, code, what, said)

    def _was_lost(self, node_id: int) -> bool:
        """Whether a connection to the node ended since the last call: another node may be the coordinator by
        now, and a request to the silent node would wait for its whole timeout."""
        ended = [
            key for key, connection in self._connections.items() if key[0] == node_id and connection.closed
        ]
        for key in ended:
            del self._connections[key]
        return bool(ended)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        """The cached coordinator was wrong: the next call looks it up again."""
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        deadline_s: float,
        code_of: Callable[[Any], ErrorCode],
        retry: frozenset[ErrorCode] = frozenset(),
        on_lost: Callable[[str], None] | None = None,
        **bounds: Any,
    ) -> Any:
        """One request to a coordinator; it follows a coordinator that moves, and is repeated until
        `deadline_s`.

        Only for requests that may be repeated: after a lost answer it calls `on_lost(reason)` and sends the
        request again. Returns the answer for every code that neither reports a moved coordinator nor is in
        `retry`; raises RetriableError at the deadline.
        """
        moved = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        backoff = Backoff(self.clock)
        what = f"{api_key.name} for {kind.name.lower()} {key!r}"
        while True:
            node_id = await self.coordinator(kind, key, deadline_s)
            said = None
            try:
                answer = await self.ask(node_id, api_key, fields, purpose="coordinator", **bounds)
                code = code_of(answer)
            except ConnectionFailed as error:
                code, said = error.code, error.message
                self.forget_coordinator(kind, key)
                if on_lost is not None:
                    on_lost(error.message)
            else:
                if code in moved:
                    self.forget_coordinator(kind, key)
                elif code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and code not in retry:
                    return answer
            await self.pause(backoff, deadline_s, code, what, said)


def top_level_code(answer: Any) -> ErrorCode:
    """The `error_code` of an answer."""
    return ErrorCode.from_wire(int(answer.error_code))


def require_none(code: ErrorCode, what: str, said: str | None = None) -> None:
    """Raises the error for `code` unless it is NONE."""
    if code is not ErrorCode.NONE:
        raise error_for(code, what, said)


__all__ = ["Backoff", "Cluster", "CoordinatorKind", "KafkaError", "require_none", "top_level_code"]
