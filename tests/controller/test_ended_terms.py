"""A controller whose term is over and that does not know it: what it says is not acted on, what it was asked
is not done later.

Its refusals are the dangerous ones.  A leader that got INELIGIBLE_REPLICA counts without that replica from
then on, so no other controller may accept an earlier copy of that change (docs/semantics.md M12); a leader
that got INVALID_UPDATE_VERSION waits for metadata that may never come.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.controller.remote.client import ControllerClient
from tidegate.proto import controller_pb2 as rpc
from tidegate.runtime.clock import SystemClock
from tidegate.wire.errors import ErrorCode

from .controller_cluster import ControllerCluster, registration

REFUSED = rpc.PartitionView(partition=7, error=int(ErrorCode.INVALID_UPDATE_VERSION))


def status(epoch: int, error: ErrorCode = ErrorCode.NONE, hint: int = -1) -> rpc.Status:
    return rpc.Status(error=int(error), controller_id_plus_one=hint + 1, controller_epoch=epoch)


class TwoControllers:
    """Node 1 is active in term 5; node 2 was, in term 4, and answers as if it were.  Both can be asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = ControllerClient({1: "127.0.0.1:1", 2: "127.0.0.1:2"}, SystemClock())
        self.asked: list[tuple[int, int]] = []
        monkeypatch.setattr(
            self.client, "_stub", lambda node_id: SimpleNamespace(AlterPartitions=self._answer_of(node_id))
        )

    def _answer_of(self, node_id: int) -> Any:
        async def answer(request: rpc.AlterPartitionsRequest, timeout: float) -> rpc.AlterPartitionsReply:
            self.asked.append((node_id, request.controller_epoch))
            if node_id == 2:
                return rpc.AlterPartitionsReply(status=status(4), partitions=[REFUSED])
            return rpc.AlterPartitionsReply(status=status(5), partitions=[rpc.PartitionView(partition=7)])

        return answer


async def test_what_the_controller_of_an_ended_term_refuses_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = TwoControllers(monkeypatch)
    both.client.note_answer(1, status(5))
    both.client.active_id = 2  # a hint, or its turn
    reply = await both.client.alter_partitions(rpc.AlterPartitionsRequest())
    assert [view.error for view in reply.partitions] == [ErrorCode.NONE]
    assert both.asked[0] == (2, 5), "and every request carries the newest known term"
    assert both.asked[-1] == (1, 5), "and every request carries the newest known term"


async def test_ablation_a_client_that_forgets_the_newest_term_believes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = TwoControllers(monkeypatch)
    both.client.note_answer(1, status(0))
    both.client.active_id = 2
    reply = await both.client.alter_partitions(rpc.AlterPartitionsRequest())
    assert [view.error for view in reply.partitions] == [ErrorCode.INVALID_UPDATE_VERSION]


def test_the_term_of_an_inactive_controller_does_not_count() -> None:
    """Its own log may be ahead of any leadership."""
    client = ControllerClient({1: "127.0.0.1:1", 2: "127.0.0.1:2"}, SystemClock())
    assert client.note_answer(1, status(5))
    assert client.note_answer(2, status(9, ErrorCode.NOT_CONTROLLER, hint=1))
    assert client.active_id == 1
    assert client.note_answer(1, status(5)), "still the newest"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ControllerCluster]:
    """One controller, in its second term."""
    cluster = ControllerCluster(tmp_path, 1)
    await cluster.start()
    await cluster.active()
    await cluster.kill(1)
    await cluster.start(1)
    yield cluster
    await cluster.stop()
    assert not cluster.deaths


@pytest.fixture
async def client(cluster: ControllerCluster) -> AsyncIterator[ControllerClient]:
    client = cluster.client()
    yield client
    await client.close()


@pytest.mark.parametrize(
    ("ahead", "code"),
    [
        (-1, ErrorCode.REQUEST_TIMED_OUT),
        (1, ErrorCode.NOT_CONTROLLER),
        (0, ErrorCode.NONE),
        (None, ErrorCode.NONE),
    ],
)
async def test_changes_of_another_term_are_refused(
    cluster: ControllerCluster, client: ControllerClient, ahead: int | None, code: ErrorCode
) -> None:
    """Older: given up by its sender.  Newer: this controller's own term is over.  None: the sender's version
    does not say."""
    registered = await client.register_broker(registration(1))
    term = registered.status.controller_epoch
    assert term == cluster.nodes[1].metadata.term >= 2
    request = rpc.AlterPartitionsRequest(node_id=1, broker_epoch=registered.broker_epoch, attempt=1)
    request.controller_epoch = 0 if ahead is None else term + ahead
    assert (await cluster.nodes[1].service.AlterPartitions(request, None)).status.error == code


async def test_the_next_attempt_knows_the_new_term(client: ControllerClient) -> None:
    registered = await client.register_broker(registration(1))
    client._controller_epoch -= 1  # as after an election that this broker has not heard of
    request = rpc.AlterPartitionsRequest(node_id=1, broker_epoch=registered.broker_epoch)
    assert (await client.alter_partitions(request)).status.error == ErrorCode.NONE
    assert request.attempt == 2
    assert request.controller_epoch == registered.status.controller_epoch
