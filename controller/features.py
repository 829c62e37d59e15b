"""Feature levels: what a cluster has agreed on, and who may take part (KIP-584).

The finalised levels stand in the cluster's state.  A level may be raised only when every registered broker and every voter of
the quorum knows it (`feature_updates.py`); from then on a node that does not know it is refused: as a broker by `level_problem`
when it registers, as a voter or as a reader of the metadata log when it meets the level there (`check_known`).  So no entry is
ever applied by a node that would make something else of it.

Pure, like `active.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..proto import controller_pb2 as rpc
from ..wire.errors import ErrorCode, KafkaError
from .model import FEATURE_LEVEL_MIN, METADATA_VERSION, SUPPORTED_FEATURES

Ranges = Mapping[str, tuple[int, int]]
"""Feature -> (lowest, highest) level that a node knows."""

SUPPORTED: Ranges = {name: (FEATURE_LEVEL_MIN[name], level) for name, level in SUPPORTED_FEATURES.items()}


class UnknownLevel(Exception):
    """The cluster has finalised a level that this version of the node does not know: it must not go on."""


def level_problem(who: str, known: Ranges, finalised: Mapping[str, int]) -> str | None:
    """Why `who` cannot take part in a cluster with these levels, in words for the operator; None when it can."""
    for name in sorted(finalised):
        level, (low, high) = finalised[name], known.get(name, (0, 0))
        if level > high:
            supports = f"knows at most {high}" if high else "does not know it"
            return f"the cluster runs {name}={level}, {who} {supports}: upgrade it"
        if level < low:
            return f"the cluster runs {name}={level}, {who} needs at least {low}: first run `tidegate features upgrade`"
    return None


def check_known(node_id: int, finalised: Mapping[str, int]) -> None:
    """Raises UnknownLevel when this very process cannot follow the metadata any further."""
    problem = level_problem(f"node {node_id}", SUPPORTED, finalised)
    if problem is not None:
        raise UnknownLevel(problem)


def require_level(finalised: Mapping[str, int], level: int) -> None:
    """Raises UNSUPPORTED_VERSION: what is asked for came with this level of metadata.version, and not every node may know it."""
    present = finalised.get(METADATA_VERSION, 0)
    if present < level:
        message = f"{METADATA_VERSION} is {present}, this needs {level}: `tidegate features upgrade`"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)


def ranges_of(features: Iterable[rpc.FeatureRange]) -> Ranges:
    return {each.name: (each.min_level, each.max_level) for each in features}


def as_messages(known: Ranges) -> list[rpc.FeatureRange]:
    return [rpc.FeatureRange(name=name, min_level=low, max_level=high) for name, (low, high) in sorted(known.items())]
