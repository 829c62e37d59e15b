"""What both clusters are asked: the data plane, in every version that both announce."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tidegate.wire import api
from tidegate.wire.api import ApiKey
from tidegate.wire.records import NewRecord, encode_batch

from .side import Side

NOWHERE = UUID(int=0x1234)
WAIT_MS = 10_000
PART_BYTES = 1 << 20


def batch(values: Sequence[bytes], *, at_ms: int = 1_700_000_000_000, **identity: Any) -> bytes:
    return encode_batch([NewRecord(None, value, (), at_ms + n) for n, value in enumerate(values)], **identity)


def versions(key: ApiKey, first: int = 0) -> range:
    spec = api.TABLE[key]
    return range(max(first, spec.low), spec.high + 1)


# ---- topics ----


def create(
    side: Side,
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: Sequence[Mapping[str, Any]] = (),
) -> UUID:
    """A topic whose partitions have leaders; its id shows as `id of NAME`, with a number when it was made
    again."""
    topic = {
        "name": name,
        "num_partitions": -1 if assignments else partitions,
        "replication_factor": -1 if assignments else replicas,
        "assignments": assignments,
        "configs": [],
    }
    made = side.ask(
        None, ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": WAIT_MS, "validate_only": False}
    )
    assert made.topics[0].error_code == 0, made
    topic_id: UUID = made.topics[0].topic_id
    times = sum(1 for label in side.labels.values() if label.startswith(f"id of {name}"))
    side.name_as(topic_id, f"id of {name}" + f" {times + 1}" * bool(times))
    for node in side.addresses:
        side.wait_until(
            lambda node=node: _has_leaders(side, name, partitions, topic_id, node), f"leaders of {name}"
        )
    return topic_id


def _has_leaders(side: Side, name: str, partitions: int, topic_id: UUID, node: int) -> bool:
    fields = {
        "topics": [{"name": name, "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    (topic,) = side.ask(None, ApiKey.METADATA, 12, fields, node=node).topics
    found = topic.partitions
    if (
        topic.topic_id != topic_id
        or len(found) != partitions
        or any(p.error_code or p.leader_id < 0 for p in found)
    ):
        return False
    for partition in found:  # the leader serves it
        asked = {"replica_id": -1, "isolation_level": 0, "timeout": 1000, "topics": [
            {"name": name,
                "partitions": [{"partition_index": partition.partition_index, "current_leader_epoch": -1,
                                           "timestamp": -1}]}]}  # fmt: skip
        answer = side.ask(None, ApiKey.LIST_OFFSETS, 7, asked, node=partition.leader_id)
        if answer.topics[0].partitions[0].error_code:
            return False
    return True


def delete(side: Side, name: str) -> None:
    fields = {"topics": [{"name": name, "topic_id": None}], "timeout": WAIT_MS}
    assert side.ask(None, ApiKey.DELETE_TOPICS, 6, fields).responses[0].error_code == 0
    asked = {
        "topics": [{"name": name, "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    for node in side.addresses:
        side.wait_until(
            lambda node=node: side.ask(None, ApiKey.METADATA, 12, asked, node=node).topics[0].error_code != 0,
            "the deletion",
        )


# ---- produce ----


def produce(
    side: Side, label: str | None, version: int,
    topics: Sequence[tuple[str, UUID, Sequence[tuple[int, bytes]]]], *,
    acks: int = -1, node: int = 1, transactional_id: str | None = None,
) -> Any:  # fmt: skip
    data = [
        {
            "name": name,
            "topic_id": topic_id,
            "partition_data": [{"index": index, "records": records} for index, records in parts],
        }
        for name, topic_id, parts in topics
    ]
    fields = {"transactional_id": transactional_id, "acks": acks, "timeout": WAIT_MS, "topic_data": data}
    return side.ask(label, ApiKey.PRODUCE, version, fields, node=node)


def produces(side: Side) -> None:
    topic_id = create(side, "produced", 2)
    for version in versions(ApiKey.PRODUCE):
        produce(
            side,
            f"produce {version}",
            version,
            [("produced", topic_id, [(0, batch([b"a"])), (1, batch([b"b"] * 3))])],
        )
        produce(
            side,
            f"produce {version}: acks 1",
            version,
            [("produced", topic_id, [(0, batch([b"a"]))])],
            acks=1,
        )
        produce(
            side,
            f"produce {version}: no such partition",
            version,
            [("produced", topic_id, [(7, batch([b"a"]))])],
        )
        produce(
            side, f"produce {version}: no such topic", version, [("nothing", NOWHERE, [(0, batch([b"a"]))])]
        )
        produce(
            side,
            f"produce {version}: acks 5",
            version,
            [("produced", topic_id, [(0, batch([b"a"]))])],
            acks=5,
        )
        both = [("produced", topic_id, [(0, batch([b"a"]))]), ("nothing", NOWHERE, [(0, batch([b"a"]))])]
        produce(side, f"produce {version}: one of two topics", version, both)
    before = create(side, "recreated")
    delete(side, "recreated")
    produce(side, "produce 13: deleted", 13, [("recreated", before, [(0, batch([b"a"]))])])
    create(side, "recreated")
    produce(side, "produce 13: id of before", 13, [("recreated", before, [(0, batch([b"a"]))])])
    produce(side, "produce 13: id of zeros", 13, [("recreated", UUID(int=0), [(0, batch([b"a"]))])])


# ---- fetch ----


def part(partition: int, offset: int = 0, **other: Any) -> dict[str, Any]:
    return {
        "partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": PART_BYTES, **other,
    }  # fmt: skip


def fetch(
    side: Side, label: str | None, version: int,
    topics: Sequence[tuple[str, UUID, Sequence[Mapping[str, Any]]]], *,
    session: tuple[int, int] = (0, -1), forgotten: Sequence[tuple[str, UUID, Sequence[int]]] = (),
    node: int = 1,
    wait_ms: int = 0, min_bytes: int = 1, isolation: int = 0,
) -> Any:  # fmt: skip
    fields = {
        "replica_id": -1, "max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": 1 << 24,
        "isolation_level": isolation,
        "session_id": session[0], "session_epoch": session[1], "rack_id": "",
        "topics": [{"topic": name, "topic_id": topic_id, "partitions": list(parts)} for name, topic_id,
            parts in topics],
        "forgotten_topics_data": [
            {"topic": name, "topic_id": topic_id, "partitions": parts} for name, topic_id, parts in forgotten
        ],
    }  # fmt: skip
    return side.ask(label, ApiKey.FETCH, version, fields, node=node)


def fetches(side: Side) -> None:
    topic_id = create(side, "fetched", 3)
    for _ in range(3):
        produce(side, None, 9, [("fetched", topic_id, [(0, batch([b"x"] * 5)), (1, batch([b"y"] * 5))])])
    for version in versions(ApiKey.FETCH):
        kinds: dict[str, tuple[tuple[str, UUID], Sequence[Mapping[str, Any]]]] = {
            "all": (("fetched", topic_id), [part(0), part(1, 15), part(2)]),
            "middle of a batch": (("fetched", topic_id), [part(0, 7)]),
            "no such partition": (("fetched", topic_id), [part(9)]),
            "beyond the end": (("fetched", topic_id), [part(0, 99)]),
            "before the beginning": (("fetched", topic_id), [part(0, -5)]),
            "no such topic": (("nothing", NOWHERE), [part(0)]),
            "id of zeros": (("", UUID(int=0)), [part(0)]),
        }
        if version >= 9:
            kinds["newer epoch"] = (("fetched", topic_id), [part(0, current_leader_epoch=9)])
        if version >= 12:
            kinds["diverging"] = (("fetched", topic_id), [part(0, 15, last_fetched_epoch=7)])
        for kind, ((name, its_id), parts) in kinds.items():
            fetch(side, f"fetch {version}: {kind}", version, [(name, its_id, parts)])
        fetch(side, f"fetch {version}: nothing", version, [])
        fetch(side, f"fetch {version}: one of two topics unknown, waiting", version,
              [("nothing", NOWHERE, [part(0)]), ("fetched", topic_id, [part(2)])], wait_ms=200)  # fmt: skip
        fetch(
            side, f"fetch {version}: read committed", version, [("fetched", topic_id, [part(0)])], isolation=1
        )


def sessions(side: Side) -> None:
    for version in versions(ApiKey.FETCH, 7):
        _session(side, version)
    topic_id = create(side, "crossed")
    for first, later in ((12, 13), (17, 12)):
        begun = fetch(side, None, first, [("crossed", topic_id, [part(0)])], session=(0, 0))
        fetch(
            side, f"session: begun with {first}, used with {later}", later, [], session=(begun.session_id, 1)
        )
        fetch(
            side,
            f"session: begun with {first}, used with {first} after that",
            first,
            [],
            session=(begun.session_id, 1),
        )


def _session(side: Side, version: int) -> None:
    name = f"session-{version}"
    topic_id = create(side, name, 3)
    say: Callable[[str], str] = lambda what: f"session {version}: {what}"  # noqa: E731
    produce(side, None, 9, [(name, topic_id, [(0, batch([b"x"] * 5))])])
    begun = fetch(
        side, say("begun"), version, [(name, topic_id, [part(0), part(1), part(2)])], session=(0, 0)
    )
    own = begun.session_id
    fetch(side, say("1: same again"), version, [], session=(own, 1))
    fetch(side, say("2: read on"), version, [(name, topic_id, [part(0, 5)])], session=(own, 2))
    fetch(side, say("3: nothing new"), version, [], session=(own, 3))
    produce(side, None, 9, [(name, topic_id, [(1, batch([b"x"] * 2)), (2, batch([b"z"]))])])
    fetch(side, say("4: two have news"), version, [], session=(own, 4), wait_ms=1000)
    fetch(
        side, say("5: at their ends"), version, [(name, topic_id, [part(1, 2), part(2, 1)])], session=(own, 5)
    )
    fetch(side, say("6: forgets one"), version, [], session=(own, 6), forgotten=[(name, topic_id, [1])])
    produce(side, None, 9, [(name, topic_id, [(1, batch([b"x"] * 2))])])
    fetch(side, say("7: of the forgotten nothing"), version, [], session=(own, 7))
    fetch(side, say("epoch of before"), version, [], session=(own, 7))
    fetch(side, say("epoch too far"), version, [], session=(own, 20))
    fetch(side, say("8: goes on"), version, [(name, topic_id, [part(1, 2)])], session=(own, 8))
    fetch(side, say("9: no such partition"), version, [(name, topic_id, [part(8)])], session=(own, 9))
    fetch(side, say("10: still none"), version, [], session=(own, 10))
    fetch(side, say("11: out of range"), version, [(name, topic_id, [part(0, 999)])], session=(own, 11),
          forgotten=[(name, topic_id, [8])])  # fmt: skip
    fetch(side, say("12: still out of range"), version, [], session=(own, 12))
    fetch(side, say("13: back in range"), version, [(name, topic_id, [part(0, 5)])], session=(own, 13))
    fetch(side, say("14: no such topic"), version, [("nothing", NOWHERE, [part(0)])], session=(own, 14))
    fetch(side, say("15: still no such topic"), version, [], session=(own, 15))
    fetch(side, say("16: forgets it"), version, [], session=(own, 16), forgotten=[("nothing", NOWHERE, [0])])
    delete(side, name)
    fetch(side, say("17: topic deleted"), version, [], session=(own, 17))
    create(side, name, 3)
    fetch(side, say("18: topic made again"), version, [], session=(own, 18))
    fetch(
        side, say("19: forgets all"), version, [], session=(own, 19), forgotten=[(name, topic_id, [0, 1, 2])]
    )
    fetch(side, say("20: gone"), version, [], session=(own, 20))
    fetch(side, say("unknown"), version, [], session=(123456, 1))
    fetch(side, say("unknown, new one"), version, [], session=(123456, 0))
    again = fetch(side, None, version, [(name, topic_id, [part(0)])], session=(0, 0))
    fetch(side, say("ended"), version, [(name, topic_id, [part(0)])], session=(again.session_id, -1))
    fetch(side, say("after the end"), version, [], session=(again.session_id, 1))
    fetch(side, say("begun with a negative id"), version, [(name, topic_id, [part(0)])], session=(-1, 0))


# ---- offsets, coordinators, transactions, topics ----


def list_offsets(side: Side) -> None:
    topic_id = create(side, "listed", 2)
    produce(side, None, 9, [("listed", topic_id, [(0, batch([b"x"] * 5))])])
    for version in versions(ApiKey.LIST_OFFSETS):
        for partition in (0, 1, 5):
            for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 1_700_000_000_003, 1_800_000_000_000):
                asked = {
                    "replica_id": -1,
                    "isolation_level": 0,
                    "timeout": 1000,
                    "topics": [
                        {
                            "name": "listed",
                            "partitions": [
                                {
                                    "partition_index": partition,
                                    "current_leader_epoch": -1,
                                    "timestamp": timestamp,
                                }
                            ],
                        }
                    ],
                }
                side.ask(
                    f"list offsets {version}: {partition} at {timestamp}", ApiKey.LIST_OFFSETS, version, asked
                )


def coordinators(side: Side) -> None:
    for key_type in (0, 1):
        asked = {"key_type": key_type, "key": "a", "coordinator_keys": ["a"]}
        side.wait_until(
            lambda asked=asked: (
                side.ask(None, ApiKey.FIND_COORDINATOR, 4, asked).coordinators[0].error_code == 0
            ),
            f"a coordinator of type {key_type}",
        )
    for version in versions(ApiKey.FIND_COORDINATOR):
        for key_type in range(4) if version else (0,):
            for key in ("a", "", f"g:{NOWHERE}:0"):
                asked = {"key_type": key_type, "key": key, "coordinator_keys": [key, "b"]}
                side.ask(
                    f"find coordinator {version}: type {key_type}, {key!r}",
                    ApiKey.FIND_COORDINATOR,
                    version,
                    asked,
                )


def transactions(side: Side) -> None:
    topic_id = create(side, "enlisted")
    for name in ("one", "two", "another"):
        fields = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1,
            "producer_epoch": -1,
                  "enable2_pc": False, "keep_prepared_txn": False}  # fmt: skip
        side.wait_until(
            lambda fields=fields: side.ask(None, ApiKey.INIT_PRODUCER_ID, 4, fields).error_code == 0,
            "a transactional producer",
        )
    begun = side.ask("init producer id 5", ApiKey.INIT_PRODUCER_ID, 5, fields)
    identity = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    records = batch([b"t"], **identity, base_sequence=0, transactional=True)
    produce(
        side,
        "produce 13: transactional",
        13,
        [("enlisted", topic_id, [(0, records)])],
        transactional_id="another",
    )
    for version in versions(ApiKey.LIST_TRANSACTIONS):
        for pattern in (None, "", "one", "o", ".*o.*", "one|two", "(", "a(?=b)", "ONE", "(?i)ONE"):
            asked = {
                "state_filters": [],
                "producer_id_filters": [],
                "duration_filter": -1,
                "transactional_id_pattern": pattern,
            }
            answer = side.ask(None, ApiKey.LIST_TRANSACTIONS, version, asked)
            listed = sorted(answer.transaction_states, key=lambda each: str(each.transactional_id))
            side.note(f"list transactions {version}: {pattern}", [answer.error_code.name, side.plain(listed)])
    asked = {
        "topics": [
            {"name": "enlisted", "partition_indexes": [0, 1]},
            {"name": "nothing", "partition_indexes": [0]},
        ]
    }
    side.ask("describe producers", ApiKey.DESCRIBE_PRODUCERS, 0, asked)
    side.ask("end txn", ApiKey.END_TXN, 5, {"transactional_id": "another", **identity, "committed": True})


def topics(side: Side) -> None:
    for name, count in (("page-a", 3), ("page-b", 1), ("page-c", 2)):
        create(side, name, count)
    names = ("page-c", "page-a", "page-b")

    def ask(
        label: str, wanted: Sequence[str], limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> None:
        fields = {
            "topics": [{"name": name} for name in wanted], "response_partition_limit": limit,
            "cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
        }  # fmt: skip
        side.ask(f"topic partitions: {label}", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, fields)

    ask("three", names)
    ask("all, from one on", (), 4, ("page-a", 1))
    ask("all, from a gap on", (), 4, ("page-aa", 1))
    ask("twice", ("page-a", "page-a"))
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6):
        ask(f"limit {limit}", names, limit)
    in_range = (("page-a", 1), ("page-a", 3), ("page-a", 9), ("page-b", 0))
    for cursor in (*in_range, ("page-a", -1), ("page-aa", 0), ("page-z", 0), ("", 0)):
        ask(f"cursor {cursor}", names, 2, cursor)
    ask("unknown", ("nothing", "page-a"))
    ask("invalid", ("no/thing", "page-a"))
    ask("unknown at the limit", ("page-a", "page-aa", "page-b"), 3)
    ask("cursor at an unknown one", ("page-a", "page-aa", "page-b"), 3, ("page-aa", 1))
    for version in versions(ApiKey.METADATA):
        fields = {"topics": [{"name": "page-a", "topic_id": None}, {"name": "nothing", "topic_id": None}],
                  "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
                  "include_topic_authorized_operations": True}  # fmt: skip
        side.ask(f"metadata {version}", ApiKey.METADATA, version, fields)
    for version in versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        for partition, current, epoch in ((0, -1, 0), (0, 5, 0), (0, -1, 3), (9, -1, 0)):
            wanted = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
            asked = {"replica_id": -1, "topics": [{"topic": "page-a", "partitions": [wanted]}]}
            say = f"epoch end {version}: {partition}, {current}, {epoch}"
            side.ask(say, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, asked)
    for version in versions(ApiKey.DESCRIBE_CLUSTER):
        for endpoint_type in (0, 1, 2, 3):
            options = {"include_cluster_authorized_operations": True, "include_fenced_brokers": True}
            asked = {"endpoint_type": endpoint_type, **options}
            side.ask(f"describe cluster {version}: {endpoint_type}", ApiKey.DESCRIBE_CLUSTER, version, asked)


def wrong_nodes(side: Side) -> None:
    """Three nodes: the answers of a node about partitions that others lead (KIP-951), and of followers about
    the producers they know."""
    placed = [{"partition_index": n, "broker_ids": ids} for n, ids in enumerate(([1, 2], [2, 1], [2, 3]))]
    topic_id = create(side, "placed", 3, assignments=placed)
    identity = {"producer_id": 4000, "producer_epoch": 0, "base_sequence": 0}
    produce(side, None, 9, [("placed", topic_id, [(0, batch([b"p"], **identity))])])
    for version in versions(ApiKey.PRODUCE):
        parts = [(n, batch([b"a"])) for n in range(3)]
        produce(side, f"wrong node: produce {version}", version, [("placed", topic_id, parts)])
    for version in versions(ApiKey.FETCH):
        fetch(side, f"wrong node: fetch {version}", version, [("placed", topic_id, [part(1), part(2)])])
        if version >= 9:
            stale = [part(0, current_leader_epoch=7)]
            fetch(side, f"wrong node: fetch {version}: unknown epoch", version, [("placed", topic_id, stale)])
    for node in (1, 2, 3):
        asked = {"topics": [{"name": "placed", "partition_indexes": [0, 1, 2]}]}
        side.ask(f"wrong node: producers at {node}", ApiKey.DESCRIBE_PRODUCERS, 0, asked, node=node)


ONE_NODE: tuple[Callable[[Side], None], ...] = (
    produces,
    fetches,
    sessions,
    list_offsets,
    coordinators,
    transactions,
    topics,
)
THREE_NODES: tuple[Callable[[Side], None], ...] = (wrong_nodes,)


# ---- idempotent producers, and a restart ----

PRODUCER = 7_000_000
SENT = 8


def repeated(side: Side, when: str) -> None:
    """Batches that were written are sent again, from the newest to the oldest: five are remembered."""
    for sequence in range(SENT - 1, -1, -1):
        _send(side, f"{when}: batch {sequence} again", sequence)


def _send(side: Side, label: str | None, sequence: int, epoch: int = 0, topic: str = "again") -> None:
    now_ms = int(time.time() * 1000)  # Kafka forgets producers by the time of their records
    data = batch([b"v"], at_ms=now_ms, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence)
    produce(side, label, 9, [(topic, NOWHERE, [(0, data)])])


def before_restart(side: Side) -> None:
    create(side, "again")
    for sequence in range(SENT):
        _send(side, f"written: batch {sequence}", sequence)
    repeated(side, "at once")


def after_restart(side: Side) -> None:
    """The same again; then the requests of a client that raised its epoch after a timeout: its sequences
    begin at 0 again, and the broker cannot distinguish records of the old epoch from new ones."""
    side.wait_until(lambda: _leads(side, "again"), "the leader of the topic")
    repeated(side, "after a restart")
    _send(side, "after a restart: the next", SENT)
    _send(side, "after a restart: a gap", SENT + 3)
    for sequence in range(3):
        _send(side, f"raised epoch: batch {sequence}, written before", sequence, epoch=1)
    _send(side, "raised epoch: a straggler of the old one", SENT + 1)
    asked = {"replica_id": -1, "isolation_level": 0, "timeout": 1000,
        "topics": [{"name": "again", "partitions": [
        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]}  # fmt: skip
    side.ask("the end of the log", ApiKey.LIST_OFFSETS, 7, asked)


def _leads(side: Side, name: str) -> bool:
    asked = {"replica_id": -1, "isolation_level": 0, "timeout": 1000,
        "topics": [{"name": name, "partitions": [
        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]}]}  # fmt: skip
    answer = side.ask(None, ApiKey.LIST_OFFSETS, 7, asked)
    return answer is not None and answer.topics[0].partitions[0].error_code == 0
