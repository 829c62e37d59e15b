"""Records of the coordinators' logs as what they say, for `tidegate log dump --decode`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from ...coordinator import silence
from ...coordinator.fields import RecordFormatError
from ...coordinator.group.classic import records as group_records
from ...coordinator.group.consumer import records as consumer_records
from ...coordinator.group.consumer.events import Partitions
from ...coordinator.transaction import records as transaction_records
from ...storage.inspection.dump import Row

TRANSACTIONS: Final = "__transaction_state"
GROUPS: Final = "__consumer_offsets"
TOPICS: Final = (TRANSACTIONS, GROUPS)


def decoded(rows: Iterable[Row], topic: str) -> Iterator[Row]:
    """`record` rows with key and value decoded; the others as they are.  A record that cannot be decoded says
    why."""
    decode = _transaction if topic == TRANSACTIONS else _group
    for row in rows:
        if row["type"] != "record":
            yield row
            continue
        about: dict[str, Any] = {"key": row["key"], "value": row["value"]}
        try:
            about = {"says": decode(row["key"] or b"", row["value"], row["offset"])}
        except (RecordFormatError, ValueError, IndexError) as error:
            about["undecodable"] = str(error)
        yield {name: row[name] for name in ("type", "offset", "timestamp", "producer_id")} | about


def _transaction(key: bytes, value: bytes | None, offset: int) -> dict[str, Any]:
    transactional_id = transaction_records.decode_key(key)
    if transactional_id is None:
        return {"kind": "of a later release"}
    if value is None:
        return {"transactional_id": transactional_id, "forgotten": True}
    metadata = transaction_records.decode_value(transactional_id, value, offset)
    said = {
        field.name: getattr(metadata, field.name)
        for field in fields(metadata)
        if field.name != "record_offset"
    }
    said["state"] = metadata.state.name
    said["partitions"] = sorted(
        f"{partition.topic}-{partition.partition}" for partition in metadata.partitions
    )
    return said


def _group(key: bytes, value: bytes | None, _offset: int) -> dict[str, Any]:
    match group_records.decode_key(key):
        case group_records.OffsetKey() as offset_key:
            said = dict(offset_key._asdict())
            return said | (
                {"forgotten": True} if value is None else group_records.decode_offset_value(value)._asdict()
            )
        case group_records.GroupKey(group_id):
            if value is None:
                return {"group_id": group_id, "forgotten": True}
            group = group_records.decode_group_value(value)
            members = [f"{member.member_id}@{member.client_host}" for member in group.members]
            return {
                "group_id": group_id, "generation": group.generation, "protocol": group.protocol,
                "leader": group.leader,
                "members": members,
            }  # fmt: skip
        case None:
            return _consumer_group(key, value)


def _consumer_group(key: bytes, value: bytes | None) -> dict[str, Any]:
    whose = silence.decode_key(key)
    if whose is not None:
        said = {"kind": "silence"} | whose._asdict()
        return said | ({"forgotten": True} if value is None else silence.decode_value(value)._asdict())
    about = consumer_records.decode_key(key)
    if about is None:
        return {"kind": "of a later release"}
    said = {"kind": about.kind.name.lower()} | {
        name: text for name, text in about._asdict().items() if name != "kind" and text
    }
    if value is None:
        return said | {"forgotten": True}
    match consumer_records.decode_value(about.kind, value):
        case int() as epoch:
            return said | {"epoch": epoch}
        case dict() as topics:
            return said | {
                "topics": {
                    name: f"{shape.topic_id} ({shape.partitions})" for name, shape in sorted(topics.items())
                }
            }
        case consumer_records.MemberMetadata() as member:
            return said | {field.name: getattr(member, field.name) for field in fields(member)}
        case consumer_records.CurrentAssignment() as current:
            epochs = {
                "epoch": current.epoch,
                "previous_epoch": current.previous_epoch,
                "state": current.state.name,
            }
            return (
                said | epochs | {"assigned": _named(current.assigned), "revoking": _named(current.revoking)}
            )
        case frozenset() as partitions:
            return said | {"partitions": _named(partitions)}


def _named(partitions: Partitions) -> list[str]:
    return [
        f"{topic_id}-{number}"
        for topic_id, numbers in consumer_records.by_topic(partitions)
        for number in numbers
    ]
