"""What is run through this source and through Spark's Kafka connector: options of batch reads, and streams.

A read is of a topic that `topics.py` has filled.  A stream has topics of its own, whose names begin with what
`{t}` stands for in its options, and steps: each changes the topics; then both streams run, from their own
checkpoints, until they have read what there is.  `differs` is why the outcomes may differ; a reason that is
not needed any more is a failure, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .topics import FIRST_MS, RECORDS, Topics

Step = Callable[[Topics, str], None]
COMMITTED = {"kafka.isolation.level": "read_committed"}
LATER_MS = FIRST_MS + 1_000_000_000
CHECKED = "the connector ignores an option that it does not know; here it is an error that names it"
EXACT_TASKS = "the number of tasks is exact here, about so many there"
UNDIVIDED = "the connector does not divide a batch read by it"
MADE_AGAIN = (
    "a topic that was made again is known by its id: here it is a loss, and read from its start with "
    "failOnDataLoss=false; the connector goes on at the offsets of the former one"
)
NO_END = "the bound of a batch read is an error here; the connector ignores it in a stream"
READS_NOTHING = "an error here; the connector never reads anything"
A_CUT = (
    "committed records above an open transaction are inside a cut (`consistency=cut`), which the connector "
    "does not have: it stops where the open transaction begins"
)
NO_PARTITION = "a partition that does not exist is an error here; the connector reads nothing of it"


@dataclass(frozen=True, slots=True)
class Read:
    """A batch read.  `tasks`: the number of tasks is compared, too."""

    options: Mapping[str, str]
    differs: str = ""
    title: str = ""
    tasks: bool = False
    ours: Mapping[str, str] = field(default_factory=dict)  # of this source alone
    theirs: Mapping[str, str] = field(default_factory=dict)  # of the connector alone
    kind = "batch"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream that runs after each of the steps."""

    title: str
    steps: Sequence[Step]
    options: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    kind = "stream"


Case = Read | Stream


def of(topic: str = "plain", **options: str) -> dict[str, str]:
    """Options by names whose dots are written as __."""
    return {"subscribe": topic} | {name.replace("__", "."): value for name, value in options.items()}


def at(topic: str, *numbers: int) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers)}})


