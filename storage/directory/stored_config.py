"""A log's configuration, stored in its folder: opening the log must not wait for the cluster's metadata.

Recovery depends on it: a compacted log has offset gaps between its batches, which in any other log mean lost
data.

The file holds one row a setting, name and value; a setting that is missing, or that this version does not
know, is the default.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from functools import lru_cache
from typing import Any, get_args, get_origin, get_type_hints

from ..checkpoint import RowShapes, decode_checkpoint, encode_checkpoint
from ..topic_config import LogConfig

LOG_CONFIG = "log-config"
LOG_CONFIG_SHAPES = RowShapes({1: 2}, writes=1)
_TYPES = {
    name: kind
    for name, kind in get_type_hints(LogConfig).items()
    if name in {field.name for field in fields(LogConfig) if field.init}
}
"""Of each setting: a number, a text, a bool, an enum, or a frozenset of these."""


def encode_config(config: LogConfig) -> bytes:
    return encode_checkpoint(
        ((name, _text(getattr(config, name))) for name in _TYPES), LOG_CONFIG_SHAPES.writes
    )


def _text(value: object) -> str:
    if isinstance(value, frozenset):
        return ",".join(sorted(_text(each) for each in value))
    return str(value.value) if isinstance(value, Enum) else str(value)


@lru_cache(maxsize=1024)
def decode_config(data: bytes) -> LogConfig:
    """Raises ValueError when the file is damaged.  The partitions of a topic have equal files, and share what
    comes of them."""
    rows = decode_checkpoint(data, LOG_CONFIG_SHAPES)
    return LogConfig(**{name: _value(_TYPES[name], text) for name, text in rows if name in _TYPES})


def _value(kind: Any, text: str) -> Any:
    """What `_text` has written of a value of this type."""
    if get_origin(kind) is frozenset:
        (of,) = get_args(kind)
        return frozenset(_value(of, part) for part in text.split(",") if part)
    return text == "True" if kind is bool else kind(text)
