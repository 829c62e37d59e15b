"""The options of `df.write.format("tidegate")` and of `writeStream`: parsed once, on the driver, into one
frozen value.

Names are those of Spark's Kafka connector and of Kafka's producer (`kafka.batch.size`), so that a job only
changes its format.  What would break exactly-once (`kafka.acks=1`, `kafka.transactional.id`) is an error;
other options of Kafka's producer mean nothing here, and one warning names them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...client.producing.options import ProducerOptions
from ...security.properties import SECURITY_PROPERTIES
from ...wire.compression import Compression
from ..options import (
    INT32_MAX,
    INT64_MAX,
    RETRY_TIMEOUT_MS_DEFAULT,
    SHOWN_MAX,
    OptionError,
    client_security,
    flag,
    parse_bootstrap,
    shown,
    whole_number,
)

SINK_DEFAULT: Final = "spark"
"""Of batches that the user does not name: their jobs are called at random."""
UNNAMED: Final = "unnamed-"
"""What such a job's name begins with: the coordinator forgets it sooner (`jobs.proto`)."""
RETRY_TIMEOUT_MS_MAX: Final = 1_800_000
"""Half of the hour for which the coordinator remembers an unnamed job that is decided (`jobs.proto`): no call
asks how it ended when that is forgotten."""
JOB_TIMEOUT_MS_DEFAULT: Final = 300_000
JOB_TIMEOUT_MS_MIN: Final = 1_000
MEMORY_BYTES_DEFAULT: Final = 32 << 20
BATCH_BYTES_DEFAULT: Final = 256 << 10
PRODUCER_DEFAULT: Final = ProducerOptions(
    client_id="tidegate-spark", batch_bytes=BATCH_BYTES_DEFAULT, memory_bytes=MEMORY_BYTES_DEFAULT
)
SINK_BYTES_MAX: Final = 200
JOB_BYTES_MAX: Final = 64

