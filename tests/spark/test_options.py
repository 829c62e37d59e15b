"""Options are read as Spark hands them over (names lower-cased), and what cannot be meant is refused with a
remedy."""

from __future__ import annotations

import json

import pytest
from tidegate.client.consuming.cut import Cut, CutPartition, CutTopic
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
    StreamOptions,
    Topics,
    parse_options,
    parse_stream_options,
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
        "fetchoffset.numretries", "groupidprefix", "kafka.max.poll.records", "maxOffsetsPerTrigger",
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
    assert parse().partition_bytes_max == 256 << 20, "as docs/spark.md says"
    assert parse(maxBytesPerPartition="64m").partition_bytes_max == 64 << 20
    assert parse(maxBytesPerPartition="1GB").partition_bytes_max == 1 << 30
    assert parse(maxBytesPerPartition="4096").partition_bytes_max == 4096


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "t"}, "'bootstrap' \\(or 'kafka.bootstrap.servers'\\) is missing"),
        ({"bootstrap": "nohost", "subscribe": "t"}, "not host:port"),
        ({"bootstrap": "a:0", "subscribe": "t"}, "'a:0' is not host:port"),
        ({"bootstrap": "a:65536", "subscribe": "t"}, "'a:65536' is not host:port"),
        ({**BASE, "startingOffsets": '{"t":{"0":true}}'}, "'t' has '0': True"),
        ({"bootstrap": "a:1", "assign": "[" * 100_000}, "neither a known word nor JSON"),
        ({"bootstrap": "a:1"}, "exactly one of"),
        ({**BASE, "assign": '{"t":[0]}'}, "both 'subscribe' and 'assign'"),
        ({**BASE, "startingofsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({**BASE, "kafka.auto.offset.reset": "latest"}, "cannot be set: 'startingOffsets' says where"),
        ({**BASE, "kafka.enable.auto.commit": "true"}, "'commitToGroup' commits them"),
        ({**BASE, "kafka.key.deserializer": "x"}, "the column 'key' is binary"),
        (
            {**BASE, "startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":8}}'},
            "the starting offset 9 of t-0 is above its ending offset 8",
        ),
        (
            {**BASE, "startingTimestamp": "9", "endingTimestamp": "8"},
            "the starting timestamp 9 is above its ending timestamp 8",
        ),
        (
            {
                **BASE,
                "startingOffsetsByTimestamp": '{"t":{"0":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":8}}',
            },
            "the starting timestamp 9 of t-0 is above its ending timestamp 8",
        ),
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
        ({**BASE, "startingOffsets": '{"t":{"0":9223372036854775808}}'}, "write it like"),
        ({**BASE, "startingOffsets": '{"t":{"²":5}}'}, "write it like"),
        ({**BASE, "startingOffsets": '{"t":{"2147483648":5}}'}, "write it like"),
        ({**BASE, "startingOffsets": '{"t":{"' + "1" * 5_000 + '":5}}'}, "write it like"),
        ({"bootstrap": "a:1", "assign": '{"t":[2147483648]}'}, "needs a list of partition numbers"),
        ({**BASE, "startingTimestamp": "9223372036854775808"}, "startingTimestamp .* at most"),
        ({**BASE, "maxBytesPerPartition": "8589934592g"}, "maxBytesPerPartition .* at most"),
        ({**BASE, "maxMemoryPerTask": "9" * 5_000}, "maxMemoryPerTask .* must be a size"),
        ({**BASE, "minPartitions": "9" * 5_000}, "minPartitions .* must be a whole number"),
        ({**BASE, "minPartitions": "0"}, "at least 1"),
        ({**BASE, "maxBytesPerPartition": "many"}, "must be a size"),
        ({"bootstrap": "a:1", "subscribePattern": "("}, "not a regular expression"),
        ({"bootstrap": "a:1", "subscribePattern": "(?P<a>x)"}, "is not known"),
        ({"bootstrap": "a:1", "subscribe": " , "}, "names no topic"),
        ({"bootstrap": "a:1", "assign": '{"t":[]}'}, "needs a list of partition numbers"),
        ({"bootstrap": "a:1", "assign": '{"t":[true]}'}, "needs a list of partition numbers"),
        ({"bootstrap": "a:1", "assign": "{}"}, "names no partition"),
        ({**BASE, "kafka.security.protocol": "PLAINTEXTS"}, "PLAINTEXTS"),
        ({"bootstrap": "a:1", "assign": "[0]"}, "must be a JSON object"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(given)


def test_no_password_is_shown() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="secret";'
    options = parse_options(
        BASE
        | {
            "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": login,
        }
    )  # fmt: skip
    assert ("sasl.jaas.config", login) in options.security
    assert "secret" not in repr(options)


def test_only_offsets_have_an_order_and_not_what_stands_for_the_begin_or_the_end() -> None:
    both = parse(startingOffsets='{"flights":{"0":5,"1":-2}}', endingOffsets='{"flights":{"0":-1,"1":5}}')
    assert both.starting == AtOffsets({("flights", 0): 5, ("flights", 1): EARLIEST})
    assert both.ending == AtOffsets({("flights", 0): LATEST, ("flights", 1): 5})


@pytest.mark.parametrize(
    "given",
    [
        *({**BASE, name: "x" * 10**6} for name in (
            "assign", "startingOffsets", "endingTimestamp", "minPartitions", "maxBytesPerPartition", "cut",
            "consistency", "isolation", "failOnDataLoss", "bootstrap", "subscribePattern",
        )),
        {**BASE, "startingOffsets": json.dumps({"t" * 10**6: {"0": "x" * 10**6}})},
        {**BASE, "startingOffsets": json.dumps({"t": {"1" * 10**6: 1}})},
        {**BASE, "o" * 10**6: "1"},
        {**BASE, "kafka.bootstrap.servers": "x" * 10**6},
    ],
)  # fmt: skip
def test_a_message_has_the_begin_of_a_long_text(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(given)
    assert len(str(caught.value)) < 1_500


# ---- cuts --------------------------------------------------------------------------------------------------

CUT = Cut({"flights": CutTopic(b"f" * 16, {0: CutPartition(0, 23, {4711: 17})})}, "c", 1)


def test_a_read_at_a_cut_names_it_or_takes_one() -> None:
    given = parse(cut=CUT.to_json())
    assert (given.cut, given.takes_cut, given.read_committed, given.reads_at_cut) == (CUT, False, False, True)
    assert parse(cut="month-end").cut == "month-end"
    assert parse_options({"bootstrap": "a:1", "cut": "month-end"}).selection == Topics(())
    taken = parse(consistency="CUT")
    assert (taken.cut, taken.takes_cut, taken.read_committed, taken.reads_at_cut) == (None, True, False, True)
    assert not parse().reads_at_cut


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"consistency": "cut", "cut": "c"}, "'cut' and 'consistency' both say which cut"),
        ({"consistency": "snapshot"}, "consistency 'snapshot' must be cut"),
        ({"cut": "two words"}, "neither the name of a pinned cut nor the JSON"),
        ({"cut": ""}, "neither the name of a pinned cut nor the JSON"),
        ({"cut": '{"version": 9}'}, "cut: it has version 9"),
        (
            {"cut": "c", "endingOffsets": "latest"},
            "'endingOffsets' and 'cut' both say where each partition ends",
        ),
        ({"cut": "c", "endingTimestamp": "5"}, "'endingTimestamp' and 'cut' both"),
        ({"cut": "c", "isolation": "read_committed"}, "'isolation' and 'cut' both say which transactions"),
        (
            {"consistency": "cut", "kafka.isolation.level": "read_committed"},
            "'isolation' and 'consistency' both",
        ),
        (
            {"consistency": "cut", "endingOffsetsByTimestamp": "{}"},
            "'endingOffsetsByTimestamp' and 'consistency'",
        ),
        ({"consistency": "cut", "subscribe": ""}, "names no topic"),
    ],
)
def test_what_a_cut_says_no_other_option_says(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({**BASE, **given})


def test_a_new_cut_needs_topics() -> None:
    with pytest.raises(OptionError, match="exactly one of"):
        parse_options({"bootstrap": "a:1", "consistency": "cut"})


# ---- streams -----------------------------------------------------------------------------------------------


def stream(**more: str) -> StreamOptions:
    return parse_stream_options({**BASE, **more})


def test_a_new_query_begins_at_the_end_unless_options_say_otherwise() -> None:
    assert stream().read.starting == EveryPartition(LATEST)
    assert stream(startingOffsets="earliest").read.starting == EveryPartition(EARLIEST)
    mixed = stream(startingOffsets='{"flights":{"0":23,"1":-2,"2":-1}}').read.starting
    assert mixed == AtOffsets({("flights", 0): 23, ("flights", 1): EARLIEST, ("flights", 2): LATEST})
    assert stream(startingTimestamp="5").read.starting == AtTimestamp(5)
    assert stream(startingOffsetsByTimestamp='{"flights":{"0":7}}').read.starting == AtTimestamps(
        {("flights", 0): 7}
    )


def test_the_limits_of_a_trigger() -> None:
    none = stream()
    assert (none.offsets_max, none.offsets_min, none.trigger_delay_ms, none.bytes_max) == (
        None, None, 900_000, None,
    )  # fmt: skip
    given = stream(
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="30s",
        maxBytesPerTrigger="64m",
    )
    assert (given.offsets_max, given.offsets_min, given.trigger_delay_ms, given.bytes_max) == (
        1000, 10, 30_000, 64 << 20,
    )  # fmt: skip
    assert (none.shared_task_bytes, stream(minBytesPerPartition="0").shared_task_bytes) == (1 << 20, 0)
    delays = {"250": 250, "250ms": 250, "2 min": 120_000, "15m": 900_000, "1H": 3_600_000, "1d": 86_400_000}
    for text, delay_ms in delays.items():
        assert stream(maxTriggerDelay=text).trigger_delay_ms == delay_ms


def test_a_group_gets_commits_by_the_bootstrap_or_one_of_its_own() -> None:
    assert stream(commitToGroup="etl").group_bootstrap == ("a:1", "b:2")
    assert stream(commitToGroup="etl", commitBootstrap="k:9").group_bootstrap == ("k:9",)
    assert stream().group is None


def test_a_batch_read_has_no_triggers_and_says_so() -> None:
    assert parse(maxBytesPerTrigger="64m", maxTriggerDelay="1s").ignored == (
        "maxBytesPerTrigger", "maxTriggerDelay",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' belongs to a batch read.*availableNow"),
        ({"cut": "c"}, "'cut' belongs to a batch read.*consistency=cut"),
        ({"consistency": "cut", "isolation": "read_committed"}, "'isolation' and 'consistency' both"),
        ({"consistency": "cut", "maxOffsetsPerTrigger": "9"}, "'maxOffsetsPerTrigger' does not go with"),
        ({"consistency": "cut", "maxBytesPerTrigger": "9m"}, "'maxBytesPerTrigger' does not go with"),
        ({"endingTimestamp": "1"}, "'endingTimestamp' belongs to a batch read"),
        ({"endingOffsetsByTimestamp": "{}"}, "'endingOffsetsByTimestamp' belongs to a batch read"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger '0' must be a whole number of at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger 'many'"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "9 is above maxOffsetsPerTrigger 8"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay 'soon' must be a time like"),
        ({"maxTriggerDelay": "-1s"}, "maxTriggerDelay '-1s' must be a time like"),
        ({"maxBytesPerTrigger": "1"}, "maxBytesPerTrigger '1' must be a size of at least 1024"),
        ({"commitToGroup": " "}, "'commitToGroup' names no group"),
        ({"commitBootstrap": "k:9"}, "no meaning without 'commitToGroup'"),
        ({"commitToGroup": "g", "commitBootstrap": "k"}, "commitBootstrap 'k' is not host:port"),
        (
            {"commitToGroup": "g", "commitBootstrap": ","},
            "'commitBootstrap' is missing: give Kafka listeners",
        ),
        ({"commitToGruop": "g"}, "did you mean 'commitToGroup'"),
    ],
)
def test_what_no_stream_can_mean_is_refused_with_a_remedy(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_stream_options({**BASE, **given})


def test_commits_belong_to_streams() -> None:
    with pytest.raises(OptionError, match="'commitToGroup' belongs to readStream"):
        parse(commitToGroup="etl")
