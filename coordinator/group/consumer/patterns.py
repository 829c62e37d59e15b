"""Topic names by regular expression (KIP-848 SubscribedTopicRegex), by RE2's rules, in time linear in the
name.

Members send patterns in RE2's syntax; Kafka compiles them by re2j, this module by RE2 itself (`google-re2`):
the same language except for the differences that `topic_pattern` names.  A pattern must match the whole name.

Even linear time is too long for one turn of the event loop where a pattern is large and the topics are many.
`MatchedTopics` matches each name once against each pattern, a few in each turn, and keeps the results; until
all names are matched a group keeps its former topics.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Final

PATTERN_MAX_LENGTH: Final = 1_000
PATTERNS_MAX: Final = 64
"""How many patterns without a group are kept: the coordinator matches a member's pattern before the member is
in the group."""
_MEMORY_BYTES_MAX: Final = 256 << 10
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|$)|\\(.)", re.DOTALL)
_FORMER = re.compile(r"(?:[\w.*+?|()^$\- ]|\\[.dws]){0,200}", re.ASCII)


class UnsupportedPattern(ValueError):
    """The pattern is no regular expression, or one that this module does not support."""


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        import re2  # most nodes never see a pattern

        options = re2.Options()
        options.log_errors, options.never_capture, options.max_mem = False, True, _MEMORY_BYTES_MAX
        if len(pattern) > PATTERN_MAX_LENGTH:
            raise UnsupportedPattern(f"it is longer than {PATTERN_MAX_LENGTH} characters")
        if any(escape[1] == "C" for escape in _ESCAPE.finditer(pattern)):
            # a byte, perhaps half a character; re2j has none
            raise UnsupportedPattern("invalid escape sequence: \\C")
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            raise UnsupportedPattern(
                reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            ) from error
        except UnicodeEncodeError as error:
            raise UnsupportedPattern("it is not text") from error

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None


@lru_cache(maxsize=PATTERNS_MAX)
def topic_pattern(pattern: str) -> TopicPattern:
    """The compiled pattern; raises UnsupportedPattern.  Unlike Kafka it rejects a pattern that is very long,
    or whose counted repeats multiply to more than a thousand."""
    return TopicPattern(pattern)


def is_former_pattern(pattern: str) -> bool:
    """Whether a coordinator of the version before RE2 understands the pattern, too: in a rolling upgrade it
    may have to."""
    return _FORMER.fullmatch(pattern) is not None and "(?" not in pattern


class _Matches:
    """matching: the matching ones of the first `matched_count` names."""

    __slots__ = ("matched_count", "matching")

    def __init__(self) -> None:
        self.matched_count = 0
        self.matching: list[str] = []


class MatchedTopics:
    """Which topic names each pattern matches.

    Names are kept in the order in which they first came, and each pattern is matched against them in that
    order, once against each, so that one number says how far it is.  All patterns `in_use` are kept (no more
    than the groups have members), and besides the `PATTERNS_MAX` that were asked for last.
    """

    def __init__(self, in_use: Callable[[], Collection[str]] = tuple) -> None:
        self._in_use = in_use
        self._order: list[str] = []
        self._present: set[str] = set()
        self._seen: OrderedDict[str, _Matches] = OrderedDict()
        self._forget_from = PATTERNS_MAX + 1

    def set_names(self, names: Iterable[str]) -> None:
        """Sets the present names.  Deleted names stay in the order until they make up half of it."""
        present = set(names)
        if len(self._order) > 2 * len(present):
            gone_before = [0, *accumulate(name not in present for name in self._order)]
            self._order = [name for name in self._order if name in present]
            for seen in self._seen.values():
                seen.matched_count -= gone_before[seen.matched_count]
                seen.matching = [name for name in seen.matching if name in present]
        known = set(self._order)
        self._order += (name for name in present if name not in known)
        self._present = present

    @property
    def count(self) -> int:
        """The number of patterns that are kept."""
        return len(self._seen)

    def knows(self, pattern: str) -> bool:
        return pattern in self._seen

    def is_complete(self, pattern: str) -> bool:
        """Whether the pattern is matched against every name."""
        seen = self._seen.get(pattern)
        return seen is not None and seen.matched_count == len(self._order)

    def match_more(self, pattern: str, has_time: Callable[[], bool]) -> bool:
        """Matches the pattern against further names while `has_time()`, and against at least one; False while
        names are left."""
        seen = self._seen.get(pattern)
        if seen is None:
            seen = self._seen[pattern] = _Matches()
            if len(self._seen) >= self._forget_from:
                self.forget()
        self._seen.move_to_end(pattern)
        if seen.matched_count < len(self._order):
            try:
                matches = topic_pattern(pattern).matches
            # a coordinator of another version accepted it: it matches nothing here
            except UnsupportedPattern:
                seen.matched_count = len(self._order)
                return True
            while True:
                name = self._order[seen.matched_count]
                if matches(name):
                    seen.matching.append(name)
                seen.matched_count += 1
                if seen.matched_count == len(self._order) or not has_time():
                    break
        return seen.matched_count == len(self._order)

    def matching(self, pattern: str) -> set[str] | None:
        """The matching names; None while names are left to match."""
        if not self.is_complete(pattern):
            return None
        self._seen.move_to_end(pattern)
        return self._present.intersection(self._seen[pattern].matching)

    def forget(self) -> None:
        """Drops patterns that are not in use.  Asking for those in use is expensive, so the next call waits
        until the number of kept patterns has doubled."""
        in_use = set(self._in_use())
        idle = [pattern for pattern in self._seen if pattern not in in_use]
        for pattern in idle[: max(0, len(idle) - PATTERNS_MAX)]:
            del self._seen[pattern]
        self._forget_from = max(PATTERNS_MAX + 1, 2 * len(self._seen))
