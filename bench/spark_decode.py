"""Nanoseconds a record of the Spark decoder: record batches to Arrow, one core, against decoding one record
after another.

python bench/spark_decode.py [--values 100]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from tidegate.spark.decode import Target, decode_batches
from tidegate.wire.compression import Compression
from tidegate.wire.records import NewRecord, decode_batch, encode_batch, iterate_headers

NARROW = ("value",)
FULL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ROUNDS = 15


def make_chunk(batches: int, records: int, value_bytes: int, codec: Compression, headers: bool) -> bytes:
    """Batches with 16-byte keys and values of `value_bytes` give or take a third."""
    rng = random.Random(7)
    out = []
    for number in range(batches):
        new = [
            NewRecord(
                rng.randbytes(16),
                (b'{"carrier":"UA","delay":' * (1 + value_bytes // 20))[
                    : rng.randint(value_bytes * 2 // 3, value_bytes * 4 // 3)
                ],
                (("trace", b"0123456789abcdef"), ("kind", b"x")) if headers else (),
                1_700_000_000_000 + index,
            )
            for index in range(records)
        ]
        out.append(encode_batch(new, base_offset=number * records, compression=codec))
    return b"".join(out)


def best_ns(run: Callable[[], object], records: int, rounds: int = ROUNDS) -> float:
    """The least time of several runs: the others were disturbed."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - begin)
    return min(times) / records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=100, help="mean bytes of a value")
    value_bytes = parser.parse_args().values
    print(f"{'case':<44}{'ns/record':>10}{'MB/s':>8}")
    for batches, records, codec, headers, columns in (
        (10, 1000, Compression.NONE, False, FULL),
        (10, 1000, Compression.NONE, False, NARROW),
        (100, 100, Compression.NONE, False, FULL),
        (1000, 10, Compression.NONE, False, FULL),
        (5000, 1, Compression.NONE, False, FULL),
        (10, 1000, Compression.NONE, True, (*FULL, "headers")),
        (10, 1000, Compression.LZ4, False, FULL),
        (10, 1000, Compression.ZSTD, False, FULL),
        (10, 1000, Compression.SNAPPY, False, FULL),
        (10, 1000, Compression.GZIP, False, FULL),
    ):
        chunk = make_chunk(batches, records, value_bytes, codec, headers)
        found = list(iterate_headers(chunk))
        target = Target("flights", 3, columns, 0, batches * records)
        total = batches * records
        size = sum(batch.nbytes for batch in decode_batches(target, chunk, found))
        cost = best_ns(
            lambda target=target, chunk=chunk, found=found: list(decode_batches(target, chunk, found)),  # type: ignore[misc]
            total,
        )
        name = f"{batches} x {records} {codec.name.lower()}, {len(columns)} columns"
        print(f"{name:<44}{cost:>10.0f}{size / total / cost * 1000:>8.0f}")
    chunk = make_chunk(10, 1000, value_bytes, Compression.NONE, False)
    found = list(iterate_headers(chunk))
    slow = best_ns(lambda: [decode_batch(chunk, position) for position, _ in found], 10_000, 5)
    print(f"{'one record after another (wire.records)':<44}{slow:>10.0f}")


if __name__ == "__main__":
    main()
