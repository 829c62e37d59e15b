"""Asks the controller to create topics: for CreateTopics, for a client that names a missing topic, and for
the state topics at their first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from ...controller.remote.client import ControllerClient
from ...controller.state.model import RESOURCES_LEVEL, TopicState, metadata_level
from ...proto import controller_pb2 as pb
from ...runtime import logs
from ...wire.errors import ErrorCode, KafkaError
from ..settings.configuration import Configuration
from . import internal_topics
from .cluster_view import ClusterView

log = logs.get(__name__)

# How long a request waits until this node has applied the creation of its topic.
TOPIC_WAIT_S: Final = 5.0


class TopicCreation:
    """`logs_made(timeout_s)` returns when this node has created the logs of its new partitions; it raises
    TimeoutError."""

    def __init__(
        self,
        configuration: Configuration,
        cluster: ClusterView,
        controller: ControllerClient,
        logs_made: Callable[[float], Awaitable[None]],
    ) -> None:
        self._configuration = configuration
        self._cluster = cluster
        self._controller = controller
        self._logs_made = logs_made
        self._creating: dict[str, asyncio.Task[TopicState]] = {}

    async def wait_for_metadata(self, index: int) -> None:
        """Waits until this node has applied the change and created its logs, so that the client can read the
        change from it and write to the new partitions; for TOPIC_WAIT_S each at most: the change is made, and
        the client meets retriable errors while this node lags."""
        try:
            await self._cluster.wait_for_index(index, TOPIC_WAIT_S)
            await self._logs_made(TOPIC_WAIT_S)
        except TimeoutError:
            log.warning("metadata_lags", wanted=index, applied=self._cluster.metadata_index)

    async def create(self, request: pb.CreateTopicsRequest, timeout_s: float) -> pb.CreateTopicsReply:
        """Creates topics and waits until this node has applied them."""
        reply = await self._controller.create_topics(request, timeout_s)
        if not request.validate_only:
            await self.wait_for_metadata(reply.metadata_index)
        return reply

    def _creates(self, name: str) -> bool:
        enabled = self._configuration.flag("auto.create.topics.enable")
        return enabled and name not in internal_topics.INTERNAL_TOPICS

    def would_create(self, name: str) -> bool:
        """Whether `auto_create` makes the topic now, and does not wait for a creation that has begun."""
        return self._creates(name) and name not in self._creating

    async def auto_create(self, name: str) -> ErrorCode:
        """Creates a topic that a client named and that does not exist, when the settings allow it."""
        if not self._creates(name):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            await self._create_once(name)
        except KafkaError as error:
            return error.code
        return ErrorCode.LEADER_NOT_AVAILABLE  # the client asks again and finds it

    async def ensure_internal_topic(self, name: str) -> TopicState:
        """A state topic, created at its first use.  Raises KafkaError when it cannot be created now."""
        return self._cluster.state.topics.get(name) or await self._create_once(name)

    async def _create_once(self, name: str) -> TopicState:
        """Concurrent requests for one topic share one creation."""
        task = self._creating.get(name)
        if task is None:
            task = asyncio.create_task(self._create(name), name=f"create {name}")
            self._creating[name] = task
            task.add_done_callback(lambda _done: self._creating.pop(name, None))
        return await asyncio.shield(task)

    async def _create(self, name: str) -> TopicState:
        internal = name in internal_topics.INTERNAL_TOPICS
        if internal:
            partitions, replicas, config = internal_topics.settings(name, self._configuration)
        else:
            partitions, config = self._configuration.integer("num.partitions"), self.new_topic_config({})
            replicas = self._configuration.integer("default.replication.factor")
        request = pb.CreateTopicsRequest(allow_internal=internal)
        request.topics.add(name=name, partitions=partitions, replication_factor=replicas, config=config)
        reply = await self.create(request, timeout_s=10.0)
        result = reply.topics[0]
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(result.error), result.message)
        found = self._cluster.state.topics.get(name)
        if found is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} was created but is not known here yet")
        return found

    def new_topic_config(self, given: Mapping[str, str]) -> dict[str, str]:
        """The configuration of a new topic.  As long as the cluster has no min.insync.replicas of its own,
        that of this node's file is written into the topic, so that all nodes mean the same by it
        (`controller/state/topic_defaults.py`)."""
        if metadata_level(self._cluster.state.features) >= RESOURCES_LEVEL:
            return dict(given)
        return {"min.insync.replicas": str(self._configuration.integer("min.insync.replicas")), **given}
