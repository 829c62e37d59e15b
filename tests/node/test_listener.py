"""The Kafka listener over real sockets: answers leave in order, what waits is bounded, and nonsense ends one
connection only."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tidegate.node.observation.metrics import Metrics, NodeView
from tidegate.node.serving import listener
from tidegate.node.serving.authentication import ListenerIdentity
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.listener import Handlers, listen
from tidegate.node.serving.requests import Deferred, Encoded, RequestContext, Staged
from tidegate.node.serving.throttling import Throttling
from tidegate.runtime.calm_logs import RateLimitedLines
from tidegate.runtime.clock import SystemClock
from tidegate.security.quotas import QuotaEntity, QuotaKind
from tidegate.security.records import SecurityRecords
from tidegate.tests.eventually import eventually
from tidegate.tests.guarded_nodes import plain_users
from tidegate.wire import codec
from tidegate.wire.api import ApiKey, advertised
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.produce import encode_produce_request, parse_produce_request

from .test_configuration import loaded

PAUSE_MS = 300
EMPTY = NodeView([], 0, 0, 0, 0, False, 0, True, 0)


class Client:
    """A connection that sends requests and reads the correlation ids of the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, correlation_id: int, key: int = ApiKey.FETCH, version: int = 4, body: bytes = b"") -> None:
        frame = struct.pack(">hhih", key, version, correlation_id, -1) + body
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def answer(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(struct.unpack(">i", await self.reader.readexactly(4))[0])

    async def correlation_id(self) -> int:
        return int.from_bytes((await self.answer())[:4], "big")

    async def closed(self) -> bytes:
        """What still came before the node closed the connection."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


class WorkClock(SystemClock):
    """Seconds that only requests use up: a millisecond each."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


ANNOUNCED = frozenset({ApiKey.FETCH, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.PRODUCE})


class Served:
    """A listener whose one request (Fetch, not decoded) does what the test says, by its body's first byte."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Encoded | None]] = {}
        self.begun: list[int] = []
        self.staged: list[int] = []
        self.answers: dict[int, asyncio.Future[None]] = {}
        self.changed = asyncio.Event()
        self.clients: list[Client] = []
        self.budgets: list[listener.ByteBudget] = []  # type: ignore[name-defined]
        self.metrics = Metrics(1, "test", lambda: EMPTY)
        self.limits: dict[tuple[QuotaEntity, QuotaKind], float] = {}
        self.broker = cast(
            Broker,
            SimpleNamespace(
                configuration=loaded("max.connections=3", "socket.request.max.bytes=2048",
                    listeners=["PLAINTEXT://127.0.0.1:0", "GRPC://127.0.0.1:0", "CONTROLLER://127.0.0.1:0", "METRICS://127.0.0.1:0"]),
                cluster=SimpleNamespace(serving=True), clock=SystemClock(), metrics=self.metrics,
                announced_versions=advertised(ANNOUNCED),
                throttling=Throttling(lambda: self.limits, SystemClock(), may_act_as_node=lambda _: False),
            ),
        )  # fmt: skip

    async def handle(self, _broker: Broker, context: RequestContext, body: memoryview) -> Any:
        self.begun.append(context.correlation_id)
        if isinstance(self.broker.clock, WorkClock):
            self.broker.clock.now += 0.001
        self.changed.set()
        match bytes(body[:1]):
            case b"d":
                future = self.waiting[context.correlation_id] = asyncio.get_running_loop().create_future()
                return Deferred(future)
            case b"n":
                return None
            case b"e":
                return Encoded([b"answer"], ErrorCode.OFFSET_OUT_OF_RANGE)
            case b"t":
                return Encoded([b"throttled"], throttle_ms=PAUSE_MS)
            case b"k":
                raise KafkaError(ErrorCode.INVALID_REQUEST, "not so")
            case b"x":
                raise RuntimeError("a defect")
            case b"y":
                return Deferred(self._fail(RuntimeError("a late defect")))
            case b"z":
                return Deferred(self._fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too late")))
            case _:
                return Encoded([b"answer"])

    async def _fail(self, error: Exception) -> Encoded:
        raise error

    def begin(self, _broker: Broker, context: RequestContext, body: memoryview) -> Staged:
        """A staged request (Metadata): "?" asks first, until it is answered, and then does what the next byte
        says."""
        number, kind = context.correlation_id, bytes(body)
        self.staged.append(number)
        self.changed.set()

        async def ask() -> None:
            answer = self.answers.setdefault(number, asyncio.get_running_loop().create_future())
            self.changed.set()
            await answer

        return Staged(ask if kind[:1] == b"?" else None, lambda: self.handle(_broker, context, body[1:]))

    def produce(self, _broker: Broker, context: RequestContext, body: memoryview) -> Staged:
        request = parse_produce_request(context.api_version, body)
        records = bytes(request.topics[0][1][0][1][:4])
        kind = b"k" if records == b"fail" else b"n" if request.acks == 0 else b"i"

        async def work() -> Any:
            if records == b"wait":
                await self.answers.setdefault(
                    context.correlation_id, asyncio.get_running_loop().create_future()
                )
            return await self.handle(_broker, context, memoryview(kind))

        return Staged(None, work, unanswered=request.acks == 0)

    def complete(self, correlation_id: int) -> None:
        self.answers.setdefault(correlation_id, asyncio.get_running_loop().create_future()).set_result(None)

    def release(self, correlation_id: int) -> None:
        self.waiting.pop(correlation_id).set_result(Encoded([b"late"]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Served]:
        handlers = Handlers(
            {ApiKey.FETCH: self.handle, ApiKey.API_VERSIONS: self.handle},
            {ApiKey.METADATA: self.begin, ApiKey.PRODUCE: self.produce},
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "decode_request_body", lambda _key, _version, frame, start: frame[start:])
            identities = {
                name: ListenerIdentity(security, clock=SystemClock(), records=SecurityRecords)
                for name, security in self.broker.configuration.listener_security.items()
            }
            self.server = await listen(self.broker, handlers, identities)
            try:
                yield self
            finally:
                for client in self.clients:
                    client.writer.close()
                await self.server.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served().running() as found:
        yield found


async def test_answers_leave_in_the_order_of_their_requests(served: Served) -> None:
    client = await served.client()
    for number, body in enumerate((b"d", b"i", b"d", b"i")):
        client.send(number, body=body)
    await served.until(lambda: len(served.begun) == 4)
    served.release(2)
    served.release(0)
    assert [await client.correlation_id() for _ in range(4)] == [0, 1, 2, 3]


async def test_a_request_that_waits_does_not_hold_up_the_work_on_those_behind_it(served: Served) -> None:
    client = await served.client()
    client.send(0, body=b"d")
    client.send(1, body=b"i")
    await served.until(lambda: served.begun == [0, 1])
    served.release(0)


async def test_questions_are_asked_together_and_the_work_is_done_in_order(served: Served) -> None:
    """What comes behind waits for its turn, whatever it is, and whether or not it has to ask."""
    client = await served.client()
    for number, body in enumerate((b"?d", b"?i", b"-i")):
        client.send(number, key=ApiKey.METADATA, version=4, body=body)
    client.send(3, body=b"i")
    client.send(4, key=ApiKey.METADATA, version=4, body=b"?i")
    # and not 4, which stands behind another kind of request
    await served.until(lambda: served.staged == [0, 1, 2])
    served.complete(1)
    other = await served.client()
    other.send(9, body=b"i")
    assert await other.correlation_id() == 9
    assert served.begun == [9]
    served.complete(0)
    await served.until(lambda: served.begun == [9, 0, 1, 2, 3] and served.staged[-1] == 4)
    served.complete(4)
    await served.until(lambda: 0 in served.waiting and served.begun[-1] == 4)
    served.release(0)
    assert [await client.correlation_id() for _ in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("body", "reason"), [(b"?k", "invalid_request"), (b"?x", "internal_error")])
async def test_nothing_is_done_behind_a_request_that_failed_in_its_turn(
    served: Served, body: bytes, reason: str
) -> None:
    client = await served.client()
    client.send(0, key=ApiKey.METADATA, version=4, body=body)
    client.send(1, key=ApiKey.METADATA, version=4, body=b"?i")
    client.send(2, body=b"i")
    await served.until(lambda: served.staged == [0, 1])
    served.complete(1)
    served.complete(0)
    assert await client.closed() == b""
    assert served.begun == [0]
    assert rejected(served) == {reason: 1}


async def test_a_connection_that_goes_away_takes_its_questions_along(served: Served) -> None:
    client = await served.client()
    for number in range(3):
        client.send(number, key=ApiKey.METADATA, version=4, body=b"?i")
    client.send(3, body=b"i")
    await served.until(lambda: len(served.answers) == 3)
    client.writer.close()
    await eventually(lambda: all(answer.cancelled() for answer in served.answers.values()))
    assert served.begun == []


async def test_a_request_without_an_answer_leaves_no_gap(served: Served) -> None:
    client = await served.client()
    for number, body in enumerate((b"n", b"i")):
        client.send(number, body=body)
    assert await client.correlation_id() == 1


async def test_a_throttled_client_gets_its_answer_at_once_and_then_pauses(served: Served) -> None:
    """KIP-219: what came already is served, what comes next waits; and no other client does."""
    now = asyncio.get_running_loop().time
    throttled, other = await served.client(), await served.client()
    began_s = now()
    for number, body in enumerate((b"t", b"i", b"t")):
        throttled.send(number, body=body)
    assert [await throttled.correlation_id() for _ in range(3)] == [0, 1, 2]
    throttled.send(3, body=b"i")
    other.send(4, body=b"i")
    assert await other.correlation_id() == 4
    assert now() - began_s < PAUSE_MS / 1000
    assert served.begun == [0, 1, 2, 4]
    assert await throttled.correlation_id() == 3
    assert now() - began_s >= PAUSE_MS / 1000


async def test_a_throttled_client_is_served_one_request_at_a_time(served: Served) -> None:
    """So its debt grows by one request in a pause, however many it has sent."""
    client = await served.client()
    client.send(0, body=b"t")
    assert await client.correlation_id() == 0
    for number in (1, 2, 3):
        client.send(number, body=b"t" if number == 1 else b"i")
    assert await client.correlation_id() == 1
    assert served.begun == [0, 1]
    assert [await client.correlation_id() for _ in range(2)] == [2, 3]


async def test_a_pause_ends_with_its_connection(served: Served) -> None:
    client = await served.client()
    client.send(0, body=b"t")
    assert await client.correlation_id() == 0
    (connection,) = served.server.connections
    client.writer.close()
    connection.abort()
    await eventually(lambda: not served.server.connections)


async def test_an_address_opens_connections_at_its_rate(served: Served) -> None:
    served.limits[QuotaEntity.of({"ip": None}), QuotaKind.CONNECTION] = 2
    served.broker.throttling.admits_connection("127.0.0.1")
    kept = await served.client()
    kept.send(0, body=b"i")
    assert await kept.correlation_id() == 0
    too_many = await served.client()
    assert await too_many.closed() == b""
    assert rejected(served) == {"connection_rate": 1}


async def test_reading_pauses_when_too_much_is_in_work_and_goes_on_afterwards(served: Served) -> None:
    client = await served.client()
    most = listener.REQUESTS_IN_WORK_MAX
    for number in range(most + 40):
        client.send(number, body=b"d")
    await served.until(lambda: len(served.begun) >= most)
    # the others go on meanwhile; and by the time of its answer anything unbounded would show
    other = await served.client()
    for number in range(3):
        other.send(1000 + number, body=b"i")
        assert await other.correlation_id() == 1000 + number
    assert served.begun[:most] == list(range(most))
    assert not set(range(most, most + 40)) & set(served.begun)
    for number in range(most + 40):
        await served.until(lambda number=number: number in served.waiting)  # type: ignore[misc]
        served.release(number)
        assert await client.correlation_id() == number


async def test_without_the_bound_every_request_would_be_read(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    """Ablation: the test above would see it."""
    monkeypatch.setattr(listener, "REQUESTS_IN_WORK_MAX", 10**9)
    client = await served.client()
    for number in range(200):
        client.send(number, body=b"d")
    await served.until(lambda: len(served.begun) == 200)


async def test_large_frames_are_lent_and_given_back(served: Served) -> None:
    client = await served.client()
    for number in range(50):
        client.send(number, body=b"i" * 2000)
        assert await client.correlation_id() == number


def rejected(served: Served) -> dict[str, float]:
    families = text_string_to_metric_families(served.metrics.page().decode())
    return {
        s.labels["reason"]: s.value
        for f in families
        for s in f.samples
        if s.name == "tidegate_rejected_frames_total"
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"k", "invalid_request"),
        (b"x", "internal_error"),
        (b"y", "internal_error"),
        (b"z", "request_timed_out"),
    ],
)
async def test_a_refused_or_failed_request_ends_its_connection_and_no_other(
    served: Served, body: bytes, reason: str
) -> None:
    victim, bystander = await served.client(), await served.client()
    bystander.send(1, body=b"d")
    victim.send(0, body=body)
    assert await victim.closed() == b""
    await served.until(lambda: 1 in served.waiting)
    served.release(1)
    assert await bystander.correlation_id() == 1
    assert rejected(served) == {reason: 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", -5), "bad_length"),
        (b"GET / HTTP/1.1\r\n\r\n", "bad_length"),
        (struct.pack(">i", 4096), "bad_length"),
        (struct.pack(">i", 100) + b"cut", "cut_short"),
        (struct.pack(">i", 3) + b"abc", "invalid_request"),
        (struct.pack(">ihhih", 10, 12345, 0, 1, -1), "unsupported_version"),
    ],
)
async def test_every_refusal_of_a_frame_is_counted_by_its_reason(
    served: Served, data: bytes, reason: str
) -> None:
    client = await served.client()
    client.writer.write(data)
    if reason == "cut_short":
        client.writer.write_eof()
    assert await client.closed() == b""
    assert rejected(served) == {reason: 1}


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", ApiKey.PRODUCE, 9, 0, -1) + b"\x00",  # known to the protocol, not served here
        struct.pack(">hhih", ApiKey.FETCH, 99, 0, -1) + b"\x00",
        struct.pack(">hhih", -1, 0, 0, -1),
        struct.pack(">hhih", ApiKey.FETCH, 4, 0, 500),  # a client id that is longer than the frame
        b"",
        b"\x00",
    ],
)
async def test_what_is_no_request_that_is_served_ends_the_connection(served: Served, frame: bytes) -> None:
    client = await served.client()
    client.writer.write(struct.pack(">i", len(frame)) + frame)
    assert await client.closed() == b""
    assert served.begun == []


async def test_an_unknown_api_versions_version_keeps_the_connection(served: Served) -> None:
    client = await served.client()
    client.send(5, ApiKey.API_VERSIONS, 77, body=b"\x00")
    correlation_id, answer = codec.decode_response(ApiKey.API_VERSIONS, 0, await client.answer())
    assert (correlation_id, answer.error_code) == (5, ErrorCode.UNSUPPORTED_VERSION)
    assert {int(entry.api_key) for entry in answer.api_keys} == ANNOUNCED
    client.send(6, body=b"i")
    assert await client.correlation_id() == 6


async def test_the_answer_to_an_unknown_version_waits_for_its_turn(served: Served) -> None:
    client = await served.client()
    client.send(0, body=b"d")
    client.send(1, ApiKey.API_VERSIONS, 77, body=b"\x00")
    client.send(2, body=b"i")
    await served.until(lambda: served.begun == [0, 2])
    served.release(0)
    assert [await client.correlation_id() for _ in range(3)] == [0, 1, 2]


async def test_a_node_that_still_starts_closes_instead_of_answering_wrongly(served: Served) -> None:
    served.broker.cluster.serving = False
    client = await served.client()
    client.send(0, body=b"i")
    assert await client.closed() == b""
    assert served.begun == []
    assert rejected(served) == {"starting": 1}


async def test_one_connection_too_many_is_closed(served: Served) -> None:
    clients = [await served.client() for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(number, body=b"i")
        assert await client.correlation_id() == number
    assert await (await served.client()).closed() == b""
    assert rejected(served) == {"too_many_connections": 1}
    clients[0].send(7, body=b"i")
    assert await clients[0].correlation_id() == 7


async def test_a_connection_that_goes_away_cancels_what_waits_for_it(served: Served) -> None:
    client = await served.client()
    client.send(0, body=b"d")
    await served.until(lambda: 0 in served.waiting)
    cancelled = asyncio.Event()
    served.waiting[0].add_done_callback(lambda _done: cancelled.set())
    client.writer.close()
    async with asyncio.timeout(10):
        await cancelled.wait()
    assert served.waiting[0].cancelled()


async def test_requests_are_counted_by_name_and_outcome(served: Served) -> None:
    client = await served.client()
    client.send(0, body=b"i")
    await client.correlation_id()
    client.send(1, body=b"e")
    await client.correlation_id()
    page = served.metrics.page()
    assert b'tidegate_requests_total{outcome="ok",request="fetch"} 1.0' in page
    assert b'tidegate_requests_total{outcome="offset_out_of_range",request="fetch"} 1.0' in page


async def gone(served: Served) -> None:
    await eventually(lambda: not served.server.connections)


@pytest.fixture
async def slow() -> AsyncIterator[Served]:
    """A listener whose requests take a millisecond each."""
    served = Served()
    served.broker.clock = WorkClock()  # type: ignore[misc]
    async with served.running():
        yield served


async def test_many_busy_clients_do_not_hold_up_an_occasional_one(slow: Served) -> None:
    one, *crowd = [await slow.client() for _ in range(3)]
    for round_number in range(3):
        for member in crowd:
            for number in range(60):
                member.send(number, body=b"i")
        asked = len(slow.begun)
        await slow.until(lambda asked=asked: len(slow.begun) > asked)  # type: ignore[misc]
        one.send(1000 + round_number, body=b"i")
        assert await one.correlation_id() == 1000 + round_number
        assert slow.begun.index(1000 + round_number) < asked + 60, "long before the crowd was through"
        for member in crowd:
            for number in range(60):
                assert await member.correlation_id() == number


async def test_what_a_closed_connection_had_asked_is_dropped(slow: Served) -> None:
    client = await slow.client()
    for number in range(60):
        client.send(number, body=b"i")
    await slow.until(lambda: len(slow.begun) > 0)
    client.writer.transport.abort()
    await gone(slow)
    begun = len(slow.begun)
    assert begun < 60
    other = await slow.client()
    for number in range(20):
        other.send(100 + number, body=b"i")
        assert await other.correlation_id() == 100 + number
    assert slow.begun[begun:] == [100 + number for number in range(20)], (
        "nothing of the closed connection was worked off"
    )


async def test_a_produce_without_an_answer_outlives_its_connection(slow: Served) -> None:
    client = await slow.client()
    for number in range(60):
        if number % 2:
            body = encode_produce_request(9, [("t", [(0, b"records")])], acks=0, timeout_ms=1000)
            client.send(number, ApiKey.PRODUCE, 9, b"\0" + b"".join(body))
        else:
            client.send(number, body=b"i")
    await slow.until(lambda: len(slow.begun) > 0)
    client.writer.transport.abort()
    await gone(slow)
    await slow.until(lambda: len([number for number in slow.begun if number % 2]) == 30)
    assert len(slow.begun) < 60, "what asked for an answer was dropped"
    assert [number for number in slow.begun if number % 2] == list(range(1, 60, 2))


async def test_closed_connections_leave_so_many_unanswered_requests(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "UNANSWERED_MAX", 5)
    client = await slow.client()
    client.send(0, body=b"i")
    for number in range(1, 60):
        body = encode_produce_request(
            9, [("t", [(0, b"wait" if number == 1 else b"records")])], acks=0, timeout_ms=1000
        )
        client.send(number, ApiKey.PRODUCE, 9, b"\0" + b"".join(body))
    assert await client.correlation_id() == 0
    await eventually(lambda: 1 in slow.answers)
    client.writer.transport.abort()
    await gone(slow)
    slow.complete(1)
    await slow.until(lambda: len(slow.begun) == 7)
    other = await slow.client()
    other.send(100, body=b"i")
    assert await other.correlation_id() == 100
    assert slow.begun == [0, 1, 2, 3, 4, 5, 6, 100]


def unanswered(records: bytes) -> bytes:
    """A produce with acks=0, as a frame that is lent; `fail`, and the request fails; `wait`, and it waits
    until `complete`."""
    return b"\0" + b"".join(
        encode_produce_request(9, [("t", [(0, records.ljust(20_000))])], acks=0, timeout_ms=1000)
    )


@pytest.fixture
async def lending(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A listener whose large frames count against `budgets[0]`, and whose requests take a millisecond
    each."""
    served = Served()
    served.broker.clock = WorkClock()  # type: ignore[misc]
    served.broker.configuration = loaded(  # type: ignore[misc]
        "socket.request.max.bytes=200000",
        listeners=[
            "PLAINTEXT://127.0.0.1:0",
            "GRPC://127.0.0.1:0",
            "CONTROLLER://127.0.0.1:0",
            "METRICS://127.0.0.1:0",
        ],
    )
    made = listener.ByteBudget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        listener, "ByteBudget", lambda most: served.budgets.append(made(most)) or served.budgets[0]
    )
    async with served.running():
        yield served


