"""A heartbeat outlives its sender's patience: a late hint is followed, and other calls try elsewhere meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tidegate.controller.client import ControllerClient
from tidegate.proto import controller_pb2 as rpc
from tidegate.runtime.clock import SystemClock
from tidegate.wire.errors import ErrorCode

PATIENCE_S = 0.02


class Channel:
    """Controller 1 says, when its gate opens, that controller 2 is the active one."""

    def __init__(self, target: str, gate: asyncio.Event) -> None:
        self._target = target
        self._gate = gate

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        async def call(_request: Any, timeout: float | None = None) -> rpc.HeartbeatReply:
            if self._target == "1":
                await self._gate.wait()
                status = rpc.Status(error=int(ErrorCode.NOT_CONTROLLER), controller_id_plus_one=3)
                return rpc.HeartbeatReply(status=status)
            return rpc.HeartbeatReply(status=rpc.Status(controller_epoch=1), metadata_index=7)

        return call

    unary_stream = stream_unary = stream_stream = unary_unary

    async def close(self) -> None: ...


async def test_a_hint_that_comes_when_patience_is_over_is_followed() -> None:
    gate = asyncio.Event()
    client = ControllerClient({1: "1", 2: "2"}, SystemClock(), channel_factory=lambda target: cast(Any, Channel(target, gate)))
    client.active_id = 1
    beat = asyncio.create_task(client.heartbeat(rpc.HeartbeatRequest(node_id=1), timeout_s=60.0, patience_s=PATIENCE_S))
    async with asyncio.timeout(20):
        while client.active_id == 1:  # until the next call would try another one
            await asyncio.sleep(0.005)
    assert not beat.done()
    gate.set()
    assert (await asyncio.wait_for(beat, 20)).metadata_index == 7
