"""What one command changes: its changes so far, its refusal, and the tables of settings.

An operation either changes the state or raises `Refused` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode
from .model import ApplyResult, DeletedTopic, Value

_Key = TypeVar("_Key", bound=Hashable)


class Refused(Exception):
    """An operation that changes nothing; becomes the command's error."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class Changes:
    """The topics, partitions and brokers that one command has changed so far."""

    __slots__ = ("brokers", "deleted", "index", "partitions", "term", "topics")

    def __init__(self, index: int, term: int) -> None:
        self.index = index
        self.term = term
        self.topics: set[str] = set()
        self.partitions: set[tuple[str, int]] = set()
        self.brokers: set[int] = set()
        self.deleted: list[DeletedTopic] = []

    def result(self, error: ErrorCode, message: str, value: Value) -> ApplyResult:
        return ApplyResult(
            self.index,
            self.term,
            error,
            message,
            value,
            changed_topics=frozenset(self.topics),
            changed_partitions=frozenset(self.partitions),
            changed_brokers=frozenset(self.brokers),
            deleted_topics=tuple(self.deleted),
        )


def with_change(
    configs: Mapping[_Key, Mapping[str, str]],
    key: _Key,
    change: pb.ChangeNodeConfig | pb.ChangeResourceConfig,
) -> Mapping[_Key, Mapping[str, str]]:
    """Another table, with what the change makes of one entry; an entry without settings is gone."""
    config = {name: value for name, value in configs.get(key, {}).items() if name not in change.remove}
    config.update((entry.key, entry.value) for entry in change.set)
    others = {each: settings for each, settings in configs.items() if each != key}
    return {**others, key: config} if config else others
