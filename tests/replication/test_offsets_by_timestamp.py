"""ListOffsets decodes a large batch in a thread; what is true when the thread returns decides about the
answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.node.handlers.log import list_offsets
from tidegate.node.serving import batch_threads
from tidegate.node.serving.batch_threads import BatchThreads
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.requests import RequestContext
from tidegate.storage.log import lookup
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.permissions import ALL_ALLOWED
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, encode_batch

from .cluster import TOPIC_ID, Cluster

NOW_MS = 1_700_000_000_000
RECORDS = 3000


class HeldThreads(BatchThreads):
    """Threads that tell when they have work and stand still until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self, work: Callable[[], Any]) -> Any:
        self.begun.set()
        await self.go_on.wait()
        return await super().run(work)


class Asked:
    """One node that leads "t", and a client that asks it for offsets."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.threads = HeldThreads()
        parts = SimpleNamespace(
            replicas=cluster.managers[1], batch_threads=self.threads, permissions=ALL_ALLOWED
        )
        self.broker = cast(Broker, parts)

    async def append(self, first_ms: int, records: int = RECORDS) -> None:
        batch = encode_batch(
            [NewRecord(None, b"v", (), first_ms + n) for n in range(records)], compression=Compression.ZSTD
        )
        manager = self.cluster.managers[1]
        info = manager.append_now("t", 0, bytearray(batch), origin=AppendOrigin.CLIENT)
        epoch = manager.replica("t", 0).leader_epoch
        assert await manager.wait_committed("t", 0, epoch, info.last_offset + 1, 5000) is ErrorCode.NONE

    def ask(self, timestamp_ms: int, epoch: int = -1) -> asyncio.Task[Any]:
        partition = SimpleNamespace(partition_index=0, timestamp=timestamp_ms, current_leader_epoch=epoch)
        topics = [SimpleNamespace(name="t", partitions=[partition])]
        request: Any = SimpleNamespace(replica_id=-2, isolation_level=0, topics=topics)

        async def asked() -> Any:
            answer = await list_offsets.handle(self.broker, RequestContext(2, 9, 1, "c", "h"), request)
            return answer["topics"][0]["partitions"][0]  # type: ignore[index]

        return asyncio.create_task(asked())


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    cluster = Cluster(tmp_path)
    cluster.start(1)
    cluster.create(replicas=(1,), min_isr=1)
    made = Asked(cluster)
    yield made
    await made.threads.close()
    await cluster.stop_all()


@pytest.mark.parametrize(("timestamp_ms", "offset"), [(NOW_MS + 7, 7), (-3, RECORDS - 1)])
async def test_the_loop_goes_on_while_a_batch_is_decoded(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, timestamp_ms: int, offset: int
) -> None:
    await asked.append(NOW_MS)
    decoded_in: list[int] = []
    decode = lookup.decode_batch  # type: ignore[attr-defined]

    def noted(data: bytes, **rest: Any) -> Any:
        found = decode(data, **rest)
        decoded_in.append(threading.get_ident())
        return found

    monkeypatch.setattr(lookup, "decode_batch", noted)
    answer = asked.ask(timestamp_ms)
    await asked.threads.begun.wait()
    asked.threads.go_on.set()
    assert (await answer)["offset"] == offset
    assert len(decoded_in) == 1
    assert threading.get_ident() not in decoded_in


async def test_a_small_batch_is_decoded_at_once(asked: Asked) -> None:
    await asked.append(NOW_MS, records=10)
    assert (await asked.ask(NOW_MS + 7))["offset"] == 7
    assert not asked.threads.begun.is_set()


async def test_a_leader_deposed_during_a_look_up_answers_not_leader(asked: Asked) -> None:
    await asked.append(NOW_MS)
    answer = asked.ask(NOW_MS + 7)
    await asked.threads.begun.wait()
    asked.cluster.elect(2)
    asked.threads.go_on.set()
    assert (await answer)["error_code"] is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_new_epoch_of_the_same_leader_fences_the_old_epoch(asked: Asked) -> None:
    await asked.append(NOW_MS)
    answer = asked.ask(NOW_MS + 7, epoch=1)
    await asked.threads.begun.wait()
    asked.cluster.elect(1)
    asked.threads.go_on.set()
    assert (await answer)["error_code"] is ErrorCode.FENCED_LEADER_EPOCH


async def test_a_log_start_that_moved_meanwhile_holds(asked: Asked) -> None:
    await asked.append(NOW_MS)
    answer = asked.ask(NOW_MS + 7)
    await asked.threads.begun.wait()
    asked.cluster.log(1).advance_log_start(100)
    asked.threads.go_on.set()
    assert (await answer)["offset"] == 100


async def test_a_topic_that_was_made_again_meanwhile_is_asked_anew(asked: Asked) -> None:
    await asked.append(NOW_MS)
    answer = asked.ask(NOW_MS + 7)
    await asked.threads.begun.wait()
    manager, cluster = asked.cluster.managers[1], asked.cluster
    manager.delete("t", 0, TOPIC_ID)
    again = replace(cluster.partitions["t", 0], topic_id=UUID(int=8))
    cluster.partitions["t", 0] = again
    cluster.publish([again])
    await asked.append(NOW_MS + 5)
    asked.threads.go_on.set()
    found = await answer
    assert (found["offset"], found["timestamp"]) == (2, NOW_MS + 7)


async def test_a_question_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_threads, "LOOKED_INTO_MAX", 3)
    threads = BatchThreads(1)
    asked: list[int] = []

    def changing(_known: lookup.DecodedBatches) -> None:
        asked.append(1)
        data = encode_batch([NewRecord(None, b"v")])
        raise lookup.BatchNotDecoded(lookup._Question(0, len(asked), len(data), 0, 1, None), data)

    with pytest.raises(KafkaError) as refused:
        await threads.ask(changing)
    assert refused.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    assert len(asked) == 3
    await threads.close()


async def test_a_batch_that_cannot_be_decoded_is_an_error_of_its_partition(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked.append(NOW_MS)

    def unreadable(_data: bytes, **_rest: Any) -> Any:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "unreadable")

    monkeypatch.setattr(lookup, "decode_batch", unreadable)
    asked.threads.go_on.set()
    assert (await asked.ask(NOW_MS + 7))["error_code"] is ErrorCode.CORRUPT_MESSAGE
