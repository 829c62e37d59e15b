"""Nanoseconds a record of the Spark decoders: record batches to Arrow, one core, the compiled kernel and
numpy taking turns.

python bench/spark_decode.py [--values 100 200 1000]
"""

from __future__ import annotations

import argparse
import random
import time

from tidegate.spark.decoding import kernel_decoder
from tidegate.spark.decoding.decode import Target, decode_batches
from tidegate.wire.compression import Compression
from tidegate.wire.records import NewRecord, encode_batch, iterate_headers

NARROW = ("value",)
FULL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = (*FULL, "headers")
ROUNDS = 15
CASES = (
    # batches, records in each, codec, columns
    (10, 1000, Compression.NONE, FULL),
    (10, 1000, Compression.NONE, NARROW),
    (10, 1000, Compression.NONE, ("offset",)),
    (10, 1000, Compression.NONE, HEADERS),
    (10, 1000, Compression.LZ4, FULL),
    (10, 1000, Compression.ZSTD, FULL),
    (10, 1000, Compression.SNAPPY, FULL),
    (10, 1000, Compression.GZIP, FULL),
    (100, 100, Compression.NONE, FULL),
    (1000, 10, Compression.NONE, FULL),
    (5000, 1, Compression.NONE, FULL),
)


def make_chunk(batches: int, records: int, value_bytes: int, codec: Compression, headers: bool) -> bytes:
    """Batches with 16-byte keys and values of `value_bytes` give or take a third."""
    rng = random.Random(7)
    out = []
    for number in range(batches):
        new = [
            NewRecord(
                rng.randbytes(16),
                (b'{"carrier":"UA","delay":' * (1 + value_bytes // 16))[
                    : rng.randint(value_bytes * 2 // 3, value_bytes * 4 // 3)
                ],
                (("trace", b"0123456789abcdef"), ("kind", b"x")) if headers else (),
                1_700_000_000_000 + index,
            )
            for index in range(records)
        ]
        out.append(encode_batch(new, base_offset=number * records, compression=codec))
    return b"".join(out)


def best_ns_in_turns(target: Target, chunk: bytes, records: int) -> tuple[float, float]:
    """The kernel's least time a record of several runs, and numpy's: the others were disturbed."""
    found = list(iterate_headers(chunk))
    kernel = kernel_decoder.kernel
    best: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, used in (("kernel", kernel), ("numpy", None)):
            kernel_decoder.kernel = used
            begin = time.perf_counter_ns()
            for _ in decode_batches(target, chunk, found):
                pass
            took = time.perf_counter_ns() - begin
            best[name] = min(took, best.get(name, took))
    kernel_decoder.kernel = kernel
    return best["kernel"] / records, best["numpy"] / records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--values", type=int, nargs="+", default=[100, 200, 1000], help="mean bytes of a value"
    )
    sizes = parser.parse_args().values
    if kernel_decoder.kernel is None:
        parser.error("this installation has no kernel: `make kernel`")
    print(f"{'case':<46}{'kernel':>8}{'numpy':>8}{'ratio':>7}   MB/s of the kernel")
    for value_bytes in sizes:
        for batches, records, codec, columns in CASES:
            chunk = make_chunk(batches, records, value_bytes, codec, "headers" in columns)
            total = batches * records
            target = Target("flights", 3, columns, 0, total)
            size = sum(batch.nbytes for batch in decode_batches(target, chunk, list(iterate_headers(chunk))))
            kernel, numpy = best_ns_in_turns(target, chunk, total)
            shown = columns[0] if len(columns) == 1 else f"{len(columns)} columns"
            name = f"{value_bytes} B, {batches} x {records} {codec.name.lower()}, {shown}"
            rate = size / total / kernel * 1000
            print(f"{name:<46}{kernel:>8.1f}{numpy:>8.1f}{numpy / kernel:>7.1f}{rate:>8.0f}")


if __name__ == "__main__":
    main()
