"""A seeded share of the fuzzing of batches, index files, snapshots, checkpoints and data folders (`fuzz.py` runs the million)."""

from __future__ import annotations

import os
from random import Random

import pytest

from . import fuzz
from .fuzz_folder import folder_case

FIRST_SEED = int(os.environ.get("TIDEGATE_FUZZ_SEED", "0"))


@pytest.mark.parametrize("share", range(2))
def test_damage_gives_an_error_or_a_right_answer(share: int) -> None:
    outcomes = fuzz.run(FIRST_SEED + share * 30_000, 30_000, folder_case)
    assert outcomes["read"] > 500 and outcomes["refused"] > 500 and outcomes["folder right"] > 20


def test_ablation_a_reader_that_does_not_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.wire.records import parse_header

    monkeypatch.setattr(fuzz, "validate_batch", lambda view, position=0: parse_header(view, position))
    with pytest.raises(fuzz.Found):
        fuzz.run(0, 2000)


@pytest.mark.parametrize("seed", [951899])
def test_damage_that_was_once_believed(seed: int) -> None:
    """The first entry of an index moved up: what stands before it was taken for a hole."""
    assert folder_case(Random(seed)) == "folder right"
