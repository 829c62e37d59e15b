"""What DescribeConfigs and IncrementalAlterConfigs make of this node's loggers (resource 8, KIP-412).

Levels hold until the process ends: no metadata keep them.  What is refused, and in which words, is Kafka's.
"""

from __future__ import annotations

from typing import Final

from ....proto import controller_pb2 as pb
from ....runtime import logs
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker

_SOURCE: Final = 6
_TYPE_STRING: Final = 2
_DOCUMENTATION: Final = "The level from which on this logger writes; until the node stops."

_log = logs.get(__name__)


def logger_entries(broker: Broker, name: str, documentation: bool) -> list[dict[str, object]]:
    """One entry a logger, with the level that holds for it."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    _check_is_here(broker, name)
    return [
        {
            "name": logger,
            "value": level,
            "read_only": False,
            "config_source": _SOURCE,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": _TYPE_STRING,
            "documentation": _DOCUMENTATION if documentation else None,
        }
        for logger, level in logs.logger_levels().items()
    ]


def alter_loggers(broker: Broker, change: pb.ConfigChange, validate_only: bool) -> None:
    """All of the change, or nothing.  Raises KafkaError."""
    _check_is_here(broker, change.name)
    if change.replace_all:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "the levels of loggers are changed one by one: IncrementalAlterConfigs"
        )
    _check(change)
    if validate_only:
        return
    for logger, level in change.set.items():
        logs.set_level(logger, level)
    for logger in change.remove:
        logs.set_level(logger, None)
    _log.info("log_levels_changed", set=dict(change.set), removed=list(change.remove))


def _check_is_here(broker: Broker, name: str) -> None:
    if name != str(broker.node_id):
        message = f"Unexpected broker id, expected {broker.node_id} but received {name[:100]}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check(change: pb.ConfigChange) -> None:
    for verb, entries in (("APPEND", change.append), ("SUBTRACT", change.subtract)):
        if entries:
            message = f"{verb} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    known = logs.logger_levels()
    for logger in (*change.set, *change.remove):
        if logger not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {logger[:200]} does not exist!")
    for logger, level in change.set.items():
        if level not in logs.LEVELS:
            message = (
                f"Cannot set the log level of {logger} to {level[:100]} as it is not a supported log level."
            )
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{message} Valid log levels are {', '.join(sorted(logs.LEVELS))}"
            )
    if logs.ROOT_LOGGER in change.remove:
        message = f"Removing the log level of the {logs.ROOT_LOGGER} logger is not allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
