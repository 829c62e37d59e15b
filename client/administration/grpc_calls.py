"""Calls of the gRPC services of a node, found by its address on the Kafka listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from ...processes.local_ports import grpc_client
from ...runtime.connections.listeners import parse_listener
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode
from ..connecting.cluster import Cluster, require_none
from ..connecting.errors import ConnectionFailed, RequestError

_ERROR_KEY: Final = "tidegate-error-bin"
_BROKER: Final = 4
_NAME_SETTING: Final = "grpc.listener.name"
_LISTENER_SETTINGS: Final = ("advertised.listeners", "listeners")


class ErrorMessage(Protocol):
    """The message with which a service ends a call that fails: `JobError`, `CutError`, `ErrorDetail`."""

    error_code: int
    message: str


async def ask_node(
    cluster: Cluster,
    node_id: int,
    timeout_s: float,
    error: Callable[[bytes], ErrorMessage],
    call: Callable[..., Any],
) -> Any:
    """`call(channel, timeout=, metadata=)`.  Raises ConnectionFailed for what may pass, and what the node
    answers else."""
    address = await grpc_address(cluster, node_id)
    try:
        async with grpc_client(address, cluster.security, timeout_s) as (channel, shown):
            return await call(channel, timeout=timeout_s, metadata=shown)
    except grpc.aio.AioRpcError as failure:
        raise error_of(failure, address, error) from failure


def error_of(
    failure: grpc.aio.AioRpcError, address: str, error: Callable[[bytes], ErrorMessage]
) -> ConnectionFailed | RequestError:
    """ConnectionFailed for what may pass, and what the node answers else."""
    detail = dict(failure.trailing_metadata() or ()).get(_ERROR_KEY)
    if not isinstance(detail, bytes):
        return ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, f"{address}: {failure.details()}")
    answer = error(detail)
    code = ErrorCode.from_wire(answer.error_code)
    return ConnectionFailed(code, answer.message) if code.retriable else RequestError(code, answer.message)


async def grpc_address(cluster: Cluster, node_id: int) -> str:
    """The gRPC listener of a node."""
    resource = {
        "resource_type": _BROKER,
        "resource_name": str(node_id),
        "configuration_keys": [_NAME_SETTING, *_LISTENER_SETTINGS],
    }
    answer = await cluster.ask(node_id, ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
    (result,) = answer.results
    if result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise RequestError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"the gRPC listener of node {node_id} is found by DESCRIBE_CONFIGS on the cluster, which this "
            "user lacks",
        )
    require_none(ErrorCode.from_wire(int(result.error_code)), f"listeners of node {node_id}")
    values = {str(entry.name): entry.value or "" for entry in result.configs}
    for setting in _LISTENER_SETTINGS:
        for entry in filter(None, values.get(setting, "").split(",")):
            listener = parse_listener(entry.strip())
            if listener.name == values.get(_NAME_SETTING, "").upper():
                return listener.address
    raise ConnectionFailed(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node_id} names no gRPC listener")
