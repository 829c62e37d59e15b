"""What is asked of each tool.  The cases run in this order, on a fresh cluster of three nodes, and rest on
what those before them left behind; `{bootstrap}`, `{folder}` and the like are filled in for each cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TOOLS = "org.apache.kafka.tools."
MAINS: Mapping[str, tuple[str, str]] = {
    "kafka-acls": (_TOOLS + "AclCommand", "--bootstrap-server"),
    "kafka-broker-api-versions": (_TOOLS + "BrokerApiVersionsCommand", "--bootstrap-server"),
    "kafka-client-metrics": (_TOOLS + "ClientMetricsCommand", "--bootstrap-server"),
    "kafka-cluster": (_TOOLS + "ClusterTool", ""),
    "kafka-configs": ("kafka.admin.ConfigCommand", "--bootstrap-server"),
    "kafka-console-consumer": (_TOOLS + "consumer.ConsoleConsumer", "--bootstrap-server"),
    "kafka-console-producer": (_TOOLS + "ConsoleProducer", "--bootstrap-server"),
    "kafka-consumer-groups": (_TOOLS + "consumer.group.ConsumerGroupCommand", "--bootstrap-server"),
    "kafka-consumer-perf-test": (_TOOLS + "ConsumerPerformance", "--bootstrap-server"),
    "kafka-delegation-tokens": (_TOOLS + "DelegationTokenCommand", "--bootstrap-server"),
    "kafka-delete-records": (_TOOLS + "DeleteRecordsCommand", "--bootstrap-server"),
    "kafka-dump-log": ("kafka.tools.DumpLogSegments", ""),
    "kafka-e2e-latency": (_TOOLS + "EndToEndLatency", ""),
    "kafka-features": (_TOOLS + "FeatureCommand", "--bootstrap-server"),
    "kafka-get-offsets": (_TOOLS + "GetOffsetShell", "--bootstrap-server"),
    "kafka-groups": (_TOOLS + "GroupsCommand", "--bootstrap-server"),
    "kafka-leader-election": (_TOOLS + "LeaderElectionCommand", "--bootstrap-server"),
    "kafka-log-dirs": (_TOOLS + "LogDirsCommand", "--bootstrap-server"),
    "kafka-metadata-quorum": (_TOOLS + "MetadataQuorumCommand", "--bootstrap-server"),
    "kafka-producer-perf-test": (_TOOLS + "ProducerPerformance", ""),
    "kafka-reassign-partitions": (_TOOLS + "reassign.ReassignPartitionsCommand", "--bootstrap-server"),
    "kafka-replica-verification": (_TOOLS + "ReplicaVerificationTool", "--broker-list"),
    "kafka-share-groups": (_TOOLS + "consumer.group.ShareGroupCommand", "--bootstrap-server"),
    "kafka-streams-application-reset": (_TOOLS + "StreamsResetter", "--bootstrap-server"),
    "kafka-streams-groups": (_TOOLS + "streams.StreamsGroupCommand", "--bootstrap-server"),
    "kafka-topics": (_TOOLS + "TopicCommand", "--bootstrap-server"),
    "kafka-transactions": (_TOOLS + "TransactionsCommand", "--bootstrap-server"),
    "kafka-verifiable-consumer": (_TOOLS + "VerifiableConsumer", "--bootstrap-server"),
    "kafka-verifiable-producer": (_TOOLS + "VerifiableProducer", "--bootstrap-server"),
    "client-compatibility-test": (_TOOLS + "ClientCompatibilityTest", "--bootstrap-server"),
    "transactional-message-copier": (_TOOLS + "TransactionalMessageCopier", "--broker-list"),
}
"""Tool -> its main class, and its option for the cluster (empty: each call has it)."""

NOT_RUN: Mapping[str, str] = {
    "kafka-console-share-consumer, kafka-share-consumer-perf-test": (
        "share groups (KIP-932), which Tidegate leaves out"
    ),
    "kafka-metadata-shell, kafka-storage": "files of Kafka's own quorum, which speak with no broker",
    "kafka-jmx": "JMX of Java processes: Tidegate's metrics are Prometheus'",
    "connect-*, trogdor, kafka-run-class, kafka-server-*": "speak with no broker, or run one",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One call.  `differs`: why the answers are meant to differ.  `until`: repeated until this is in what it
    prints. `beside`: another call that runs meanwhile.  `own_process`: the tool leaves threads behind."""

    tool: str
    arguments: str
    text: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)
    sort: bool = False
    numbers: bool = False
    until: str = ""
    differs: str = ""
    beside: str = ""
    own_process: bool = False
    timeout_s: int = 60

    @property
    def name(self) -> str:
        return " ".join(self.arguments.replace("{bootstrap}", "...").split())