READS: tuple[Read, ...] = (
    # --- what is read
    Read(of()),
    Read(of("plain,empty")),
    Read(of(" plain , empty ")),
    Read(of("empty")),
    Read({"subscribePattern": "plain"}),
    Read({"subscribePattern": "like-.*"}),
    Read({"subscribePattern": "like-[a-z&&[^b]]"}),
    Read({"subscribePattern": "ike-"}),
    Read({"subscribePattern": "^ike-"}),
    Read({"subscribePattern": "nothing-has-this-name"}),
    Read({"assign": '{"plain":[0,2]}'}),
    Read({"assign": '{"plain":[1],"empty":[0]}'}),
    # --- rows
    Read(of(includeHeaders="true")),
    Read(of(includeHeaders="false")),
    Read(of("stamped-by-broker")),
    Read(of("compressed")),
    # --- what is committed
    Read(of("transactions", **COMMITTED), title="aborted transactions, gaps of markers"),
    Read(of("transactions", kafka__isolation__level="read_uncommitted")),
    Read(
        of("transactions"),
        differs="reads are read_committed by default here, read_uncommitted there",
        title="no isolation level",
    ),
    Read(of("undecided", **COMMITTED), title="committed records above an open transaction"),
    Read(
        of("undecided"),
        title="the same at a cut",
        ours={"consistency": "cut"},
        theirs=COMMITTED,
        differs=A_CUT,
    ),
    Read(of("undecided", kafka__isolation__level="read_uncommitted")),
    Read(of("compacted", **COMMITTED), title="gaps of compaction"),
    Read(of("compacted", startingOffsets=at("compacted", 7), **COMMITTED)),
    # --- bounds by offsets
    Read(of(startingOffsets="earliest", endingOffsets="latest")),
    Read(of(startingOffsets="EARLIEST")),
    Read(of(startingOffsets=at("plain", 10, -2, 30), endingOffsets=at("plain", 20, 15, -1))),
    Read(of(startingOffsets=at("plain", 20, 0, 0), endingOffsets=at("plain", 20, 5, 5))),
    Read(of("transactions", startingOffsets=at("transactions", 3, 4), **COMMITTED)),
    Read(of("shortened"), title="records were deleted before the first offset"),
    Read(of("shortened", startingOffsets=at("shortened", 5, 0), failOnDataLoss="false")),
    Read(of("shortened", startingOffsets=at("shortened", 5, 0))),
    Read(of("shortened", endingOffsets=at("shortened", 5, -1)), title="all that was asked for is deleted"),
    Read(
        of(startingOffsets=at("plain", 30, 0, 0), endingTimestamp=str(FIRST_MS + 25_000)),
        title="an offset to start at that is above the time to end at",
    ),
    # --- bounds by timestamps
    Read(of(startingTimestamp=str(FIRST_MS + 40_000))),
    Read(of(startingTimestamp=str(FIRST_MS + 40_500), endingTimestamp=str(FIRST_MS + 60_500))),
    Read(of(endingTimestamp=str(FIRST_MS + 25_000))),
    Read(of(endingTimestamp=str(LATER_MS))),
    Read(of(startingOffsetsByTimestamp=at("plain", FIRST_MS, FIRST_MS + 30_000, FIRST_MS + 90_000))),
    Read(of(endingOffsetsByTimestamp=at("plain", FIRST_MS, FIRST_MS + 30_000, LATER_MS))),
    Read(of(startingTimestamp=str(LATER_MS))),
    Read(of(startingTimestamp=str(LATER_MS), startingOffsetsByTimestampStrategy="error")),
    Read(of(startingTimestamp=str(LATER_MS), startingOffsetsByTimestampStrategy="latest")),
    Read(of("transactions", startingTimestamp=str(FIRST_MS + 12_000), **COMMITTED)),
    Read(of("compacted", startingTimestamp=str(FIRST_MS + 20_000), **COMMITTED)),
    # --- how the work is divided
    Read(of(minPartitions="1"), tasks=True),
    Read(of(minPartitions="7"), tasks=True, differs=EXACT_TASKS),
    Read(of(minPartitions="50"), tasks=True, differs=EXACT_TASKS),
    Read(of(maxRecordsPerPartition="20"), tasks=True, differs=UNDIVIDED),
    Read(of(maxRecordsPerPartition="20", minPartitions="20"), tasks=True, differs=EXACT_TASKS),
    # --- options of the connector or of Kafka's consumer that mean nothing here
    Read(of(groupIdPrefix="etl")),
    Read(of(kafka__group__id="etl")),
    Read(of(kafka__max__poll__records="10", kafka__fetch__max__bytes="10000")),
    Read(
        of(fetchOffset__numRetries="5", fetchOffset__retryIntervalMs="20", kafkaConsumer__pollTimeoutMs="900")
    ),
    Read(of(maxOffsetsPerTrigger="10")),
    Read(of(minOffsetsPerTrigger="10", maxTriggerDelay="1s")),
    # --- what is refused
    Read({}, title="no topic"),
    Read({"subscribe": "plain", "assign": '{"plain":[0]}'}),
    Read({"subscribe": ""}),
    Read({"assign": "plain"}),
    Read({"assign": '{"plain":[9]}'}, differs=NO_PARTITION),
    Read(of("no-such-topic")),
    Read(of(startingOffsets="latest")),
    Read(of(endingOffsets="earliest")),
    Read(of(startingOffsets="soon")),
    Read(of(startingOffsets=at("plain", 1))),
    Read(of(startingOffsets=at("other", 1))),
    Read(of(startingOffsets=at("plain", -1, 0, 0))),
    Read(of(endingOffsets=at("plain", -2, 0, 0))),
    Read(of(endingOffsets=at("plain", RECORDS + 5_000, 10, 10))),
    Read(of(endingOffsets=at("plain", RECORDS + 5_000, 10, 10), failOnDataLoss="false")),
    Read(of(startingOffsets=at("plain", RECORDS + 5_000, 0, 0))),
    Read(of(startingOffsets=at("plain", 30, 0, 0), endingOffsets=at("plain", 20, 5, 5))),
    Read(of(startingOffsetsByTimestampStrategy="sometimes")),
    Read(of(minPartitions="0")),
    Read(of(minPartitions="many")),
    Read(of(failOnDataLoss="perhaps")),
    Read(of(includeHeaders="perhaps")),
    Read(of(startingOffsets="earliest", startingTimestamp=str(FIRST_MS + 40_000))),
    Read(of(startingOffset="earliest"), differs=CHECKED),
    Read(of(kafka__auto__offset__reset="latest")),
    Read(of(kafka__key__deserializer="x")),
    Read(of(kafka__enable__auto__commit="true")),
)


def send(count: int = 20, suffix: str = "", partition: int | None = None) -> Step:
    return lambda topics, name: topics.send(name + suffix, count, partition=partition)


def transaction(count: int = 5, *, commit: bool = True) -> Step:
    return lambda topics, name: topics.transaction(name, count, commit=commit)


def together(*steps: Step) -> Step:
    def run(topics: Topics, name: str) -> None:
        for step in steps:
            step(topics, name)

    return run


def nothing(topics: Topics, name: str) -> None:
    """The streams run without a change."""


def create(suffix: str) -> Step:
    return lambda topics, name: topics.create(name + suffix)


def add_partition(topics: Topics, name: str) -> None:
    topics.admin.create_partitions({name: 3})


def delete_records(before: int) -> Step:
    return lambda topics, name: topics.delete_records(name, before)


def delete(suffix: str = "") -> Step:
    return lambda topics, name: topics.admin.delete_topics([name + suffix])


def make_again(topics: Topics, name: str) -> None:
    topics.admin.delete_topics([name])
    topics.create(name)


EARLIEST = {"startingOffsets": "earliest"} | COMMITTED
LATEST = {"startingOffsets": "latest"} | COMMITTED
LOSSY = EARLIEST | {"failOnDataLoss": "false"}
PATTERN = EARLIEST | {"subscribePattern": "{t}.*"}

