"""How `tidegate log` speaks: rows as tables that are printed while they come, or as JSON, one object a line.

Nothing is collected but the rows of one table, at most `TABLE_ROWS`; so a file of any size can be shown, and
`| head` ends it.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from ...storage.inspection.dump import Row

TABLE_ROWS: Final = 500
WIDTH_OF_PIPES: Final = 500
"""A pipe has no width: lines are long rather than wrapped, so that grep and awk find whole ones."""
VALUE_CHARACTERS: Final = 80


def print_json(rows: Iterable[Row]) -> None:
    for row in rows:
        print(json.dumps({name: plain(value) for name, value in row.items()}, ensure_ascii=False))


def print_tables(rows: Iterable[Row], *, full: bool = False) -> None:
    """Neighbours of one type share a table."""
    for number, (_columns, together) in enumerate(groupby(rows, key=_columns_of)):
        if number:
            print()
        is_first = True
        for chunk in _chunks(together):
            _print_table(chunk, full=full, with_head=is_first)
            is_first = False


def _columns_of(row: Row) -> tuple[str, ...]:
    return (str(row["type"]), *row)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == TABLE_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _print_table(rows: list[Row], *, full: bool, with_head: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    names = [name for name in rows[0] if name != "type"]
    title = str(rows[0]["type"]).replace("_", " ")
    if len(rows) == 1 and len(names) == 1:
        print(f"{title}: {shown(names[0], rows[0][names[0]], full=full)}")
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=with_head)
    for name in names:
        is_number = all(isinstance(row[name], int | float | None) for row in rows) and "timestamp" not in name
        table.add_column(name.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(shown(name, row[name], full=full) for name in names))
    if with_head:
        print(f"{title}:")
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_PIPES).print(table)


def shown(name: str, value: object, *, full: bool) -> str:
    """A value for people.  `name` tells timestamps."""
    match value:
        case None:
            return "-"
        case int() if "timestamp" in name and value >= 0:
            return _moment(value)
        case bytes():
            text = _text(value)
        case tuple() | list():
            text = " ".join(_pair(item) for item in value)
        case dict():
            text = " ".join(f"{key}={shown(key, item, full=True)}" for key, item in value.items())
        case _:
            text = str(value)
    if not full and len(text) > VALUE_CHARACTERS and name in ("key", "value", "headers"):
        size = f" ({len(value)} bytes)" if isinstance(value, bytes) else ""
        return f"{text[:VALUE_CHARACTERS]}…{size}"
    return text


def _pair(item: object) -> str:
    if isinstance(item, tuple) and len(item) == 2:
        return f"{item[0]}={'-' if item[1] is None else _text(item[1])}"
    return str(item)


def _text(data: bytes) -> str:
    """As text when that can be read, else in hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


def _moment(timestamp_ms: int) -> str:
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.")
            + f"{timestamp_ms % 1000:03d}"
        )
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def plain(value: object) -> Any:
    """A value as JSON has it; bytes are text, or base64 when they are not UTF-8."""
    match value:
        case bool() | int() | float() | str() | None:
            return value
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case Enum():
            return value.value
        case Path() | UUID():
            return str(value)
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return str(value)
