"""Topic names by regular expression (KIP-848 SubscribedTopicRegex), in time linear in the name.

Members send patterns in RE2's syntax, and the coordinator matches them against every topic, on the loop that serves everybody:
an engine that backtracks would let one client stop a node.  So a pattern becomes a small program of states, all of which are
followed at once; what was seen of a set of states and a character is remembered.

Spoken: characters, `.`, classes with ranges and \\d \\w \\s, groups (no captures are made), `|`, `* + ?` and counted repeats,
greedy or not, `^ $ \\A \\z`.  Not spoken, and refused: flags, \\b, \\Q..\\E, names of Unicode or POSIX classes, and patterns
of more than PROGRAM_MAX states.  A pattern must match the whole name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

PATTERN_MAX_LENGTH: Final = 1_000
PROGRAM_MAX: Final = 250
_BUILDS_MAX: Final = 10_000  # a repeat of nothing adds no states, but costs time
_MEMORY_MAX: Final = 30_000  # states in all remembered sets
_LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
_CLASSES: dict[str, Ranges] = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: dict[str, str] = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class UnsupportedPattern(ValueError):
    """The pattern is no regular expression, or one that is not spoken here."""


@dataclass(frozen=True, slots=True)
class _Character:
    """One character out of some ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Anchor:
    at_begin: bool


_Node = _Character | _Sequence | _Choice | _Repeat | _Anchor