async def used(served: Served, condition: Callable[[int], bool]) -> None:
    await eventually(lambda: condition(served.budgets[0].used_bytes))


async def test_a_failed_produce_of_a_closed_connection_frees_later_frames(lending: Served) -> None:
    client = await lending.client()
    for number, records in enumerate((b"wait", b"fail", *[b"records"] * 6)):
        client.send(number, ApiKey.PRODUCE, 9, unanswered(records))
    await used(lending, lambda used_bytes: used_bytes > 8 * 20_000)
    client.writer.transport.abort()
    await gone(lending)
    lending.complete(0)
    await lending.until(lambda: lending.begun == list(range(8)))
    await used(lending, lambda used_bytes: used_bytes == 0)


async def test_a_produce_with_acks_0_behind_a_staged_one_survives_the_close(lending: Served) -> None:
    client = await lending.client()
    client.send(0, key=ApiKey.METADATA, version=4, body=b"?i")
    client.send(1, body=b"i")
    for number in range(2, 10):
        client.send(number, ApiKey.PRODUCE, 9, unanswered(b"records"))
    await used(lending, lambda used_bytes: used_bytes > 8 * 20_000)
    client.writer.transport.abort()
    await lending.until(lambda: lending.begun == list(range(2, 10)))
    await used(lending, lambda used_bytes: used_bytes == 0)


