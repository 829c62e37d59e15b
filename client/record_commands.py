"""`tidegate produce` and `tidegate consume`: records from and to a terminal or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .command_output import plain, run, show_json
from .listing_commands import LOCAL, Bootstrap, Json

if TYPE_CHECKING:
    import asyncio

    from .consumer import Consumer, ConsumerRecord
    from .producer import Producer
    from .sender import RecordMetadata

# At a terminal nobody waits a minute to learn that a topic's name is misspelt.
MAX_BLOCK_S = 10.0
# So many records are on their way before the first acknowledgements are looked at.
WINDOW_RECORDS = 5000


def produce(
    topic: Annotated[str, typer.Argument(help="Where the records go.")],
    records: Annotated[list[str] | None, typer.Argument(help="The records; without any, one per line of standard input.")] = None,
    separator: Annotated[
        str, typer.Option("--separator", "-s", help="What divides key and value, for example ':'; without it there is no key.")
    ] = "",
    key: Annotated[str | None, typer.Option("--key", "-k", help="The same key for all records.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Send to this partition, whatever the key.")] = None,
    header: Annotated[list[str], typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")] = [],  # noqa: B006
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", help="Send all records in one transaction: all or nothing.")
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Write records."""

    async def work() -> None:
        from .command_output import settings_of
        from .producer import Producer

        headers = tuple((name, value.encode()) for name, value in settings_of(header, "--header").items())
        producer = Producer(
            bootstrap,
            transactional_id=transactional_id,
            compression=compression,
            acks=acks,
            idempotent=acks in ("all", "-1"),
            max_block_s=MAX_BLOCK_S,
        )
        waiting: list[asyncio.Future[RecordMetadata]] = []
        count = 0

        async def settle() -> None:
            for future in waiting:
                metadata = await future
                if json:
                    show_json(metadata)
            waiting.clear()

        async def send_all(producer: Producer) -> None:
            nonlocal count
            for line in _lines(records):
                found_key, value = _split(line, separator)
                future = await producer.send(
                    topic, value, key if key is not None else found_key, partition=partition, headers=headers
                )
                waiting.append(future)
                count += 1
                if len(waiting) >= WINDOW_RECORDS:
                    await settle()
            await producer.flush()
            await settle()

        async with producer:
            if transactional_id is None:
                await send_all(producer)
            else:
                async with producer.transaction():
                    await send_all(producer)
        if not json:
            print(f"{count} records written to {topic}" + (" in one transaction" if transactional_id else ""))

    run(work())


def _lines(records: list[str] | None) -> Iterator[str]:
    if records:
        yield from records
    else:
        for line in sys.stdin:
            yield line.rstrip("\n")


def _split(line: str, separator: str) -> tuple[str | None, str]:
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError(f"no {separator!r} in {line[:80]!r}: write key{separator}value, or leave --separator out")
    return key, value


def consume(
    topics: Annotated[list[str], typer.Argument(help="One or more topics.")],
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the first record that is there.")] = False,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Read as a member of this group, and commit.")] = None,
    isolation: Annotated[str, typer.Option(help="read_committed or read_uncommitted.")] = "read_committed",
    maximum: Annotated[int | None, typer.Option("--max", "-n", help="Stop after this many records.")] = None,
    idle: Annotated[
        float | None, typer.Option("--idle", help="Stop after so many seconds without a record; 0: when the end is reached.")
    ] = None,
    with_key: Annotated[bool, typer.Option("--keys", help="Print the key before the value, divided by a tab.")] = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Read records and print their values, one per line, until Ctrl-C (or --max, --idle)."""

    async def work() -> None:
        from .consumer import Consumer

        consumer = Consumer(
            bootstrap,
            group_id=group,
            isolation=isolation,
            auto_offset_reset="earliest" if from_beginning else "latest",
            max_block_s=MAX_BLOCK_S,
        )
        async with consumer:
            if group is not None:
                consumer.subscribe(topics)
            else:
                consumer.assign([(topic, number) for topic in topics for number in await consumer.partitions_for(topic)])
            await _print_records(consumer, maximum, idle, with_key, json)

    run(work())


async def _print_records(consumer: Consumer, maximum: int | None, idle: float | None, with_key: bool, json: bool) -> None:
    left = maximum
    ends: dict[tuple[str, int], int] | None = None
    while left is None or left > 0:
        records = await consumer.poll(500 if left is None else min(left, 500), timeout_s=1.0 if idle is None else max(idle, 0.2))
        for record in records:
            _print(record, with_key, json)
        sys.stdout.flush()
        if left is not None:
            left -= len(records)
        if records or idle is None:
            continue
        if idle > 0:
            return
        assigned = consumer.assignment()
        if ends is None or not assigned <= ends.keys():
            ends = await consumer.end_offsets(assigned)
        if assigned and all(consumer.positions().get(key, -1) >= ends[key] for key in assigned):
            return


def _print(record: ConsumerRecord, with_key: bool, json: bool) -> None:
    if json:
        fields = record._asdict() | {"headers": {name: plain(value) for name, value in record.headers}}
        show_json(fields)
        return
    value = "" if record.value is None else record.value.decode(errors="replace")
    if with_key:
        key = "" if record.key is None else record.key.decode(errors="replace")
        print(f"{key}\t{value}")
    else:
        print(value)
