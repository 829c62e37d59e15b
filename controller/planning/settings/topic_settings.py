"""What a change makes of a topic's settings, and what state topics may carry.

For `planning/topics.py` and its neighbours here, and as pure: `future_config` carries out the single edits of
a request; `check_state_topic` holds the settings on which the coordinators' promises rest (docs/semantics.md
T2), for every client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ....proto import controller_pb2 as rpc
from ....storage.topic_config import TOPIC_CONFIGS, ConfigType, effective_topic_config, split_list
from ....wire.errors import ErrorCode, KafkaError
from ...state.model import (
    FLUSH_POLICY_CONFIG,
    MIN_IN_SYNC_REPLICAS_CONFIG,
    UNCLEAN_ELECTION_CONFIG,
    TopicState,
)

# Without these a decision of a transaction, or a committed offset, could be lost although it was answered.
_STATE_TOPIC_VALUES: Final = {
    "cleanup.policy": "compact",
    FLUSH_POLICY_CONFIG: "always",
    UNCLEAN_ELECTION_CONFIG: "false",
}
_MESSAGE_BYTES: Final = "max.message.bytes"
# What an operator may change freely: sizes and times of files, and how fast replicas catch up, which no
# promise rests on.
_STATE_TOPIC_FREE: Final = frozenset(
    {"segment.bytes", "segment.ms", "segment.jitter.ms", "segment.index.bytes", "index.interval.bytes",
     "min.cleanable.dirty.ratio", "file.delete.delay.ms", "preallocate",
     "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)  # fmt: skip
_STATE_TOPIC_FLOORS: Final = frozenset({MIN_IN_SYNC_REPLICAS_CONFIG, _MESSAGE_BYTES})


def future_config(present: Mapping[str, str], change: rpc.ConfigChange) -> dict[str, str]:
    """The topic's own settings after the change, not validated yet.  Raises as `edited` does."""
    return edited(present, change, _list_default)


def edited(
    present: Mapping[str, str], change: rpc.ConfigChange, list_default: Callable[[str, str], str]
) -> dict[str, str]:
    """What is set after the change, not validated yet.  What was never set can be removed.  Raises
    INVALID_REQUEST when one key is edited twice; `list_default(key, verb)` is what a list has without a
    value, or raises for what is no list."""
    times = Counter((*change.set, *change.remove, *change.append, *change.subtract))
    twice = sorted(key for key, count in times.items() if count > 1)
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"one request changes {', '.join(twice)} more than once")
    future = (
        {}
        if change.replace_all
        else {key: value for key, value in present.items() if key not in change.remove}
    )
    future.update(change.set)
    for key, text in change.append.items():
        default = list_default(key, "APPEND")
        values = split_list(present.get(key, default))
        future[key] = ",".join([*values, *(value for value in split_list(text) if value not in values)])
    for key, text in change.subtract.items():
        default, gone = list_default(key, "SUBTRACT"), split_list(text)
        future[key] = ",".join(value for value in split_list(present.get(key, default)) if value not in gone)
    return future


def _list_default(key: str, _verb: str) -> str:
    known = TOPIC_CONFIGS.get(key)
    if known is None or known.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"cannot append to {key} or subtract from it: it is no list"
        )
    return known.default


def check_stays_compacted(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG when a topic is to be compacted no longer: its logs have gaps in their offsets by
    then, and where logs may have none a gap is taken for lost data, by followers and after a crash."""
    was, is_now = (split_list(effective_topic_config(config)["cleanup.policy"]) for config in (before, after))
    if "compact" in was and "compact" not in is_now:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"topic {name!r} is compacted and has to stay so: to let old segments go as well, set "
            "cleanup.policy=compact,delete",
        )


def check_may_be_flushed(topic: TopicState, after: Mapping[str, str]) -> None:
    """Raises POLICY_VIOLATION when a topic is to be flushed from now on while a replica is away.  After an
    unclean stop that may lack what it acknowledged before the change, and would be taken for complete, as one
    of a flushed topic is (KIP-966)."""
    if (
        topic.flushed_before_acknowledged
        or not replace(topic, config=dict(after)).flushed_before_acknowledged
    ):
        return
    away = sorted(
        number
        for number, partition in topic.partitions.items()
        if not set(partition.replicas) <= set(partition.isr)
    )
    if away:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{FLUSH_POLICY_CONFIG}=always: {len(away)} partitions of {topic.name!r} ({away[0]} "
            "among them) have replicas that"
            " are not in sync, and may have lost what they never flushed: wait until all are in sync",
        )


def check_state_topic(name: str, config: Mapping[str, str], topic: TopicState | None = None) -> None:
    """Raises POLICY_VIOLATION for settings that would make a state topic unsafe.  `topic`: as it is, when it
    exists already."""
    present = {} if topic is None else topic.config
    effective = effective_topic_config(config)
    for key, value in _STATE_TOPIC_VALUES.items():
        if key in config and effective[key].strip().lower() != value:
            raise _unsafe(name, f"{key} stays {value!r}")
    if topic is None:
        return  # the brokers' own configuration says the rest
    for key in sorted({*config, *present}):
        if config.get(key) == present.get(key) or key in _STATE_TOPIC_FREE:
            continue
        if key not in _STATE_TOPIC_FLOORS:
            raise _unsafe(name, f"{key} cannot be changed")
        least = _least(topic, key)
        if int(effective[key]) < least:
            raise _unsafe(name, f"{key} must be at least {least}, not {effective[key]}")


def _least(topic: TopicState, key: str) -> int:
    """The present value, or what is safe in any case when the present value is above that.  (A cluster that
    was set up with less keeps it: a node that is alone has no second replica to wait for.)"""
    present = int(effective_topic_config(topic.config)[key])
    if key == _MESSAGE_BYTES:
        return min(present, int(TOPIC_CONFIGS[key].default))
    replicas = len(topic.partitions[0].future_replicas) if topic.partitions else 1
    return min(present, replicas // 2 + 1)


def _unsafe(name: str, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.POLICY_VIOLATION, f"{name!r} holds the coordinators' state: {reason}")
