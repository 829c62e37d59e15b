"""With mutual TLS only a certificate of the quorum's authority, for that very node, speaks to Raft."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.controller.raft.messages import AppendEntries, encode
from tidegate.runtime.connections.tls import MutualTls
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

from .test_quorum_transport import HONEST, VOTE, Voter, addresses, frame


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Quorum:
    """Voters 1 to 3 on loopback, each started with what the test gives it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.places = addresses()
        self._stack = stack

    async def start(self, node_id: int, tls: MutualTls | None) -> Voter:
        voter = Voter(node_id, self.places)
        voter.transport._tls = tls
        await voter.transport.start()
        self._stack.push_async_callback(voter.transport.stop)
        return voter


@pytest.fixture
async def quorum() -> AsyncIterator[Quorum]:
    async with AsyncExitStack() as stack:
        yield Quorum(stack)


async def test_voters_with_certificates_find_each_other_and_talk(
    authority: Authority, quorum: Quorum
) -> None:
    voters = [
        await quorum.start(node, MutualTls.load(authority.issue(f"node-{node}"), node)) for node in (1, 2, 3)
    ]
    await eventually(lambda: all(len(voter.up) == 2 for voter in voters))
    voters[2].transport.send(1, replace(VOTE, term=9))
    await eventually(lambda: voters[0].received == [replace(VOTE, term=9)])
    large = AppendEntries(5, 1, 7, 4, ((bytes(1 << 20), 8, 5),))  # many TLS records
    voters[1].transport.send(1, large)
    await eventually(lambda: large in voters[0].received)


@pytest.mark.parametrize("which", ["plain text", "another authority", "another node's certificate"])
async def test_a_voter_without_a_valid_certificate_is_rejected(
    authority: Authority, quorum: Quorum, tmp_path: Path, which: str
) -> None:
    honest = [
        await quorum.start(node, MutualTls.load(authority.issue(f"node-{node}"), node)) for node in (1, 3)
    ]
    liar = {
        "plain text": lambda: None,
        "another authority": lambda: MutualTls.load(
            Authority(tmp_path / "other", "other").issue("node-2"), 2
        ),
        "another node's certificate": lambda: MutualTls.load(authority.issue("node-3", "stolen"), 3),
    }[which]()
    second = await quorum.start(2, liar)
    await eventually(lambda: honest[0].up == {3} and honest[1].up == {1})
    for _ in range(5):  # it goes on dialing, and being dialed
        await asyncio.sleep(0.2)
        assert second.received == []
        assert 2 not in honest[0].up | honest[1].up


async def test_without_a_certificate_no_hello_is_read(authority: Authority, quorum: Quorum) -> None:
    voter = await quorum.start(1, MutualTls.load(authority.issue("node-1"), 1))
    context = ssl.create_default_context(cafile=str(authority.path))
    context.check_hostname = False
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", voter.transport.port, ssl=context, server_hostname=""
    )
    writer.write(frame(encode(HONEST)))
    try:
        answer = await asyncio.wait_for(reader.read(), 5)
    except (ssl.SSLError, ConnectionError):
        answer = b""
    writer.close()
    assert answer == b""
    assert voter.events == []


async def test_old_protocol_versions_are_refused(authority: Authority, quorum: Quorum) -> None:
    voter = await quorum.start(1, MutualTls.load(authority.issue("node-1"), 1))
    files = authority.issue("node-2")
    context = ssl.create_default_context(cafile=str(files.authorities))
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert files.certificate is not None
    context.load_cert_chain(files.certificate, files.key)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", voter.transport.port, ssl=context, server_hostname="")


def test_the_certificate_is_compared_with_the_hello(authority: Authority) -> None:
    """The check itself, without a network: a certificate for node 3 does not make its holder node 2."""
    transport = Voter(1, addresses()).transport
    transport._tls = MutualTls.load(authority.issue("node-1"), 1)
    holder_of_3 = {"subjectAltName": (("DNS", "node-3"),)}
    assert transport.refusal(HONEST, None, holder_of_3) == "node 2 has shown a certificate of nodes [3]"
    assert transport.refusal(HONEST, None, None) is not None
    assert transport.refusal(HONEST, None, {"subjectAltName": (("DNS", "node-2"),)}) is None
