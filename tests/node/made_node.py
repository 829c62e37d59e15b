"""A node as it makes itself, of one broker that is its own controller: with all parts, of which none has
started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ApplyResult, PartitionState, TopicState
from tidegate.node.node import Node
from tidegate.node.settings.configuration import Configuration
from tidegate.processes.local_ports import PORT_STEP
from tidegate.runtime.disk import Disk
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.eventually import eventually

from .test_configuration import loaded


def settings_of_one_node(tmp_path: Path) -> Configuration:
    base = free_base_port()
    kafka, grpc, controller, metrics = (base + PORT_STEP * use for use in range(4))
    return loaded(
        log__dirs=[str(tmp_path)],
        listeners=[
            f"PLAINTEXT://127.0.0.1:{kafka}",
            f"GRPC://127.0.0.1:{grpc}",
            f"CONTROLLER://127.0.0.1:{controller}",
            f"METRICS://127.0.0.1:{metrics}",
        ],
        controller__quorum__voters=[f"1@127.0.0.1:{controller}:{grpc}"],
        controller__quorum__election__timeout__ms=50,
    )


async def made_node(tmp_path: Path, disk: Disk | None = None) -> Any:
    """Any: tests reach into its parts.  The caller stops them."""
    node = cast(Any, Node(settings_of_one_node(tmp_path)))
    node._disk = disk or node._disk
    await node._open_logs()
    node._make_parts()
    return node


class Metadata:
    """What the quorum would have the node apply: it leads one partition, t-0."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._state = ClusterState()
        place = PartitionState((1,), (1,), leader=1)
        self._state._topics.by_name["t"] = TopicState("t", UUID(int=9), {}, {0: place}, {})

    def apply(self, configs: dict[int, dict[str, str]]) -> None:
        self._node._broker.lifecycle.broker_epoch = 1
        self._state.index += 1
        self._state.node_configs = configs
        self._node._parts.metadata.state = self._state
        self._node._parts.application.apply(self._state, ApplyResult(self._state.index, 1))

    async def led(self) -> None:
        await eventually(lambda: self._node._broker.replicas.hosted.leader_count == 1, "t-0 is led")
        await asyncio.sleep(0)
