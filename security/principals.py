"""Principals: the names under which clients and nodes act (KIP-11, KIP-371).

A listener gives each connection one principal: from its certificate, from its SASL exchange, or ANONYMOUS.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

USER_TYPE: Final = "User"
ANY_NAME: Final = "*"


class InvalidPrincipal(ValueError):
    """A text that names no principal; the message says why."""


@dataclass(frozen=True, slots=True)
class Principal:
    """`User:alice` has the type `User` and the name `alice`."""

    principal_type: str
    name: str
    token_authenticated: bool = field(default=False, compare=False)
    """The same principal came by a delegation token, for which it gets no other tokens."""
    text: str = field(init=False, repr=False, compare=False)
    """As ACLs have it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"{self.principal_type}:{self.name}")

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Of `Type:name`; the name may hold colons.  Raises InvalidPrincipal."""
        principal_type, colon, name = text.partition(":")
        if not colon or not principal_type:
            raise InvalidPrincipal(f"{text!r} is no principal: write Type:name, for example User:alice")
        return cls(principal_type, name)


ANONYMOUS: Final = Principal(USER_TYPE, "ANONYMOUS")
EVERYBODY: Final = str(Principal(USER_TYPE, ANY_NAME))
"""The principal of an ACL that holds for every user."""


def parse_principals(text: str) -> frozenset[Principal]:
    """A list as in `super.users`: separated by semicolons, because a distinguished name has commas."""
    return frozenset(Principal.parse(part.strip()) for part in text.split(";") if part.strip())


@dataclass(frozen=True, slots=True)
class _Rule:
    """Without a pattern it is DEFAULT: the whole distinguished name."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The mapped name; None when the rule does not match the whole of `name`."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        mapped = found.expand(self.replacement)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)


_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|(DEFAULT)")


class SslPrincipalMapper:
    """`ssl.principal.mapping.rules`: how the distinguished name of a certificate becomes a user's name.

    The first rule that matches the whole name decides; a name without a matching rule is refused.
    """

    def __init__(self, rules: str) -> None:
        """Raises InvalidPrincipal for a rule that cannot be read."""
        self._rules = _rules(rules)

    def name(self, distinguished_name: str) -> str:
        """Raises InvalidPrincipal when no rule matches."""
        for rule in self._rules:
            mapped = rule.apply(distinguished_name)
            if mapped is not None:
                return mapped
        raise InvalidPrincipal(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _rules(text: str) -> tuple[_Rule, ...]:
    if not text.strip() or text.strip() == "DEFAULT":
        return (_Rule(),)
    found: list[_Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise InvalidPrincipal(
                f"{text[position:]!r} is no rule: write RULE:pattern/replacement/[L|U] or DEFAULT"
            )
        found.append(_Rule() if match[4] else _rule(match[1], match[2], match[3]))
        position = match.end()
        separator = re.compile(r"\s*(,\s*|$)").match(text, position)
        if separator is None:
            raise InvalidPrincipal(f"{text[position:]!r}: rules are separated by commas")
        position = separator.end()
    return tuple(found)


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = re.compile(pattern.replace(r"\/", "/"))
        template = re.sub(r"\$(\d)", r"\\g<\1>", replacement.replace(r"\/", "/"))
        groups = {int(number) for number in re.findall(r"\\g<(\d)>", template)}
    except re.error as error:
        raise InvalidPrincipal(f"{pattern!r} is no regular expression: {error}") from error
    if any(number > compiled.groups for number in groups):
        raise InvalidPrincipal(f"{replacement!r} names a group that {pattern!r} does not have")
    return _Rule(compiled, template, case)


_ATTRIBUTES: Final = {
    "commonName": "CN", "localityName": "L", "stateOrProvinceName": "ST", "organizationName": "O",
    "organizationalUnitName": "OU", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC",
    "userId": "UID",
}  # fmt: skip
_SPECIAL: Final = re.compile(r'([,+"\\<>;])')


def attribute_name(oid: str) -> str:
    """As `distinguished_name` has it: short, else OpenSSL's, which `getpeercert` shows, else the number."""
    try:
        name = ssl._ASN1Object(oid).longname
    except ValueError:
        return oid
    return _ATTRIBUTES.get(name, name)


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a verified certificate (`ssl.SSLSocket.getpeercert`) as RFC 2253 writes it: the last
    attribute first."""
    parts = [
        "+".join(f"{_ATTRIBUTES.get(name, name)}={_escaped(value)}" for name, value in attributes)
        for attributes in certificate.get("subject", ())
    ]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text