def _t(tool: str, arguments: str, **options: Any) -> Case:
    return Case(tool, arguments, **options)


def _plan(topic: str, *replicas: list[int]) -> str:
    partitions = [{"topic": topic, "partition": n, "replicas": each} for n, each in enumerate(replicas)]
    return json.dumps({"version": 1, "partitions": partitions})


_PARTITIONS_OF_T = json.dumps(
    {"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}]}
)
_DELETE = json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 2}]})
_DELETE_BEYOND = json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 2000}]})
_NO_THREADS = "a node has one cleaner: a number of its threads would have no effect, and is refused"
_NOT_KAFKAS_SETTINGS = (
    "a node's settings are Tidegate's own: fewer than Kafka's, and some that Kafka does not have"
)

TOPICS = [
    _t("kafka-topics", "--create --topic t --replica-assignment 1:2:3,2:3:1,3:1:2"),
    _t("kafka-topics", "--create --topic t --partitions 1"),
    _t("kafka-topics", "--create --topic t --partitions 1 --if-not-exists"),
    _t(
        "kafka-topics",
        "--create --topic plain --replica-assignment 1:2:3 --config retention.ms=86400000 "
        "--config cleanup.policy=delete",
    ),
    _t("kafka-topics", "--create --topic perf --replica-assignment 1:2:3"),
    _t("kafka-topics", "--create --topic sized --partitions 1 --replication-factor 3"),
    _t("kafka-topics", "--create --topic a_b.c"),
    _t("kafka-topics", "--create --topic bad/name"),
    _t("kafka-topics", "--create --topic toomany --partitions 1 --replication-factor 9"),
    _t("kafka-topics", "--create --topic none --partitions 0"),
    _t("kafka-topics", "--create --topic none --config bogus=1"),
    _t("kafka-topics", "--create --topic none --config retention.ms=soon"),
    _t("kafka-topics", "--create --topic none --replica-assignment 1:1"),
    _t("kafka-topics", "--create --topic none --replica-assignment 1:77"),
    _t("kafka-topics", "--create --topic a.b_c"),
    _t("kafka-topics", "--list"),
    _t("kafka-topics", "--list --exclude-internal"),
    _t("kafka-topics", "--list --topic 'a.*'"),
    _t("kafka-topics", "--describe --topic t"),
    _t("kafka-topics", "--describe --topic plain"),
    _t("kafka-topics", "--describe --topic missing"),
    _t("kafka-topics", "--describe --topic missing --if-exists"),
    _t("kafka-topics", "--describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ"),
    _t("kafka-topics", "--describe --topics-with-overrides"),
    _t("kafka-topics", "--describe --under-replicated-partitions"),
    _t("kafka-topics", "--describe --unavailable-partitions"),
    _t("kafka-topics", "--describe --under-min-isr-partitions"),
    _t("kafka-topics", "--describe --at-min-isr-partitions"),
    _t("kafka-topics", "--describe --topic t --partition-size-limit-per-response 1"),
    _t("kafka-topics", "--alter --topic sized --partitions 3"),
    _t("kafka-topics", "--alter --topic sized --partitions 2"),
    _t("kafka-topics", "--alter --topic sized --partitions 3"),
    _t("kafka-topics", "--alter --topic missing --partitions 2"),
    _t("kafka-topics", "--alter --topic missing --partitions 2 --if-exists"),
    _t("kafka-topics", "--alter --topic sized --partitions 4 --replica-assignment 1:2:3"),
    _t("kafka-topics", "--delete --topic a_b.c"),
    _t("kafka-topics", "--delete --topic missing"),
    _t("kafka-topics", "--delete --topic missing --if-exists"),
    _t("kafka-topics", "--create --delete --topic t"),
]

