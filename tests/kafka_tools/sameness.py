"""Whether two tools said the same: what may differ from cluster to cluster is written alike first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from .jvm import Outcome

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^SLF4J:.*\n", re.MULTILINE), ""),
    (re.compile(r"^\s+at .*\n", re.MULTILINE), ""),  # where in a tool's code an error came up
    (re.compile(r"^\s+\.\.\. \d+ more\n", re.MULTILINE), ""),
    (_UUID, "<uuid>"),
    (re.compile(r"(TopicId: )\S{22}"), r"\1<id>"),
    (re.compile(r"(?<=\s)[\w-]{22}(?=\s+/)"), "<member>"),
    (re.compile(r"\b((?:console|perf)-consumer-)\d+"), r"\1<n>"),
    (re.compile(r"[A-Za-z0-9+/]{86}=="), "<hmac>"),
    # a Kafka answers in the order of a hash, another one each time
    (re.compile(r"(SCRAM-SHA-512=iterations=\d+), (SCRAM-SHA-256=iterations=\d+)"), r"\2, \1"),
    (re.compile(r"(?<=tokenId : )\S{22}|^\S{22}(?=\s+<hmac>)", re.MULTILINE), "<token>"),
    (re.compile(r"(ClusterId:\s+|Cluster ID: )\S+"), r"\1<id>"),
    (re.compile(r"\b1[5-9]\d{11}\b"), "<ms>"),
    (re.compile(r"(?<=127\.0\.0\.1)(\s+)\d{4,5}\b"), r"\1<port>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[:.,]\d{3}Z?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d\b"), "<minute>"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" +$", re.MULTILINE), ""),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E-?\d+)?|NaN|Infinity")


def normalised(
    outcome: Outcome, names: Mapping[str, str], *, sort: bool = False, numbers: bool = False
) -> str:
    """`names`: what stands for a text that only this cluster has, an address or a folder.  `sort`: the order
    of lines says nothing, nor how often one comes.  `numbers`: nor do numbers, which are measurements."""
    parts = []
    for title, text in (("", outcome.out), ("standard error:", outcome.err)):
        for own, name in sorted(names.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(own, name)
        text = text.strip() + "\n" if text.strip() else ""
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        if numbers:
            text = _NUMBER.sub("N", text)
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            parts += [title] * bool(title) + (sorted(set(lines)) if sort else lines)
    ending = "did not end" if outcome.late else f"exit code {outcome.code}"
    return "\n".join([*parts, ending])


_EXPLANATIONS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"(org\.apache\.kafka\.common\.errors\.\w+(?:Exception)?:).*$",
        r"(Error while executing topic command :).*$",
        r"(Could not (?:upgrade|downgrade|disable) \S+(?: to \d+)?\.).*$",
        r"^(t-\d: ).*$",  # why a partition is not reassigned
    )
)


def without_explanations(text: str) -> str:
    """What a refusal is once its explanation is left out: the same error, and the same exit code."""
    for pattern in _EXPLANATIONS:
        text = pattern.sub(r"\1", text)
    return text


def difference(tidegate: str, kafka: str, lines_max: int = 12) -> list[str]:
    """The lines that only one has, as `diff` writes them; empty when both are equal."""
    found = [
        line
        for line in difflib.unified_diff(
            kafka.splitlines(), tidegate.splitlines(), "Kafka", "Tidegate", n=0, lineterm=""
        )
        if not line.startswith(("---", "+++", "@@"))
    ]
    return [*found[:lines_max], f"... {len(found) - lines_max} more"] if len(found) > lines_max else found
