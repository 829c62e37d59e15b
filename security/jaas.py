"""The text of `sasl.jaas.config`: a module's name, a flag, and options.

org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="...";
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TEXT_BYTES_MAX: Final = 1 << 20
_OPTION: Final = re.compile(r'\s+([\w.@-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s";]+))')
_BEGINNING: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_END: Final = re.compile(r"\s*;\s*")


class JaasError(ValueError):
    """Text that cannot be read; the message holds none of its values."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """The first module of a text."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> JaasEntry:
    """Raises JaasError."""
    beginning = _BEGINNING.match(text)
    if beginning is None or len(text) > TEXT_BYTES_MAX:
        raise JaasError('write it as: module required name="value" ...;')
    options: dict[str, str] = {}
    position = beginning.end()
    while (option := _OPTION.match(text, position)) is not None:
        name, quoted, bare = option.groups()
        options[name] = re.sub(r"\\(.)", r"\1", quoted) if bare is None else bare
        position = option.end()
    if _END.fullmatch(text, position) is None:
        raise JaasError('options are written as name="value", and a semicolon ends them')
    return JaasEntry(beginning[1], options)