CONFIGS = [
    _t("kafka-configs", "--entity-type topics --entity-name t --describe"),
    _t(
        "kafka-configs",
        "--entity-type topics --entity-name t --describe --all",
        sort=True,
        differs="two settings are Tidegate's own, flush.policy and record.check",
    ),
    _t(
        "kafka-configs",
        "--entity-type topics --entity-name t --alter --add-config "
        "retention.ms=3600000,cleanup.policy=[delete],segment.bytes=1048576,compression.type=gzip",
    ),
    _t("kafka-configs", "--entity-type topics --entity-name t --describe", sort=True),
    _t(
        "kafka-configs",
        "--entity-type topics --entity-name t --alter --delete-config compression.type,segment.bytes",
    ),
    _t("kafka-configs", "--entity-type topics --entity-name t --alter --delete-config flush.ms"),
    _t("kafka-configs", "--entity-type topics --entity-name t --alter --add-config bogus=1"),
    _t("kafka-configs", "--entity-type topics --entity-name t --alter --add-config retention.ms=soon"),
    _t("kafka-configs", "--entity-type topics --entity-name t --alter --add-config min.insync.replicas=0"),
    _t("kafka-configs", "--entity-type topics --entity-name missing --describe"),
    _t("kafka-configs", "--entity-type topics --entity-name missing --alter --add-config retention.ms=1"),
    _t("kafka-configs", "--entity-type topics --describe", sort=True),
    _t("kafka-configs", "--entity-type brokers --entity-name 1 --describe"),
    _t("kafka-configs", "--entity-type brokers --entity-default --describe"),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-name 1 --alter --add-config "
        "log.cleaner.io.max.bytes.per.second=1000000",
    ),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-name 1 --describe",
        sort=True,
        differs="by default the cleaner is held to 32 MiB a second; Kafka's has no limit",
    ),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-name 1 --alter --delete-config log.cleaner.io.max.bytes.per.second",
    ),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-default --alter --add-config log.cleaner.backoff.ms=2000",
    ),
    _t("kafka-configs", "--entity-type brokers --entity-default --describe", sort=True),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-name 1 --alter --add-config log.cleaner.backoff.ms=soon",
    ),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-default --alter --delete-config log.cleaner.backoff.ms",
    ),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-default --alter --add-config log.cleaner.threads=2",
        differs=_NO_THREADS,
    ),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-default --alter --delete-config log.cleaner.threads",
        until="Completed",  # the broker that is asked may not have the change before yet
        differs=_NO_THREADS,
    ),
    _t("kafka-configs", "--entity-type brokers --entity-name 1 --alter --add-config node.id=7"),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-name 1 --alter --add-config bogus=1",
        differs="a name that no node knows is refused; Kafka keeps it, for plug-ins",
    ),
    _t("kafka-configs", "--entity-type brokers --entity-name 9 --describe"),
    _t(
        "kafka-configs",
        "--entity-type brokers --entity-name 1 --describe --all",
        sort=True,
        differs=_NOT_KAFKAS_SETTINGS,
    ),
    _t("kafka-configs", "--entity-type groups --entity-name g --describe --all"),
    _t("kafka-configs", "--entity-type groups --entity-name g --describe"),
    _t(
        "kafka-configs",
        "--entity-type groups --entity-name g --alter --add-config "
        "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000",
    ),
    _t("kafka-configs", "--entity-type groups --describe"),
    _t("kafka-configs", "--entity-type groups --entity-name g --describe --all"),
    _t("kafka-configs", "--entity-type groups --entity-name g --alter --add-config bogus=1"),
    _t(
        "kafka-configs",
        "--entity-type groups --entity-name g --alter --add-config consumer.session.timeout.ms=1",
    ),
    _t(
        "kafka-configs",
        "--entity-type groups --entity-name g --alter --add-config consumer.session.timeout.ms=soon",
    ),
    _t(
        "kafka-configs",
        "--entity-type groups --entity-name g --alter --delete-config "
        "consumer.session.timeout.ms,consumer.heartbeat.interval.ms",
    ),
    _t(
        "kafka-configs",
        "--entity-type groups --describe",
        differs="a group whose settings are all taken away has none; Kafka keeps an empty entry",
    ),
    _t(
        "kafka-configs",
        "--entity-type client-metrics --entity-name m --alter --add-config "
        "metrics=[org.apache.kafka.producer.,x],interval.ms=1000,match=[client_id=none.*]",
    ),
    _t("kafka-configs", "--entity-type client-metrics --entity-name m --describe"),
    _t("kafka-configs", "--entity-type client-metrics --entity-name other --describe --all"),
    _t("kafka-configs", "--entity-type client-metrics --describe"),
    _t("kafka-configs", "--entity-type client-metrics --entity-name m --alter --add-config interval.ms=5"),
    _t("kafka-configs", "--entity-type client-metrics --entity-name m --alter --add-config match=colour"),
    _t("kafka-configs", "--entity-type client-metrics --entity-name m --alter --delete-config interval.ms"),
    _t(
        "kafka-configs",
        "--entity-type broker-loggers --entity-name 1 --describe",
        sort=True,
        differs="the loggers are Tidegate's own, named after its modules",
    ),
    _t("kafka-configs", "--entity-type broker-loggers --entity-name 1 --alter --add-config root=WARN"),
    _t("kafka-configs", "--entity-type broker-loggers --entity-name 1 --alter --add-config root=LOUD"),
    _t("kafka-configs", "--entity-type broker-loggers --entity-name 1 --alter --add-config bogus=INFO"),
    _t("kafka-configs", "--entity-type broker-loggers --entity-name 1 --alter --delete-config root"),
    _t("kafka-configs", "--entity-type broker-loggers --entity-name 1 --alter --delete-config bogus"),
    _t("kafka-configs", "--entity-type broker-loggers --entity-name soon --describe"),
    _t("kafka-client-metrics", "--list"),
    _t("kafka-client-metrics", "--describe"),
    _t("kafka-client-metrics", "--describe --name m"),
    _t("kafka-client-metrics", "--describe --name unknown"),
    _t(
        "kafka-client-metrics",
        "--alter --name n --metrics org.apache.kafka. --interval 60000 --match client_id=none",
    ),
    _t("kafka-client-metrics", "--alter --name n --interval 5"),
    _t("kafka-client-metrics", "--describe --name n"),
    _t("kafka-client-metrics", "--delete --name n"),
    _t("kafka-client-metrics", "--delete --name m"),
    _t("kafka-client-metrics", "--list"),
]

