"""Structured logs: one event name and named values a line, as `key=value` text for people or JSON for machines.

    log = logs.get(__name__)
    log.info("leader_elected", topic="flights", partition=3, leader_epoch=7)

Lines go to standard error.  Values are quoted only when they need it, so that grep and cut work on the text form.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class EventLogger:
    """A logger whose messages are an event name plus fields."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Like `error`, with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, with_traceback=True)

    def _log(self, level: int, event: str, fields: dict[str, object], *, with_traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"fields": fields}, exc_info=with_traceback)


def get(name: str) -> EventLogger:
    """The logger of a module; `name` is its `__name__`."""
    return EventLogger(logging.getLogger(name))


def configure(*, level: str = "INFO", json_lines: bool = False) -> None:
    """Sets up the root logger once, at process start.  `level` is a name of the logging module."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678+00:00 INFO  storage.log event key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_timestamp(record)} {record.levelname:<7} {record.name.removeprefix('tidegate.')} {record.getMessage()}"
        line = " ".join([head, *(f"{key}={_quote(value)}" for key, value in _fields(record).items())])
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _quote(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n') else text
