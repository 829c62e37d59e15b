"""`tidegate produce` and `tidegate consume`: records from and to a terminal or a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...wire.errors import KafkaError
from ..connecting.errors import CommitOutcomeUnknown
from .connecting import LOCAL, Bootstrap, CommandConfig, Connection
from .listing import INT32_MAX, Json
from .output import CommandError, plain, run, show_json, warn
from .standard_input import StandardInput

if TYPE_CHECKING:
    from ..consuming.consumer import Consumer, ConsumerRecord
    from ..consuming.cut import Cut
    from ..producing.producer import Producer
    from ..producing.sender import RecordMetadata

# Short: a user at a terminal should soon learn that a topic's name is misspelt.
MAX_BLOCK_S = 10.0
# So many records are in flight before the command checks the first acknowledgements.
WINDOW_RECORDS = 5000
IDLE_S_MAX = 86_400.0
INTERRUPTED_CLOSE_S = 3.0
# After so long without an acknowledgement, the command prints the reason of the wait.
PATIENCE_S = 4.0
WATCH_S = 0.5


def produce(
    topic: Annotated[str, typer.Argument(help="Where the records go.")],
    records: Annotated[
        list[str] | None, typer.Argument(help="The records; without any, one per line of standard input.")
    ] = None,
    separator: Annotated[
        str,
        typer.Option(
            "--separator",
            "-s",
            help="What divides key and value, for example ':'; without it there is no key.",
        ),
    ] = "",
    key: Annotated[str | None, typer.Option("--key", "-k", help="The same key for all records.")] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, max=INT32_MAX, help="Send to this partition, whatever the key."
        ),
    ] = None,
    header: Annotated[
        list[str], typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = [],  # noqa: B006
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0.")] = "all",
    transactional_id: Annotated[
        str | None,
        typer.Option("--transactional-id", help="Send all records in one transaction: all or nothing."),
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Write records."""

    from .output import settings_of

    def encoded(text: str) -> bytes:
        # Python decodes an argument that is not UTF-8 in this way
        return text.encode(errors="surrogateescape")

    async def work() -> int:
        from ..producing.producer import Producer

        headers = tuple((name, encoded(value)) for name, value in settings_of(header, "--header").items())
        there = Connection(bootstrap, command_config)
        producer = Producer(
            there.bootstrap,
            security=there.security,
            transactional_id=transactional_id,
            compression=compression,
            acks=acks,
            idempotent=acks in ("all", "-1"),
            max_block_s=MAX_BLOCK_S,
        )
        writer = _Writer(
            producer,
            topic,
            encoded(separator),
            None if key is None else encoded(key),
            partition,
            headers,
            json,
        )
        return await writer.write_all(None if not records else [encoded(record) for record in records])

    if code := run(work()):
        raise typer.Exit(code)