RECORDS = [
    _t(
        "kafka-console-producer",
        "--topic t --property parse.key=true --property key.separator=: --sync",
        text="".join(f"key-{n}:value-{n}\n" for n in range(20)),
    ),
    _t(
        "kafka-console-producer",
        "--topic plain --property parse.headers=true --compression-codec gzip --request-required-acks all",
        text="a:1,b:2\tone\na:3\ttwo\n",
    ),
    _t("kafka-console-producer", "--topic missing --max-block-ms 3000", text="x\n", numbers=True),
    _t(
        "kafka-console-consumer",
        "--topic t --from-beginning --max-messages 20 --property print.key=true "
        "--property print.partition=true --property print.offset=true --timeout-ms 20000",
        sort=True,
    ),
    _t("kafka-console-consumer", "--topic t --partition 0 --offset 1 --max-messages 2 --timeout-ms 20000"),
    _t("kafka-console-consumer", "--topic t --partition 0 --offset latest --timeout-ms 1000"),
    _t(
        "kafka-console-consumer",
        "--include 't|plain' --from-beginning --max-messages 22 --property print.headers=true "
        "--isolation-level read_committed --group console --timeout-ms 20000",
        sort=True,
    ),
    _t("kafka-console-consumer", "--topic missing --timeout-ms 2000"),
    *(
        _t("kafka-get-offsets", f"--topic t --time {time}")
        for time in (
            -1,
            -2,
            -3,
            -4,
            -5,
            -6,
            0,
            "latest",
            "earliest",
            "max-timestamp",
            "earliest-local",
            "latest-tiered",
        )
    ),
    _t("kafka-get-offsets", "--topic-partitions t:0,plain:0-1"),
    _t("kafka-get-offsets", "--topic-partitions t:0-2 --exclude-internal-topics"),
    _t("kafka-get-offsets", "--topic missing"),
    _t("kafka-get-offsets", "", numbers=True),
    _t("kafka-delete-records", "--offset-json-file {folder}/delete.json", files={"delete.json": _DELETE}),
    _t(
        "kafka-delete-records",
        "--offset-json-file {folder}/beyond.json",
        files={"beyond.json": _DELETE_BEYOND},
    ),
    _t("kafka-get-offsets", "--topic t --time -2"),
    _t(
        "kafka-producer-perf-test",
        "--topic perf --num-records 2000 --record-size 100 --throughput -1 --producer-props acks=all "
        "bootstrap.servers={bootstrap}",
        numbers=True,
    ),
    _t(
        "kafka-producer-perf-test",
        "--topic perf --num-records 50 --record-size 100 --throughput 1000 --transactional-id perf "
        "--transaction-duration-ms 100 --producer-props bootstrap.servers={bootstrap}",
        numbers=True,
    ),
    _t("kafka-consumer-perf-test", "--topic perf --messages 2000 --timeout 20000", numbers=True),
    _t(
        "kafka-verifiable-producer",
        "--topic perf --max-messages 30 --acks -1 --value-prefix 7 --throughput 1000",
        sort=True,
        numbers=True,
        own_process=True,
    ),
    _t(
        "kafka-verifiable-consumer",
        "--topic plain --group-id verifiable --max-messages 2 --reset-policy earliest",
        sort=True,
        own_process=True,
    ),
    _t("kafka-e2e-latency", "{bootstrap} perf 20 all 100", numbers=True),
    _t(
        "kafka-replica-verification",
        "--topics-include t --report-interval-ms 500 --time -2",
        numbers=True,
        sort=True,
        timeout_s=6,
        own_process=True,
    ),
    _t("kafka-dump-log", "--files {log:t-1} --deep-iteration --print-data-log", numbers=True, sort=True),
    _t(
        "transactional-message-copier",
        "--consumer-group copier --input-topic plain --input-partition 0 --output-topic perf "
        "--transactional-id copy --max-messages 2 --transaction-size 1",
        sort=True,
        numbers=True,
        own_process=True,
    ),
    _t(
        "client-compatibility-test",
        "--topic t --num-cluster-nodes 3 --offsets-for-times-supported true "
        "--describe-cluster-supported true --expect-record-too-large-exception true "
        "--create-topics-supported true "
        "--describe-acls-supported false --describe-configs-supported true "
        "--idempotent-producer-supported true",
    ),
]

