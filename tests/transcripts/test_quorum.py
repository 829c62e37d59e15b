"""Stories of the quorum, each a file in `quorum/`; `quorum_stage.py` says what is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from .quorum_stage import Stage
from .transcript import check

STORIES = sorted((Path(__file__).parent / "quorum").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_comes_true(story: Path, rewrites: bool) -> None:
    check(story, Stage().execute, rewrite=rewrites)


def test_there_are_ten_stories() -> None:
    assert len(STORIES) >= 10
