"""`tidegate partitions reassign` takes no replica away by mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest
from tidegate.client import command_line
from tidegate.client.administration.descriptions import ConfigEntry, TopicDescription
from tidegate.client.administration.operations import PartitionMove
from tidegate.client.command_line.fewer_replicas import Reduction, in_words, reductions
from tidegate.client.connecting.metadata import PartitionMetadata
from typer.testing import CliRunner, Result


def topic(*replicas: tuple[int, ...], least: str = "2", name: str = "orders") -> TopicDescription:
    parts = [PartitionMetadata(number, 1, 0, nodes, nodes) for number, nodes in enumerate(replicas)]
    return TopicDescription(name, False, parts, [ConfigEntry("min.insync.replicas", least, False, False)])


def test_partitions_that_would_have_fewer_replicas_are_found() -> None:
    targets = {("orders", 0): [4], ("orders", 1): [4, 5, 6], ("orders", 2): None}
    found = reductions([topic((1, 2, 3), (1, 2, 3), (1, 2))], [], targets)
    assert found == [Reduction("orders", 0, 3, 1, 2)]
    assert "orders:0 has 3 replicas and would have 1" in in_words(found)
    assert "min.insync.replicas=2" in in_words(found)


def test_no_warning_at_or_above_min_insync_replicas() -> None:
    assert "min.insync" not in in_words(reductions([topic((1, 2, 3))], [], {("orders", 0): [1, 2]}))


def test_replicas_that_a_move_adds_do_not_count_before_its_end() -> None:
    """From 1,2 to 3,4 there are four for a while: another target of two takes nothing away."""
    moves = [PartitionMove("orders", 0, (1, 2, 3, 4), (3, 4), (1, 2))]
    described = [topic((1, 2, 3, 4))]
    assert reductions(described, moves, {("orders", 0): [4, 5]}) == []
    assert reductions(described, moves, {("orders", 0): [4]}) == [Reduction("orders", 0, 2, 1, 2)]


def test_of_many_only_the_first_are_named() -> None:
    found = [Reduction("orders", number, 3, 2, 1) for number in range(40)]
    assert in_words(found).endswith("; and 35 more")
    assert in_words(found).count("orders:") == 5


class Asked:
    """An admin of a cluster with one topic."""

    def __init__(self) -> None:
        self.moved: list[Any] = []

    async def describe_topics(self, names: list[str]) -> list[TopicDescription]:
        return [topic((1, 2, 3), (1, 2, 3), name=name) for name in names]

    async def list_reassignments(self) -> list[PartitionMove]:
        return []

    async def reassign_partitions(self, targets: Any) -> None:
        self.moved.append(targets)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()

    @asynccontextmanager
    async def connect(bootstrap: str, _command_config: object) -> AsyncIterator[Asked]:
        yield asked

    monkeypatch.setattr(import_module("tidegate.client.command_line.partitions"), "connect", connect)
    return asked


def reassign(*words: str) -> Result:
    arguments = ["partitions", "reassign", *words]
    return CliRunner().invoke(command_line.build(arguments), arguments)


def test_fewer_replicas_are_refused_and_nothing_is_moved(asked: Asked) -> None:
    refused = reassign("orders:0=1", "orders:1=4,5,6")
    assert refused.exit_code != 0
    assert asked.moved == []
    assert "orders:0 has 3 replicas and would have 1" in refused.output
    assert "--allow-fewer-replicas" in refused.output
    assert "min.insync.replicas=2" in refused.output
    assert "Traceback" not in refused.output


def test_fewer_replicas_move_with_a_warning_below_min_insync_replicas(asked: Asked) -> None:
    done = reassign("--allow-fewer-replicas", "orders:0=1")
    assert done.exit_code == 0
    assert asked.moved == [{("orders", 0): [1]}]
    assert "min.insync.replicas=2" in done.output
    quiet = reassign("--allow-fewer-replicas", "orders:0=1,2")
    assert quiet.exit_code == 0
    assert "min.insync" not in quiet.output


def test_as_many_or_more_replicas_need_no_word(asked: Asked) -> None:
    for target in ("4,5,6", "1,2,3,4"):
        assert reassign(f"orders:0={target}").exit_code == 0
    assert len(asked.moved) == 2