_RESET = "--group console --reset-offsets --topic t"
GROUPS = [
    _t("kafka-consumer-groups", "--list", sort=True),
    _t("kafka-consumer-groups", "--list --state", sort=True),
    _t("kafka-consumer-groups", "--list --state Empty", sort=True),
    _t("kafka-consumer-groups", "--list --type classic", sort=True),
    _t("kafka-consumer-groups", "--describe --group console", sort=True),
    _t("kafka-consumer-groups", "--describe --group console --state", numbers=True),
    _t("kafka-consumer-groups", "--describe --group console --members --verbose"),
    _t("kafka-consumer-groups", "--describe --group console --offsets --verbose", sort=True),
    _t("kafka-consumer-groups", "--describe --group missing"),
    _t("kafka-consumer-groups", "--describe --group missing --state"),
    *(
        _t("kafka-consumer-groups", f"{_RESET} {mode} {act}", sort=True)
        for act in ("--dry-run", "--execute")
        for mode in (
            "--to-earliest",
            "--to-latest",
            "--to-offset 3",
            "--shift-by 1",
            "--shift-by -100",
            "--to-current",
            "--to-datetime 2020-01-01T00:00:00.000",
            "--by-duration P1D",
        )
    ),
    _t(
        "kafka-consumer-groups",
        "--group console --reset-offsets --all-topics --to-earliest --export",
        sort=True,
    ),
    _t(
        "kafka-consumer-groups",
        "--group console --reset-offsets --from-file {folder}/reset.csv --execute",
        files={"reset.csv": "t,0,4\nt,1,1\n"},
        sort=True,
    ),
    _t(
        "kafka-consumer-groups",
        "--group console --reset-offsets --topic t:1 --to-offset 99999999 --execute",
        sort=True,
    ),
    _t("kafka-consumer-groups", "--group fresh --reset-offsets --topic t --to-earliest --execute", sort=True),
    _t(
        "kafka-consumer-groups",
        "--group console --reset-offsets --topic missing --to-earliest --execute",
        sort=True,
    ),
    _t("kafka-consumer-groups", "--group console --delete-offsets --topic plain", sort=True),
    _t("kafka-consumer-groups", "--group console --delete-offsets --topic missing", sort=True),
    _t(
        "kafka-consumer-groups",
        "--describe --group running",
        beside="kafka-console-consumer --topic plain --group running",
        until="console-consumer",
        sort=True,
    ),
    _t(
        "kafka-consumer-groups",
        "--describe --group running --members --verbose",
        sort=True,
        beside="kafka-console-consumer --topic plain --group running",
        until="console-consumer",
    ),
    _t(
        "kafka-consumer-groups",
        "--describe --group new --members --verbose",
        sort=True,
        beside="kafka-console-consumer --topic plain --group new --consumer-property group.protocol=consumer",
        until="console-consumer",
    ),
    _t(
        "kafka-consumer-groups",
        "--describe --group new --state --verbose",
        until="Stable",
        numbers=True,
        beside="kafka-console-consumer --topic plain --group new --consumer-property group.protocol=consumer",
    ),
    _t(
        "kafka-consumer-groups",
        "--delete --group running",
        until="rror",
        beside="kafka-console-consumer --topic plain --group running",
    ),
    _t("kafka-consumer-groups", "--delete --group fresh"),
    _t("kafka-consumer-groups", "--delete --group missing"),
    _t("kafka-groups", "--list", sort=True),
    _t("kafka-groups", "--list --consumer", sort=True),
    _t("kafka-groups", "--list --group-type classic", sort=True),
    _t("kafka-groups", "--list --protocol consumer", sort=True),
    _t("kafka-share-groups", "--list"),
    _t("kafka-streams-groups", "--list"),
    _t("kafka-streams-application-reset", "--application-id console --input-topics t --dry-run", sort=True),
    _t(
        "kafka-streams-application-reset",
        "--application-id console --input-topics t --to-earliest",
        sort=True,
    ),
    _t("kafka-streams-application-reset", "--application-id unknown --input-topics t", sort=True),
]

