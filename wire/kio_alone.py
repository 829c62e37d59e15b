"""kio, imported without hypothesis: where that is installed, kio registers strategies for its types, and a
quarter of the CPU time of each start of a node goes to that."""

from __future__ import annotations

import sys

_is_in_use = "hypothesis" in sys.modules
if not _is_in_use:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # an import of it fails
try:
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.index import api_key_map, schema_name_map
    from kio.serial import entity_reader
    from kio.serial.errors import SerialError
    from kio.static.constants import EntityType
finally:
    if not _is_in_use:
        del sys.modules["hypothesis"]

__all__ = [
    "EntityType",
    "SerialError",
    "api_key_map",
    "entity_reader",
    "load_request_schema",
    "load_response_schema",
    "schema_name_map",
]
