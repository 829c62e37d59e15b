"""Requests and responses of the Kafka protocol, headers included: kio entities when reading, plain
dictionaries when writing.

Reading: `parse_request_header` gives the request type and version of a frame, `decode_request` the header and
kio's entity of that version.  Durations in entities are `timedelta`, as kio has them.  For any bytes of a
peer the result is an entity or KafkaError(INVALID_REQUEST, UNSUPPORTED_VERSION): every message is walked by
`skim` before kio sees it.  A request of too many bytes or entries is refused by RequestTooLarge, see
`primitives`.

Writing: `response` / `request` give a body, see `encode` for what the dictionaries may hold;
`response_header` / `request_header` give what goes before it; `FrameConnection.send(header, body)` adds the
frame's length.

Produce and Fetch have hand-written modules of their own (`produce`, `fetch`); the functions here do them as
well, slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from .api import ApiKey, is_flexible, response_header_version
from .encode import item_encoder, message_encoder
from .errors import ErrorCode
from .primitives import ENTRIES_MAX, READ_ERRORS, check_request_size, skip_tags, unreadable
from .primitives import invalid as _invalid
from .schema import request_class, response_class, shape_of
from .skim import check_message, shape_skim, without_unknown_tags

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MESSAGE_BYTES_MAX = 16 << 20
"""Of a message that is decoded into objects, which take some fifty times their bytes.  Produce and Fetch do
not come here."""

_ENTRIES_MAX = {ApiKey.DESCRIBE_CONFIGS: 2_000, ApiKey.DESCRIBE_PRODUCERS: 1_000}
"""Where one entry of the request makes many of the answer."""

_REQUEST_HEADER = Struct(">hhih")  # api key, version, correlation id, length of the client id
_INT32 = Struct(">i")
_CORRELATION_AND_TAGS = Struct(">ib")


class RequestHeader(NamedTuple):
    """What every request begins with."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: bytes | memoryview) -> tuple[RequestHeader, int]:
    """(header, position of the body).  Also for keys and versions that `api` does not have: then the
    position means nothing."""
    try:
        api_key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
    except struct_error:
        raise _invalid(f"{len(frame)} bytes are too few for a request") from None
    position = _REQUEST_HEADER.size
    client_id = None
    if length >= 0:
        if position + length > len(frame):
            raise _invalid(f"the client id claims {length} bytes where {len(frame) - position} are left")
        try:
            client_id = str(frame[position : position + length], "utf-8")
        except UnicodeDecodeError as error:
            raise _invalid(f"the client id is not UTF-8: {error}") from error
        position += length
    elif length < -1:
        raise _invalid(f"the client id has the length {length}")
    if is_flexible(api_key, version):
        try:
            position = skip_tags(frame, position)
        except READ_ERRORS as error:
            raise unreadable("request header", error) from None
    return RequestHeader(api_key, version, correlation_id, client_id), position


