"""Where a reader's cut comes from: any node takes one, or has one under a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

from ...client.consuming.cut import Cut
from ...proto import cuts_pb2, cuts_pb2_grpc
from ...security.client_security import ClientSecurity
from ...security.grpc_session import Metadata
from ...wire.errors import ErrorCode
from ..connecting.data_client import DataClient
from ..connecting.errors import ReadError
from ..options import RETRY_TIMEOUT_MS_DEFAULT, parse_bootstrap

TAKE_TIMEOUT_MS: Final = 10_000  # of one node; it tries again by itself
ANSWER_MARGIN_S: Final = 5.0
PINNED_TIMEOUT_S: Final = 10.0


def cut(
    bootstrap: str,
    topics: Sequence[str] | str,
    *,
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT,
    security: ClientSecurity | None = None,
) -> Cut:
    """A new cut of all partitions of these topics.  Blocks for some milliseconds; waits for no open
    transaction.

    `bootstrap`: Kafka or gRPC listeners of some nodes, as host:port,host:port; with `security` gRPC
    listeners.  Raises ReadError.
    """
    client = DataClient(parse_bootstrap(bootstrap), retry_timeout_ms=retry_timeout_ms, security=security)
    try:
        return take_cut(client, [topics] if isinstance(topics, str) else topics)
    finally:
        client.close()


def take_cut(client: DataClient, topics: Sequence[str]) -> Cut:
    """A new cut of all partitions of these topics.  Raises ReadError."""
    names = list(dict.fromkeys(topics))
    if not names:
        raise ReadError(ErrorCode.INVALID_REQUEST, "a cut needs at least one topic")
    request = cuts_pb2.TakeCutRequest(topics=names, timeout_ms=TAKE_TIMEOUT_MS)

    def ask(channel: grpc.Channel, shown: Metadata) -> cuts_pb2.Cut:
        timeout_s = TAKE_TIMEOUT_MS / 1000 + ANSWER_MARGIN_S
        return cuts_pb2_grpc.CutsStub(channel).TakeCut(request, timeout=timeout_s, metadata=shown)

    return Cut.from_proto(client.of_any_node(ask, "cuts"))


def pinned_cut(client: DataClient, name: str) -> Cut:
    """The cut that is kept under this name.  Raises ReadError."""
    request = cuts_pb2.GetCutRequest(name=name)

    def ask(channel: grpc.Channel, shown: Metadata) -> cuts_pb2.PinnedCut:
        return cuts_pb2_grpc.CutsStub(channel).GetCut(request, timeout=PINNED_TIMEOUT_S, metadata=shown)

    return Cut.from_proto(client.of_any_node(ask, "cuts").cut)
