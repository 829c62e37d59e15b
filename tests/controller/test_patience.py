"""A heartbeat outlives its sender's patience: a late hint is followed, and other calls try elsewhere
meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tidegate.controller.remote.client import ControllerClient
from tidegate.proto import controller_pb2 as rpc
from tidegate.runtime.clock import SystemClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

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


async def test_a_hint_that_comes_as_the_patience_ends_is_followed() -> None:
    gate = asyncio.Event()
    client = ControllerClient(
        {1: "1", 2: "2"}, SystemClock(), channel_factory=lambda _, target: cast(Any, Channel(target, gate))
    )
    client.active_id = 1
    beat = asyncio.create_task(
        client.heartbeat(rpc.HeartbeatRequest(node_id=1), timeout_s=60.0, patience_s=PATIENCE_S)
    )
    await eventually(lambda: client.active_id != 1)
    assert not beat.done()
    gate.set()
    assert (await asyncio.wait_for(beat, 20)).metadata_index == 7


def client_of_two(asked: list[str]) -> ControllerClient:
    """Over the network controller 2 is the active one; which controllers are asked so stands in `asked`."""
    gate = asyncio.Event()
    gate.set()

    def channel(_: int, target: str) -> Any:
        asked.append(target)
        return cast(Any, Channel(target, gate))

    return ControllerClient({1: "1", 2: "2"}, SystemClock(), channel_factory=channel)


async def test_heartbeats_to_the_controller_of_this_process_need_no_network() -> None:
    asked: list[str] = []
    client = client_of_two(asked)

    async def here(request: rpc.HeartbeatRequest, _context: Any) -> rpc.HeartbeatReply:
        return rpc.HeartbeatReply(status=rpc.Status(controller_epoch=1), metadata_index=request.applied_index)

    client.heartbeats_here(1, here)  # type: ignore[arg-type]
    client.active_id = 1
    assert (await client.heartbeat(rpc.HeartbeatRequest(node_id=1, applied_index=5))).metadata_index == 5
    assert asked == []


async def test_the_controller_of_this_process_sends_its_broker_to_the_active_one() -> None:
    asked: list[str] = []
    client = client_of_two(asked)

    async def here(_request: rpc.HeartbeatRequest, _context: Any) -> rpc.HeartbeatReply:
        return rpc.HeartbeatReply(
            status=rpc.Status(error=int(ErrorCode.NOT_CONTROLLER), controller_id_plus_one=3)
        )

    client.heartbeats_here(1, here)  # type: ignore[arg-type]
    client.active_id = 1
    assert (await client.heartbeat(rpc.HeartbeatRequest(node_id=1))).metadata_index == 7
    assert asked == ["2"]


async def test_a_local_controller_that_fails_counts_as_unreachable() -> None:
    """A defect of the controller's is not the broker's end: it asks the next one."""
    asked: list[str] = []
    client = client_of_two(asked)

    async def here(_request: rpc.HeartbeatRequest, _context: Any) -> rpc.HeartbeatReply:
        raise ValueError("a defect")

    client.heartbeats_here(1, here)  # type: ignore[arg-type]
    client.active_id = 1
    assert (await client.heartbeat(rpc.HeartbeatRequest(node_id=1), timeout_s=20.0)).metadata_index == 7
    assert asked == ["2"]


async def test_a_local_controller_that_hangs_costs_a_heartbeat_its_timeout_only() -> None:
    client = client_of_two([])

    async def here(_request: rpc.HeartbeatRequest, _context: Any) -> rpc.HeartbeatReply:
        await asyncio.Event().wait()
        raise AssertionError

    client.heartbeats_here(1, here)  # type: ignore[arg-type]
    client.active_id = 1
    with pytest.raises(KafkaError) as refused:
        await client.heartbeat(rpc.HeartbeatRequest(node_id=1), timeout_s=PATIENCE_S, patience_s=PATIENCE_S)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert client.active_id is None, "the next one is asked of another"
