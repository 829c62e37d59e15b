"""Ten stories of transactions, each a file in `transactions/`; `transaction_stage.py` says what is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from .transaction_stage import Stage
from .transcript import check

STORIES = sorted((Path(__file__).parent / "transactions").glob("*.txt"))
MAX_EPOCH = {"epoch_exhaustion": 3}
"""The last producer epoch, where it is not Kafka's."""


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_comes_true(story: Path, rewrites: bool) -> None:
    check(story, Stage(MAX_EPOCH.get(story.stem, 32767)).execute, rewrite=rewrites)


def test_there_are_ten_stories() -> None:
    assert len(STORIES) >= 10
