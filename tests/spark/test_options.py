"""Options are read as Spark hands them over (names lower-cased), and what cannot be meant is refused with a
remedy."""

from __future__ import annotations

import pytest
from tidegate.spark.options import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    EveryPartition,
    OptionError,
    Partitions,
    Pattern,
    ReadOptions,
    Topics,
    parse_options,
)

BASE = {"bootstrap": "a:1,b:2", "subscribe": "flights"}


def parse(**more: str) -> ReadOptions:
    return parse_options({**BASE, **more})


def test_defaults_are_everything_committed() -> None:
    assert parse() == ReadOptions(
        ("a:1", "b:2"), Topics(("flights",)), EveryPartition(EARLIEST), EveryPartition(LATEST)
    )
    assert parse().read_committed
    assert parse().fail_on_data_loss
    assert not parse().include_headers


def test_names_are_found_in_any_case() -> None:
    options = parse_options(
        {"BOOTSTRAP": "a:1", "subscribepattern": "f.*", "minpartitions": "7", "includeHeaders": "TRUE"}
    )
    assert (options.selection, options.partitions_min, options.include_headers) == (Pattern("f.*"), 7, True)


def test_bootstrap_goes_by_two_names() -> None:
    assert parse_options({"tidegate.bootstrap.servers": "h:9", "subscribe": "t"}).bootstrap == ("h:9",)


def test_a_job_of_the_official_connector_moves_over_by_its_format() -> None:
    """Options that only mean something to Kafka's consumer are named in a warning, and not refused."""
    options = parse_options(
        {
            "kafka.bootstrap.servers": "h:9,i:9", "subscribe": "t",
            "kafka.isolation.level": "read_uncommitted",
            "kafka.security.protocol": "PLAINTEXT", "kafka.max.poll.records": "5000", "groupidprefix": "etl",
            "maxoffsetspertrigger": "1000", "fetchoffset.numretries": "5", "maxrecordsperpartition": "500",
        }
    )  # fmt: skip
    assert (options.bootstrap, options.read_committed, options.partition_records_max) == (
        ("h:9", "i:9"),
        False,
        500,
    )
    assert options.ignored == (
        "fetchoffset.numretries", "groupidprefix", "kafka.max.poll.records", "maxoffsetspertrigger",
    )  # fmt: skip
    assert parse(isolation="read_committed", **{"kafka.isolation.level": "read_committed"}).read_committed


def test_bounds() -> None:
    assert parse(startingOffsets="EARLIEST", endingOffsets="latest").starting == EveryPartition(EARLIEST)
    assert parse(startingOffsets='{"flights":{"0":23,"1":-2}}').starting == AtOffsets(
        {("flights", 0): 23, ("flights", 1): EARLIEST}
    )
    assert parse(endingOffsets='{"flights":{"0":-1}}').ending == AtOffsets({("flights", 0): LATEST})
    assert parse(startingTimestamp="5", endingTimestamp="9").ending == AtTimestamp(9)
    assert parse(startingOffsetsByTimestamp='{"flights":{"3":5}}').starting == AtTimestamps(
        {("flights", 3): 5}
    )


def test_assign() -> None:
    assert parse_options({"bootstrap": "a:1", "assign": '{"flights":[2,0]}'}).selection == Partitions(
        {"flights": (2, 0)}
    )


def test_sizes() -> None:
    assert parse(maxBytesPerPartition="64m").partition_bytes_max == 64 << 20
    assert parse(maxBytesPerPartition="1GB").partition_bytes_max == 1 << 30
    assert parse(maxBytesPerPartition="4096").partition_bytes_max == 4096


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "t"}, "'bootstrap' \\(or 'kafka.bootstrap.servers'\\) is missing"),
        ({"bootstrap": "nohost", "subscribe": "t"}, "not host:port"),
        ({"bootstrap": "a:1"}, "exactly one of"),
        ({**BASE, "assign": '{"t":[0]}'}, "both 'subscribe' and 'assign'"),
        ({**BASE, "startingofsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({**BASE, "failondataloss": "maybe"}, "failOnDataLoss 'maybe' must be true or false"),
        ({**BASE, "isolation": "commited"}, "must be one of read_committed, read_uncommitted"),
        ({**BASE, "kafka.bootstrap.servers": "x:1"}, "option 'bootstrap' is given twice"),
        (
            {**BASE, "kafka.isolation.level": "serializable"},
            "must be one of read_committed, read_uncommitted",
        ),
        ({**BASE, "maxRecordsPerPartition": "0"}, "at least 1"),
        ({**BASE, "maxMemoryPerTask": "1m"}, "at least 8388608 bytes"),
        ({**BASE, "path": "flights"}, "load\\(\\) takes no path"),
        ({**BASE, "zzz": "1"}, "the options are bootstrap, subscribe"),
        ({**BASE, "startingOffsets": "latest"}, "would be empty; write 'earliest'"),
        ({**BASE, "endingOffsets": "earliest"}, "would be empty; write 'latest'"),
        ({**BASE, "startingOffsets": '{"t":{"0":-1}}'}, "t-0 is -1 \\(latest\\)"),
        ({**BASE, "startingOffsets": "newest"}, "neither a known word nor JSON"),
        ({**BASE, "startingOffsets": '{"t":[1]}'}, "needs an object of partitions"),
        ({**BASE, "startingOffsets": '{"t":{"0":"5"}}'}, "write it like"),
        ({**BASE, "startingOffsets": '{"t":{"0":-3}}'}, "write it like"),
        (
            {**BASE, "startingOffsets": "earliest", "startingTimestamp": "1"},
            "both say where the read is starting",
        ),
        ({**BASE, "minPartitions": "0"}, "at least 1"),
        ({**BASE, "maxBytesPerPartition": "many"}, "must be a size"),
        ({"bootstrap": "a:1", "subscribePattern": "("}, "not a regular expression"),
        ({"bootstrap": "a:1", "subscribePattern": "(?P<a>x)"}, "is not known"),
        ({"bootstrap": "a:1", "subscribe": " , "}, "names no topic"),
        ({"bootstrap": "a:1", "assign": '{"t":[]}'}, "needs a list of partition numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(given)
