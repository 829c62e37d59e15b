"""Bad input gets a clear error, and nothing is lost or stopped: every test ends with a record that goes in
and comes out.

One real node (`bad_input_node`); its process must be the same from the first test to the last.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.errors import FatalError, RequestError
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, encode_batch

from .witness import Witness, batch, kept_up, log_of, raw_bytes, raw_connection, raw_fetch, raw_produce

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("bad-input"), pytest.mark.timeout(120)]

CRC_AT = 17
ATTRIBUTES_AT = 21


@pytest.fixture(scope="module")
def bad_input_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(LocalCluster(tmp_path_factory.mktemp("bad-input"), nodes=1)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def witness(bad_input_node: LocalCluster) -> Witness:
    found = Witness(bad_input_node.bootstrap)
    asyncio.run(found.create())
    return found


@pytest.fixture(autouse=True)
async def _nothing_lost_nothing_stopped(
    bad_input_node: LocalCluster, witness: Witness
) -> AsyncIterator[None]:
    pid = bad_input_node.node(1).pid
    await witness.write(3)
    yield
    assert bad_input_node.node(1).pid == pid, "the node's process ended"
    await witness.still_serves()


@pytest.fixture
def address(bad_input_node: LocalCluster) -> str:
    return bad_input_node.node(1).kafka_address


async def until_logged(cluster: LocalCluster, *words: str) -> None:
    """The node's log has one line with all of these words."""

    async def logged() -> bool:
        return any(all(word in line for word in words) for line in log_of(cluster).splitlines())

    await eventually(logged, f"a log line with {words}", timeout_s=10)


def with_crc(data: bytearray) -> bytes:
    """The batch with the checksum that its content asks for."""
    from crc32c import crc32c

    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


class TestBatches:
    """What a producer sends as records.  Nothing of a refused batch is in the log: `still_serves` reads all
    of it."""

    async def test_a_wrong_crc_is_a_corrupt_message(self, address: str, witness: Witness) -> None:
        damaged = bytearray(batch([b"never"]))
        damaged[-1] ^= 1
        answer = await raw_produce(address, witness.topic, bytes(damaged))
        assert answer.error is ErrorCode.CORRUPT_MESSAGE
        assert answer.error_message == "the batch's CRC-32C does not match its content"

    async def test_a_batch_above_max_message_bytes_is_too_large(self, address: str, witness: Witness) -> None:
        answer = await raw_produce(address, witness.topic, batch([bytes(1_100_000)]))
        assert answer.error is ErrorCode.MESSAGE_TOO_LARGE
        assert "1048588 are allowed (max.message.bytes)" in (answer.error_message or "")

    async def test_the_client_says_what_to_do_about_a_record_that_is_too_large(
        self, witness: Witness
    ) -> None:
        async with Producer(witness.bootstrap, request_bytes_max=4 << 20) as producer:
            with pytest.raises(RequestError, match="send smaller records") as refused:
                await producer.send_and_wait(witness.topic, bytes(1_100_000))
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE

    async def test_an_unknown_codec_is_named(self, address: str, witness: Witness) -> None:
        unknown = bytearray(batch([b"never"]))
        unknown[ATTRIBUTES_AT + 1] = 7
        answer = await raw_produce(address, witness.topic, with_crc(unknown))
        assert answer.error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert "codec 7" in (answer.error_message or "")

    @pytest.mark.parametrize("keep", [0, 20, 61, -1])
    async def test_a_batch_that_is_cut_short_is_corrupt(
        self, address: str, witness: Witness, keep: int
    ) -> None:
        answer = await raw_produce(address, witness.topic, batch([b"never" * 20])[:keep])
        assert answer.error in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
        assert answer.error_message

    async def test_an_old_message_format_is_refused(self, address: str, witness: Witness) -> None:
        old = bytearray(batch([b"never"]))
        old[16] = 1
        answer = await raw_produce(address, witness.topic, bytes(old))
        assert answer.error in (
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
        )
        assert answer.error_message

    async def test_a_control_batch_of_a_client_is_refused(self, address: str, witness: Witness) -> None:
        forged = batch(
            [b"never"], producer_id=1, producer_epoch=0, base_sequence=0, control=True, transactional=True
        )
        answer = await raw_produce(address, witness.topic, forged, transactional_id="forger")
        assert answer.error is ErrorCode.INVALID_RECORD
        assert "a client sent a control batch" in (answer.error_message or "")

    async def test_good_and_bad_partitions_of_one_request_are_answered_apart(
        self, address: str, witness: Witness
    ) -> None:
        damaged = bytearray(batch([b"never"]))
        damaged[-1] ^= 1
        assert (await raw_produce(address, witness.topic, bytes(damaged))).error is ErrorCode.CORRUPT_MESSAGE
        answer = await raw_produce(address, witness.topic, batch([b"after the bad one"]))
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, len(witness.acknowledged))
        witness.acknowledged.append(b"after the bad one")

    async def test_acks_that_do_not_exist_are_refused(self, address: str, witness: Witness) -> None:
        answer = await raw_produce(address, witness.topic, batch([b"never"]), acks=2)
        assert answer.error is ErrorCode.INVALID_REQUIRED_ACKS
        assert "acks=2" in (answer.error_message or "")

    async def test_compressed_garbage_is_refused(self, address: str, bad_input_node: LocalCluster) -> None:
        """Its checksum is right, and no reader of the partition could ever get past it."""
        async with Admin(bad_input_node.bootstrap) as admin:
            await admin.create_topics([NewTopic("liar", 1, 1)])
        lie = bytearray(encode_batch([NewRecord(None, b"x" * 500)], compression=Compression.ZSTD))
        lie[61:] = b"\xff" * (len(lie) - 61)
        answer = await raw_produce(address, "liar", with_crc(lie))
        assert answer.error is ErrorCode.INVALID_RECORD
        fetched = await raw_fetch(address, "liar", 0)
        assert fetched.error is ErrorCode.NONE
        assert not fetched.records
        assert fetched.high_watermark == 0