TRANSACTIONS = [
    _t("kafka-transactions", "list", sort=True, numbers=True),
    _t("kafka-transactions", "list --transactional-id-pattern 'co.*'", sort=True, numbers=True),
    _t(
        "kafka-transactions",
        "list --duration-filter 1",
        sort=True,
        numbers=True,
        differs="the filter is for transactions that run; Kafka names decided ones as well, by when they "
        "began",
    ),
    _t("kafka-transactions", "describe --transactional-id copy", numbers=True),
    _t("kafka-transactions", "describe --transactional-id missing"),
    _t("kafka-transactions", "describe-producers --topic perf --partition 0", numbers=True, sort=True),
    _t(
        "kafka-transactions",
        "describe-producers --topic perf --partition 0 --broker-id 2",
        numbers=True,
        sort=True,
    ),
    _t("kafka-transactions", "find-hanging --broker-id 1"),
    _t("kafka-transactions", "find-hanging --topic t"),
    _t("kafka-transactions", "find-hanging --topic t --partition 0 --max-transaction-timeout 15"),
    _t("kafka-transactions", "abort --topic t --partition 0 --start-offset 0"),
    _t(
        "kafka-transactions",
        "abort --topic t --partition 0 --producer-id 7 --producer-epoch 0 --coordinator-epoch 0",
    ),
    _t("kafka-transactions", "forceTerminateTransaction --transactional-id missing"),
    _t("kafka-transactions", "forceTerminateTransaction --transactional-id copy"),
]

