"""Java's regular expressions, as `subscribePattern` of Spark's Kafka connector takes them, on Python's
engine.

The two languages are alike until they are not: a character class that Java intersects (`[a-z&&[^x]]`), a
quotation (`\\Q...\\E`) or a property (`\\p{Alpha}`) means something else to Python, or nothing.  The patterns
match names of topics, made of ASCII letters, digits, '.', '_' and '-': so the translation writes every
character class as the characters that it contains, and the rest is the syntax that both languages share.
Where case does not count, a class has each of its letters in both cases before it is negated or intersected,
as in Java: `(?i)[^a]` matches no 'A'.  A construct without a counterpart is refused, never matched
differently.
"""

from __future__ import annotations

import re
import string
from typing import Final

_ALL: Final = frozenset(map(chr, range(128)))
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset(" \t\n\x0b\f\r")
_PUNCTUATION: Final = frozenset(string.punctuation)
_CLASSES: Final = {
    "d": frozenset(string.digits), "w": _WORD, "s": _SPACE, "h": frozenset(" \t"),
    "v": frozenset("\n\x0b\f\r"),
}  # fmt: skip
_PROPERTIES: Final = {
    "lower": frozenset(string.ascii_lowercase), "upper": frozenset(string.ascii_uppercase), "ascii": _ALL,
    "alpha": frozenset(string.ascii_letters), "digit": frozenset(string.digits),
    "xdigit": frozenset(string.hexdigits),
    "alnum": frozenset(string.ascii_letters + string.digits), "punct": _PUNCTUATION, "space": _SPACE,
    "graph": frozenset(string.ascii_letters + string.digits) | _PUNCTUATION, "blank": frozenset(" \t"),
    "print": frozenset(string.ascii_letters + string.digits + " ") | _PUNCTUATION,
    "cntrl": frozenset(chr(code) for code in (*range(32), 127)),
    "l": frozenset(string.ascii_letters), "lu": frozenset(string.ascii_uppercase),
    "ll": frozenset(string.ascii_lowercase),
    "n": frozenset(string.digits), "nd": frozenset(string.digits),
}  # fmt: skip
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_FLAGS: Final = frozenset("imsxu")


class PatternError(ValueError):
    """An expression that is invalid in Java, too, or that has no counterpart here; the message says which."""


def compile_java_pattern(expression: str) -> re.Pattern[str]:
    """For `search` in the name of a topic; raises PatternError."""
    try:
        return re.compile(_Translation(expression).translate(), re.ASCII)
    except (re.error, OverflowError) as problem:
        raise PatternError(f"not a regular expression: {problem}") from None
    except RecursionError:
        raise PatternError("not a regular expression: nested too deeply") from None


