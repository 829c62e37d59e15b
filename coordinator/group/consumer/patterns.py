"""Topic names by regular expression (KIP-848 SubscribedTopicRegex), by RE2's rules, in time linear in the name.

Members send patterns in RE2's syntax; Kafka compiles them by re2j, and this by RE2 itself (`google-re2`): the same language but
for what is named in `topic_pattern`.  A pattern must match the whole name.

Even linear time is too much for one turn of the loop where a pattern is large and the topics are many.  `MatchedTopics` looks at
each name once for each pattern, as many at a time as there is time for, and remembers; until it has seen them all a group goes on
with what it had.
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
"""That no present group uses: a member's pattern is learned before the member is in the group."""
_MEMORY_BYTES_MAX: Final = 256 << 10
_ESCAPE = re.compile(r"\\Q.*?(?:\\E|$)|\\(.)", re.DOTALL)
_FORMER = re.compile(r"(?:[\w.*+?|()^$\- ]|\\[.dws]){0,200}", re.ASCII)


class UnsupportedPattern(ValueError):
    """The pattern is no regular expression, or one that is not spoken here."""


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        import re2  # most nodes never see a pattern

        options = re2.Options()
        options.log_errors, options.never_capture, options.max_mem = False, True, _MEMORY_BYTES_MAX
        if len(pattern) > PATTERN_MAX_LENGTH:
            raise UnsupportedPattern(f"it is longer than {PATTERN_MAX_LENGTH} characters")
        if any(escape[1] == "C" for escape in _ESCAPE.finditer(pattern)):
            raise UnsupportedPattern("invalid escape sequence: \\C")  # a byte, perhaps half a character; re2j has none
        try:
            self._compiled = re2.compile(pattern, options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            raise UnsupportedPattern(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from error
        except UnicodeEncodeError as error:
            raise UnsupportedPattern("it is not text") from error

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None


@lru_cache(maxsize=PATTERNS_MAX)
def topic_pattern(pattern: str) -> TopicPattern:
    """The compiled pattern; raises UnsupportedPattern.  Refused, other than by Kafka, is one that is very long, or whose counted
    repeats multiply to more than a thousand."""
    return TopicPattern(pattern)


def is_former_pattern(pattern: str) -> bool:
    """Whether a coordinator of the version before RE2 surely understands it: it may have to, in a rolling upgrade."""
    return _FORMER.fullmatch(pattern) is not None and "(?" not in pattern


class _Matches:
    """matching: of the first `looked_at` names in order."""

    __slots__ = ("looked_at", "matching")

    def __init__(self) -> None:
        self.looked_at = 0
        self.matching: list[str] = []


class MatchedTopics:
    """Which of the names there are each pattern matches.

    Names stand in the order in which they were first seen, and a pattern is held against them in that order, once against each,
    so that it knows where it is by one number.  Remembered are all patterns `in_use`, of which there are no more than the groups
    have members, and besides `PATTERNS_MAX` of those that were asked for last.
    """

    def __init__(self, in_use: Callable[[], Collection[str]] = tuple) -> None:
        self._in_use = in_use
        self._order: list[str] = []
        self._present: set[str] = set()
        self._seen: OrderedDict[str, _Matches] = OrderedDict()
        self._forget_from = PATTERNS_MAX + 1

    def set_names(self, names: Iterable[str]) -> None:
        """Those there are now.  Names that are gone stay in the order until they are the half of it."""
        present = set(names)
        if len(self._order) > 2 * len(present):
            gone_before = [0, *accumulate(name not in present for name in self._order)]
            self._order = [name for name in self._order if name in present]
            for seen in self._seen.values():
                seen.looked_at -= gone_before[seen.looked_at]
                seen.matching = [name for name in seen.matching if name in present]
        known = set(self._order)
        self._order += (name for name in present if name not in known)
        self._present = present

    @property
    def count(self) -> int:
        """Of the patterns remembered."""
        return len(self._seen)

    def knows(self, pattern: str) -> bool:
        return pattern in self._seen

    def is_whole(self, pattern: str) -> bool:
        """Whether the pattern was held against every name."""
        seen = self._seen.get(pattern)
        return seen is not None and seen.looked_at == len(self._order)

    def look(self, pattern: str, has_time: Callable[[], bool]) -> bool:
        """Holds the pattern against more names while there is time, and against one in any case; False while there are more."""
        seen = self._seen.get(pattern)
        if seen is None:
            seen = self._seen[pattern] = _Matches()
            if len(self._seen) >= self._forget_from:
                self.forget()
        self._seen.move_to_end(pattern)
        if seen.looked_at < len(self._order):
            try:
                matches = topic_pattern(pattern).matches
            except UnsupportedPattern:  # which a coordinator of another version took: it matches nothing here
                seen.looked_at = len(self._order)
                return True
            while True:
                name = self._order[seen.looked_at]
                if matches(name):
                    seen.matching.append(name)
                seen.looked_at += 1
                if seen.looked_at == len(self._order) or not has_time():
                    break
        return seen.looked_at == len(self._order)

    def matching(self, pattern: str) -> set[str] | None:
        """Those of the names that match; None while some were not looked at."""
        if not self.is_whole(pattern):
            return None
        self._seen.move_to_end(pattern)
        return self._present.intersection(self._seen[pattern].matching)

    def forget(self) -> None:
        """Asks for what is in use, which is dear, and so is done again only when as many were added as are left."""
        in_use = set(self._in_use())
        idle = [pattern for pattern in self._seen if pattern not in in_use]
        for pattern in idle[: max(0, len(idle) - PATTERNS_MAX)]:
            del self._seen[pattern]
        self._forget_from = max(PATTERNS_MAX + 1, 2 * len(self._seen))
