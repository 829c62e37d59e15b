"""A client over gRPC takes no session from a node that does not know its password."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tidegate.runtime.network import bind_grpc, grpc_channel, grpc_channel_blocking, grpc_server
from tidegate.security.client_security import AuthenticationRefused, ClientSecurity
from tidegate.security.grpc_session import GrpcSession, authenticate, authenticated
from tidegate.security.session_tokens import AUTHENTICATION_SERVICE, LIFETIME_KEY, SESSION_KEY

ALICE = ClientSecurity("SASL_PLAINTEXT", username="alice", password="s3cret")


class Imposter:
    """Gives a session to everyone, after so many answers."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers

    async def authenticate(self, _: AsyncIterator[bytes], context: Any) -> None:
        await context.read()
        for answer in self._answers:
            await context.write(answer)
            await context.read()
        context.set_trailing_metadata(((SESSION_KEY, "taken"), (LIFETIME_KEY, "1000")))


@asynccontextmanager
async def answering(answers: list[bytes]) -> AsyncIterator[str]:
    server = grpc_server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        Imposter(answers).authenticate
    )
    handler = grpc.method_handlers_generic_handler(AUTHENTICATION_SERVICE, {"Authenticate": method})
    server.add_generic_rpc_handlers((handler,))
    port = bind_grpc(server, "127.0.0.1", 0)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


ANSWERS = pytest.mark.parametrize(
    "answers", [[], [b"v=AAAA"], [b"r=other,s=AAAA,i=4096"], [b"r=,s=AAAA,i=1"]], ids=range(4)
)


@ANSWERS
async def test_a_session_of_a_node_that_proves_nothing_is_not_taken(answers: list[bytes]) -> None:
    async with answering(answers) as target:
        with grpc_channel_blocking(target) as channel, pytest.raises(AuthenticationRefused) as refused:
            await asyncio.to_thread(authenticate, channel, ALICE)
        assert "s3cret" not in str(refused.value)


@ANSWERS
async def test_nor_by_a_client_that_runs_on_a_loop(answers: list[bytes]) -> None:
    async with answering(answers) as target, grpc_channel(target) as channel:
        with pytest.raises(AuthenticationRefused) as refused:
            await authenticated(channel, ALICE)
        assert "s3cret" not in str(refused.value)


def test_a_session_is_not_printed() -> None:
    session = GrpcSession((("authorization", "Session s3cret"),), 60.0)
    assert "60.0" in repr(session)
    assert "s3cret" not in repr(session)
