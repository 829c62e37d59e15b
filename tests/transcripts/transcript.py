"""Stories that a person reads and a run checks, in the manner of etcd's data-driven tests.

A transcript is a text file: prose in lines that begin with `#`, then one block after the other,

    command words key=value
    ----
    what happens then, a line each

with an empty line between two blocks.  The run carries out the commands in order and compares what happens
with what the file says.  `pytest tests/transcripts --rewrite-transcripts` writes what happens into the files
instead: read the difference before you commit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = "----"


@dataclass
class Command:
    """One command of a story: its name, its words, and its key=value pairs."""

    text: str
    name: str = ""
    words: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, *rest = self.text.split()
        self.words = [each for each in rest if "=" not in each]
        self.options = dict(each.split("=", 1) for each in rest if "=" in each)


Execute = Callable[[Command], list[str]]
"""Carries out a command, and returns a line for everything that happened."""


def blocks(text: str) -> Iterator[tuple[list[str], str, list[str]]]:
    """(prose before the command, command, what the file says happens then) of every block."""
    prose: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line or line.startswith("#"):
            prose.append(line)
            continue
        assert next(lines, None) == SEPARATOR, f"no {SEPARATOR} behind the command {line!r}"
        happens: list[str] = []
        for each in lines:
            if not each:
                break
            happens.append(each)
        yield prose, line, happens
        prose = [""]
    assert not any(prose), f"prose behind the last command: {prose}"


def told(text: str, execute: Execute) -> str:
    """The same story with what happens now."""
    written: list[str] = []
    for prose, command, _ in blocks(text):
        written += [*prose, command, SEPARATOR, *execute(Command(command))]
    return "\n".join(written) + "\n"


def check(path: Path, execute: Execute, *, rewrite: bool) -> None:
    """Compares the file with what happens, or writes what happens into it."""
    before = path.read_text()
    now = told(before, execute)
    if rewrite:
        path.write_text(now)
    assert rewrite or now.splitlines() == before.splitlines(), "--rewrite-transcripts writes the new story"
