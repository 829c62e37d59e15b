"""Step 5 of the main job: compares Spark's result with the data set and with the acknowledgements of the
producers.

Each check counts violations; the demo passes when every count is zero.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .backfill import Backfill
from .flights import Flight, daily_totals
from .load import Journal


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the result table: `violations` must be 0; `compared` is the number of compared items."""

    name: str
    violations: int
    compared: int
    example: str = ""

    @property
    def passed(self) -> bool:
        return self.violations == 0 and self.compared > 0


def check_all(flights: Sequence[Flight], journal: Journal, found: Backfill) -> list[Check]:
    """All checks of the job, in the order of the table."""
    return [
        _lost(flights, found),
        _duplicated(found),
        _aborted_visible(journal, found),
        _torn(journal, found),
        _values(flights, journal, found),
        _aggregates(flights, found),
        _late(flights, found),
    ]


def _lost(flights: Sequence[Flight], found: Backfill) -> Check:
    seen = {number for number, _, _ in found.flights}
    missing = [flight.number for flight in flights if flight.number not in seen]
    return Check("flights lost", len(missing), len(flights), _some(missing))


def _duplicated(found: Backfill) -> Check:
    again = [
        number for number, count in Counter(number for number, _, _ in found.flights).items() if count > 1
    ]
    return Check("flights duplicated", len(again), len(found.flights), _some(again))


def _aborted_visible(journal: Journal, found: Backfill) -> Check:
    """A visible record whose attempt was not the acknowledged one was aborted (attempt 0: on purpose)."""
    acknowledged = {(t.name, t.attempt) for t in journal.committed}
    wrong = [row for row in found.flights if (row[1], row[2]) not in acknowledged]
    return Check("aborted records visible", len(wrong), len(found.flights), _some(wrong))


def _torn(journal: Journal, found: Backfill) -> Check:
    """Every acknowledged transaction is visible as a whole."""
    visible: dict[str, set[int]] = defaultdict(set)
    for number, transaction, _ in found.flights:
        visible[transaction].add(number)
    torn = [t.name for t in journal.committed if visible[t.name] != set(t.flights)]
    return Check("transactions torn", len(torn), len(journal.committed), _some(torn))


def _values(flights: Sequence[Flight], journal: Journal, found: Backfill) -> Check:
    """The values of late flights came through byte for byte."""
    expected = expected_late(flights, journal)
    wrong = [number for number, value in expected.items() if found.flight_values.get(number) != value]
    return Check(
        "values changed",
        len(wrong) + len(found.flight_values.keys() - expected.keys()),
        len(expected),
        _some(wrong),
    )


def _aggregates(flights: Sequence[Flight], found: Backfill) -> Check:
    expected = daily_totals(flights)
    wrong = expected ^ found.totals
    return Check("aggregates per carrier and day that differ", len(wrong), len(expected), _some(list(wrong)))


def _late(flights: Sequence[Flight], journal_found: Backfill) -> Check:
    """late-arrivals equals the filter of flights: same records, same values, none twice."""
    rows = Counter(journal_found.late)
    expected = Counter(dict.fromkeys(journal_found.flight_values.items(), 1))
    wrong = (rows - expected) + (expected - rows)
    late = sum(flight.late for flight in flights)
    return Check(
        "late arrivals that differ from the filter of flights",
        wrong.total() + abs(late - rows.total()),
        late,
        _some(list(wrong)),
    )


def expected_late(flights: Sequence[Flight], journal: Journal) -> Mapping[int, str]:
    """number -> value of the late flights, as the acknowledged attempts wrote them."""
    by_number = {flight.number: flight for flight in flights}
    return {
        number: by_number[number].value(t.name, t.attempt).decode()
        for t in journal.committed
        for number in t.flights
        if by_number[number].late
    }


def _some(rows: Sequence[object]) -> str:
    return ", ".join(str(row) for row in rows[:3])
