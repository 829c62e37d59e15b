"""`compression.type`: a leader keeps a client's batch in the topic's codec, and nothing else of it
changes."""

from __future__ import annotations

from itertools import product

import pytest
from crc32c import crc32c
from tidegate.storage.log import admission
from tidegate.storage.log.admission import CheckedBatches, check_and_recompress, is_to_be_recompressed
from tidegate.storage.topic_config import LogConfig
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.recompression import recompressed
from tidegate.wire.records import (
    BatchHeader,
    NewRecord,
    decode_batch,
    encode_batch,
    parse_header,
    validate_batch,
)

NOW_MS = 1_700_000_000_500
RECORDS = [
    NewRecord(b"key-%d" % n, b"value " * 50, (("header", b"x"), ("none", None)), 1_700_000_000_000 + n)
    for n in range(200)
]
TARGETS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


def kept(batch: bytes, **config: str) -> CheckedBatches:
    settings = LogConfig.from_topic_config({key.replace("_", "."): value for key, value in config.items()})
    return check_and_recompress(memoryview(batch), settings, NOW_MS)


def header_but_for_codec(header: BatchHeader) -> BatchHeader:
    return header._replace(batch_length=0, crc=0, attributes=header.attributes & ~7)


@pytest.mark.parametrize(("source", "target"), list(product(Compression, TARGETS)))
def test_recompression_keeps_one_batch_with_the_same_records(source: Compression, target: str) -> None:
    batch = encode_batch(
        RECORDS,
        compression=source,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
        base_offset=0,
    )
    found = kept(batch, compression_type=target)
    ((position, header),) = found.batches
    assert header == validate_batch(found.view, position)
    assert header.size_bytes == len(found.view)
    assert header.compression is found.config.target_codec
    assert header_but_for_codec(header) == header_but_for_codec(parse_header(batch))
    assert decode_batch(found.view) == decode_batch(batch)


def test_at_the_same_codec_or_the_producers_the_bytes_are_what_came() -> None:
    batch = encode_batch(RECORDS, compression=Compression.ZSTD)
    for target in ("zstd", "producer"):
        assert kept(batch, compression_type=target, compression_zstd_level="19").view == batch


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", "1", "9"), ("zstd", "-100", "19")])
def test_the_level_is_the_topics(codec: str, low: str, high: str) -> None:
    batch = encode_batch(
        [NewRecord(None, b"%d some words that repeat %d" % (n, n * n), (), NOW_MS) for n in range(2000)]
    )
    sizes = [
        len(kept(batch, compression_type=codec, **{f"compression_{codec}_level": level}).view)
        for level in (low, high)
    ]
    assert sizes[1] < sizes[0] < len(batch)


def test_what_is_too_large_only_in_the_topics_codec_is_refused() -> None:
    """As Kafka does, which looks at the size before and after."""
    batch = encode_batch(RECORDS, compression=Compression.ZSTD)
    with pytest.raises(KafkaError) as refused:
        kept(batch, compression_type="uncompressed", max_message_bytes="10000")
    assert len(batch) < 10_000
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_records_that_cannot_be_unfolded_are_refused_also_unchecked() -> None:
    good = encode_batch(RECORDS, compression=Compression.GZIP)
    header = parse_header(good)
    broken = bytearray(recompressed(good, 0, header, Compression.ZSTD, None, 1 << 20))
    broken[70:90] = bytes(20)
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    with pytest.raises(KafkaError) as refused:
        kept(bytes(broken), compression_type="gzip", record_check="false")
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_bound_on_unfolded_bytes_holds_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "unfolded_bytes_max", lambda *_: 1 << 20)
    batch = encode_batch([NewRecord(None, bytes(2 << 20), (), NOW_MS)], compression=Compression.ZSTD)
    with pytest.raises(KafkaError) as refused:
        kept(batch, compression_type="lz4", record_check="false")
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_only_another_codec_than_the_topics_costs_anything() -> None:
    header = parse_header(encode_batch(RECORDS, compression=Compression.LZ4))
    configs = {target: LogConfig(compression_type=target) for target in (*TARGETS, "producer")}
    assert [target for target in configs if not is_to_be_recompressed(header, configs[target])] == [
        "lz4",
        "producer",
    ]
