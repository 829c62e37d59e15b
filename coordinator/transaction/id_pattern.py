"""Which transactional ids ListTransactions shows: those that a regular expression matches as a whole (RE2, KIP-1152)."""

from __future__ import annotations

from collections.abc import Callable

from ...wire.errors import ErrorCode, KafkaError
from ..group.consumer.patterns import UnsupportedPattern, topic_pattern


def matcher(pattern: str) -> Callable[[str], bool]:
    """Raises KafkaError INVALID_REGULAR_EXPRESSION.  An empty pattern matches all."""
    if not pattern:
        return lambda _transactional_id: True
    try:
        return topic_pattern(pattern).matches
    except UnsupportedPattern as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"transactional id pattern {pattern!r}: {error}") from error