class _Writer:
    """Sends lines, and knows after success, failure or Ctrl-C how many were written."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        separator: bytes,
        key: bytes | None,
        partition: int | None,
        headers: tuple[tuple[str, bytes], ...],
        json: bool,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._separator = separator
        self._key = key
        self._partition = partition
        self._headers = headers
        self._json = json
        self._waiting: deque[asyncio.Future[RecordMetadata]] = deque()
        self._acknowledged = 0
        # records of a transaction are reported as written only after its commit
        self._unshown: list[RecordMetadata] = []

    async def write_all(self, records: list[bytes] | None) -> int:
        """Writes the given records, or all lines of standard input; returns the exit code."""
        producer, transactional = self._producer, self._producer.transactional
        watch = asyncio.create_task(self._say_what_is_waited_for())
        try:
            await producer.start()
            if transactional:
                async with producer.transaction():
                    await self._send_all(records)
            else:
                await self._send_all(records)
            await producer.close()
        except asyncio.CancelledError:  # Ctrl-C: wait shortly for the sent records; a transaction is aborted
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERRUPTED_CLOSE_S):
                    await producer.close()
            self._settle_done()
            self._say(", then interrupted", 0 if transactional else self._acknowledged)
            return 130
        except (KafkaError, ValueError) as error:
            await producer.close()
            self._settle_done()
            if transactional or not self._acknowledged or isinstance(error, CommitOutcomeUnknown):
                raise
            raise CommandError(
                f"{error} ({self._acknowledged} records were written to {self._topic} before)"
            ) from error
        finally:
            watch.cancel()
        for metadata in self._unshown:
            show_json(metadata)
        self._say(" in one transaction" if transactional else "", self._acknowledged)
        return 0

    async def _say_what_is_waited_for(self) -> None:
        # The condition is silence, which no event announces.
        while (why := self._producer.waits_for(PATIENCE_S)) is None:  # noqa: ASYNC110
            await asyncio.sleep(WATCH_S)
        warn(f"still waiting: {why}")

    def _say(self, how: str, count: int) -> None:
        if not self._json:
            print(f"{count} record{'' if count == 1 else 's'} written to {self._topic}{how}")

    async def _send_all(self, records: list[bytes] | None) -> None:
        if records is not None:
            await self._send(records)
        else:
            lines = StandardInput()
            async for chunk in lines:
                await self._send(chunk)
                if lines.idle:
                    await self._settle()  # there is no further line: report the outcome of the sent ones now
        await self._producer.flush()
        await self._settle()

    async def _send(self, lines: list[bytes]) -> None:
        for line in lines:
            found_key, value = _split(line, self._separator)
            key = self._key if self._key is not None else found_key
            future = await self._producer.send(
                self._topic, value, key, partition=self._partition, headers=self._headers
            )
            self._waiting.append(future)
            if len(self._waiting) >= WINDOW_RECORDS:
                await self._settle()

    async def _settle(self) -> None:
        """Waits for the records in flight; raises the first failure."""
        while self._waiting:
            self._count(await asyncio.shield(self._waiting[0]))
            self._waiting.popleft()

    def _settle_done(self) -> None:
        """After the producer has closed, every record has an outcome."""
        while self._waiting:
            future = self._waiting.popleft()
            if future.done() and not future.cancelled() and future.exception() is None:
                self._count(future.result())

    def _count(self, metadata: RecordMetadata) -> None:
        self._acknowledged += 1
        if self._json and self._producer.transactional:
            self._unshown.append(metadata)
        elif self._json:
            show_json(metadata)


def _split(line: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        shown, mark = line[:80].decode(errors="backslashreplace"), separator.decode(errors="backslashreplace")
        raise ValueError(f"no {mark!r} in {shown!r}: write key{mark}value, or leave --separator out")
    return key, value


def consume(
    topics: Annotated[list[str], typer.Argument(help="One or more topics.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the first record that is there.")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Read as a member of this group, and commit.")
    ] = None,
    isolation: Annotated[
        str | None, typer.Option(help="read_committed (which is the default) or read_uncommitted.")
    ] = None,
    at_cut: Annotated[
        str | None,
        typer.Option(
            "--cut",
            metavar="CUT",
            help="Read the topics at a transaction-consistent cut, and stop: now, the name of a pinned one, "
            "or a file that ends in .json.",
        ),
    ] = None,
    maximum: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle",
            min=0,
            max=IDLE_S_MAX,
            help="Stop after so many seconds without a record; 0: when the end is reached.",
        ),
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--keys", help="Print the key before the value, divided by a tab.")
    ] = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Read records and print their values, one per line, until Ctrl-C (or --max, --idle)."""
    others = {"--group": group, "--isolation": isolation, "--idle": idle, "--from-beginning": from_beginning}
    if at_cut is not None:
        for option, value in others.items():
            if value not in (None, False):
                raise typer.BadParameter(f"--cut says what is read, from begin to end: leave {option} out")
        run(_print_cut(Connection(bootstrap, command_config), topics, at_cut, maximum, with_key, json))
        return

    async def work() -> None:
        from ..consuming.consumer import Consumer

        there = Connection(bootstrap, command_config)
        consumer = Consumer(
            there.bootstrap,
            security=there.security,
            group_id=group,
            isolation=isolation or "read_committed",
            auto_offset_reset="earliest" if from_beginning else "latest",
            max_block_s=MAX_BLOCK_S,
        )
        async with consumer:
            if group is not None:
                consumer.subscribe(topics)
            else:
                consumer.assign(
                    [(topic, number) for topic in topics for number in await consumer.partitions_for(topic)]
                )
            await _print_records(consumer, maximum, idle, with_key, json)

    run(work())


def cut_in_file(named: str) -> Cut | None:
    """The cut that `tidegate cuts take` has printed, if a file is named.  Raises CommandError."""
    from ...runtime.disk import RealDisk
    from ..consuming.cut import Cut, CutError

    if not named.endswith(".json"):
        return None
    try:
        return Cut.from_json(RealDisk().read(Path(named)).decode())
    except OSError as error:
        raise CommandError(f"--cut {named}: {(error.strerror or str(error)).lower()}") from error
    except (UnicodeDecodeError, CutError) as error:
        raise CommandError(f"--cut {named}: {error}") from error


async def _print_cut(
    there: Connection, topics: list[str], named: str, maximum: int | None, with_key: bool, json: bool
) -> None:
    from ..consuming.cut_reader import read_cut

    left, cut = maximum, cut_in_file(named) or await _cut(there, topics, named)
    async with aclosing(read_cut(there.bootstrap, cut, topics, security=there.security)) as records:
        async for record in records:
            _print(record, with_key, json)
            left = None if left is None else left - 1
            if left == 0:
                return


async def _cut(there: Connection, topics: list[str], named: str) -> Cut:
    from ..administration.admin import Admin

    async with Admin(there.bootstrap, security=there.security) as admin:
        return await admin.take_cut(topics) if named == "now" else (await admin.describe_cut(named)).cut


async def _print_records(
    consumer: Consumer, maximum: int | None, idle: float | None, with_key: bool, json: bool
) -> None:
    left = maximum
    ends: dict[tuple[str, int], int] | None = None
    while left is None or left > 0:
        records = await consumer.poll(
            500 if left is None else min(left, 500), timeout_s=1.0 if idle is None else max(idle, 0.2)
        )
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
    value = "" if record.value is None else record.value.decode(errors="backslashreplace")
    if with_key:
        key = "" if record.key is None else record.key.decode(errors="backslashreplace")
        print(f"{key}\t{value}")
    else:
        print(value)
