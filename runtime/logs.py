"""Structured logs: one event name and named values a line, as `key=value` text for people or JSON for
machines.

    log = logs.get(__name__)
    log.info("leader_elected", topic="flights", partition=3, leader_epoch=7)

Lines go to standard error.  Values are quoted only when they need it, so that grep and cut work on the text
form.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

ROOT_LOGGER: Final = "root"
LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
"""The levels that a logger can be given while it runs, by the names that Kafka has for them, the gravest
first."""
_NUMBERS: Final = (
    logging.CRITICAL,
    logging.ERROR,
    logging.WARNING,
    logging.INFO,
    logging.DEBUG,
    logging.DEBUG // 2,
)


class _Message(str):
    """An event name that shows its fields to a formatter of another kind: a program that uses the client may
    log in its own way, or have set up nothing."""

    __slots__ = ("fields",)
    fields: dict[str, object]

    def __str__(self) -> str:
        return " ".join([_event(self), *_texts(self.fields)])


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

    def failure(self, event: str, failure: BaseException, /, **fields: object) -> None:
        """Like `error`, with the traceback of an exception that is not being handled here."""
        self._log(logging.ERROR, event, fields, failure)

    def exception(self, event: str, **fields: object) -> None:
        """Like `error`, with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, True)

    def _log(
        self, level: int, event: str, fields: dict[str, object], exc_info: BaseException | bool | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            message = _Message(event)
            message.fields = fields
            self._logger.log(level, message, extra={"fields": fields}, exc_info=exc_info)


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


def logger_levels() -> dict[str, str]:
    """Name -> level that holds for it now: of the root, of every module that logs, and of the packages above
    them."""
    # copied at once: threads import modules, too
    names = set(logging.root.manager.loggerDict) - {ROOT_LOGGER}
    return {ROOT_LOGGER: _level_of(ROOT_LOGGER), **{name: _level_of(name) for name in sorted(names)}}


def _level_of(name: str) -> str:
    """A package without a logger of its own has the level of the next one above it."""
    while name != ROOT_LOGGER:
        logger = logging.root.manager.loggerDict.get(name)
        if isinstance(logger, logging.Logger) and logger.level:
            return _level_name(logger.level)
        name = name.rpartition(".")[0] or ROOT_LOGGER
    return _level_name(logging.root.level)


def _level_name(number: int) -> str:
    return next((level for level, at in zip(LEVELS, _NUMBERS, strict=True) if number >= at), LEVELS[-1])


def set_level(name: str, level: str | None) -> None:
    """Until the process ends.  `level` is one of LEVELS; with None the logger follows the one above it
    again."""
    number = logging.NOTSET if level is None else _NUMBERS[LEVELS.index(level)]
    (logging.root if name == ROOT_LOGGER else logging.getLogger(name)).setLevel(number)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


def _event_of(record: logging.LogRecord) -> str:
    return _event(record.msg) if isinstance(record.msg, _Message) else record.getMessage()


def _event(message: _Message) -> str:
    return str.__str__(message)


def _texts(fields: dict[str, object]) -> list[str]:
    return [f"{key}={_quote(value)}" for key, value in fields.items()]


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678+00:00 INFO  storage.log event key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        head = (
            f"{_timestamp(record)} {record.levelname:<7} {record.name.removeprefix('tidegate.')} "
            f"{_event_of(record)}"
        )
        line = " ".join([head, *_texts(_fields(record))])
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "event": _event_of(record),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _quote(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(each in text for each in ' "=')
    return text if text and is_plain else json.dumps(text)
