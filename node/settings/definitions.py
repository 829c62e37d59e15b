"""The table of the settings that a node's file may have: name, type, default, bounds, meaning.

Keys are Kafka's own where Kafka has one, so that an operator's knowledge carries over.  What clients set
while a node runs: `controller/state/broker_settings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOLS: Final = "listener.security.protocol.map"
INTER_BROKER: Final = "inter.broker.listener.name"
CONTROLLERS: Final = "controller.listener.names"
GRPC: Final = "grpc.listener.name"
CONTROLLER_GRPC: Final = "controller.grpc.listener.name"
METRICS: Final = "metrics.listener.name"
RANGES_PORT: Final = "grpc.ranges.port"

LISTENERS_DEFAULT: Final = (
    "PLAINTEXT://127.0.0.1:9092",
    "GRPC://127.0.0.1:9093",
    "CONTROLLER://127.0.0.1:9094",
    "METRICS://127.0.0.1:9095",
)
PROTOCOLS_DEFAULT: Final = (
    "SASL_SSL:SASL_SSL",
    "PLAINTEXT:PLAINTEXT",
    "SSL:SSL",
    "SASL_PLAINTEXT:SASL_PLAINTEXT",
)

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SELECTORS: Final = (RACK_AWARE_SELECTOR, "org.apache.kafka.common.replica.LeaderSelector")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `kind` is int | float | bool | str | list, `minimum`/`maximum` bound numbers
    (inclusive)."""

    kind: type
    default: Any
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    required: bool = False
    secret: bool = False
    """No answer, no error and no log shows its value."""

    @property
    def shown_default(self) -> str:
        """For people."""
        if self.required:
            return "(required)"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, list):
            return ", ".join(self.default)
        return "" if self.default is None else str(self.default)


def _int(default: int, doc: str, minimum: int = 0, maximum: int = 2**63 - 1) -> Setting:
    return Setting(int, default, doc, minimum, maximum)


