"""A scripted broker: one node that speaks the real protocol over loopback, keeps its state in dictionaries,
and misbehaves on command.  For what a client does with answers that are late, lost or refused; the real thing
is tested in tests/cluster."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from tidegate.runtime.network import FrameConnection, FrameServer, serve_frames
from tidegate.wire import codec
from tidegate.wire.api import SUPPORTED, ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.produce import (
    ProduceResponse,
    ProduceResponsePartition,
    encode_produce_response,
    parse_produce_request,
)
from tidegate.wire.records import decode_batch, parse_header


class Misbehaviour(Enum):
    """What may be scripted instead of an answer."""

    DROP = "close the connection without doing anything"
    DO_THEN_DROP = "do it, then close the connection instead of answering"
    SILENCE = "never answer"
    NORMAL = "answer as usual"


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    key: ApiKey
    version: int
    body: Any


@dataclass
class ScriptedBroker:
    """See the module's text.  `script(key, ...)` sets what happens to the next requests of a kind, in
    order."""

    transaction_version: int = 2
    partitions: int = 3
    seen: list[Seen] = field(default_factory=list)
    logs: defaultdict[tuple[str, int], list[tuple[bytes | None, bytes | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    outcomes: list[tuple[int, int, bool]] = field(default_factory=list)
    producer: tuple[int, int] = (-1, -1)
    last_epoch: int = -1
    transaction_open: bool = False
    last_committed: bool | None = None
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    _sequences: dict[tuple[int, int, str, int], tuple[deque[tuple[int, int, int]], int]] = field(
        default_factory=dict
    )
    _scripts: defaultdict[ApiKey, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    _server: FrameServer | None = None
    _next_producer_id: int = 1000

    @property
    def bootstrap(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.port}"

    def script(self, key: ApiKey, *steps: Misbehaviour | dict[str, Any] | Callable[[Any], Any]) -> None:
        self._scripts[key].extend(steps)

    def sent(self, key: ApiKey) -> list[Seen]:
        return [seen for seen in self.seen if seen.key is key]

    async def start(self) -> None:
        self._server = await serve_frames(
            "127.0.0.1", 0, lambda connection: _Handler(self, connection), 64 << 20
        )

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()

    def handle(self, connection: FrameConnection, frame: bytes) -> None:
        header, position = codec.parse_request_header(frame)
        key = ApiKey(header.api_key)
        version = header.api_version
        if key is ApiKey.PRODUCE:
            body: Any = parse_produce_request(version, memoryview(frame), position)
        else:
            body = codec.decode_request_body(key, version, frame, position)
        self.seen.append(Seen(key, version, body))
        step = self._scripts[key].popleft() if self._scripts[key] else Misbehaviour.NORMAL
        if step is Misbehaviour.DROP:
            connection.abort("scripted")
            return
        if step is Misbehaviour.SILENCE:
            return
        if callable(step):
            answer = step(body)
        elif isinstance(step, dict):
            answer = step
        else:
            answer = getattr(self, f"_{key.name.lower()}")(version, body)
        if step is Misbehaviour.DO_THEN_DROP:
            connection.abort("scripted")
            return
        encoded = answer if isinstance(answer, bytes) else codec.response(key, version, answer)
        connection.send(codec.response_header(key, version, header.correlation_id), encoded)

    def recreate(self, topic: str) -> None:
        """Deletes a topic and makes it anew: its records, and what is known of its producers, are gone."""
        for key in [key for key in self.logs if key[0] == topic]:
            del self.logs[key]
        self._sequences = {key: state for key, state in self._sequences.items() if key[2] != topic}

    # ---- the model broker ----------------------------------------------------------------------------------

    def _api_versions(self, version: int, body: Any) -> dict[str, Any]:
        keys = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in SUPPORTED.items()
        ]
        level = self.transaction_version
        features = [{"name": "transaction.version", "max_version_level": level, "min_version_level": level}]
        return {
            "error_code": 0,
            "api_keys": keys,
            "finalized_features_epoch": 1,
            "finalized_features": features,
        }

    def _metadata(self, version: int, body: Any) -> dict[str, Any]:
        assert self._server is not None
        names = ["t"] if body.topics is None else [topic.name for topic in body.topics]
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self._server.port, "rack": None}],
            "cluster_id": "scripted",
            "controller_id": 1,
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> dict[str, Any]:
        if name.startswith("absent"):
            return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name, "partitions": []}
        partitions = [
            {
                "error_code": 0,
                "partition_index": n,
                "leader_id": 1,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
            }
            for n in range(self.partitions)
        ]
        return {"error_code": 0, "name": name, "is_internal": False, "partitions": partitions}

    def _find_coordinator(self, version: int, body: Any) -> dict[str, Any]:
        assert self._server is not None
        return {
            "error_code": 0,
            "error_message": None,
            "node_id": 1,
            "host": "127.0.0.1",
            "port": self._server.port,
        }

    def _init_producer_id(self, version: int, body: Any) -> dict[str, Any]:
        """docs/semantics.md T4 to T6, as far as one producer at a time needs it."""
        if body.transactional_id is None:
            self._next_producer_id += 1
            return {"error_code": 0, "producer_id": self._next_producer_id, "producer_epoch": 0}
        expected = (body.producer_id, body.producer_epoch)
        if expected != (-1, -1) and expected == (self.producer[0], self.last_epoch):
            return {"error_code": 0, "producer_id": self.producer[0], "producer_epoch": self.producer[1]}
        if expected not in ((-1, -1), self.producer):
            return {"error_code": ErrorCode.PRODUCER_FENCED, "producer_id": -1, "producer_epoch": -1}
        if self.transaction_open:
            self._end(False)
        self.last_epoch = expected[1]
        self.producer = (7, self.producer[1] + 1)
        return {"error_code": 0, "producer_id": self.producer[0], "producer_epoch": self.producer[1]}

    def _end(self, committed: bool) -> None:
        self.outcomes.append((*self.producer, committed))
        self.transaction_open = False
        self.last_committed = committed

    def _end_txn(self, version: int, body: Any) -> dict[str, Any]:
        """docs/semantics.md T13: the epoch goes up with the end, and a retry is known by the epoch before."""
        asked = (body.producer_id, body.producer_epoch)
        code = ErrorCode.NONE
        if asked == self.producer and self.transaction_open:
            self._end(body.committed)
            if version >= 5:
                self.last_epoch = self.producer[1]
                self.producer = (self.producer[0], self.producer[1] + 1)
        elif version >= 5 and asked == (self.producer[0], self.producer[1] - 1) and not self.transaction_open:
            code = ErrorCode.NONE if self.last_committed == body.committed else ErrorCode.INVALID_TXN_STATE
        elif asked != self.producer:
            code = ErrorCode.PRODUCER_FENCED
        elif version >= 5 and not body.committed:
            code = ErrorCode.NONE
        else:
            code = ErrorCode.INVALID_TXN_STATE
        return {"error_code": code, "producer_id": self.producer[0], "producer_epoch": self.producer[1]}

    def _add_partitions_to_txn(self, version: int, body: Any) -> dict[str, Any]:
        self.transaction_open = True
        results = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": n, "partition_error_code": 0} for n in topic.partitions
                ],
            }
            for topic in body.v3_and_below_topics
        ]
        return {"results_by_topic_v3_and_below": results}

    def _add_offsets_to_txn(self, version: int, body: Any) -> dict[str, Any]:
        self.transaction_open = True
        return {"error_code": 0}

    def _txn_offset_commit(self, version: int, body: Any) -> dict[str, Any]:
        self.transaction_open = True
        for topic in body.topics:
            for part in topic.partitions:
                self.offsets[topic.name, int(part.partition_index)] = int(part.committed_offset)
        return _partition_codes(body)

    def _produce(self, version: int, body: Any) -> bytes:
        topics = []
        for topic, partitions in body.topics:
            answers = []
            for partition, records in partitions:
                answers.append(self._append(topic, partition, records, body.transactional_id))
            topics.append((topic, answers))
        return encode_produce_response(version, ProduceResponse(topics))

    def _append(
        self, topic: str, partition: int, records: memoryview, transactional_id: str | None
    ) -> ProduceResponsePartition:
        header = parse_header(records)
        if transactional_id is not None:
            if (header.producer_id, header.producer_epoch) != self.producer:
                return ProduceResponsePartition(partition, ErrorCode.INVALID_PRODUCER_EPOCH)
            self.transaction_open = True
        log = self.logs[topic, partition]
        key = (header.producer_id, header.producer_epoch, topic, partition)
        if header.has_producer_id:
            if key not in self._sequences and header.base_sequence:
                return ProduceResponsePartition(partition, ErrorCode.UNKNOWN_PRODUCER_ID)
            known, expected = self._sequences.get(key, (deque(maxlen=5), 0))
            for base, last, offset in known:
                if (base, last) == (header.base_sequence, header.last_sequence):
                    return ProduceResponsePartition(partition, base_offset=offset)
            if header.base_sequence != expected:
                return ProduceResponsePartition(partition, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            known.append((header.base_sequence, header.last_sequence, len(log)))
            self._sequences[key] = (known, header.last_sequence + 1)
        offset = len(log)
        log.extend((record.key, record.value) for record in decode_batch(records))
        return ProduceResponsePartition(partition, base_offset=offset)


def _partition_codes(body: Any) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": p.partition_index, "error_code": 0} for p in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


@dataclass
class _Handler:
    broker: ScriptedBroker
    connection: FrameConnection

    def on_frame(self, frame: memoryview) -> None:
        self.broker.handle(self.connection, bytes(frame))

    def on_close(self, reason: str) -> None:
        pass


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    made = ScriptedBroker()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def misbehaviour() -> type[Misbehaviour]:
    return Misbehaviour