_NAMES: Final = (
    "bootstrap", "jobBootstrap", "topic", "sinkId", "batchId", "jobId", "jobTimeoutMs",
    "retryTimeoutMs", "includeHeaders", "failOnReplayMismatch",
)  # fmt: skip
_OWN: Final = frozenset(
    {"jobbootstrap", "topic", "sinkid", "batchid", "jobid", "jobtimeoutms", "failonreplaymismatch"}
)
_SPELLING: Final = {name.lower(): name for name in _NAMES}
_ALIASES: Final = {"tidegate.bootstrap.servers": "bootstrap", "kafka.bootstrap.servers": "bootstrap"}
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_ELSEWHERE: Final = {
    "path": "save() and start() take no path: name the topic in 'topic', or have a column 'topic'"
}
_KAFKA: Final = "kafka."
_NEEDED: Final = {
    "kafka.acks": (("all", "-1"), "every record must be on all in-sync replicas"),
    "kafka.enable.idempotence": (("true",), "records are numbered, so that a retry doubles none"),
}
_REFUSED: Final = {
    "kafka.transactional.id": "each task attempt has a transaction of its own; name the sink in 'sinkId'",
    "kafka.transaction.timeout.ms": "a job has one deadline: 'jobTimeoutMs'",
    "kafka.key.serializer": "the column 'key' is binary or string: cast it",
    "kafka.value.serializer": "the column 'value' is binary or string: cast it",
}
_COUNTS: Final = {
    "kafka.batch.size": (1, INT32_MAX),
    "kafka.linger.ms": (0, INT64_MAX),
    "kafka.buffer.memory": (1 << 16, INT64_MAX),
    "kafka.max.request.size": (1 << 10, INT32_MAX),
    "kafka.delivery.timeout.ms": (1, INT32_MAX),
    "kafka.request.timeout.ms": (1, INT32_MAX),
    "kafka.max.block.ms": (1, INT64_MAX),
    "kafka.max.in.flight.requests.per.connection": (1, INT32_MAX),
}
"""Whole numbers of Kafka's producer that have an effect, and the least and the largest possible value."""
CLIENT_ID_BYTES_MAX: Final = 32_767
"""More have no place in the header of a request."""
_TOPIC_NAME: Final = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,249}")
IN_FLIGHT_MAX: Final = 5
DELIVERY_TIMEOUT_MS_DEFAULT: Final = 120_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of one write; pickled to the tasks."""

    bootstrap: tuple[str, ...]  # Kafka listeners
    job_bootstrap: tuple[str, ...] = ()  # gRPC listeners; none: the brokers name theirs
    topic: str | None = None
    sink: str | None = None
    job: str | None = None  # of a batch: jobId or batchId
    job_timeout_ms: int = JOB_TIMEOUT_MS_DEFAULT
    fail_on_replay_mismatch: bool = True
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT
    producer: ProducerOptions = PRODUCER_DEFAULT
    requests_in_flight_max: int = IN_FLIGHT_MAX
    # options of security, by Kafka's names; never shown: they have passwords
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ignored: tuple[str, ...] = ()


def has_write_options(options: Mapping[str, str]) -> bool:
    """Whether some of them belong to a write alone."""
    return any(name.lower() in _OWN for name in options)


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Reads and checks all options of a write; raises OptionError."""
    given: dict[str, str] = {}
    security: dict[str, str] = {}
    ignored: list[str] = []
    for raw_name, value in options.items():
        lower = raw_name.lower()
        name = _ALIASES.get(lower) or _SPELLING.get(lower)
        if lower.startswith(_KAFKA) and lower.removeprefix(_KAFKA) in SECURITY_PROPERTIES:
            security[lower.removeprefix(_KAFKA)] = value
        elif name is not None or lower in _COUNTS or lower in ("kafka.compression.type", "kafka.client.id"):
            key = name or lower
            if given.get(key, value) != value:
                raise OptionError(
                    f"option {key!r} is given twice, as {shown(given[key])} and as {shown(value)}: keep one"
                )
            given[key] = value
        elif lower in _NEEDED:
            allowed, reason = _NEEDED[lower]
            if value.strip().lower() not in allowed:
                raise OptionError(f"{lower} {shown(value)}: only {allowed[0]!r} is possible: {reason}")
        elif lower in _REFUSED:
            raise OptionError(f"option {lower!r} is not used here: {_REFUSED[lower]}")
        elif lower.startswith(_KAFKA):
            ignored.append(raw_name)
        elif lower not in _OF_SPARK:
            raise OptionError(_unknown(raw_name))
    properties = tuple(sorted(security.items()))
    secured = client_security(properties)
    if secured is not None and secured.protocol != "PLAINTEXT" and "jobBootstrap" not in given:
        raise OptionError(
            f"with kafka.security.protocol={secured.protocol} the option 'jobBootstrap' is needed: gRPC "
            "listeners of some nodes, host:port,host:port (`tidegate dev` and `tidegate cluster up`: the "
            "Kafka port + 100)"
        )
    sink = _name(given, "sinkId", SINK_BYTES_MAX, slashes=True)
    return WriteOptions(
        bootstrap=parse_bootstrap(given.get("bootstrap", ""), wanted="Kafka listeners"),
        job_bootstrap=parse_bootstrap(given["jobBootstrap"], "jobBootstrap", "gRPC listeners")
        if "jobBootstrap" in given
        else (),
        topic=_topic(given),
        sink=sink,
        job=_job(given, sink),
        job_timeout_ms=_count(given, "jobTimeoutMs", JOB_TIMEOUT_MS_DEFAULT, JOB_TIMEOUT_MS_MIN, INT32_MAX),
        fail_on_replay_mismatch=flag(given, "failOnReplayMismatch", default=True),
        retry_timeout_ms=_count(given, "retryTimeoutMs", RETRY_TIMEOUT_MS_DEFAULT, 0, RETRY_TIMEOUT_MS_MAX),
        producer=_producer(given),
        requests_in_flight_max=min(
            IN_FLIGHT_MAX,
            _count(
                given,
                (flight := "kafka.max.in.flight.requests.per.connection"),
                IN_FLIGHT_MAX,
                *_COUNTS[flight],
            ),
        ),
        security=properties,
        ignored=tuple(sorted(ignored)),
    )


