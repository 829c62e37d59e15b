"""Topics as Metadata answers describe them, kept encoded: clients ask for the same ones over and over, some
for all of them.

A description holds as long as its topic has not changed (a `TopicState` is never changed in place), nor which
brokers are alive, where they listen, and what they cannot serve.  Whole answers are kept for the metadata
index and the controller of which they speak.  Bounded: the descriptions of topics that there are, in
`VARIANTS_MAX` forms of the request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple
from uuid import UUID

from ...controller.state.cluster_state import ClusterState
from ...controller.state.model import TopicState
from ...wire.errors import ErrorCode

VARIANTS_MAX: Final = 8


class Description(NamedTuple):
    """One topic, encoded, and the gravest error in it."""

    topic: TopicState
    encoded: bytes
    outcome: ErrorCode


Describe = Callable[[ClusterState, TopicState], tuple[bytes, ErrorCode]]


class Variant:
    """The descriptions in one form: `describe` makes one."""

    __slots__ = ("_brokers", "_describe", "_described", "_whole", "_whole_of")

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._brokers: Hashable = None
        self._described: dict[UUID, Description] = {}
        self._whole_of: Hashable = None
        self._whole: tuple[bytes, ErrorCode] | None = None

    def look_at(self, state: ClusterState) -> None:
        """Before descriptions are asked for, again after every pause: forgets them all when brokers have come
        or gone."""
        brokers = tuple(
            (broker.node_id, broker.fenced, broker.offline_replicas, broker.listeners)
            for broker in state.brokers.values()
        )
        if brokers != self._brokers:
            self._brokers = brokers
            self._described.clear()

    def has(self, topic: TopicState) -> bool:
        found = self._described.get(topic.topic_id)
        return found is not None and found.topic is topic

    def of(self, state: ClusterState, topic: TopicState) -> Description:
        found = self._described.get(topic.topic_id)
        if found is None or found.topic is not topic:
            found = self._described[topic.topic_id] = Description(topic, *self._describe(state, topic))
            if len(self._described) > 2 * len(state.topics):
                self._described = {
                    topic_id: each
                    for topic_id, each in self._described.items()
                    if state.topic_by_id(topic_id)
                }
        return found

    def whole(self, what: Hashable) -> tuple[bytes, ErrorCode] | None:
        return self._whole if self._whole is not None and self._whole_of == what else None

    def keep_whole(self, what: Hashable, body: bytes, outcome: ErrorCode) -> None:
        self._whole_of, self._whole = what, (body, outcome)


class DescribedTopics:
    """Of one node."""

    def __init__(self) -> None:
        self._variants: OrderedDict[Hashable, Variant] = OrderedDict()

    def variant(self, form: Hashable, describe: Describe) -> Variant:
        """The same `form` has to come with the same `describe`."""
        found = self._variants.get(form)
        if found is None:
            found = self._variants[form] = Variant(describe)
            if len(self._variants) > VARIANTS_MAX:
                self._variants.popitem(last=False)
        else:
            self._variants.move_to_end(form)
        return found
