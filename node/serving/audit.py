"""The audit log: a line for each right that a request lacked, and for each change that a client made to the
cluster's metadata, on a logger of its own, `audit`.

    audit refused principal=User:alice listener=SASL_SSL address=10.0.0.7 request=produce operation=write
        resource=topic:payments
    audit changed principal=User:root listener=SASL_SSL address=10.0.0.1 request=create_topics
        resource=topic:payments outcome=none

Names that a client does not see because it may not describe them are no refusal, nor is the lack of a right
where another one does as well.  Values of settings and credentials are in no line.

A client cannot fill the disk: each principal has `REFUSALS_MAX` and `CHANGES_MAX` lines in `WINDOW_S`, and
one line (`more_refused`, `more_changed`) that counts the others by request and outcome; principals beyond
`PRINCIPALS_MAX` in one window share one account.  Lines of one principal do not push out those of another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from ...runtime import logs
from ...runtime.clock import Clock, Timer
from ...security.acls import AclOperation, PatternType, PermissionType, ResourceType
from ...security.principals import Principal
from ...security.request_rights import Right
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode
from .requests import Fields, RequestContext, most_severe_error

log = logs.get("audit")

WINDOW_S: Final = 10.0
REFUSALS_MAX: Final = 20
CHANGES_MAX: Final = 1000
PRINCIPALS_MAX: Final = 500
OTHERS: Final = "others"
RESOURCE_LENGTH_MAX: Final = 300

REFUSED: Final = frozenset(code for code in ErrorCode if code.name.endswith("_AUTHORIZATION_FAILED"))
"""They have a line of their own."""

Change = tuple[str, int]
"""(resource, error code)."""


class _Lines:
    """The lines of one event, by principal.  A window begins with its first line."""

    def __init__(self, clock: Clock, event: str, lines_max: int) -> None:
        self._clock = clock
        self._event = event
        self._lines_max = lines_max
        self._written: Counter[str] = Counter()
        self._counted: dict[str, Counter[str]] = {}
        self._window: Timer | None = None

    def add(self, principal: str, kind: str, /, **fields: object) -> None:
        if self._window is None:
            self._window = self._clock.call_later(WINDOW_S, self.end_window)
        account = principal if principal in self._written or len(self._written) < PRINCIPALS_MAX else OTHERS
        if self._written[account] < self._lines_max:
            self._written[account] += 1
            log.info(self._event, principal=principal, **fields)
        else:
            self._counted.setdefault(account, Counter())[kind] += 1

    def end_window(self) -> None:
        """Counts what had no line."""
        if self._window is not None:
            self._window.cancel()
            self._window = None
        self._written.clear()
        counted, self._counted = self._counted, {}
        for account, kinds in counted.items():
            log.info(f"more_{self._event}", principal=account, **kinds)


class Audit:
    """See the module's text.  Used on the node's loop."""

    def __init__(self, clock: Clock) -> None:
        self._refusals = _Lines(clock, "refused", REFUSALS_MAX)
        self._changes = _Lines(clock, "changed", CHANGES_MAX)

    def refused(
        self, context: RequestContext, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        request = ApiKey(context.api_key).name.lower()
        self._refusals.add(
            str(context.principal), request,
            listener=context.listener_name, address=context.client_host, request=request,
            operation=operation.name.lower(), resource=_named(resource_type.name, name),
        )  # fmt: skip

    def call_refused(
        self, principal: Principal, listener: str, address: str, method: str, right: Right, name: str
    ) -> None:
        """Over gRPC."""
        self._refusals.add(
            str(principal), method,
            listener=listener, address=address, request=method,
            operation=right.operation.name.lower(), resource=_named(right.resource_type.name, name),
        )  # fmt: skip

    def answered(self, context: RequestContext, request: Any, answer: Fields) -> None:
        """Of a request of `AUDITED`: writes what the answer says about changes."""
        if getattr(request, "validate_only", False):
            return
        name = ApiKey(context.api_key).name.lower()
        for resource, number in AUDITED[context.api_key](request, answer):
            code = ErrorCode.from_wire(number)
            if code not in REFUSED:
                self._changed(context, name, resource, code)

    def created(self, context: RequestContext, topic: str) -> None:
        """A topic that a request created because it was not there."""
        name = ApiKey(context.api_key).name.lower()
        self._changed(context, name, _named("topic", topic), ErrorCode.NONE)

    def close(self) -> None:
        """Writes what is counted; timers end."""
        self._refusals.end_window()
        self._changes.end_window()

    def _changed(self, context: RequestContext, request: str, resource: str, code: ErrorCode) -> None:
        outcome = code.name.lower()
        self._changes.add(
            str(context.principal), f"{request}:{outcome}",
            listener=context.listener_name, address=context.client_host, request=request, resource=resource,
            outcome=outcome,
        )  # fmt: skip


def _named(kind: str, name: object) -> str:
    return f"{kind.lower()}:{name}"[:RESOURCE_LENGTH_MAX]


def _listed(kind: str, list_name: str, name: str) -> Callable[[Any, Fields], Iterator[Change]]:
    """The answer has one entry for each resource, or one for each of its partitions in it."""

    def changes(_request: Any, answer: Fields) -> Iterator[Change]:
        for entry in _entries(answer, list_name):
            parts = [each for value in entry.values() if type(value) is list for each in value]
            codes = [
                entry.get("error_code", 0),
                *(part["error_code"] for part in parts if "error_code" in part),
            ]
            named = entry.get(name) or entry.get("topic_id")
            yield (
                _named(kind, named),
                most_severe_error(map(ErrorCode.from_wire, codes)),
            )

    return changes


def _entries(answer: Fields, name: str) -> list[Mapping[str, Any]]:
    found = answer[name]
    assert isinstance(found, list)
    return found


_CONFIG_RESOURCES: Final = {2: "topic", 4: "broker", 8: "logger", 16: "client_metrics", 32: "group"}


def _configs(_request: Any, answer: Fields) -> Iterator[Change]:
    for entry in _entries(answer, "responses"):
        kind = _CONFIG_RESOURCES.get(entry["resource_type"], str(entry["resource_type"]))
        yield _named(kind, entry["resource_name"]), entry["error_code"]


def _created_acls(request: Any, answer: Fields) -> Iterator[Change]:
    for each, result in zip(request.creations, _entries(answer, "results"), strict=True):
        acl = _permission(each.permission_type, each.principal, each.host, each.operation)
        pattern = _pattern(each.resource_pattern_type, each.resource_type, each.resource_name)
        yield _named("acl", f"{acl} {pattern}"), result["error_code"]


def _deleted_acls(_request: Any, answer: Fields) -> Iterator[Change]:
    for result in _entries(answer, "filter_results"):
        if result["error_code"]:
            yield "acl:", result["error_code"]
        for each in result["matching_acls"]:
            acl = _permission(each["permission_type"], each["principal"], each["host"], each["operation"])
            pattern = _pattern(each["pattern_type"], each["resource_type"], each["resource_name"])
            yield _named("acl", f"{acl} {pattern}"), each["error_code"]


def _permission(permission: int, principal: str, host: str, operation: int) -> str:
    return f"{_word(PermissionType, permission)} {principal} from {host} {_word(AclOperation, operation)}"


def _pattern(pattern_type: int, resource_type: int, name: str) -> str:
    return f"{_word(PatternType, pattern_type)} {_word(ResourceType, resource_type)}:{name}"


def _word(kind: type[IntEnum], number: int) -> str:
    try:
        return kind(number).name.lower()
    except ValueError:
        return str(number)


def _quotas(_request: Any, answer: Fields) -> Iterator[Change]:
    for entry in _entries(answer, "entries"):
        entity = ",".join(f"{part['entity_type']}={part['entity_name']}" for part in entry["entity"])
        yield _named("quota", entity), entry["error_code"]


def _features(request: Any, answer: Fields) -> Iterator[Change]:
    code = answer["error_code"]
    assert isinstance(code, int)
    for each in request.feature_updates:
        yield _named("feature", f"{each.feature}={each.max_version_level}"), code


def _unregistered(request: Any, answer: Fields) -> Iterator[Change]:
    code = answer["error_code"]
    assert isinstance(code, int)
    yield _named("broker", request.broker_id), code


def _created_token(_request: Any, answer: Fields) -> Iterator[Change]:
    code = answer["error_code"]
    assert isinstance(code, int)
    yield (
        _named("token", f"{answer['token_id']} of {answer['principal_type']}:{answer['principal_name']}"),
        code,
    )


def _ended_token(_request: Any, answer: Fields) -> Iterator[Change]:
    """The request has nothing of the token but its secret."""
    code = answer["error_code"]
    assert isinstance(code, int)
    yield _named("token", ""), code


def _group_offsets(request: Any, answer: Fields) -> Iterator[Change]:
    code = answer["error_code"]
    assert isinstance(code, int)
    if code:
        yield _named("group", request.group_id), code
    for topic, error in _listed("topic", "topics", "name")(request, answer):
        yield _named("group", f"{request.group_id} {topic}"), error


AUDITED: Final[Mapping[int, Callable[[Any, Fields], Iterator[Change]]]] = {
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _listed("topic", "responses", "name"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _listed("topic", "results", "topic_name"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _listed("user", "results", "user"),
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.CREATE_DELEGATION_TOKEN: _created_token,
    ApiKey.CREATE_PARTITIONS: _listed("topic", "results", "name"),
    ApiKey.CREATE_TOPICS: _listed("topic", "topics", "name"),
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.DELETE_GROUPS: _listed("group", "results", "group_id"),
    ApiKey.DELETE_RECORDS: _listed("topic", "topics", "name"),
    ApiKey.DELETE_TOPICS: _listed("topic", "responses", "name"),
    ApiKey.ELECT_LEADERS: _listed("topic", "replica_election_results", "topic"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _ended_token,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.OFFSET_DELETE: _group_offsets,
    ApiKey.RENEW_DELEGATION_TOKEN: _ended_token,
    ApiKey.UNREGISTER_BROKER: _unregistered,
    ApiKey.UPDATE_FEATURES: _features,
}
"""What each request changed, as (resource, error code)."""
