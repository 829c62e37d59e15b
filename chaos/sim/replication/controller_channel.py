"""A gRPC channel over the simulated network, under the product's own `ControllerClient` and
`MetadataFollower`.

Messages cross as bytes, by the stubs' own serializers, so nothing is shared between processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from grpc.aio import AioRpcError, Metadata

from ....controller.service.service import ControllerService
from .network import Network
from .virtual_loop import Process, current_process

KEPT_MAX = 10_000


def _failure(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details)


def _name(method: str) -> str:
    return method.rpartition("/")[2]


class ControllerChannel:
    """From one broker to one controller; `on_reply(name, sent at, reply)` is called for every answered call,
    and `before_reply(name)` is awaited before the answer leaves."""

    def __init__(
        self,
        network: Network,
        services: Mapping[int, ControllerService],
        source: int,
        target: int,
        on_reply: Callable[[str, float, Any], None],
        before_reply: Callable[[str], Awaitable[None]],
    ) -> None:
        self._network = network
        self._services = services
        self._source = source
        self._target = target
        self._on_reply = on_reply
        self._before_reply = before_reply

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_options: Any
    ) -> Any:
        name = _name(method)

        async def call(request: Any, timeout: float | None = None) -> Any:
            sender = self._network.processes[self._source]
            data, sent_at_s = request_serializer(request), asyncio.get_running_loop().time()

            async def work(_process: Process) -> bytes:
                if name == "RegisterBroker" and not sender.alive:
                    # It would supersede the process that was started since, which then ends itself: safe, and
                    # nothing to watch.
                    raise ConnectionError("the caller has ended")
                reply = await getattr(self._services[self._target], name)(
                    type(request).FromString(data), None
                )
                await self._before_reply(name)
                return bytes(reply.SerializeToString())

            try:
                async with asyncio.timeout(timeout):
                    reply = response_deserializer(await self._network.call(self._source, self._target, work))
            except TimeoutError:
                raise _failure(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None
            except ConnectionError as error:
                raise _failure(grpc.StatusCode.UNAVAILABLE, str(error)) from error
            self._on_reply(name, sent_at_s, reply)
            return reply

        return call

    def unary_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_options: Any
    ) -> Any:
        name = _name(method)

        def call(request: Any) -> StreamCall:
            stream = StreamCall(response_deserializer)
            data = request_serializer(request)

            def updates() -> AsyncIterator[Any]:
                answered: AsyncIterator[Any] = getattr(self._services[self._target], name)(
                    type(request).FromString(data), None
                )
                return answered

            stream.open(self._network, self._source, self._target, updates)
            return stream

        return call

    def _not_used(self, *_arguments: Any, **_options: Any) -> None:
        """The stub asks for every method it has; the controller's have no other kinds."""

    stream_unary = stream_stream = _not_used

    async def close(self) -> None:
        """Nothing is held open."""


class StreamCall:
    """The client's end of a stream of updates: they arrive in order, and a gap ends it, as it ends a
    connection."""

    def __init__(self, deserialize: Callable[[bytes], Any]) -> None:
        self._deserialize = deserialize
        self._arrived: dict[int, bytes] = {}
        self._next = 0
        self._ready = asyncio.Event()
        self._over = self._begun = False
        self._updates: deque[bytes] = deque()

    def open(
        self, network: Network, source: int, target: int, updates: Callable[[], AsyncIterator[Any]]
    ) -> None:
        reader = current_process()
        assert reader is not None

        async def pump() -> None:
            number = 0
            async for update in updates():
                if self._over:
                    return
                data, place = update.SerializeToString(), number
                network.send(target, source, partial(reader.call_soon, self._arrive, place, data))
                number += 1

        def begin() -> None:
            process = network.processes.get(target)
            # once, however often the request arrives
            if process is not None and process.alive and not self._begun:
                self._begun = True
                process.spawn(pump())

        network.send(source, target, begin)

    def _arrive(self, place: int, data: bytes) -> None:
        if place >= self._next and len(self._arrived) < KEPT_MAX:
            self._arrived[place] = data
        while self._next in self._arrived:
            self._updates.append(self._arrived.pop(self._next))
            self._next += 1
        if self._updates:
            self._ready.set()

    async def read(self) -> Any:
        while not self._updates:
            self._ready.clear()
            await self._ready.wait()
        return self._deserialize(self._updates.popleft())

    def cancel(self) -> None:
        self._over = True
