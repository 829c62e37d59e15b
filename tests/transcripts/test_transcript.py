"""The reader and the rewriter of transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from .transcript import Command, check

STORY = "# Once upon a time.\n\nadd 1 to=2\n----\n3\n\n# And then\nadd 4 to=4\n----\n8\n"


def adds(command: Command) -> list[str]:
    return [str(int(command.words[0]) + int(command.options["to"]))]


def test_a_story_that_comes_true_passes_and_stays(tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text(STORY)
    check(story, adds, rewrite=False)
    check(story, adds, rewrite=True)
    assert story.read_text() == STORY


def test_a_story_that_does_not_come_true_fails_and_can_be_rewritten(tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text(STORY.replace("8", "9"))
    with pytest.raises(AssertionError, match="rewrite-transcripts"):
        check(story, adds, rewrite=False)
    check(story, adds, rewrite=True)
    assert story.read_text() == STORY


def test_a_command_without_its_separator_is_no_story(tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("add 1 to=2\n3\n")
    with pytest.raises(AssertionError, match="behind the command"):
        check(story, adds, rewrite=False)
