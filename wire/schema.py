"""Kafka's message schemas as kio has them, in the one shape that encoding (`encode`) and the length check
(`skim`) are made from.

kio generates a frozen dataclass per message and version.  `shape_of` turns such a class into a `Shape`: its
fields in wire order, then its tagged fields by tag.  Shapes are cached; nothing here is on a hot path.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from .errors import ErrorCode, KafkaError

ABSENT: Any = object()
"""A field has no default of its own."""


@dataclass(frozen=True, slots=True)
class FieldShape:
    """One field.  `kind` is kio's kafka_type, or "entity" with `entity` set; `tag` is -1 for a field that is
    always there."""

    name: str
    kind: str
    is_array: bool
    nullable: bool
    tag: int
    default: Any
    entity: Shape | None


@dataclass(frozen=True, slots=True)
class Shape:
    """One message, or a structure inside one."""

    name: str
    flexible: bool
    plain: tuple[FieldShape, ...]
    tagged: tuple[FieldShape, ...]


@cache
def shape_of(entity_type: Any) -> Shape:
    """The shape of a kio class (typed Any: mypy does not take a class for hashable)."""
    shapes = [_field_shape(field) for field in fields(entity_type)]
    return Shape(
        name=entity_type.__name__,
        flexible=entity_type.__flexible__,
        plain=tuple(shape for shape in shapes if shape.tag < 0),
        tagged=tuple(sorted((shape for shape in shapes if shape.tag >= 0), key=lambda shape: shape.tag)),
    )


def _field_shape(field: Field[Any]) -> FieldShape:
    inner, nullable = _without_none(field.type)
    is_array = typing.get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(typing.get_args(inner)[0])
    structure: Any = inner
    entity = shape_of(structure) if is_dataclass(inner) else None
    return FieldShape(
        name=field.name,
        kind="entity" if entity is not None else field.metadata["kafka_type"],
        is_array=is_array,
        nullable=nullable,
        tag=int(field.metadata.get("tag", -1)),
        default=ABSENT if field.default is MISSING else field.default,
        entity=entity,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    parts = typing.get_args(annotation)
    rest = [part for part in parts if part is not type(None)]
    assert len(rest) == 1, f"a union that is no optional: {annotation}"
    return rest[0], len(rest) < len(parts)


@cache
def request_class(api_key: int, version: int) -> Any:
    """kio's class; UNSUPPORTED_VERSION when it has none."""
    return _load(load_request_schema, api_key, version)


@cache
def response_class(api_key: int, version: int) -> Any:
    """kio's class; UNSUPPORTED_VERSION when it has none."""
    return _load(load_response_schema, api_key, version)


def _load(load: Any, api_key: int, version: int) -> Any:
    kind = EntityType.request if load is load_request_schema else EntityType.response
    versions = schema_name_map.get(api_key_map.get(api_key, ""), {})
    if kind not in versions.get(version, {}):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"request {api_key} in version {version} is not known"
        )
    return load(api_key, version)


def unknown_names(api_key: int, is_request: bool, wanted: Iterable[str]) -> set[str]:
    """The given field names that no version of the message uses, at any depth: it distinguishes a misspelt
    field from a field of another version.

    The newest version is tried first, because it has most of the fields and loading all versions takes as
    long as a hundred requests."""
    left = set(wanted)
    for version in sorted(schema_name_map[api_key_map[api_key]], reverse=True):
        if not left:
            break
        try:
            known = _names(api_key, version, is_request)
        except KafkaError:  # kio has the other half of it
            continue
        left = {name for name in left if name not in known and name.removesuffix("_ms") not in known}
    return left


@cache
def _names(api_key: int, version: int, is_request: bool) -> frozenset[str]:
    names: set[str] = set()
    _collect(
        shape_of(request_class(api_key, version) if is_request else response_class(api_key, version)), names
    )
    return frozenset(names)


def _collect(shape: Shape, names: set[str]) -> None:
    for field in (*shape.plain, *shape.tagged):
        names.add(field.name)
        if field.entity is not None:
            _collect(field.entity, names)
