"""Files of properties, as Java writes them: `name=value` lines.  Pure."""

from __future__ import annotations

import re
from typing import Final

SECURITY_PROPERTIES: Final = frozenset(
    {
        "security.protocol", "sasl.mechanism", "sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url",
        "ssl.truststore.location", "ssl.truststore.type", "ssl.keystore.location", "ssl.keystore.type",
        "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm",
    }
)  # fmt: skip
"""Of a client, by Kafka's names, but `ssl.key.location`: Kafka has the key in the key store's file, as is
possible here."""
TEXT_BYTES_MAX: Final = 1 << 20
_ENTRY: Final = re.compile(r"((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """Text that is no file of properties; the message has a line's number, and nothing of the line."""


def read_properties(data: bytes) -> dict[str, str]:
    """Of UTF-8 text, the last value of each name.  Raises PropertiesError."""
    if len(data) > TEXT_BYTES_MAX:
        raise PropertiesError(f"a file of properties has at most {TEXT_BYTES_MAX} bytes")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise PropertiesError("the file is not UTF-8 text") from None
    found: dict[str, str] = {}
    entry, began = "", 0
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
        if not entry:
            began = number
            if not text or text[0] in "#!":
                continue
        entry += text
        trailing = len(entry) - len(entry.rstrip("\\"))
        if trailing % 2 and number < len(lines):  # the line goes on
            entry = entry[:-1]
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise PropertiesError(f"line {began} is not of the form name=value")
        found[_unescaped(match[1])] = _unescaped(match[2]).strip()
        entry = ""
    return found


def write_property(name: str, value: str) -> str:
    """One line that `read_properties`, and Java, reads as this."""
    return f"{name}={value.replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + 'n')}\n"


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _CONTROL.get(escape, escape)

    return _ESCAPE.sub(character, text)
