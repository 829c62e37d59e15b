"""Settings of this node as they hold now: by the metadata (KIP-226), else by the file, else by default; and
what topics inherit of them.  Read on the node's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from ...controller.planning.settings.node_settings import effective
from ...controller.state.broker_settings import (
    BROKER_SETTINGS,
    CATCH_UP_SETTING,
    CONNECTIONS_OVERRIDES_SETTING,
    CONNECTIONS_PER_IP_SETTING,
    CONNECTIONS_SETTING,
    FOLLOWER_THROTTLE_SETTING,
    LEADER_THROTTLE_SETTING,
    LOG_DIRS_THROTTLE_SETTING,
    PRODUCER_ID_EXPIRATION_SETTING,
    connection_overrides,
)
from ...controller.state.model import TopicState
from ...controller.state.topic_defaults import NodeConfigs, inherited
from ...replication.fetching.configuration import ReplicationLimits
from ...runtime.network import FrameServer
from .configuration import Configuration

Key = tuple[str, int]
SLICE_S: Final = 0.002


class RunTimeSettings:
    """`update` with each new `ClusterState.node_configs`."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._present: NodeConfigs | None = None
        self._values: dict[str, str] = {}
        self._inherited: dict[str, str] = {}
        # topic -> its own, and with what it inherits
        self._merged: dict[str, tuple[dict[str, str], dict[str, str]]] = {}

    def update(self, present: NodeConfigs) -> bool:
        """False when these are the ones that were acted on last."""
        if present is self._present:
            return False
        self._present = present
        self._values = effective(present, self._configuration.node_id)
        return True

    def update_topics(self, present: NodeConfigs) -> bool:
        """Whether topics inherit something else from now on."""
        found = inherited(present, self._configuration.node_id)
        changed, self._inherited = found != self._inherited, found
        if changed:
            self._merged.clear()
        return changed

    def text(self, name: str) -> str:
        found = self._values.get(name)
        if found is not None:
            return found
        values = self._configuration.values
        return str(values[name]) if name in values else BROKER_SETTINGS[name].default or ""

    def number(self, name: str) -> int:
        """0 when it has no value and no default."""
        return (
            int(min(float(text), 2.0**62))
            if "." in (text := self.text(name)) or "e" in text.lower()
            else int(text or 0)
        )

    def topic_config(self, topic: TopicState) -> dict[str, str]:
        """What holds for a topic on this node; the same object as long as nothing changes."""
        if topic.internal or not self._inherited:
            return topic.config
        known = self._merged.get(topic.name)
        if known is None or known[0] is not topic.config:
            known = self._merged[topic.name] = (topic.config, {**self._inherited, **topic.config})
        return known[1]

    def forget_topic(self, name: str) -> None:
        self._merged.pop(name, None)

    def replication_limits(self) -> ReplicationLimits:
        return ReplicationLimits(
            catch_up_bytes_per_s=self.number(CATCH_UP_SETTING) or None,
            leader_throttled_bytes_per_s=self._rate(LEADER_THROTTLE_SETTING),
            follower_throttled_bytes_per_s=self._rate(FOLLOWER_THROTTLE_SETTING),
            producer_id_expiration_ms=self.number(PRODUCER_ID_EXPIRATION_SETTING),
        )

    def log_dirs_rate(self) -> int | None:
        """Bytes a second of all replicas that move between data folders; None: no limit."""
        return self._rate(LOG_DIRS_THROTTLE_SETTING)

    def _rate(self, name: str) -> int | None:
        """Without a value there is no limit; 0 lets nothing through, as in Kafka."""
        return self.number(name) if name in self._values else None

    def limit_connections(self, listener: FrameServer) -> None:
        """From the next connection on."""
        overrides = connection_overrides(self.text(CONNECTIONS_OVERRIDES_SETTING))
        listener.limit_connections(
            self.number(CONNECTIONS_SETTING), self.number(CONNECTIONS_PER_IP_SETTING), overrides
        )


class InheritedSettings:
    """What topics inherit has changed (KIP-226): every partition of the node is given its settings anew, in
    slices of the loop's time.  `begin_again` starts over with all partitions, also when a former round has
    not ended.

    A node may hold thousands of partitions; between two slices the loop does all else that is due.  Whatever
    the metadata say of a partition meanwhile is applied at once, with the newest settings.  What the
    controller counts on (`CONTROLLERS_DEFAULTS`, such as min.insync.replicas) is part of every topic's own
    state, and never comes here: an acknowledgement must not rest on an older one.
    """

    def __init__(
        self,
        apply: Callable[[Key], None],
        now: Callable[[], float],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`apply(key)`: the partition's newest metadata, which may have ended it meanwhile."""
        self._apply = apply
        self._now = now
        self._on_failure = on_failure
        self._left: Iterator[Key] = iter(())
        self._next: asyncio.Handle | None = None

    def begin_again(self, keys: Iterator[Key]) -> None:
        """Begins with the first slice; `keys` are asked for one by one, and may take time to find as well."""
        self.stop()
        self._left = keys
        self._slice()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _slice(self) -> None:
        self._next = None
        until = self._now() + SLICE_S
        try:
            for key in self._left:
                self._apply(key)
                if self._now() >= until:
                    self._next = asyncio.get_running_loop().call_soon(self._slice)
                    return
        except Exception as error:  # the broker no longer does what the metadata say
            self._on_failure(error)
