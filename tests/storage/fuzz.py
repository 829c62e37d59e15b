"""Mutated batches and files: everything that reads them gives an error of its own kind, or a right answer.

    python -m tests.storage.fuzz --count 1000000 [--seed N] [--memory-mib 768]

A case takes a valid batch, index, snapshot, checkpoint or data folder, damages it, and hands it to what reads
it.  Never allowed: any other exception, more than `SECONDS_MAX` for one case, more memory than the limit of
the process, and bytes that are given out as good although their checksum stands.  Half of the damaged batches
get a valid checksum again, so that the damage gets past it.
"""

from __future__ import annotations

import argparse
import logging
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from crc32c import crc32c
from tidegate.storage.checkpoint import CheckpointInvalid, decode_checkpoint, encode_checkpoint
from tidegate.storage.cleaning.records import records_bytes, scan_records
from tidegate.storage.directory.folder_notes import PARTITION_CHECKPOINT_SHAPES
from tidegate.storage.producers.producer_snapshot import SnapshotInvalid, decode_snapshot, encode_snapshot
from tidegate.storage.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState
from tidegate.storage.segment.checksums import ChecksumsInvalid, checksums_of, decode_checksums
from tidegate.storage.segment.offset_index import OffsetIndex
from tidegate.storage.segment.time_index import TimeIndex
from tidegate.storage.segment.transaction_index import TransactionIndexEntry, decode_transaction_index
from tidegate.wire.errors import KafkaError
from tidegate.wire.records import (
    Compression,
    ControlType,
    NewRecord,
    decode_batch,
    decode_marker,
    encode_batch,
    encode_marker,
    iterate_headers,
    validate_batch,
)

SECONDS_MAX = 5.0
DECODED_BYTES_MAX = 1 << 20
CRC_AT, BEHIND_CRC = 17, 21
Case = Callable[[Random], str]


class Found(AssertionError):
    """What must never happen has happened."""


