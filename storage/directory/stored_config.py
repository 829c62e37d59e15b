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
from typing import Any

from ..checkpoint import RowShapes, decode_checkpoint, encode_checkpoint
from ..topic_config import CleanupPolicy, FlushPolicy, LogConfig, TimestampType

LOG_CONFIG = "log-config"
LOG_CONFIG_SHAPES = RowShapes({1: 2}, writes=1)
_ENUMS: dict[str, type[Enum]] = {"flush_policy": FlushPolicy, "timestamp_type": TimestampType}


def encode_config(config: LogConfig) -> bytes:
    return encode_checkpoint(
        ((field.name, _text(getattr(config, field.name))) for field in fields(config) if field.init),
        LOG_CONFIG_SHAPES.writes,
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
    defaults = LogConfig()
    known = {field.name for field in fields(LogConfig) if field.init}
    return LogConfig(
        **{name: _value(name, text, getattr(defaults, name)) for name, text in rows if name in known}
    )


def _value(name: str, text: str, default: object) -> Any:
    if name in _ENUMS:
        return _ENUMS[name](text)
    if isinstance(default, frozenset):
        return frozenset(CleanupPolicy(part) for part in text.split(",") if part)
    if isinstance(default, bool):
        return text == "True"
    if isinstance(default, str):
        return text
    return float(text) if isinstance(default, float) else int(text)