class TestProducers:
    """Identities and sequences."""

    async def _identity(self, witness: Witness) -> int:
        async with raw_connection(witness.bootstrap) as connection:
            answer = await connection.request(
                ApiKey.INIT_PRODUCER_ID,
                {
                    "transactional_id": None,
                    "transaction_timeout": 1000,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
            assert answer.error_code == ErrorCode.NONE
            return int(answer.producer_id)

    async def test_an_old_producer_epoch_is_refused(self, address: str, witness: Witness) -> None:
        producer_id = await self._identity(witness)
        for epoch, value in ((0, b"epoch 0"), (1, b"epoch 1")):
            good = batch([value], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
            assert (await raw_produce(address, witness.topic, good)).error is ErrorCode.NONE
            witness.acknowledged.append(value)
        zombie = batch([b"never"], producer_id=producer_id, producer_epoch=0, base_sequence=1)
        answer = await raw_produce(address, witness.topic, zombie)
        assert answer.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert "a newer instance of this producer has taken over" in (answer.error_message or "")

    async def test_a_sequence_gap_is_out_of_order_and_a_repetition_is_not(
        self, address: str, witness: Witness
    ) -> None:
        producer_id = await self._identity(witness)
        first = batch([b"sequence 0"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        accepted = await raw_produce(address, witness.topic, first)
        assert accepted.error is ErrorCode.NONE
        witness.acknowledged.append(b"sequence 0")
        gap = batch([b"never"], producer_id=producer_id, producer_epoch=0, base_sequence=2)
        answer = await raw_produce(address, witness.topic, gap)
        assert answer.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert "sequence 2 where 1 was expected" in (answer.error_message or "")
        again = await raw_produce(address, witness.topic, first)
        assert (again.error, again.base_offset) == (ErrorCode.NONE, accepted.base_offset)

    async def test_a_transaction_timeout_above_the_maximum_is_refused(self, witness: Witness) -> None:
        producer = Producer(witness.bootstrap, transactional_id="too-long", transaction_timeout_ms=900_001)
        with pytest.raises(FatalError, match=r"transaction\.max\.timeout\.ms") as refused:
            await producer.start()
        await producer.close()
        assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT

    async def test_a_transactional_batch_without_a_transaction_is_refused(
        self, address: str, witness: Witness
    ) -> None:
        stray = batch([b"never"], producer_id=4711, producer_epoch=0, base_sequence=0, transactional=True)
        without_id = await raw_produce(address, witness.topic, stray)
        assert without_id.error is ErrorCode.INVALID_REQUEST
        async with Producer(witness.bootstrap, transactional_id="somebody"):
            pass  # from here on there is a coordinator to ask
        unknown = await raw_produce(address, witness.topic, stray, transactional_id="nobody")
        assert unknown.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert unknown.error_message

    async def test_a_fenced_transactional_producer_learns_it(self, witness: Witness) -> None:
        async with Producer(witness.bootstrap, transactional_id="twins") as old:
            async with Producer(witness.bootstrap, transactional_id="twins"):
                with pytest.raises(KafkaError) as refused:
                    async with old.transaction():
                        await old.send_and_wait(witness.topic, b"never")
            assert refused.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class TestFrames:
    """What is no request at all: the connection ends with one line in the log, and only that connection."""

    async def test_a_frame_length_of_2_gib(self, address: str, bad_input_node: LocalCluster) -> None:
        assert await raw_bytes(address, struct.pack(">i", 2**31 - 1) + b"x" * 100) == b""
        await until_logged(
            bad_input_node,
            "connection_refused",
            "a frame of 2147483647 bytes where 0 to 104857600 are allowed",
        )

    async def test_a_negative_frame_length(self, address: str, bad_input_node: LocalCluster) -> None:
        assert await raw_bytes(address, struct.pack(">i", -5)) == b""
        await until_logged(bad_input_node, "connection_refused", "a frame of -5 bytes")

    async def test_a_truncated_frame(self, address: str, bad_input_node: LocalCluster) -> None:
        assert await raw_bytes(address, struct.pack(">i", 100) + b"x" * 10, half_close=True) == b""
        await until_logged(
            bad_input_node, "connection_refused", "closed within a frame: 14 of 104 bytes came"
        )

    async def test_a_request_that_is_cut_short_inside_a_whole_frame(
        self, address: str, bad_input_node: LocalCluster
    ) -> None:
        frame = codec.request_header(ApiKey.METADATA, 9, 7, "cutter") + b"\x05"
        assert await raw_bytes(address, struct.pack(">i", len(frame)) + frame) == b""
        await until_logged(bad_input_node, "request_refused", "INVALID_REQUEST")

    async def test_garbage(self, address: str, bad_input_node: LocalCluster) -> None:
        garbage = bytes(range(256)) * 40
        frame = struct.pack(">i", len(garbage)) + garbage
        assert await raw_bytes(address, frame) == b""
        assert await raw_bytes(address, b"\x00\x00\x00\x00") == b""
        await until_logged(bad_input_node, "request_refused")

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request (GET)"),
            (b"\x16\x03\x01\x02\x00\x01\x00", "a TLS handshake"),
        ],
    )
    async def test_another_protocol_is_recognised(
        self, address: str, bad_input_node: LocalCluster, data: bytes, words: str
    ) -> None:
        assert await raw_bytes(address, data) == b""
        await until_logged(bad_input_node, "connection_refused", words)

    async def test_an_unknown_request(self, address: str, bad_input_node: LocalCluster) -> None:
        frame = struct.pack(">hhih", 999, 0, 1, -1)
        assert await raw_bytes(address, struct.pack(">i", len(frame)) + frame) == b""
        await until_logged(bad_input_node, "request_refused", "UNSUPPORTED_VERSION", "999")

    async def test_an_unknown_version(self, address: str, bad_input_node: LocalCluster) -> None:
        frame = struct.pack(">hhih", ApiKey.METADATA, 99, 1, -1) + b"\x00"
        assert await raw_bytes(address, struct.pack(">i", len(frame)) + frame) == b""
        await until_logged(bad_input_node, "request_refused", "UNSUPPORTED_VERSION", "metadata in version 99")

    async def test_an_unknown_version_of_api_versions_gets_the_supported_ones(self, address: str) -> None:
        async with raw_connection(address) as connection:
            payload = await connection.send(ApiKey.API_VERSIONS, 99, [])
            _correlation_id, answer = codec.decode_response(ApiKey.API_VERSIONS, 0, payload)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            known = {
                int(entry.api_key): (int(entry.min_version), int(entry.max_version))
                for entry in answer.api_keys
            }
            assert known[ApiKey.API_VERSIONS] == (0, 4)
            assert known[ApiKey.FETCH] == (4, 18)
            # The connection is still good for another try (KIP-511).
            again = await connection.request(
                ApiKey.API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"}
            )
            assert again.error_code == ErrorCode.NONE

    async def test_answered_requests_before_the_garbage_stay_answered(self, address: str) -> None:
        good = codec.request_header(ApiKey.API_VERSIONS, 0, 42, "mixed")
        frame = struct.pack(">i", len(good)) + good
        answer = await raw_bytes(address, frame + struct.pack(">i", 6) + b"\x03\xe7\x00\x00\x00\x00")
        assert answer[4:8] == struct.pack(">i", 42)


class TestPlaces:
    """Topics, partitions and offsets that do not exist."""

    async def test_an_unknown_topic(self, address: str) -> None:
        answer = await raw_produce(address, "no-such-topic", batch([b"never"]))
        assert answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        fetched = await raw_fetch(address, "no-such-topic", 0)
        assert fetched.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def test_an_unknown_partition(self, address: str, witness: Witness) -> None:
        assert (await raw_produce(address, witness.topic, batch([b"never"]), partition=7)).error is (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        assert (
            await raw_fetch(address, witness.topic, 0, partition=7)
        ).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (
            await raw_fetch(address, witness.topic, 0, partition=-1)
        ).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def test_the_client_says_that_the_topic_is_unknown(self, witness: Witness) -> None:
        async with Producer(witness.bootstrap, max_block_s=1) as producer:
            with pytest.raises(KafkaError, match="no-such-topic") as refused:
                await producer.send_and_wait("no-such-topic", b"never")
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.parametrize("offset", [10_000_000, -7])
    async def test_an_offset_out_of_range(self, address: str, witness: Witness, offset: int) -> None:
        answer = await raw_fetch(address, witness.topic, offset)
        assert answer.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert len(answer.records) == 0

    async def test_a_consumer_without_reset_reports_the_offset_out_of_range(self, witness: Witness) -> None:
        async with Consumer(witness.bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([(witness.topic, 0)])
            consumer.seek((witness.topic, 0), 10_000_000)
            with pytest.raises(KafkaError) as refused:
                for _ in range(20):
                    await consumer.poll(timeout_s=0.5)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    async def test_a_leader_epoch_of_the_future_and_of_the_past(self, address: str, witness: Witness) -> None:
        future = await raw_fetch(address, witness.topic, 0, current_leader_epoch=1_000)
        assert future.error is ErrorCode.UNKNOWN_LEADER_EPOCH

    async def test_a_state_topic_is_not_for_clients(self, address: str) -> None:
        for topic in ("__transaction_state", "__consumer_offsets"):
            answer = await raw_produce(address, topic, batch([b"never"]))
            assert answer.error is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert topic in (answer.error_message or "")


class TestTopics:
    """Creating topics."""

    @pytest.mark.parametrize(
        ("config", "code", "words"),
        [
            ({"min.insync.replica": "1"}, ErrorCode.INVALID_CONFIG, "did you mean 'min.insync.replicas'?"),
            ({"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG, "retention.ms"),
            ({"cleanup.policy": "delet"}, ErrorCode.INVALID_CONFIG, "did you mean 'delete'?"),
            ({"segment.bytes": "-1"}, ErrorCode.INVALID_CONFIG, "segment.bytes"),
        ],
    )
    async def test_a_wrong_topic_configuration_is_explained(
        self, bad_input_node: LocalCluster, config: dict[str, str], code: ErrorCode, words: str
    ) -> None:
        async with Admin(bad_input_node.bootstrap) as admin:
            with pytest.raises(KafkaError) as refused:
                await admin.create_topics([NewTopic("misconfigured", 1, 1, config)])
            assert refused.value.code is code
            assert words in str(refused.value)
            assert "misconfigured" in str(refused.value)
            assert "misconfigured" not in [view.name for view in await admin.list_topics()]

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (NewTopic("bad/name", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("n" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (NewTopic("none", 0, 1), ErrorCode.INVALID_PARTITIONS),
            (NewTopic("many", 1, 5), ErrorCode.INVALID_REPLICATION_FACTOR),
            (NewTopic("witness", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
            (NewTopic("__transaction_state", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ],
        ids=lambda value: value.name[:20] if isinstance(value, NewTopic) else value.name,
    )
    async def test_a_topic_that_cannot_be_is_refused(
        self, bad_input_node: LocalCluster, topic: NewTopic, code: ErrorCode
    ) -> None:
        async with Admin(bad_input_node.bootstrap) as admin:
            with pytest.raises(KafkaError) as refused:
                await admin.create_topics([topic])
        assert refused.value.code is code
        assert refused.value.message

    async def test_deleting_an_unknown_topic(self, bad_input_node: LocalCluster) -> None:
        async with Admin(bad_input_node.bootstrap) as admin:
            with pytest.raises(KafkaError) as refused:
                await admin.delete_topics(["no-such-topic"])
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TestGrpcAndPages:
    """The other listeners take bad input as calmly."""

    async def test_the_grpc_port_closes_on_garbage(self, bad_input_node: LocalCluster) -> None:
        await raw_bytes(bad_input_node.node(1).grpc_address, b"\x00\x01garbage" * 100, half_close=True)
        assert (await bad_input_node.node(1).status()).ready

    async def test_the_metrics_port_refuses_what_is_no_get(self, bad_input_node: LocalCluster) -> None:
        address = bad_input_node.node(1).metrics_address
        assert (await raw_bytes(address, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        assert (await raw_bytes(address, b"GET /nothing HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        page = await raw_bytes(address, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert page.startswith(b"HTTP/1.1 200 ")
        assert b"tidegate_rejected_frames_total" in page

    async def test_a_fault_point_cannot_be_armed_where_they_are_off(
        self, bad_input_node: LocalCluster
    ) -> None:
        import grpc

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bad_input_node.node(1).arm_fault("transaction.before_markers")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "TIDEGATE_FAULT_POINTS" in (refused.value.details() or "")


def test_the_folder_of_the_node_is_where_it_should_be(bad_input_node: LocalCluster) -> None:
    assert (Path(bad_input_node.node(1).data_path) / "meta.properties").exists()