@cache
def _reader(entity_type: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    reader: Callable[[bytes, int], tuple[Any, int]] = entity_reader(entity_type)
    return reader


def _decode(
    entity_type: Any,
    frame: ReadableBuffer,
    position: int,
    entries_max: int | None = None,
    *,
    to_the_end: bool = True,
) -> Any:
    data = frame if isinstance(frame, bytes) else bytes(memoryview(frame))  # kio takes no writable buffer
    if len(data) > MESSAGE_BYTES_MAX:
        raise _invalid(
            f"{entity_type.__name__} has {len(data)} bytes and at most {MESSAGE_BYTES_MAX} are taken"
        )
    check_message(entity_type, data, position, entries_max, to_the_end=to_the_end)
    try:
        try:
            entity, _ = _reader(entity_type)(data, position)
        except KeyError:  # kio does not know a tagged field
            entity, _ = _reader(entity_type)(without_unknown_tags(entity_type, data, position), 0)
    except (SerialError, ValueError, OverflowError, TypeError, KeyError) as error:
        raise _invalid(f"{entity_type.__name__} cannot be decoded: {error}") from error
    return entity


def decode_request(api_key: int, version: int, frame: ReadableBuffer) -> tuple[RequestHeader, Any]:
    """(header, kio entity) of a whole request frame, whose header must say `api_key` and `version`."""
    view = frame if isinstance(frame, bytes) else memoryview(frame)
    header, position = parse_request_header(view)
    if (header.api_key, header.api_version) != (api_key, version):
        raise _invalid(
            f"the frame holds request {header.api_key} version {header.api_version}, not {api_key} "
            f"version {version}"
        )
    return header, decode_request_body(api_key, version, frame, position)


def decode_request_body(api_key: int, version: int, frame: ReadableBuffer, position: int) -> Any:
    """The kio entity that starts at `position` (from `parse_request_header`).

    What follows it in the frame is ignored, as by Kafka: librdkafka 2.16 sends three bytes too many when it
    lists all topics.
    """
    check_request_size(len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes)
    entity_type = request_class(api_key, version)
    return _decode(
        entity_type, frame, position, _ENTRIES_MAX.get(ApiKey(api_key), ENTRIES_MAX), to_the_end=False
    )


def decode_response(api_key: int, version: int, frame: ReadableBuffer) -> tuple[int, Any]:
    """(correlation id, kio entity) of a whole response frame."""
    view = frame if isinstance(frame, bytes) else memoryview(frame)
    correlation_id, position = parse_response_header(api_key, version, view)
    return correlation_id, _decode(response_class(api_key, version), frame, position)


def parse_response_header(api_key: int, version: int, frame: bytes | memoryview) -> tuple[int, int]:
    """(correlation id, position of the body)."""
    try:
        correlation_id: int = _INT32.unpack_from(frame)[0]
    except struct_error:
        raise _invalid(f"{len(frame)} bytes are too few for a response") from None
    if not response_header_version(api_key, version):
        return correlation_id, 4
    try:
        return correlation_id, skip_tags(frame, 4)
    except READ_ERRORS as error:
        raise unreadable("response header", error) from None


# ---- writing -----------------------------------------------------------------------------------------------


@cache
def _request_encoder(api_key: int, version: int) -> Callable[[Mapping[str, Any]], bytes]:
    return message_encoder(request_class(api_key, version), api_key, True)


@cache
def _response_encoder(api_key: int, version: int) -> Callable[[Mapping[str, Any]], bytes]:
    return message_encoder(response_class(api_key, version), api_key, False)


def request(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """The body of a request."""
    return _request_encoder(api_key, version)(fields)


def response(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """The body of a response."""
    return _response_encoder(api_key, version)(fields)


@cache
def response_item_encoder(api_key: int, version: int, array: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Encodes one element of an array of the response: `encode.EncodedItems` of them may be given for the
    array."""
    return item_encoder(response_class(api_key, version), array, api_key, False)


def load(api_key: int, version: int) -> None:
    """Loads what reads this request and writes its answer, which otherwise happens when the first one comes.
    Any thread."""
    entity_type = request_class(api_key, version)
    _reader(entity_type)
    shape_skim(shape_of(entity_type))
    _response_encoder(api_key, version)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header before a request's body."""
    name = b"" if client_id is None else client_id.encode()
    head = _REQUEST_HEADER.pack(api_key, version, correlation_id, -1 if client_id is None else len(name))
    return head + name + (b"\x00" if is_flexible(api_key, version) else b"")


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header before a response's body."""
    if response_header_version(api_key, version):
        return _CORRELATION_AND_TAGS.pack(correlation_id, 0)
    return _INT32.pack(correlation_id)


def encode_response_frame(correlation_id: int, api_key: int, version: int, body: bytes) -> bytes:
    """Header and body, without the frame's length, which `FrameConnection.send` adds."""
    return response_header(api_key, version, correlation_id) + body


def encode_request_frame(
    correlation_id: int, api_key: int, version: int, body: bytes, client_id: str | None = None
) -> bytes:
    """Header and body, without the frame's length, which `FrameConnection.send` adds."""
    return request_header(api_key, version, correlation_id, client_id) + body


def unsupported_api_versions(correlation_id: int, versions: Sequence[tuple[int, int, int]]) -> bytes:
    """The whole answer to ApiVersions in a version that `api` does not have: a version 0 body with error 35
    and the key list, from which the client learns what to ask next (KIP-511)."""
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in versions]
    body = response(ApiKey.API_VERSIONS, 0, {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": keys})
    return encode_response_frame(correlation_id, ApiKey.API_VERSIONS, 0, body)
