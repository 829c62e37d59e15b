"""Feature levels: the finalised levels of a cluster, and which nodes may take part (KIP-584).

The finalised levels stand in the cluster's state.  A level may be raised only when every registered broker
and every voter of the quorum knows it (`feature_updates.py`); from then on a node that does not know it
cannot take part: `level_problem` rejects the registration of a broker, and `check_known` stops a voter or a
reader of the metadata log that meets the level there.  So no node applies an entry that it would understand
otherwise.

How something new in the metadata is gated.  Its level is the one after `model.RELEASED_LEVEL`, the highest
that a release has (`model.py` has a name for each level).  A new *operation* of the log gets its level in
`model.OPERATION_LEVELS`: below it no node applies one; the plan calls `require_level` first, so that the
client gets an error that says why.  A new *field* of an operation that exists is planned only after
`require_level`, or left out below the level, and has an effect only where `metadata_level(features)` has
reached it (`partition_changes.py` shows how); a field of a snapshot is empty below its level.
Both stand in `model.FIELD_LEVELS` (`test_field_levels.py` plays plans and snapshots at each level).  A new
*setting* of a topic, and a new value of an old one, gets its level in `SETTING_LEVELS` or `VALUE_LEVELS`
here, a new setting of nodes in `planning/settings/node_settings.py`: the plans of CreateTopics and
AlterConfigs refuse it below that, and what a node writes by itself (state topics, auto-creation) leaves it
out.  Tests hold that no operation, field, setting or value is without a level, or has one that a release has.
What travels only in a request between nodes needs no level, where a receiver of an older version may ignore
it.

The feature's name was `metadata.version` up to level 3, which in Kafka is another thing: its tools would
print a release of Kafka for it.  In the log those levels keep that name, and level 4 takes its place under
the new one: a node that only knows the former name stops there.  Clients get the new name alone, at every
level (`shown`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...proto import controller_pb2 as rpc
from ...wire.errors import ErrorCode, KafkaError
from .model import (
    FEATURE_LEVEL_MIN,
    FORMER_METADATA_VERSION,
    METADATA_VERSION,
    RESOURCES_LEVEL,
    SUPPORTED_FEATURES,
    metadata_level,
)

Ranges = Mapping[str, tuple[int, int]]
"""Feature -> (lowest, highest) level that a node knows."""

SUPPORTED: Ranges = {name: (FEATURE_LEVEL_MIN[name], level) for name, level in SUPPORTED_FEATURES.items()}
"""The ranges of this node, as it sends them to other nodes."""

SETTING_LEVELS: Final[Mapping[str, int]] = dict.fromkeys(
    (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    ),
    RESOURCES_LEVEL,
)
"""The settings of topics that not every level has; the others came with level 1.  (Those of nodes:
`node_settings.py`.)"""

VALUE_LEVELS: Final[Mapping[str, Mapping[str, int]]] = {
    "cleanup.policy": {"": RESOURCES_LEVEL},
    "compression.type": dict.fromkeys(("uncompressed", "zstd", "lz4", "snappy", "gzip"), RESOURCES_LEVEL),
}
"""Setting -> value -> level, for values that not every level of the setting has."""


class UnknownLevel(Exception):
    """The cluster has finalised a level that this version of the node does not know: it must not go on."""


def level_problem(subject: str, known: Ranges, finalised: Mapping[str, int]) -> str | None:
    """Why the node `subject` cannot take part in a cluster with these levels, in words for the operator; None
    when it can."""
    for name in sorted(finalised):
        level, (low, high) = finalised[name], known.get(name, (0, 0))
        if level > high:
            supports = f"knows at most {high}" if high else "does not know it"
            return f"the cluster runs {name}={level}, {subject} {supports}: upgrade it"
        if level < low:
            return (
                f"the cluster runs {name}={level}, {subject} needs at least {low}: first run `tidegate "
                "features upgrade`"
            )
    return None


def check_known(node_id: int, finalised: Mapping[str, int]) -> None:
    """Raises UnknownLevel when this very process cannot follow the metadata any further."""
    problem = level_problem(f"node {node_id}", SUPPORTED, finalised)
    if problem is not None:
        raise UnknownLevel(problem)


def require_level(finalised: Mapping[str, int], level: int) -> None:
    """Raises UNSUPPORTED_VERSION: what is asked for came with this level of the metadata, and not every node
    may know it."""
    _require(finalised, level, "this")


def require_setting_levels(
    finalised: Mapping[str, int], settings: Mapping[str, str], levels: Mapping[str, int] | None = None
) -> None:
    """Raises UNSUPPORTED_VERSION for settings, or values, that not every node may know; `levels`: of those of
    nodes."""
    levels = SETTING_LEVELS if levels is None else levels
    for name in sorted(settings):
        _require(finalised, levels.get(name, 1), name)
        of_values = VALUE_LEVELS.get(name, {})
        for value in (part.strip() for part in settings[name].split(",")):
            _require(finalised, of_values.get(value, 1), f"{name}={value}")


def _require(finalised: Mapping[str, int], level: int, what: str) -> None:
    present = metadata_level(finalised)
    if present < level:
        message = f"{METADATA_VERSION} is {present}, {what} needs {level}: `tidegate features upgrade`"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)


def shown(finalised: Mapping[str, int]) -> dict[str, int]:
    """The finalised levels as clients see them."""
    others = {name: level for name, level in finalised.items() if name != FORMER_METADATA_VERSION}
    return dict(sorted({**others, METADATA_VERSION: metadata_level(finalised)}.items()))


def shown_ranges() -> Ranges:
    """What this node knows, as clients see it."""
    return {name: known for name, known in SUPPORTED.items() if name != FORMER_METADATA_VERSION}


def highest_known(known: Ranges, name: str) -> int:
    """The highest level of this feature that a node with these ranges knows; 0: none."""
    former = known.get(FORMER_METADATA_VERSION, (0, 0))[1] if name == METADATA_VERSION else 0
    return max(former, known.get(name, (0, 0))[1])


def ranges_of(features: Iterable[rpc.FeatureRange]) -> Ranges:
    return {each.name: (each.min_level, each.max_level) for each in features}


def as_messages(known: Ranges) -> list[rpc.FeatureRange]:
    return [
        rpc.FeatureRange(name=name, min_level=low, max_level=high)
        for name, (low, high) in sorted(known.items())
    ]
