"""Resetting a group's offsets: how scopes and modes are written, and where each takes a partition."""

from __future__ import annotations

import pytest
from tidegate.client.administration.offset_reset import (
    Known,
    Mode,
    Reset,
    moved_into_log,
    new_offset,
    parse_datetime,
    parse_duration,
    parse_file,
    parse_topic,
)
from tidegate.client.connecting.errors import RequestError

KEY = ("t", 0)
NONE = ("t", 1)  # has no committed offset
KNOWN = Known({KEY: 10, NONE: 10}, {KEY: 100, NONE: 100}, {KEY: 50}, {KEY: 70, NONE: -1})


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (Reset(Mode.EARLIEST), 10),
        (Reset(Mode.LATEST), 100),
        (Reset(Mode.CURRENT), 50),
        (Reset(Mode.OFFSET, 20), 20),
        (Reset(Mode.OFFSET, 5), 10),
        (Reset(Mode.OFFSET, 500), 100),
        (Reset(Mode.SHIFT, 7), 57),
        (Reset(Mode.SHIFT, -7), 43),
        (Reset(Mode.SHIFT, -70), 10),
        (Reset(Mode.SHIFT, 70), 100),
        (Reset(Mode.DATETIME, 1), 70),
        (Reset(Mode.DURATION, 1), 70),
        (Reset(Mode.FILE, offsets={KEY: 33}), 33),
        (Reset(Mode.FILE, offsets={KEY: 333}), 100),
    ],
)
def test_a_mode_leads_to_an_offset_that_is_in_the_log(reset: Reset, expected: int) -> None:
    assert new_offset(reset, KEY, KNOWN) == expected


def test_without_a_committed_offset_or_record_the_offset_is_the_log_end() -> None:
    for mode in (Mode.CURRENT, Mode.DATETIME, Mode.DURATION):
        assert new_offset(Reset(mode), NONE, KNOWN) == 100
    with pytest.raises(RequestError, match="t-1 has no committed offset"):
        new_offset(Reset(Mode.SHIFT, 1), NONE, KNOWN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("orders", ("orders", [])), ("orders:0", ("orders", [0])), ("orders:0,12", ("orders", [0, 12]))],
)
def test_a_topic_is_written_with_or_without_partitions(text: str, expected: tuple[str, list[int]]) -> None:
    assert parse_topic(text) == expected


@pytest.mark.parametrize("text", ["", ":1", "orders:", "orders:x", "orders:-1", "orders:1,", "orders:٢"])
def test_what_is_no_topic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--topic"):
        parse_topic(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01.500", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("2026-01-31T12:00:00.000Z", 1769860800000),
    ],
)
def test_a_time_is_written_as_in_kafka(text: str, expected: int) -> None:
    assert parse_datetime(text) == expected


@pytest.mark.parametrize("text", ["", "today", "2026-01-31", "2026-13-31T00:00:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--to-datetime"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("P1D", 86_400_000), ("PT1H30M", 5_400_000), ("P1DT0.25S", 86_400_250), ("pt15s", 15_000)],
)
def test_a_duration_is_written_as_in_kafka(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT-1H", "P" + "9" * 30 + "D"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--by-duration"):
        parse_duration(text)


def test_a_file_has_a_row_per_partition_with_the_group_if_several() -> None:
    assert parse_file('t,0,5\n\n"t",1,6\n', ["g"]) == {"g": {KEY: 5, NONE: 6}}
    assert parse_file("g,t,0,5\nother,t,0,9\n", ["g", "h"]) == {"g": {KEY: 5}}
    for text, groups in (("t,0", ["g"]), ("t,0,-1", ["g"]), ("t,0,5", ["g", "h"]), ("t,x,5", ["g"])):
        with pytest.raises(ValueError, match="line 1 of the file"):
            parse_file(text, groups)


@pytest.mark.parametrize(
    ("reset", "key", "words"),
    [
        (Reset(Mode.OFFSET, 20), KEY, None),
        (Reset(Mode.OFFSET, 101), KEY, "has no offset 101: its end, 100, is taken"),
        (Reset(Mode.OFFSET, 5), KEY, "has no offset 5: where it begins, 10, is taken"),
        (Reset(Mode.SHIFT, 90), KEY, "has no offset 140: its end, 100, is taken"),
        (Reset(Mode.DATETIME, 1), KEY, None),
        (Reset(Mode.DATETIME, 1), NONE, "has no record since that time: its end, 100, is taken"),
        (Reset(Mode.LATEST), KEY, None),
    ],
)
def test_an_offset_outside_the_log_is_reported(reset: Reset, key: tuple[str, int], words: str | None) -> None:
    said = moved_into_log(reset, key, KNOWN)
    assert said is None if words is None else said == f"{key[0]}-{key[1]} {words}"