def _complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found, first = [], 0
    for low, high in sorted(ranges):
        if low > first:
            found.append((first, low - 1))
        first = max(first, high + 1)
    return (*found, (first, _LAST)) if first <= _LAST else tuple(found)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def parse(self) -> _Node:
        node = self.choice()
        if self.at < len(self.text):
            raise UnsupportedPattern(f"a ')' at {self.at} closes nothing")
        return node

    def _next(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _take(self) -> str:
        if self.at >= len(self.text):
            raise UnsupportedPattern("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def _skip(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def choice(self) -> _Node:
        parts = [self._sequence()]
        while self._skip("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        if self._bounds() is not None:
            raise UnsupportedPattern(f"what stands before {self.at} repeats nothing")
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._skip("?")  # lazy or not, the whole name must match
        if self._bounds() is not None:
            raise UnsupportedPattern(f"a repeat of a repeat before {self.at}")
        return _Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(sign):
                return bounds
        end = self.text.find("}", self.at)
        if self._next() != "{" or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not (low.isascii() and low.isdecimal() and (not high or (high.isascii() and high.isdecimal()))):
            return None  # a brace that means itself, as in RE2
        self.at = end + 1
        least, most = int(low), int(low) if not comma else int(high) if high else None
        if least > 1_000 or (most is not None and not least <= most <= 1_000):
            raise UnsupportedPattern(f"a repeat of {low}{comma}{high} times")
        return least, most

    def _atom(self) -> _Node:
        match self._take():
            case "(":
                if self._skip("?") and not self._skip(":"):
                    raise UnsupportedPattern(f"flags, names and look-around at {self.at} are not spoken")
                node = self.choice()
                if not self._skip(")"):
                    raise UnsupportedPattern("a group is not closed")
                return node
            case "[":
                return self._class()
            case ".":
                return _Character(_complement([(10, 10)]))
            case "^":
                return _Anchor(at_begin=True)
            case "$":
                return _Anchor(at_begin=False)
            case "\\":
                return self._escape()
            case character:
                return _Character(((ord(character), ord(character)),))

    def _escape(self) -> _Node:
        if self._skip("A"):
            return _Anchor(at_begin=True)
        if self._skip("z"):
            return _Anchor(at_begin=False)
        return _Character(self._escaped())

    def _escaped(self) -> Ranges:
        character = self._take()
        if character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            return ranges if character.islower() else _complement(ranges)
        if character.isalnum():
            if character not in _CONTROLS:
                raise UnsupportedPattern(f"\\{character} is not spoken")
            character = _CONTROLS[character]
        return ((ord(character), ord(character)),)

    def _class(self) -> _Node:
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._next() != "]":
            first = False
            if self.text.startswith("[:", self.at):
                raise UnsupportedPattern("named classes are not spoken")
            low = self._member()
            if self._next() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or not low[0][0] <= high[0][0] == high[0][1]:
                    raise UnsupportedPattern(f"a range before {self.at} has no ends in order")
                low = ((low[0][0], high[0][0]),)
            ranges += low
        self._take()
        return _Character(_complement(ranges) if negated else tuple(ranges))

    def _member(self) -> Ranges:
        character = self._take()
        return self._escaped() if character == "\\" else ((ord(character), ord(character)),)


@dataclass(frozen=True, slots=True)
class _Step:
    """ranges None: goes on without a character, to all of `to`; at_begin/at_end: only there."""

    to: tuple[int, ...]
    ranges: Ranges | None = None
    at_begin: bool = False
    at_end: bool = False


class _Program:
    """Built from the end: every node is told what follows it.  Step 0 is the end itself."""

    def __init__(self, node: _Node) -> None:
        self.steps: list[_Step] = [_Step(())]
        self._builds = 0
        self.first = self._build(node, 0)

    def _add(self, step: _Step) -> int:
        if len(self.steps) >= PROGRAM_MAX:
            raise UnsupportedPattern(f"it needs more than {PROGRAM_MAX} states")
        self.steps.append(step)
        return len(self.steps) - 1

    def _build(self, node: _Node, following: int) -> int:
        self._builds += 1
        if self._builds > _BUILDS_MAX:
            raise UnsupportedPattern("its repeats are nested too deeply")
        match node:
            case _Character(ranges):
                return self._add(_Step((following,), ranges))
            case _Anchor(at_begin):
                return self._add(_Step((following,), None, at_begin, not at_begin))
            case _Sequence(parts):
                for part in reversed(parts):
                    following = self._build(part, following)
                return following
            case _Choice(parts):
                return self._add(_Step(tuple(self._build(part, following) for part in parts)))
            case _Repeat(part, least, most):
                return self._build_repeat(part, least, most, following)

    def _build_repeat(self, part: _Node, least: int, most: int | None, following: int) -> int:
        first = following
        if most is None:
            first = self._add(_Step(()))
            self.steps[first] = _Step((self._build(part, first), following))
        for _ in range((most or least) - least):
            first = self._add(_Step((self._build(part, first), following)))
        for _ in range(least):
            first = self._build(part, first)
        return first

    def closure(self, states: Iterable[int], *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """With all states that are reached without a character.  Anchors that do not hold here stay: they may hold at the end."""
        found, todo = set[int](), list(states)
        while todo:
            state = todo.pop()
            if state in found:
                continue
            found.add(state)
            step = self.steps[state]
            if step.ranges is None and (not step.at_begin or at_begin) and (not step.at_end or at_end):
                todo += step.to
        return frozenset(found)

    def after(self, states: frozenset[int], character: int) -> frozenset[int]:
        reached = [
            step.to[0]
            for step in (self.steps[state] for state in states)
            if step.ranges is not None and any(low <= character <= high for low, high in step.ranges)
        ]
        return self.closure(reached)


class _Matcher:
    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_MAX_LENGTH:
            raise UnsupportedPattern(f"it is longer than {PATTERN_MAX_LENGTH} characters")
        try:
            self._program = _Program(_Parser(pattern).parse())
        except RecursionError as error:
            raise UnsupportedPattern("its groups are nested too deeply") from error
        self._begin = self._program.closure([self._program.first], at_begin=True)
        self._memory: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._remembered = 0

    def matches(self, name: str) -> bool:
        states = self._begin
        for character in name:
            following = self._memory.get((states, character))
            if following is None:
                if self._remembered >= _MEMORY_MAX:
                    self._memory.clear()
                    self._remembered = 0
                following = self._memory[states, character] = self._program.after(states, ord(character))
                self._remembered += len(following)
            states = following
        return 0 in self._program.closure(states, at_begin=not name, at_end=True)


@lru_cache(maxsize=64)
def topic_pattern(pattern: str) -> _Matcher:
    """The compiled pattern; raises UnsupportedPattern."""
    return _Matcher(pattern)
