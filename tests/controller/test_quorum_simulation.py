"""The simulated quorum: seeds that must hold, and safeguards without which they must not."""

from __future__ import annotations

import pytest
from quorum_simulator import MUTATIONS, Outcome, Simulation


def run(seed: int, voters: int = 3, **options: object) -> Outcome:
    return Simulation(seed, voters, **options).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
def test_three_voters_lose_nothing_and_agree(seed: int) -> None:
    outcome = run(seed)
    assert outcome.good, outcome


@pytest.mark.parametrize("seed", range(100, 108))
@pytest.mark.parametrize("network", ["reorder", "late_replies"])
def test_three_voters_under_reordering_lose_nothing_and_agree(seed: int, network: str) -> None:
    outcome = run(seed, **{network: True})
    assert outcome.good, outcome


@pytest.mark.parametrize("seed", range(8))
def test_five_voters_lose_nothing_and_agree(seed: int) -> None:
    outcome = run(seed, voters=5)
    assert outcome.good, outcome


@pytest.mark.parametrize("seed", range(6))
def test_a_quorum_of_one_loses_nothing(seed: int) -> None:
    outcome = run(seed, voters=1)
    assert outcome.good, outcome


@pytest.mark.parametrize("voters", [1, 3, 5])
def test_without_faults_nearly_everything_is_acknowledged_under_one_leader(voters: int) -> None:
    outcome = run(1, voters=voters, faults=False)
    assert outcome.good and outcome.terms == 1 and outcome.acknowledged > 1000, outcome


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_every_safeguard_is_missed_when_it_is_taken_away(mutation: str) -> None:
    assert any(not run(seed, **MUTATIONS[mutation]).good for seed in range(40)), f"nothing notices {mutation}"
