"""The output of commands: tables for people, JSON for machines, one line for an error.

`run` is the frame of every command: it runs a coroutine, turns an error that the user can correct into one
line on standard error and exit code 1, and lets a bug show its traceback.  Imports are inside the functions:
`tidegate --help` must not wait for libraries that it does not use.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import difflib
import io
import json
import sys
from collections.abc import Coroutine, Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
WHOLE = ("address", "bootstrap")  # columns whose cells users copy: never wrapped
GONE_READER = 141  # the shell's exit code of a program that SIGPIPE ended


class CommandError(Exception):
    """An error of a command, as one sentence for the user."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine.  Exits with 1 on a known error, with 130 on Ctrl-C, and with 141 and no
    message when the reader of standard output has ended (`| head`): that is no error."""
    import typer

    from ...processes.local_cluster import LocalClusterError
    from ...runtime import logs
    from ...wire.errors import KafkaError
    from ..connecting.errors import ConnectionFailed

    logs.configure(level="ERROR")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal that cannot show a character shows its escape
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = asyncio.run(work)
        sys.stdout.flush()
        return result
    except ConnectionFailed as error:
        complain(error.message)
    except (KafkaError, CommandError, LocalClusterError, ValueError) as error:
        complain(str(error))
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(GONE_READER) from None
    except OSError as error:
        complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(1)


def _drop_output() -> None:
    """Closes standard output and drops its buffer, so that the interpreter does not try to write it at
    exit."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.close()
    sys.stdout = None


def complain(sentence: str) -> None:
    """One line on standard error."""
    print("error: " + " ".join(sentence.split()), file=sys.stderr)


def warn(sentence: str) -> None:
    """One line on standard error about a result that the user may not expect."""
    print("note: " + " ".join(sentence.split()), file=sys.stderr)


def show_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(plain(value), ensure_ascii=False))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing here"
) -> None:
    """A table; numbers are aligned to the right.  Without rows it prints `empty`."""
    lines = [[cell(value) for value in row] for row in rows]
    if not lines:
        print(empty)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        numbers = all(
            line[index].lstrip("-").replace(".", "", 1).isdigit() or line[index] in ("", "-")
            for line in lines
        )
        whole = name in WHOLE
        table.add_column(
            name, justify="right" if numbers else "left", overflow="fold", no_wrap=whole or numbers
        )
    for line in lines:
        table.add_row(*line)
    # A pipe has no width: then no line is wrapped, so that grep and awk find whole lines.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 500)
    console.print(table)


def cell(value: object) -> str:
    """A value as text for a table."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return value.decode(errors="replace")
        case list() | tuple() | set() | frozenset():
            return ",".join(str(item) for item in value)
        case _:
            return str(value)


def plain(value: object) -> Any:
    """A value for JSON: dataclasses and named tuples become objects, bytes become text (base64 when they are
    not UTF-8)."""
    match value:
        case Enum():
            return value.name
        case bool() | int() | float() | str() | None:
            return value
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case dict():
            return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case tuple() if hasattr(value, "_asdict"):
            return {name: plain(item) for name, item in value._asdict().items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return str(value)


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises CommandError for an unknown setting."""
    known = sorted(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            raise CommandError(f"unknown setting {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def settings_of(pairs: Sequence[str], option: str) -> dict[str, str]:
    """`key=value` options as a dictionary.  Raises ValueError for one without `=`."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"{option} {pair}: write it as key=value")
        found[key.strip()] = value.strip()
    return found


def when(milliseconds: int) -> str:
    """A time as text; "-" for a negative one."""
    from datetime import UTC, datetime

    return (
        "-"
        if milliseconds < 0
        else datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    )