async def test_long_polls_of_a_reset_connection_end_although_reading_is_paused(served: Served) -> None:
    client = await served.client()
    for number in range(listener.REQUESTS_IN_WORK_MAX + 40):
        client.send(number, body=b"d")
    await served.until(lambda: len(served.begun) >= listener.REQUESTS_IN_WORK_MAX)
    client.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    client.writer.transport.abort()
    async with asyncio.timeout(10):
        while served.server.connections:
            served.server.look_after(asyncio.get_running_loop().time())
            await asyncio.sleep(0)
    assert all(waiting.cancelled() for waiting in served.waiting.values())


@pytest.mark.parametrize(
    ("name", "lines"), [("produce", 1), ("fetch", 0), ("join_group", 0), ("sync_group", 0)]
)
def test_a_long_poll_that_its_client_leaves_is_not_worth_a_line(
    caplog: pytest.LogCaptureFixture, name: str, lines: int
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 30.0)
    left = SimpleNamespace(
        _broker=SimpleNamespace(clock=clock), _slots=[], _aside=[], _frames=[],
        _connection=SimpleNamespace(peer="p"),
        _arrived=asyncio.Event(),
        _shared=SimpleNamespace(abandoned=RateLimitedLines(listener.log, "requests_abandoned", "more")),
    )  # fmt: skip
    caplog.set_level("INFO")
    slot = listener._Slot(name, 0.0, None)
    left._slots.append(slot)
    with suppress(AttributeError):  # what follows the line is not this test's
        listener.ClientConnection.on_close(cast(Any, left), "closed")
    said = [record.levelname for record in caplog.records if record.msg == "requests_abandoned"]
    assert said == ["INFO"] * lines, "a client's patience is not the operator's business"


async def test_a_client_that_has_not_authenticated_takes_no_memory_for_a_large_request() -> None:
    sasl = Served()
    uses = ("SASL_PLAINTEXT", "PLAINTEXT", "GRPC", "CONTROLLER", "METRICS")
    sasl.broker.configuration = loaded(  # type: ignore[misc]
        "socket.request.max.bytes=2048", "sasl.server.max.receive.size=1024",
        listeners=[f"{use}://127.0.0.1:0" for use in uses],
        listener__security__protocol__map=[f"{use}:{use if use[0] == 'S' else 'PLAINTEXT'}" for use in uses],
        sasl__enabled__mechanisms=["PLAIN"],
        listener__name__sasl_plaintext__plain__sasl__jaas__config=plain_users(["a"]),
    )  # fmt: skip
    async with sasl.running():
        client = await sasl.client()
        client.writer.write(struct.pack(">i", 1025))
        assert await client.closed() == b""
        assert rejected(sasl) == {"bad_length": 1}