def damaged(random: Random, data: bytes) -> bytes:
    """One to three changes."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        if not out:
            return bytes(random.randbytes(random.randrange(80)))
        at = random.randrange(len(out))
        match random.randrange(9):
            case 0 | 1:
                out[at] ^= 1 << random.randrange(8)
            case 2:
                out[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 3:
                del out[at:]
            case 4:
                out += random.randbytes(random.randrange(1, 40))
            case 5:
                end = min(len(out), at + random.randrange(1, 600))
                out[at:end] = bytes(end - at)
            case 6:
                out[at:at] = out[random.randrange(len(out)) :][: random.randrange(1, 64)]
            case 7:
                del out[at : at + random.randrange(1, 64)]
            case _:  # a number
                width = random.choice((2, 4, 8))
                most = 2 ** (8 * width - 1)
                value = random.choice((0, 1, -1, most - 1, -most, random.randrange(30_000)))
                out[at : at + width] = value.to_bytes(width, "big", signed=True)
    return bytes(out)


# ---- batches -----------------------------------------------------------------------------------------------


def batches() -> list[bytes]:
    """One of every kind."""
    headers = (("h", b"x"), ("null", None))
    records = [
        NewRecord(b"key%d" % i, b"value of record %d " % i * 4, headers, 1_000_000 + i) for i in range(9)
    ]
    odd = [
        NewRecord(None, None, (), 5),
        NewRecord(b"", b"", (("", b""),), 1),
        NewRecord(b"k" * 200, None, (), 2**40),
    ]
    found = [encode_batch(records, compression=codec, base_offset=70) for codec in Compression]
    found += [
        encode_batch(odd, compression=codec, producer_id=7, producer_epoch=1, base_sequence=3)
        for codec in Compression
    ]
    found += [encode_batch(records[:1], producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)]
    found += [encode_marker(control, 7, 2, 1, 1_000) for control in ControlType]
    empty = bytearray(found[0][:61])  # as compaction leaves it
    struct.pack_into(">i", empty, 8, 49)
    struct.pack_into(">i", empty, 57, 0)
    found.append(with_crc(bytes(empty)))
    return found


def with_crc(data: bytes) -> bytes:
    """With a length and a checksum that fit, as far as there is a header."""
    if len(data) < 61:
        return data
    out = bytearray(data)
    struct.pack_into(">i", out, 8, len(out) - 12)
    out[16] = 2
    struct.pack_into(">I", out, CRC_AT, crc32c(bytes(out[BEHIND_CRC:])))
    return bytes(out)


BATCHES = batches()
RECORDS = [[record[1:] for record in decode_batch(data)] for data in BATCHES]


def batch_case(random: Random) -> str:
    number = random.randrange(len(BATCHES))
    data = damaged(random, BATCHES[number])
    rebuilt = random.random() < 0.5
    if rebuilt:
        data = with_crc(data)
    try:
        header = validate_batch(memoryview(data))
    except KafkaError:
        return "refused"
    size = header.size_bytes
    try:
        found = decode_batch(data, max_bytes=DECODED_BYTES_MAX)
        if header.is_control:
            decode_marker(data)
        scan_records(records_bytes(memoryview(data)[:size], header), header)
    except KafkaError:
        if not rebuilt:
            raise Found(f"a batch whose checksum stands cannot be read: {data.hex()}") from None
        return "accepted, records refused"
    if len(found) != header.record_count:
        raise Found(f"{len(found)} records of {header.record_count}: {data.hex()}")
    if not rebuilt and [record[1:] for record in found] != RECORDS[number]:
        raise Found(f"other records although the checksum stands: {data.hex()}")
    return "read"


def several_case(random: Random) -> str:
    """A chain of batches, as a follower or a recovery walks over it."""
    data = damaged(random, b"".join(random.choices(BATCHES, k=4)))
    count = 0
    try:
        for position, _header in iterate_headers(data):
            validate_batch(memoryview(data), position)
            count += 1
    except KafkaError:
        return "chain refused"
    return "chain read"


# ---- files -------------------------------------------------------------------------------------------------


def _offset_index() -> bytes:
    index = OffsetIndex(1000)
    for i in range(40):
        index.append(1000 + 3 * i, 500 * i)
    return index.encode()


def _time_index() -> bytes:
    index = TimeIndex(1000)
    for i in range(40):
        index.append(1_700_000_000_000 + 10 * i, 1000 + 3 * i)
    return index.encode()


def _snapshot() -> bytes:
    entries = [
        ProducerEntry(i, i % 4, 0, 1000 + i, 5 * i if i % 3 else None, (BatchMetadata(i, 5 * i, 0, 1000),))
        for i in range(9)
    ]
    state = ProducerState()
    state.restore(entries, [(3, 4)], 1000)
    return encode_snapshot(state)


OFFSET_INDEX, TIME_INDEX, SNAPSHOT = _offset_index(), _time_index(), _snapshot()
CHECKSUMS = checksums_of(1000, 1120, 20_000, OFFSET_INDEX, TIME_INDEX, 20, 7)
TRANSACTIONS = b"".join(TransactionIndexEntry(i, 10 * i, 10 * i + 5, 10 * i + 6).encode() for i in range(20))
CHECKPOINT = encode_checkpoint([("flights", i, 100 * i, 90 * i, i) for i in range(12)], 1)


def offset_index_case(random: Random) -> str:
    data = damaged(random, OFFSET_INDEX)
    if not CHECKSUMS.vouches_for(data, TIME_INDEX):
        return "index refused"
    index = OffsetIndex.decode(data, 1000)
    for offset in (0, 1000, random.randrange(5000), 2**62):
        at = index.floor(offset)
        if at >= 0 and index.entry(at)[1] >= 20_000:
            raise Found("a position behind the segment")
    return "index read"


def time_index_case(random: Random) -> str:
    data = damaged(random, TIME_INDEX)
    if not CHECKSUMS.vouches_for(OFFSET_INDEX, data):
        return "index refused"
    index = TimeIndex.decode(data, 1000)
    found = index.last_below(random.randrange(2**62))
    if found is not None and not 1000 <= found[1] < 1120:
        raise Found("an offset behind the segment")
    return "index read"


def checksums_case(random: Random) -> str:
    try:
        checksums = decode_checksums(damaged(random, CHECKSUMS.encode()), 1000)
    except ChecksumsInvalid:
        return "checksums refused"
    if checksums != CHECKSUMS:
        raise Found("damaged checksums are believed")
    return "checksums read"


def transaction_index_case(random: Random) -> str:
    try:
        decode_transaction_index(damaged(random, TRANSACTIONS))
    except ValueError:
        return "index refused"
    return "index read"


def snapshot_case(random: Random) -> str:
    data, rebuilt = damaged(random, SNAPSHOT), random.random() < 0.5
    if rebuilt and len(data) > 4:
        data = crc32c(data[4:]).to_bytes(4, "big") + data[4:]
    state = ProducerState()
    try:
        decode_snapshot(data, state)
    except SnapshotInvalid:
        if len(state):
            raise Found("half a snapshot was taken") from None
        return "snapshot refused"
    if not rebuilt and data != SNAPSHOT:
        raise Found("a damaged snapshot was taken")
    return "snapshot read"


def checkpoint_case(random: Random) -> str:
    data, rebuilt = damaged(random, CHECKPOINT), random.random() < 0.5
    if rebuilt:
        body = data.rpartition(b"crc32c ")[0]
        data = body + b"crc32c %08x\n" % crc32c(body)
    try:
        rows = decode_checkpoint(data, PARTITION_CHECKPOINT_SHAPES)
    except CheckpointInvalid:
        return "checkpoint refused"
    if not rebuilt and rows != decode_checkpoint(CHECKPOINT, PARTITION_CHECKPOINT_SHAPES):
        raise Found(f"a damaged checkpoint was taken: {data!r}")
    return "checkpoint read"


CASES: list[tuple[Case, int]] = [
    (batch_case, 60), (several_case, 12), (offset_index_case, 6), (time_index_case, 6),
    (transaction_index_case, 6),
    (snapshot_case, 5), (checkpoint_case, 4), (checksums_case, 2),
]  # fmt: skip


def cases(seed: int, count: int) -> Iterator[tuple[int, Case]]:
    chosen = Random(seed).choices([case for case, _ in CASES], [weight for _, weight in CASES], k=count)
    return zip(range(seed, seed + count), chosen, strict=True)


def run(seed: int, count: int, folders: Case | None = None) -> Counter[str]:
    """Raises Found, naming the seed of the case.  With `folders`, every hundredth case is a damaged data
    folder."""
    outcomes: Counter[str] = Counter()
    for number, case in cases(seed, count):
        chosen = folders if folders is not None and number % 100 == 99 else case
        begun = time.perf_counter()
        try:
            outcomes[chosen(Random(number))] += 1
        except Exception as error:
            raise Found(f"{chosen.__name__}, seed {number}: {type(error).__name__}: {error}") from error
        if time.perf_counter() - begun > SECONDS_MAX:
            raise Found(f"{chosen.__name__}, seed {number}: {time.perf_counter() - begun:.1f} s")
    return outcomes


def main() -> int:
    from tidegate.tests.storage.fuzz_folder import folder_case

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-mib", type=int, default=768)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (options.memory_mib << 20, options.memory_mib << 20))
    begun, cpu = time.monotonic(), time.process_time()
    outcomes = run(options.seed, options.count, folder_case)
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:>9}  {outcome}")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = f"{time.monotonic() - begun:.1f} s ({time.process_time() - cpu:.1f} s of CPU)"
    print(
        f"{options.count} cases from seed {options.seed} in {seconds}; peak memory {peak_mib:.0f} "
        f"MiB of {options.memory_mib}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
