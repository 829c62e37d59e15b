"""Asks a cluster every question as every user, and keeps of each answer what a right decides: error codes,
the names that are shown, and the operations that the user may do.

A matrix is `{question: {answer: [users]}}`; the answers of a Kafka stand in
`tests/security/data/kafka-4.1.1-permissions.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID

from tidegate.security.acls import AclOperation
from tidegate.wire.api import ApiKey
from tidegate.wire.schema import Shape, request_class, shape_of

from ..answers.side import CLOSED, Connection, Side
from .questions import QUESTIONS, Asker, Question
from .users import FOREIGN, ROOT, USERS, User

Matrix = dict[str, dict[str, list[str]]]
ADMINISTRATION: Final = "User:root;User:ANONYMOUS"
SETTINGS: Final = {
    "super.users": ADMINISTRATION,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{name}="{name}"' for name in (ROOT, *(user.name for user in USERS)))
        + ";"
    ),
    "auto.create.topics.enable": True,
    "delegation.token.secret.key": "secret",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""Of the node that is asked.  Every user's password is the user's name."""
READY_S: Final = 120
SETTLED_S: Final = 5
PASSING: Final = ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR")
NAMES: Final = frozenset(
    {
        "name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name",
        "resource_type", "partition_index", "partition",
    }
)  # fmt: skip
SHOWN: Final = frozenset(
    {"topics", "groups", "transaction_states", "config_resources", "replica_election_results"}
)
"""Lists in which a user may see what other users have made meanwhile: their entries do not count."""
IDENTITIES: Final = ("name", "topic", "group_id", "transactional_id", "resource_name")
COUNTED: Final = frozenset({"configs", "brokers", "nodes", "resources", "filter_results", "log_dirs"})
"""Lists whose length says something, and whose entries have names of their own."""


class Client:
    """One user's connection; a request whose answer is that the connection was closed has None."""

    def __init__(self, address: tuple[str, int], user: str) -> None:
        self._address = address
        self._user = user
        self._connection: Connection | None = None

    def ask(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        try:
            if self._connection is None:
                self._connection = self._connected()
            wanted = _fitting(shape_of(request_class(key, version)), fields)
            return self._connection.ask(key, version, wanted)
        except ConnectionError:
            self.close()
            return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        connection = Connection(self._address)
        connection.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{self._user}\0{self._user}".encode()
        answer = connection.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        assert answer.error_code == 0, answer
        return connection


def _fitting(shape: Shape, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of the fields those that the version has: questions name what other versions call otherwise, too."""
    fitting = {}
    for each in (*shape.plain, *shape.tagged):
        value = fields.get(each.name, each)
        if value is each:
            continue
        if each.entity is None or value is None:
            fitting[each.name] = value
        elif each.is_array:
            fitting[each.name] = [_fitting(each.entity, entry) for entry in value]
        else:
            fitting[each.name] = _fitting(each.entity, value)
    return fitting


def asked(address: tuple[str, int], users: Iterable[User] = USERS) -> Matrix:
    """The answers of the cluster, whose node at this address has `SETTINGS`."""
    users = tuple(users)
    root = Client(address, ROOT)
    askers = _prepare(root, users)
    root.close()
    matrix: Matrix = {}
    for asker in askers:
        client = Client(address, asker.user.name)
        for question in QUESTIONS:
            answer = _settled(client, question, asker)
            matrix.setdefault(question.label, {}).setdefault(answer, []).append(asker.user.name)
        client.close()
    return matrix


def _settled(client: Client, question: Question, asker: Asker) -> str:
    """Asked again while the answer is that something else is not finished yet."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        answer = client.ask(question.key, question.version, question.fields(asker))
        text = shown(asker, answer)
        if not any(word in text for word in PASSING) or time.monotonic() > deadline:
            return text
        time.sleep(0.05)


def shown(asker: Asker, answer: Any) -> str:
    """What a right decides in the answer."""
    if answer is None:
        return CLOSED
    side = Side("", {})
    for name, topic_id in asker.topic_ids.items():
        side.name_as(topic_id, f"id of {name}")
    text = json.dumps(_pruned(side.plain(answer), asker), sort_keys=True)
    return text.replace(asker(""), "own.").replace('"', "")


def _pruned(value: Any, asker: Asker, under: str = "") -> Any:
    if isinstance(value, dict):
        kept = {}
        for name, each in value.items():
            if name.endswith("operations"):
                kept[name] = _operations(each)
            elif name.endswith("error_code"):
                if each != "NONE":
                    kept[name] = each
            elif name in COUNTED:
                kept[name] = "some" if each else "none"
            elif name in NAMES or (name == "topic_id" and "id of" in str(each)):
                kept[name] = each
            elif isinstance(each, dict | list) and (pruned := _pruned(each, asker, name)):
                kept[name] = pruned
        return kept
    entries = [
        each for each in value if under not in SHOWN or not isinstance(each, dict) or _is_theirs(each, asker)
    ]
    texts = {
        json.dumps(_pruned(each, asker), sort_keys=True) for each in entries if isinstance(each, dict | list)
    }
    return [json.loads(text) for text in sorted(texts)]


def _is_theirs(entry: Mapping[str, Any], asker: Asker) -> bool:
    name = next((str(entry[key]) for key in IDENTITIES if key in entry), "")
    shared = {f"{FOREIGN}{kind}" for kind in ("mine", "group", "txn")}
    return name in ("", "None", *shared) or name.removeprefix(FOREIGN).startswith(asker(""))


def _operations(bits: int) -> str:
    if bits < 0:
        return "not asked for"
    return " ".join(each.name for each in AclOperation if bits >> each & 1)


def _prepare(root: Client, users: tuple[User, ...]) -> list[Asker]:
    """The ACLs, topics, groups and transactional ids of all users."""
    _until(lambda: root.ask(ApiKey.API_VERSIONS, 0, {}) is not None, "a connection")
    rules = [acl for user in users for acl in user.acls()]
    made = root.ask(ApiKey.CREATE_ACLS, 3, {"creations": rules})
    assert not any(each.error_code for each in made.results), made
    names = [f"{FOREIGN}mine", *(user.owns(name) for user in users for name in ("mine", "doomed"))]
    names += [f"{FOREIGN}{user.owns('doomed')}" for user in users]
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    answer = root.ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 60_000, "validate_only": False})
    assert not any(each.error_code for each in answer.topics), answer
    ids: dict[str, UUID] = {each.name: each.topic_id for each in answer.topics}
    _until(lambda: _leads(root, names), "leaders")
    transactional_ids = [f"{FOREIGN}txn", *(user.owns("txn") for user in users)]
    producer_ids = {name: _producer_id(root, name) for name in transactional_ids}
    for user in users:
        _until(partial(_begins, root, user, producer_ids), f"a transaction of {user.name}")
    for group in (f"{FOREIGN}group", *(user.owns("group") for user in users)):
        _until(partial(_commits, root, group), f"the group {group}")
    return [Asker(user, ids, producer_ids) for user in users]


