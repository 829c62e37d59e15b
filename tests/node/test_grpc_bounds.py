"""A node's gRPC servers have the bounds that its settings say; one that serves clients alone reads small
requests alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from tidegate.node.node import Node
from tidegate.node.start_and_stop import Stage, start, stop
from tidegate.processes.local_ports import PORT_STEP
from tidegate.runtime.network import GRPC_MESSAGE_BYTES_MAX
from tidegate.tests.base_ports import free_base_port

from .test_configuration import loaded

KEYS = ("max_allowed_incoming_connections", "max_connection_idle_ms", "max_receive_message_length")
CLIENTS_BYTES_MAX = 4 << 20


async def bounds_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[list[int]]:
    """Of each server that the node starts, the clients' first."""
    made, make = list[dict[str, Any]](), grpc.aio.server

    def noted(**keywords: Any) -> grpc.aio.Server:
        made.append(dict(keywords["options"]))
        return make(**keywords)

    monkeypatch.setattr(grpc.aio, "server", noted)
    uses, base = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "CONTROLLER_GRPC"), free_base_port()
    ports = [base + PORT_STEP * use for use in range(len(uses))]
    own = "controller__grpc__listener__name" in settings
    node = cast(
        Any,
        Node(
            loaded(
                log__dirs=[str(tmp_path)],
                listeners=[f"{use}://127.0.0.1:{port}" for use, port in zip(uses, ports, strict=True)][
                    : 5 if own else 4
                ],
                controller__quorum__voters=[f"1@127.0.0.1:{ports[2]}:{ports[4 if own else 1]}"],
                connections__max__idle__ms=7_000,
                max__connections=70,
                **settings,
            )
        ),
    )
    await node._open_logs()
    node._make_parts()
    parts = node.parts_in_order()
    try:
        await start(parts, Stage.NETWORK)
    finally:
        await stop(parts)
    return [[options[f"grpc.{key}"] for key in KEYS] for options in made]


async def test_a_server_of_clients_and_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await bounds_of(tmp_path, monkeypatch) == [[70, 7_000, GRPC_MESSAGE_BYTES_MAX]]


async def test_a_server_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "controller__grpc__listener__name": "CONTROLLER_GRPC",
        "listener__name__grpc__max__connections": 30,
        "listener__name__controller_grpc__max__connections": 20,
        "listener__security__protocol__map": [
            f"{use}:PLAINTEXT" for use in ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "CONTROLLER_GRPC")
        ],
    }
    assert await bounds_of(tmp_path, monkeypatch, **settings) == [
        [30, 7_000, CLIENTS_BYTES_MAX],
        [20, 7_000, GRPC_MESSAGE_BYTES_MAX],
    ]
