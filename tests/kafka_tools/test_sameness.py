"""How what two tools print is compared: what may differ is written alike, what may not is seen."""

from __future__ import annotations

import pytest

from .cases import CASES, MAINS
from .jvm import Outcome
from .sameness import difference, normalised, without_explanations
from .secured_cases import SECURED_CASES


def said(out: str, err: str = "", code: int = 0, **options: bool) -> str:
    return normalised(Outcome(code, out, err), {"127.0.0.1:9092": "node-1"}, **options)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TopicId: abcdefghijklmnopqrstuv\tx", "TopicId: ABCDEFGHIJKLMNOPQRSTUV  x"),
        ("at 1795365300922", "at 1795365300000"),
        (
            "SCRAM-SHA-512=iterations=8192, SCRAM-SHA-256=iterations=4096",
            "SCRAM-SHA-256=iterations=4096, SCRAM-SHA-512=iterations=8192",
        ),
        ("console-consumer-123", "console-consumer-4"),
        ("m-0b5d3a2e-1111-2222-3333-444455556666", "m-0b5d3a2e-1111-2222-3333-444455557777"),
        ("127.0.0.1:9092 is up", "node-1 is up"),
        ("Error\n\tat a.b(C.java:1)\n\t... 3 more\nend", "Error\nend"),
    ],
)
def test_what_may_differ_is_written_alike(one: str, other: str) -> None:
    assert said(one) == said(other)


def test_anything_else_is_seen() -> None:
    assert difference(said("t:0:5"), said("t:0:6")) == ["-t:0:6", "+t:0:5"]
    assert difference(said("x", code=1), said("x")) == ["-exit code 0", "+exit code 1"]
    assert difference(said("", "x"), said("x")) != []
    assert difference(said("b\na\na", sort=True), said("a\nb", sort=True)) == []
    assert difference(said("3 MB in -1.5 s", numbers=True), said("10 MB in NaN s", numbers=True)) == []


def test_another_message_is_the_same_refusal_and_another_error_is_not() -> None:
    exists, invalid = (
        f"org.apache.kafka.common.errors.{name}Exception: " for name in ("TopicExists", "InvalidTopic")
    )
    assert without_explanations(exists + "it is there") == without_explanations(exists + "already exists")
    assert without_explanations(exists + "x") != without_explanations(invalid + "x")


def test_every_tool_has_cases_and_every_case_a_tool() -> None:
    assert {case.tool for case in [*CASES, *SECURED_CASES]} == set(MAINS)
