"""The gate of the groups' records: what a record may hold has the level of `tidegate.metadata.version` from
which on it is written (docs/tour.md, the rule for mixed versions).

The levels stand beside what they are of: the versions of values, and the tagged fields, in the `records.py`
of each type, the states in its `state.py`.
"""

from __future__ import annotations

from typing import Final

from ...controller.state.model import FEATURE_LEVEL_MIN, METADATA_VERSION, SUPPORTED_FEATURES
from ...wire.errors import ErrorCode, KafkaError

FIRST_LEVEL: Final = FEATURE_LEVEL_MIN[METADATA_VERSION]
NEWEST_LEVEL: Final = SUPPORTED_FEATURES[METADATA_VERSION]


def require_level(stored_from: int | None, level: int, *what: object) -> None:
    """Raises UNSUPPORTED_VERSION below the level from which on this is written; None: it is written at
    every one.  The client gets the error, and the log nothing."""
    if stored_from is not None and stored_from > level:
        named = " ".join(str(part) for part in what)
        message = f"{METADATA_VERSION} is {level}, {named} needs {stored_from}: `tidegate features upgrade`"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