_BACK = {"back.json": _plan("t", [1, 2, 3], [2, 3, 1], [3, 1, 2])}
_HERE = {
    "plain-here.json": json.dumps(
        {
            "version": 1,
            "partitions": [
                {
                    "topic": "plain",
                    "partition": 0,
                    "replicas": [1, 2, 3],
                    "log_dirs": ["{data}", "any", "any"],
                }
            ],
        }
    )
}
_SMALLER = {"smaller.json": _plan("t", [1, 2], [2, 3], [3, 1])}
PARTITIONS = [
    _t(
        "kafka-reassign-partitions",
        "--generate --topics-to-move-json-file {folder}/topics.json --broker-list 1,2,3",
        files={"topics.json": json.dumps({"version": 1, "topics": [{"topic": "t"}]})},
        numbers=True,
    ),
    _t("kafka-reassign-partitions", "--list"),
    _t(
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {folder}/smaller.json --throttle 10000000",
        files=_SMALLER,
    ),
    _t(
        "kafka-reassign-partitions",
        "--verify --reassignment-json-file {folder}/smaller.json --preserve-throttles",
        files=_SMALLER,
        until="Reassignment of partition t-2 is completed",
    ),
    _t("kafka-configs", "--entity-type topics --entity-name t --describe", sort=True),
    _t(
        "kafka-reassign-partitions", "--verify --reassignment-json-file {folder}/smaller.json", files=_SMALLER
    ),
    _t("kafka-configs", "--entity-type topics --entity-name t --describe", sort=True),
    _t("kafka-reassign-partitions", "--execute --reassignment-json-file {folder}/back.json", files=_BACK),
    _t(
        "kafka-reassign-partitions",
        "--verify --reassignment-json-file {folder}/back.json",
        files=_BACK,
        until="Reassignment of partition t-2 is completed",
    ),
    _t("kafka-reassign-partitions", "--cancel --reassignment-json-file {folder}/back.json", files=_BACK),
    _t(
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {folder}/bad.json",
        files={"bad.json": _plan("t", [1, 77, 3])},
    ),
    _t(
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {folder}/missing.json",
        files={"missing.json": _plan("missing", [1, 2, 3])},
    ),
    _t(
        "kafka-reassign-partitions",
        "--execute --disallow-replication-factor-change --reassignment-json-file {folder}/smaller.json",
        files=_SMALLER,
    ),
    _t("kafka-topics", "--describe --topic t", until="Isr: 3,1,2"),
    _t("kafka-leader-election", "--election-type preferred --all-topic-partitions"),
    _t("kafka-leader-election", "--election-type preferred --topic t --partition 0"),
    _t(
        "kafka-leader-election",
        "--election-type preferred --path-to-json-file {folder}/elect.json",
        files={"elect.json": _PARTITIONS_OF_T},
        sort=True,
    ),
    _t("kafka-leader-election", "--election-type unclean --topic t --partition 0"),
    _t("kafka-leader-election", "--election-type preferred --topic missing --partition 0"),
    _t("kafka-log-dirs", "--describe --topic-list plain --broker-list 1", numbers=True),
    _t("kafka-log-dirs", "--describe --broker-list 9"),
    _t(
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {folder}/folders.json --bootstrap-server {bootstrap}",
        files={
            "folders.json": json.dumps(
                {
                    "version": 1,
                    "partitions": [
                        {
                            "topic": "plain",
                            "partition": 0,
                            "replicas": [1, 2, 3],
                            "log_dirs": ["/nowhere", "any", "any"],
                        }
                    ],
                }
            )
        },
    ),
    _t(
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {folder}/plain-here.json "
        "--replica-alter-log-dirs-throttle 1000000",
        files=_HERE,
    ),
    _t(
        "kafka-reassign-partitions",
        "--verify --reassignment-json-file {folder}/plain-here.json",
        files=_HERE,
        until="completed successfully",
    ),
]

CLUSTER = [
    _t("kafka-cluster", "cluster-id --bootstrap-server {bootstrap}"),
    _t("kafka-cluster", "list-endpoints --bootstrap-server {bootstrap}", sort=True),
    _t("kafka-cluster", "list-endpoints --bootstrap-server {bootstrap} --include-fenced-brokers", sort=True),
    _t("kafka-cluster", "unregister --bootstrap-server {bootstrap} --id 77"),
    _t("kafka-metadata-quorum", "describe --status", numbers=True),
    _t("kafka-metadata-quorum", "describe --replication", numbers=True, sort=True),
    _t("kafka-metadata-quorum", "describe --replication --human-readable", numbers=True, sort=True),
    _t("kafka-metadata-quorum", "add-controller"),
    _t(
        "kafka-features",
        "describe",
        numbers=True,
        differs="Tidegate's metadata have a feature of their own, tidegate.metadata.version, and no share "
        "groups",
    ),
    _t("kafka-features", "upgrade --feature transaction.version=2"),
    _t("kafka-features", "upgrade --feature transaction.version=9"),
    _t("kafka-features", "downgrade --feature group.version=0 --dry-run"),
    _t("kafka-features", "disable --feature bogus"),
    _t("kafka-features", "version-mapping --release-version 4.1"),
    _t("kafka-features", "feature-dependencies --feature transaction.version=2"),
    _t(
        "kafka-broker-api-versions",
        "",
        sort=True,
        differs="what a broker announces: docs/kafka.md, 'What is served'",
    ),
    _t("kafka-topics", "--delete --topic t"),
    _t("kafka-topics", "--list", until="plain"),
]

CASES = [*TOPICS, *CONFIGS, *RECORDS, *GROUPS, *TRANSACTIONS, *PARTITIONS, *CLUSTER]
