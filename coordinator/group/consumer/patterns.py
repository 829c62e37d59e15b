"""Topic names by regular expression (KIP-848 SubscribedTopicRegex), by RE2's rules, in time linear in the name.

Members send patterns in RE2's syntax; Kafka compiles them by re2j, and this by RE2 itself (`google-re2`): the same language but
for what is named in `topic_pattern`.  A pattern must match the whole name.

Even linear time is too much for one turn of the loop where a pattern is large and the topics are many.  `MatchedTopics` looks at
each name once for each pattern, a few at a time, and remembers; until it has seen them all a group goes on with what it had.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Final

PATTERN_MAX_LENGTH: Final = 1_000
PATTERNS_MAX: Final = 64
NAMES_AT_A_TIME: Final = 50
"""A pattern made for that takes 1.5 ms for a name of 249 characters; usual ones 2 microseconds."""
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


class MatchedTopics:
    """Which of the names there are each pattern matches.  Remembers the `PATTERNS_MAX` patterns that were asked for last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[str, bool]] = OrderedDict()

    def look(self, pattern: str, names: Iterable[str], at_most: int = NAMES_AT_A_TIME) -> bool:
        """Looks at some names that this pattern has not been held against; False while there are more."""
        seen = self._seen.setdefault(pattern, {})
        self._seen.move_to_end(pattern)
        while len(self._seen) > PATTERNS_MAX:
            self._seen.popitem(last=False)
        fresh = list(islice((name for name in names if name not in seen), at_most + 1))
        compiled = topic_pattern(pattern)
        seen.update((name, compiled.matches(name)) for name in fresh[:at_most])
        return len(fresh) <= at_most

    def matching(self, pattern: str, names: Iterable[str]) -> set[str] | None:
        """Those of the names that match; None while some were not looked at."""
        present = set(names)
        if not self.look(pattern, present):
            return None
        seen = self._seen[pattern]
        for gone in seen.keys() - present:
            del seen[gone]
        return {name for name, matches in seen.items() if matches}