def _producer(given: Mapping[str, str]) -> ProducerOptions:
    def count(name: str, default: int) -> int:
        return _count(given, name, default, *_COUNTS[name])

    compression = given.get("kafka.compression.type", "none").strip().lower()
    if compression.upper() not in Compression.__members__:
        known = ", ".join(codec.name.lower() for codec in Compression)
        raise OptionError(f"kafka.compression.type {shown(compression)}: choose {known}")
    client_id = given.get("kafka.client.id", PRODUCER_DEFAULT.client_id)
    if (size := len(client_id.encode("utf-8", "surrogatepass"))) > CLIENT_ID_BYTES_MAX:
        raise OptionError(f"kafka.client.id must have at most {CLIENT_ID_BYTES_MAX} bytes, not {size}")
    request_bytes_max = count("kafka.max.request.size", 1 << 20)
    linger_ms = min(INT32_MAX, count("kafka.linger.ms", 5))
    request_timeout_ms = count("kafka.request.timeout.ms", 30_000)
    # as Kafka's producer does when the default is too short
    delivery_timeout_ms = min(INT32_MAX, max(DELIVERY_TIMEOUT_MS_DEFAULT, linger_ms + request_timeout_ms))
    if "kafka.delivery.timeout.ms" in given:
        delivery_timeout_ms = count("kafka.delivery.timeout.ms", 0)
        if delivery_timeout_ms < linger_ms:
            raise OptionError(
                f"kafka.delivery.timeout.ms {delivery_timeout_ms} is less than kafka.linger.ms {linger_ms}: "
                "records would expire before they are sent"
            )
    return ProducerOptions(
        client_id=client_id,
        compression=compression,
        batch_bytes=min(count("kafka.batch.size", BATCH_BYTES_DEFAULT), request_bytes_max),
        linger_ms=linger_ms,
        memory_bytes=count("kafka.buffer.memory", MEMORY_BYTES_DEFAULT),
        request_bytes_max=request_bytes_max,
        delivery_timeout_s=delivery_timeout_ms / 1000,
        request_timeout_s=request_timeout_ms / 1000,
        max_block_s=count("kafka.max.block.ms", 60_000) / 1000,
    )


def _count(given: Mapping[str, str], name: str, default: int, least: int, most: int = INT64_MAX) -> int:
    number = whole_number(given, name, default, least=least, most=most)
    assert number is not None  # the default is a number
    return number


def _topic(given: Mapping[str, str]) -> str | None:
    topic = given.get("topic")
    if topic is not None and not _TOPIC_NAME.fullmatch(topic):
        raise OptionError(
            f"topic {shown(topic)}: a topic's name has 1 to 249 ASCII letters, digits, '.', '_' "
            "and '-', and is not '.' or '..'"
        )
    return topic


def _job(given: Mapping[str, str], sink: str | None) -> str | None:
    """The name of the job that a batch is."""
    job, option = _name(given, "jobId", JOB_BYTES_MAX, slashes=False), "jobId"
    if job is not None and job.isascii() and job.isdecimal():
        raise OptionError(
            f"jobId {job!r}: digits alone number the batches of a sink: add a letter, like 'day-{job}', or "
            "give a number that grows from batch to batch in 'batchId'"
        )
    if job is not None and job.startswith(UNNAMED):
        raise OptionError(f"jobId {job!r}: {UNNAMED!r} begins the names of batches that have no jobId")
    if "batchId" in given:
        if job is not None:
            raise OptionError("options 'jobId' and 'batchId' name the same batch: give one of them")
        job, option = str(whole_number(given, "batchId", None, least=0, most=INT64_MAX)), "batchId"
    if job is not None and sink is None:
        raise OptionError(
            f"{option} {job!r} without 'sinkId': give both. A committed batch is known by both, written no "
            f"more, so another pipeline that gives the same {option} would write nothing"
        )
    return job


def _name(given: Mapping[str, str], option: str, bytes_max: int, *, slashes: bool) -> str | None:
    name = given.get(option)
    if name is None:
        return None
    if not 0 < (size := len(name.encode("utf-8", "surrogatepass"))) <= bytes_max:
        raise OptionError(f"option {option!r} must have 1 to {bytes_max} bytes, not {size}")
    if not name.isprintable() or ("/" in name and not slashes):
        allowed = "printable characters" if slashes else "printable characters other than /"
        raise OptionError(f"{option} {shown(name)}: only {allowed}")
    return name


def _unknown(name: str) -> str:
    lower = name.lower()
    if lower in _ELSEWHERE:
        return f"option {name!r} is not used here: {_ELSEWHERE[lower]}"
    near = difflib.get_close_matches(lower[:SHOWN_MAX], [*_SPELLING, *_ALIASES, *_COUNTS], n=1, cutoff=0.6)
    if near:
        return f"unknown option {shown(name)}: did you mean {_SPELLING.get(near[0], near[0])!r}?"
    return f"unknown option {shown(name)}: the options of a write are {', '.join(_NAMES)}, and kafka.*"