def _until(met: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {READY_S} s: {what}")
        time.sleep(0.1)


def _leads(root: Client, names: list[str]) -> bool:
    parts = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    fields = {"replica_id": -1, "isolation_level": 0, "timeout": 1000}
    answer = root.ask(
        ApiKey.LIST_OFFSETS, 7, {**fields, "topics": [{"name": name, "partitions": parts} for name in names]}
    )
    return not any(part.error_code for topic in answer.topics for part in topic.partitions)


def _producer_id(root: Client, transactional_id: str) -> int:
    fields = {
        "transactional_id": transactional_id, "transaction_timeout": 900_000, "producer_id": -1,
        "producer_epoch": -1,
    }  # fmt: skip
    found: list[int] = []

    def known() -> bool:
        asked = {"key_type": 1, "key": transactional_id}
        if root.ask(ApiKey.FIND_COORDINATOR, 3, asked).error_code:
            return False
        answer = root.ask(ApiKey.INIT_PRODUCER_ID, 4, fields)
        if not answer.error_code:
            found.append(answer.producer_id)
        return bool(found)

    _until(known, f"the transactional id {transactional_id}")
    return found[0]


def _begins(root: Client, user: User, producer_ids: Mapping[str, int]) -> bool:
    """Every user's transaction is open, and its user's own topic is in it."""
    name = user.owns("txn")
    fields = {
        "v3_and_below_transactional_id": name, "v3_and_below_producer_id": producer_ids[name],
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": user.owns("mine"), "partitions": [0]}],
    }  # fmt: skip
    topics = root.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields).results_by_topic_v3_and_below
    return not any(part.partition_error_code for topic in topics for part in topic.results_by_partition)


def _commits(root: Client, group: str) -> bool:
    if root.ask(ApiKey.FIND_COORDINATOR, 3, {"key_type": 0, "key": group}).error_code:
        return False
    part = {
        "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""
    }  # fmt: skip
    topics = [{"name": f"{FOREIGN}mine", "partitions": [part]}]
    if not group.startswith(FOREIGN):
        topics.append({"name": f"{group.removesuffix('group')}mine", "partitions": [part]})
    fields = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": topics,
    }  # fmt: skip
    answer = root.ask(ApiKey.OFFSET_COMMIT, 8, fields)
    return not any(part.error_code for topic in answer.topics for part in topic.partitions)


def by_user(matrix: Matrix) -> dict[tuple[str, str], str]:
    """(question, user) -> answer."""
    return {
        (question, user): answer
        for question, answers in matrix.items()
        for answer, users in answers.items()
        for user in users
    }