STREAMS: tuple[Stream, ...] = (
    Stream("goes on from its checkpoint", [send(), send(), nothing], EARLIEST),
    Stream("begins at latest", [send(), send()], LATEST),
    Stream("begins at latest by default", [send(), send()], COMMITTED),
    Stream(
        "begins at offsets", [send(40), send()], {"startingOffsets": '{"{t}":{"0":5,"1":-1}}'} | COMMITTED
    ),
    Stream("begins at a timestamp", [send(40), send()], {"startingTimestamp": str(FIRST_MS + 10_000)}),
    Stream(
        "begins at timestamps by partition",
        [send(40), send()],
        {"startingOffsetsByTimestamp": f'{{"{{t}}":{{"0":{FIRST_MS + 8_000},"1":{FIRST_MS}}}}}'},
    ),
    Stream(
        "begins at a timestamp that no record has",
        [send(), send()],
        {"startingTimestamp": str(LATER_MS), "startingOffsetsByTimestampStrategy": "latest"},
    ),
    Stream("the same, strategy error", [send()], {"startingTimestamp": str(LATER_MS)}),
    Stream("limited", [send(95), send(10)], EARLIEST | {"maxOffsetsPerTrigger": "20"}),
    Stream(
        "limited, partitions of unlike size",
        [together(send(70, partition=0), send(7, partition=1))],
        EARLIEST | {"maxOffsetsPerTrigger": "13"},
    ),
    Stream("limited, fewer than partitions", [send(6)], EARLIEST | {"maxOffsetsPerTrigger": "1"}),
    Stream(
        "waits for more",
        [send(8), send(40)],
        EARLIEST | {"minOffsetsPerTrigger": "30", "maxTriggerDelay": "1h"},
    ),
    Stream("minPartitions", [send(40)], EARLIEST | {"minPartitions": "6"}),
    Stream("maxRecordsPerPartition", [send(40)], EARLIEST | {"maxRecordsPerPartition": "7"}),
    Stream("headers", [send()], EARLIEST | {"includeHeaders": "true"}),
    Stream("aborted transactions", [transaction(), transaction(commit=False), transaction()], EARLIEST),
    Stream(
        "aborted transactions, limited",
        [together(transaction(9), transaction(9, commit=False), transaction(9), send(9))],
        EARLIEST | {"maxOffsetsPerTrigger": "8"},
    ),
    Stream(
        "only an aborted transaction is new",
        [send(), transaction(commit=False), send()],
        EARLIEST,
    ),
    Stream("a new partition", [send(), together(add_partition, send(9, partition=2))], EARLIEST),
    Stream(
        "a new topic that the pattern matches",
        [send(), together(create("-too"), send(9, "-too")), send(4, "-too")],
        PATTERN,
    ),
    Stream(
        "a new topic that the pattern matches, begun at latest",
        [send(), together(create("-too"), send(9, "-too"))],
        LATEST | {"subscribePattern": "{t}.*"},
    ),
    Stream("assign", [send(), send()], EARLIEST | {"assign": '{"{t}":[1]}'}),
    Stream("records deleted after they were read", [send(20), delete_records(10), send(20)], EARLIEST),
    Stream("records deleted unread", [send(20), together(send(40), delete_records(20))], EARLIEST),
    Stream(
        "records deleted unread, failOnDataLoss=false",
        [send(20), together(send(40), delete_records(20)), send()],
        LOSSY,
    ),
    Stream("the topic deleted", [send(), delete()], EARLIEST),
    Stream(
        "one of two topics deleted, failOnDataLoss=false",
        [together(send(), create("-too"), send(9, "-too")), delete("-too"), send()],
        LOSSY | {"subscribePattern": "{t}.*"},
    ),
    Stream(
        "one of two topics deleted",
        [together(send(), create("-too"), send(9, "-too")), delete("-too"), send()],
        PATTERN,
    ),
    Stream("the topic made again, shorter", [send(40), together(make_again, send(10))], EARLIEST),
    Stream(
        "the topic made again, shorter, failOnDataLoss=false",
        [send(40), together(make_again, send(10)), send(10)],
        LOSSY,
        MADE_AGAIN,
    ),
    Stream("the topic made again, longer", [send(10), together(make_again, send(40))], EARLIEST, MADE_AGAIN),
    Stream("endingOffsets", [send()], EARLIEST | {"endingOffsets": "latest"}),
    Stream("endingTimestamp", [send()], EARLIEST | {"endingTimestamp": str(LATER_MS)}, NO_END),
    Stream("maxOffsetsPerTrigger=0", [send()], EARLIEST | {"maxOffsetsPerTrigger": "0"}, READS_NOTHING),
    Stream(
        "minOffsetsPerTrigger above maxOffsetsPerTrigger",
        [send()],
        EARLIEST | {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"},
    ),
    Stream("an unknown topic", [nothing], EARLIEST | {"subscribe": "no-such-topic"}),
    Stream("groupIdPrefix", [send()], EARLIEST | {"groupIdPrefix": "etl"}),
)

CASES: tuple[Case, ...] = (*READS, *STREAMS)
