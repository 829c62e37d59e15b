"""An entry of the table of scenarios."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..load.processes import Plan
from ..run.harness import Run

BETWEEN_S: Final = 1.0
"""Load between two faults, so that the second does not hide the first."""
LONGER_THAN_A_SESSION: Final = 1.6
"""How many sessions a node is away: its leadership has ended by its own clock and by the controller's."""


@dataclass(frozen=True, slots=True)
class NamedScenario:
    """A scenario of the table: a name, a sentence, what it does, and what it needs (see harness.Scenario)."""

    name: str
    summary: str
    hurt: Callable[[Run], Awaitable[None]]
    settings: Mapping[str, object] = field(default_factory=dict)
    cuts_network: bool = False
    names_lag_s: float = 0.0
    disk_bytes: int = 0
    data_folders: int = 1
    plan: Plan | None = None

    async def inject(self, run: Run) -> None:
        await self.hurt(run)