SETTINGS: Final[dict[str, Setting]] = {
    "node.id": Setting(
        int,
        None,
        "This node's number, unique in the cluster; no two processes may ever run with it.",
        0,
        2**31 - 1,
        required=True,
    ),
    "node.id.from.hostname": Setting(
        bool, False, "Take the node id from the number at the end of the host name (StatefulSet)."
    ),
    "cluster.id": Setting(
        str,
        None,
        "The cluster's name, the same on all nodes; a data folder of another cluster is refused.",
        required=True,
    ),
    "process.roles": Setting(list, ["broker", "controller"], "broker, controller or both."),
    "log.dirs": Setting(
        list,
        None,
        "Folders of the partitions' data, one a disk; the first has the metadata quorum's too.",
        required=True,
    ),
    "metadata.reserve.bytes": _int(
        8 << 20, "Kept back in each data folder, so that a full disk stops only clients; 0: none."
    ),
    "broker.rack": Setting(str, None, "Replicas of a partition are spread over racks."),
    "replica.selector.class": Setting(
        str,
        RACK_AWARE_SELECTOR,
        "The replica that a consumer reads from: an in-sync one of the consumer's rack, or (LeaderSelector) "
        "the leader.",
    ),
    LISTENERS: Setting(
        list,
        list(LISTENERS_DEFAULT),
        "All that this node listens on, each as NAME://host:port; without a host: on every interface.",
    ),
    ADVERTISED: Setting(
        list,
        None,
        "Where clients, brokers and Spark reach this node, each as NAME://host:port; default: as listeners.",
    ),
    PROTOCOLS: Setting(
        list,
        list(PROTOCOLS_DEFAULT),
        "Each listener's security protocol as NAME:PROTOCOL. Where this is not written down, the listeners "
        "for controllers, gRPC and metrics are PLAINTEXT, too.",
    ),
    INTER_BROKER: Setting(
        str, "PLAINTEXT", "The listener on which the brokers reach each other: SSL (mutual) or PLAINTEXT."
    ),
    CONTROLLERS: Setting(
        list, ["CONTROLLER"], "The listeners of the metadata quorum; a controller has one of them."
    ),
    GRPC: Setting(
        str, "GRPC", "The listener of the gRPC services: data (Spark), controller, administration."
    ),
    CONTROLLER_GRPC: Setting(
        str,
        None,
        "The listener of the controller's gRPC service, which is for nodes alone; a node that is only a "
        "broker connects as it says. Default: that of grpc.listener.name.",
    ),
    RANGES_PORT: _int(
        0,
        "Beside a gRPC listener without TLS, at its host: where Spark's tasks fetch records without gRPC's "
        "copies. 0: any free port; -1: none, and they come over gRPC, as for a task that does not reach this "
        "port.",
        -1,
        65535,
    ),
    METRICS: Setting(str, "METRICS", "The listener of /metrics, /livez and /readyz: SSL or PLAINTEXT."),
    "ssl.keystore.location": Setting(
        str, "", "PEM file: the certificate of the SSL listeners, with its chain and its key."
    ),
    "ssl.keystore.type": Setting(str, "PEM", "Only PEM files are read."),
    "ssl.key.location": Setting(str, "", "PEM file: the key, where it stands in a file of its own."),
    "ssl.key.password": Setting(str, "", "The key's password; empty: it is not encrypted.", secret=True),
    "ssl.truststore.location": Setting(
        str, "", "PEM file: the authorities whose certificates are accepted from clients and other nodes."
    ),
    "ssl.truststore.type": Setting(str, "PEM", "Only PEM files are read."),
    "ssl.client.auth": Setting(
        str, "none", "Whether clients of the SSL listeners show a certificate: none, requested or required."
    ),
    "ssl.enabled.protocols": Setting(list, ["TLSv1.2", "TLSv1.3"], "The versions of TLS that are spoken."),
    "ssl.cipher.suites": Setting(list, [], "Of TLS 1.2, in OpenSSL's words; empty: OpenSSL's choice."),
    "ssl.principal.mapping.rules": Setting(
        str, "DEFAULT", "How a certificate's name becomes a user's: RULE:pattern/replacement/[LU] or DEFAULT."
    ),
    "sasl.enabled.mechanisms": Setting(
        list,
        ["SCRAM-SHA-512", "SCRAM-SHA-256"],
        "Of the SASL listeners: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER.",
    ),
    "sasl.server.max.receive.size": _int(
        524_288, "Bytes of a request of a client that has not authenticated.", 1
    ),
    "sasl.oauthbearer.jwks.endpoint.url": Setting(
        str,
        "",
        "The keys that sign bearer tokens, a JSON Web Key Set: file:///path, read when it changes, or "
        "https://host/path, of which the system's authorities vouch.",
    ),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _int(
        3_600_000, "How often an https:// key set is fetched; sooner for a token with an unknown key.", 1
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _int(
        100, "The wait after a fetch that failed; twice as long after each further one.", 1
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _int(10_000, "The longest such wait.", 1),
    "sasl.oauthbearer.expected.audience": Setting(
        list, [], "A bearer token is for one of these audiences (aud); empty: for any."
    ),
    "sasl.oauthbearer.expected.issuer": Setting(str, "", "The issuer of bearer tokens (iss); empty: any."),
    "sasl.oauthbearer.sub.claim.name": Setting(str, "sub", "The claim that names a bearer token's user."),
    "sasl.oauthbearer.clock.skew.seconds": _int(30, "So much may clocks differ from a token's issuer's."),
    "connections.max.reauth.ms": _int(
        0, "A session of a SASL client ends after so long, unless it authenticates again; 0: never."
    ),
    "connection.failed.authentication.delay.ms": _int(
        100, "How long the answer to a failed authentication waits.", 0, 10_000
    ),
    "authorizer.class.name": Setting(
        str, "", f"{AUTHORIZER}: requests are held against ACLs; empty: all are allowed."
    ),
    "delegation.token.secret.key": Setting(
        str,
        "",
        "The secret from which delegation tokens are made, the same on all nodes; empty: none are.",
        secret=True,
    ),
    "delegation.token.max.lifetime.ms": _int(
        604_800_000, "A delegation token ends after so long, however often it is renewed.", 1
    ),
    "delegation.token.expiry.time.ms": _int(
        86_400_000, "A delegation token ends after so long, unless it is renewed.", 1
    ),
    "delegation.token.expiry.check.interval.ms": _int(
        3_600_000, "How often delegation tokens that have ended are removed.", 1
    ),
    "cut.retention.max.ms": _int(
        604_800_000, "A cut is pinned for so long at most, the same on all controllers.", 1
    ),
    "super.users": Setting(str, "", "They may do everything: User:name, separated by semicolons."),
    "bootstrap.scram.credentials": Setting(
        str,
        "",
        "Users of a new cluster, read at its first start alone: hashed, as `tidegate users hash` prints "
        "them, separated by semicolons.",
        secret=True,
    ),
    "allow.everyone.if.no.acl.found": Setting(bool, False, "Whether what no ACL names is open to everyone."),
    "insecure": Setting(
        bool,
        False,
        "Start also when other machines can speak for a node: its listeners for nodes are neither mutual TLS "
        "nor on loopback. Only on a network that no other machine reaches.",
    ),
    "controller.quorum.voters": Setting(
        list, None, "All controllers, each as id@host:quorum-port:grpc-port.", required=True
    ),
    "controller.quorum.election.timeout.ms": _int(
        1000,
        "A follower starts an election after this long (up to twice) without a leader; of a leader whose "
        "connection breaks it learns at once. At most a sixth of the session, so that brokers keep theirs.",
        50,
    ),
    "broker.session.timeout.ms": _int(
        6000, "A broker that is silent for this long is fenced and its leaderships move.", 500
    ),
    "broker.heartbeat.interval.ms": _int(1000, "How often a broker tells the controller that it lives.", 50),
    "auto.leader.rebalance.enable": Setting(
        bool, True, "Leaderships return to the first replica of a partition by themselves."
    ),
    "leader.imbalance.check.interval.seconds": _int(
        30, "How often the controller looks for leaderships to return.", 1
    ),
    "leader.imbalance.per.broker.percentage": _int(
        10, "Of a broker's leaderships, so many may be elsewhere.", 0, 100
    ),
    "controlled.shutdown.timeout.ms": _int(
        20000, "How long a stop by SIGTERM waits for leaderships to move away."
    ),
    "replica.lag.time.max.ms": _int(
        10000, "A follower that was not caught up for this long leaves the in-sync replicas.", 100
    ),
    "replica.fetch.wait.max.ms": _int(
        500, "How long a leader holds a follower's fetch when there is nothing new.", 1
    ),
    "replica.fetch.response.max.bytes": _int(
        10 << 20, "Most bytes in one follower fetch, over all partitions.", 1024
    ),
    "replica.catch.up.max.bytes.per.second": _int(
        0, "Most sent to replicas outside the ISR; 0: no limit. Changes at run time."
    ),
    "default.replication.factor": _int(
        3, "Replicas of a topic that is created without saying how many.", 1, 32767
    ),
    "num.partitions": _int(1, "Partitions of a topic that is created without saying how many.", 1, 10000),
    "min.insync.replicas": _int(
        1, "acks=all needs so many in-sync replicas; the cluster's from its first start on.", 1, 32767
    ),
    "auto.create.topics.enable": Setting(bool, False, "Create a topic when a client first asks for it."),
    "socket.request.max.bytes": _int(
        100 << 20, "The largest request; a longer one closes the connection.", 1024, 1 << 30
    ),
    "queued.max.request.bytes": _int(
        256 << 20, "Bytes of requests in work on all connections; above, reading pauses.", 1 << 20
    ),
    "max.connections": _int(
        10000,
        "Connections of all Kafka listeners, and of each gRPC listener; one more is closed at once.",
        1,
        2**31 - 1,
    ),
    "max.connections.per.ip": _int(
        2**31 - 1, "Connections of all Kafka listeners from one address.", 1, 2**31 - 1
    ),
    "connections.max.idle.ms": _int(
        600000, "A connection on which nothing moves for so long, and nothing is due, is closed.", 1
    ),
    "quota.window.size.seconds": _int(
        1, "A client may use its quota of so long at once; then it pauses.", 1, 3600
    ),
    "quota.window.num": _int(11, "A client pauses for so many windows at once, at most.", 1, 3600),
    "controller.quota.window.size.seconds": _int(
        1, "As quota.window.size.seconds, for topics that are created or deleted.", 1, 3600
    ),
    "controller.quota.window.num": _int(
        11, "A client may use its quota for topics of so many windows at once.", 1, 3600
    ),
    "fetch.max.bytes": _int(
        55 << 20, "Most bytes in one fetch response, whatever the client asks.", 1024, 1 << 30
    ),
    "max.request.partition.size.limit": _int(
        2000, "Partitions in one answer of DescribeTopicPartitions.", 1, 20000
    ),
    "max.incremental.fetch.session.cache.slots": _int(
        1000, "Clients with a fetch session; more are answered without one.", 0
    ),
    "client.metrics.always.announced": Setting(
        bool,
        False,
        "Announce client metrics (KIP-714) also while there is no subscription: for clients that run "
        "already then.",
    ),
    "transaction.state.log.num.partitions": _int(
        16, "Partitions of __transaction_state. Never change it.", 1, 10000
    ),
    "transaction.state.log.replication.factor": _int(3, "Replicas of __transaction_state.", 1, 32767),
    "transaction.state.log.min.isr": _int(2, "min.insync.replicas of __transaction_state.", 1, 32767),
    "transaction.max.timeout.ms": _int(
        900000, "The longest transaction timeout that a producer may ask for.", 1
    ),
    "transaction.two.phase.commit.enable": Setting(
        bool, False, "Transactions that a program prepares and ends whenever it likes (KIP-939)."
    ),
    "transaction.max.producer.epoch": _int(
        32767, "Then comes another producer id. Less only in tests, on new data.", 3, 32767
    ),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": _int(
        1000, "How often open transactions are checked.", 10
    ),
    "transactional.id.expiration.ms": _int(
        604800000, "A transactional id that is idle for this long is forgotten.", 1
    ),
    "job.retention.ms": _int(
        604800000,
        "A committed job is remembered this long, an aborted one an hour at most; the last committed "
        "batch of a stream for ever.",
        1,
    ),
    "producer.id.expiration.ms": _int(
        86400000, "A producer id that is idle for this long is forgotten by a partition.", 1, 2**31 - 1
    ),
    "offsets.topic.num.partitions": _int(16, "Partitions of __consumer_offsets. Never change it.", 1, 10000),
    "offsets.topic.replication.factor": _int(3, "Replicas of __consumer_offsets.", 1, 32767),
    "offsets.topic.min.isr": _int(2, "min.insync.replicas of __consumer_offsets.", 1, 32767),
    "offsets.retention.minutes": _int(
        10080, "Offsets that no member of their group reads are kept this long.", 1
    ),
    "offset.metadata.max.bytes": _int(4096, "The longest metadata string of a committed offset."),
    "group.initial.rebalance.delay.ms": _int(
        3000, "How long the first rebalance of a group waits for more members."
    ),
    "group.min.session.timeout.ms": _int(6000, "The shortest session timeout that a member may ask for.", 1),
    "group.max.session.timeout.ms": _int(
        1800000, "The longest session timeout that a member may ask for.", 1
    ),
    "group.max.size": _int(2**31 - 1, "Most members of one group.", 1),
    "group.consumer.session.timeout.ms": _int(
        45000, "A consumer group's member (KIP-848) that is silent so long is removed.", 1
    ),
    "group.consumer.heartbeat.interval.ms": _int(
        5000, "How often a consumer group's members are to say that they live.", 1
    ),
    "group.consumer.min.session.timeout.ms": _int(
        45000, "The least that a group's consumer.session.timeout.ms may be.", 1
    ),
    "group.consumer.max.session.timeout.ms": _int(
        60000, "The most that a group's consumer.session.timeout.ms may be.", 1
    ),
    "group.consumer.min.heartbeat.interval.ms": _int(
        5000, "The least that a group's consumer.heartbeat.interval.ms may be.", 1
    ),
    "group.consumer.max.heartbeat.interval.ms": _int(
        15000, "The most that a group's consumer.heartbeat.interval.ms may be.", 1
    ),
    "group.consumer.max.size": _int(2**31 - 1, "Most members of one consumer group.", 1),
    "group.consumer.assignors": Setting(
        list, ["uniform", "range"], "The assignors; the first is for groups whose members name none."
    ),
    "group.consumer.migration.policy": Setting(
        str,
        "bidirectional",
        "Which ways a group with members may move between the protocols: bidirectional, upgrade, "
        "downgrade or disabled.",
    ),
    "group.consumer.assignment.interval.ms": _int(
        1000, "Members of a consumer group that join within it are assigned together."
    ),
    "log.retention.check.interval.ms": _int(
        300000, "How often segments are looked at that may be too old or too many.", 10
    ),
    "log.damaged.retention.ms": _int(
        604800000, "How long a damaged log is kept that was set aside; -1: for ever.", -1
    ),
    "log.damaged.retention.bytes": _int(
        10 << 30, "How much of them is kept in a data folder, besides the newest; -1: all.", -1
    ),
    "log.cleaner.enable": Setting(
        bool, True, "Clean compacted topics; the state topics grow for ever without it."
    ),
    "log.cleaner.backoff.ms": _int(15000, "How long the cleaner waits when there is nothing to clean."),
    "log.cleaner.dedupe.buffer.size": _int(
        128 << 20, "Most memory of the cleaner's key map, 24 bytes a slot.", 1 << 20
    ),
    "log.cleaner.io.max.bytes.per.second": _int(
        32 << 20, "The cleaner's reads and writes; 0: no limit. Changes at run time."
    ),
    "num.recovery.threads.per.data.dir": _int(
        2, "Logs of a folder opened at the same time; 1: closed one by one, too.", 1, 256
    ),
    "log.open.files.max": _int(
        4096, "Open files of segments in one data folder; those with unflushed data come on top.", 16
    ),
    "log.flush.threads": _int(4, "Threads that flush the logs' files.", 1, 256),
    "debug.validate": Setting(
        bool,
        False,
        "Checks the invariants of voter, logs, leaders and shards; a defect stops the node, or the shard.",
    ),
    "log.level": Setting(str, "INFO", "DEBUG, INFO, WARNING or ERROR."),
    "log.format": Setting(str, "text", "text or json."),
}

# The names of former versions, and what stands in their place.
FORMER_SETTINGS: Final[Mapping[str, str]] = {
    "advertised.grpc": f'{ADVERTISED} = ["PLAINTEXT://host:port", "GRPC://host:port"]',
    "advertised.kafka": f'{ADVERTISED} = ["PLAINTEXT://host:port", "GRPC://host:port"]',
    "data.dirs": "log.dirs",
    "fetch.from.closest.replica": f"replica.selector.class ({' or '.join(SELECTORS)})",
    "listeners.grpc": f'{LISTENERS} with "GRPC://host:port"',
    "listeners.kafka": f'{LISTENERS} with "PLAINTEXT://host:port"',
    "listeners.metrics": f'{LISTENERS} with "METRICS://host:port"',
    "listeners.quorum": f'{LISTENERS} with "CONTROLLER://host:port"',
    "quorum.election.timeout.ms": "controller.quorum.election.timeout.ms",
    "quorum.tls.authority": f"ssl.truststore.location, and CONTROLLER:SSL in {PROTOCOLS}",
    "quorum.tls.certificate": f"ssl.keystore.location, and CONTROLLER:SSL in {PROTOCOLS}",
    "quorum.tls.key": f"ssl.key.location, and CONTROLLER:SSL in {PROTOCOLS}",
    "quorum.voters": "controller.quorum.voters",
    "rack": "broker.rack",
    "replica.fetch.max.bytes": "replica.fetch.response.max.bytes",
    "roles": "process.roles",
}
