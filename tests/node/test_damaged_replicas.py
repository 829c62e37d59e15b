"""The reports of a broker to the controller about logs that must not count any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import UUID

from tidegate.node.metadata_application import MetadataApplication

HERE, THERE = UUID(int=1), UUID(int=2)


def test_a_damaged_log_without_a_topic_id_counts_for_the_topic_of_its_name() -> None:
    """As merely offline it would stay eligible to lead, and could never be fetched again."""
    damaged = {("known", 0): HERE, ("nameless", 1): None, ("nameless", 7): None, ("deleted", 0): None}
    topics = {
        "known": SimpleNamespace(topic_id=UUID(int=9), partitions={0: 0}),
        "nameless": SimpleNamespace(topic_id=THERE, partitions={1: 0}),
    }
    application = SimpleNamespace(
        _directory=SimpleNamespace(damaged=damaged),
        _cluster=SimpleNamespace(state=SimpleNamespace(topics=topics)),
    )
    assert MetadataApplication.damaged_replicas(cast(MetadataApplication, application)) == {
        (HERE.bytes, 0),
        (THERE.bytes, 1),
    }