class _Translation:
    """One pass over the expression."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._ignores_case = [False]  # of the whole, then of each group that is open

    def translate(self) -> str:
        out: list[str] = []
        while self._at < len(self._text):
            character = self._next()
            match character:
                case "\\":
                    out.append(self._escape())
                case "[":
                    out.append(_written(self._class()))
                case "(" if self._ahead("?"):
                    out.append(self._group())
                case "(":
                    out.append(self._open("("))
                case ")":
                    if len(self._ignores_case) > 1:  # else there is no group to close, as the engine says
                        self._ignores_case.pop()
                    out.append(character)
                case "{":
                    out.append(self._repetition())
                case _:
                    out.append(character)
        return "".join(out)

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("the expression ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _ahead(self, *wanted: str) -> bool:
        return self._text.startswith(wanted, self._at)

    def _repetition(self) -> str:
        found = re.compile(r"\d+(?:,\d*)?\}").match(self._text, self._at)
        if not found:
            raise PatternError(r"a '{' that begins no repetition like {2,5}: write \{ for the character")
        self._at = found.end()
        return "{" + found[0]

    def _group(self) -> str:
        """Behind `(`, at `?`: names and flags are written differently."""
        named = re.compile(r"\?<([A-Za-z][A-Za-z0-9]*)>").match(self._text, self._at)
        if named:
            self._at = named.end()
            return self._open(f"(?P<{named[1]}>")
        flags = re.compile(r"\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])").match(self._text, self._at)
        if not flags:
            if not re.compile(r"\?(?:[=!>]|<[=!])").match(self._text, self._at):
                raise PatternError(
                    f"a group that begins with {self._text[self._at - 1 : self._at + 2]!r} is not known"
                )
            return self._open("(")
        on, off, closing = set(flags[1]), set((flags[2] or "")[1:]), flags[3]
        if (on | off) - _FLAGS:
            raise PatternError(f"the flags {flags[0]!r} have no counterpart here: use i, m, s or x")
        if closing == ")" and (off or self._at > 1):
            raise PatternError(
                f"flags in the middle, '({flags[0]}', are not supported: write (?i:...) instead"
            )
        if "x" in on:
            raise PatternError("the flag x (comments) is not supported")
        self._at = flags.end()
        if closing == ":":
            self._open("(")
        self._ignores_case[-1] = (self._ignores_case[-1] or "i" in on) and "i" not in off
        return (
            "("
            + "?"
            + "".join(sorted(on - {"u"}))
            + ("-" + "".join(sorted(off - {"u"})) if off - {"u"} else "")
            + closing
        )

    def _open(self, written: str) -> str:
        """A group, in which case counts as it does around it."""
        self._ignores_case.append(self._ignores_case[-1])
        return written

    def _in_each_case(self, characters: frozenset[str]) -> frozenset[str]:
        """With each letter in both cases where case does not count."""
        if not self._ignores_case[-1]:
            return characters
        return characters.union(*({letter.lower(), letter.upper()} & _ALL for letter in characters))

    def _escape(self) -> str:
        """Behind a backslash, outside of a class."""
        character = self._next()
        match character:
            case "Q":
                return re.escape(self._quotation())
            case "z":
                return r"\Z"
            case "Z":
                return r"(?=\n?\Z)"
            case "A" | "b" | "B":
                return "\\" + character
            case "k":
                name = re.compile(r"<([A-Za-z][A-Za-z0-9]*)>").match(self._text, self._at)
                if not name:
                    raise PatternError(r"\k needs the name of a group, as \k<name>")
                self._at = name.end()
                return f"(?P={name[1]})"
            case _ if character in "123456789":
                return "\\" + character
            case _:
                self._at -= 1
                return _written(self._escaped_set())

    def _quotation(self) -> str:
        end = self._text.find(r"\E", self._at)
        quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
        self._at = len(self._text) if end < 0 else end + 2
        return quoted

    def _escaped_set(self) -> frozenset[str]:
        """Behind a backslash: the characters for which it stands."""
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.lower() in _CLASSES:
            return _ALL - _CLASSES[character.lower()]
        match character:
            case "p" | "P":
                found = self._property()
                return found if character == "p" else _ALL - self._in_each_case(found)
            case "x":
                return frozenset(self._hexadecimal(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]+)\}"))
            case "u":
                return frozenset(self._hexadecimal(r"([0-9a-fA-F]{4})"))
            case _ if character in _CONTROLS:
                return frozenset(_CONTROLS[character])
            case _ if character.isascii() and character.isalnum():
                raise PatternError(f"\\{character} has no counterpart here")
            case _:
                return frozenset(character)

    def _hexadecimal(self, form: str) -> str:
        found = re.compile(form).match(self._text, self._at)
        if not found:
            raise PatternError("a character by its number needs hexadecimal digits")
        self._at = found.end()
        code = int(next(group for group in found.groups() if group), 16)
        if code > 0x10FFFF:
            raise PatternError(f"there is no character {code:x}")
        return chr(code)

    def _property(self) -> frozenset[str]:
        found = re.compile(r"\{(?:Is)?([A-Za-z]+)\}|([A-Z])").match(self._text, self._at)
        name = (found[1] or found[2]) if found else ""
        if not found or name.lower() not in _PROPERTIES:
            raise PatternError(
                f"the property \\p{self._text[self._at : self._at + 12]} has no counterpart here"
            )
        self._at = found.end()
        return _PROPERTIES[name.lower()]

    def _class(self) -> frozenset[str]:
        """Behind `[`: unions, ranges, nested classes and intersections, to the closing bracket."""
        negated = self._ahead("^")
        self._at += negated
        whole: frozenset[str] | None = None
        part: frozenset[str] = frozenset()
        is_empty = True
        while True:
            if self._at >= len(self._text):
                raise PatternError("a character class is not closed")
            if self._ahead("]") and not is_empty:
                self._at += 1
                break
            if self._ahead("&&"):
                self._at += 2
                if is_empty:
                    raise PatternError("a character class begins with &&")
                whole = part if whole is None else whole & part
                part, is_empty = frozenset(), self._ahead("]")
                if is_empty:
                    raise PatternError("a character class ends with &&")
                continue
            part |= self._member()
            is_empty = False
        found = part if whole is None else whole & part
        return _ALL - found if negated else found

    def _member(self) -> frozenset[str]:
        if self._ahead("["):
            self._at += 1
            return self._class()
        if self._ahead(r"\Q"):
            self._at += 2
            return self._in_each_case(frozenset(self._quotation()))
        first = self._one()
        if len(first) == 1 and self._ahead("-") and not self._ahead("-]", "-[", "-&&"):
            self._at += 1
            last = self._one()
            if len(last) != 1 or min(last) < min(first):
                raise PatternError(f"a range from {min(first)!r} that does not end above it")
            between = range(ord(min(first)), min(ord(min(last)), 0x7F) + 1)
            return self._in_each_case(frozenset(map(chr, between)) | last)
        return self._in_each_case(first)

    def _one(self) -> frozenset[str]:
        character = self._next()
        return self._escaped_set() if character == "\\" else frozenset(character)


def _written(characters: frozenset[str]) -> str:
    if len(characters) == 1:
        return re.escape(min(characters))
    if characters == _ALL:
        return r"[\s\S]"
    if not characters:
        return r"(?!)"
    return "[" + "".join(sorted(map(re.escape, characters))) + "]"
