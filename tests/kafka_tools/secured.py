"""Runs Kafka's tools for security over SASL_SSL, each against a node of Tidegate and against a Kafka of the
same version, both with an authorizer, and compares.

    python -m tests.kafka_tools.secured [--only WORD] [--keep FILE] [--write]

`--write` puts the table of all cases behind that of the other tools in docs/kafka-tools.md.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.local_ports import PORT_STEP
from tidegate.runtime.connections.tls import TlsFiles
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.certificates import Authority

from bench.kafka_peer import KafkaCluster, KafkaUnavailable

from .__main__ import KAFKA_READY_S, PAGE, SECURITY_TITLE, Target, Verdict, judged_and_shown, rows
from .cases import Case
from .jvm import Outcome, ToolJvm, ToolsUnavailable, compiled, fetched
from .secured_cases import SECURED_CASES

USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "SASL_SSL")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
USERS = {"root": "r", "alice": "a", "bob": "b"}
PLAIN_USERS = (
    " ".join([PLAIN_MODULE, "required", *(f'user_{name}="{word}"' for name, word in USERS.items())]) + ";"
)
COMMON: Mapping[str, str] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",
    "delegation.token.secret.key": "a secret of the nodes",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_USERS,
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}
_TOKEN = re.compile(r"^(\S{22})\s+(\S{88})\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SecuredTarget(Target):
    """A node whose clients come as users.  `token`: the id and the HMAC of the token that was made last."""

    authority: Path = Path()
    token: list[str] = field(default_factory=list)

    def filled(self, text: str) -> list[str]:
        for user in (*USERS, "token"):
            text = text.replace(f"{{{user}}}", f"--command-config {self.folder / user}")
        if self.token:
            text = text.replace("{hmac}", self.token[1])
        return Target.filled(self, text)

    def run(self, case: Case, beside: ToolJvm | None) -> Outcome:
        outcome = Target.run(self, case, beside)
        found = _TOKEN.search(outcome.out)
        if "--create" in case.arguments and found is not None and not self.token:
            self.token.extend(found.groups())
            token_id, password = self.token
            self.write("token", SCRAM_MODULE, "SCRAM-SHA-512", token_id, password, ' tokenauth="true"')
        return outcome

    def write(self, name: str, module: str, mechanism: str, user: str, password: str, more: str = "") -> None:
        """The options of a client."""
        (self.folder / name).write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}"{more};\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.authority}\n"
            "ssl.endpoint.identification.algorithm=\n"
        )


def _target(
    name: str, address: str, root: Path, authority: Path, classes: tuple[Path, Path], jvm: ToolJvm
) -> SecuredTarget:
    folder = root / f"files-{name}"
    folder.mkdir()
    made = SecuredTarget(
        name, address, {address: "node-1", str(folder): "<folder>"}, folder, root, jvm, classes, authority
    )
    for user, password in USERS.items():
        made.write(user, PLAIN_MODULE, "PLAIN", user, password)
    return made


def _tidegate(root: Path, own: TlsFiles, authority: Authority) -> tuple[LocalCluster, str]:
    base = free_base_port()
    settings = {
        **COMMON,
        "listeners": [f"{use}://127.0.0.1:{base + PORT_STEP * number}" for number, use in enumerate(USES)],
        "listener.security.protocol.map": [
            f"{use}:{use if use.startswith('S') else 'PLAINTEXT'}" for use in USES
        ],
        "sasl.enabled.mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        "ssl.keystore.location": str(own.certificate),
        "ssl.key.location": str(own.key),
        "ssl.truststore.location": str(authority.path),
    }
    return LocalCluster(root / "tidegate", 1, settings, base_port=base), f"127.0.0.1:{base + PORT_STEP * 4}"


def _kafka(root: Path, own: TlsFiles, authority: Authority, libraries: Path) -> tuple[KafkaCluster, str]:
    assert own.certificate is not None
    assert own.key is not None
    both = root / "kafka.pem"
    both.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    settings = {
        **COMMON,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "ssl.keystore.location": both,
        "ssl.truststore.location": authority.path,
    }
    kafka = KafkaCluster(root / "kafka", 1, libraries, settings, listeners=("SASL_SSL",))
    return kafka, kafka.addresses("SASL_SSL")


def _wait_for(target: SecuredTarget, kafka: KafkaCluster) -> None:
    deadline = time.monotonic() + KAFKA_READY_S
    while time.monotonic() < deadline:
        kafka.check_running()
        main, words = target.call("kafka-topics", "{root} --list")
        if target.jvm.run(main, words, "", 20_000).code == 0:
            return
        time.sleep(1)
    raise KafkaUnavailable("Kafka was not ready in time")


def page_with(verdicts: list[Verdict]) -> str:
    """docs/kafka-tools.md with a fresh table of these tools."""
    same = sum(not verdict.lines for verdict in verdicts)
    return (
        PAGE.read_text().partition(SECURITY_TITLE)[0]
        + SECURITY_TITLE
        + f"\nAgainst one node each, over SASL_SSL and with an authorizer: {len(verdicts)} calls, of which "
        f"{same} print the same.\n"
        "`{root}`, `{alice}`, `{bob}` and `{token}` stand for the options of a user, and of a delegation "
        "token.\n\n" + rows(verdicts)
    )


async def run(only: str, write: bool, keep: Path | None) -> int:
    libraries = fetched()
    classes = libraries, compiled(libraries)
    with tempfile.TemporaryDirectory(prefix="kafka-tools-") as folder:
        root = Path(folder)
        authority = Authority(root / "tls")
        own = authority.issue("localhost")
        cluster, address = _tidegate(root, own, authority)
        kafka, kafka_address = _kafka(root, own, authority, libraries)
        jvms = [ToolJvm(*classes), ToolJvm(*classes)]
        async with cluster:
            try:
                targets = [
                    _target("Tidegate", address, root, authority.path, classes, jvms[0]),
                    _target("Kafka", kafka_address, root, authority.path, classes, jvms[1]),
                ]
                kafka.format()
                kafka.start()
                _wait_for(targets[1], kafka)
                verdicts = [
                    judged_and_shown(case, list(targets), classes, keep)
                    for case in SECURED_CASES
                    if only in f"{case.tool} {case.arguments}"
                ]
            finally:
                kafka.stop()
                for jvm in jvms:
                    jvm.close()
    wrong = sum(verdict.unexplained for verdict in verdicts)
    print(f"{len(verdicts)} calls, {wrong} differ without a reason")
    if write:
        PAGE.write_text(page_with(verdicts))
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_tools.secured", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="cases in whose call this stands")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--keep", type=Path, help="a file for what the tools printed")
    arguments = parser.parse_args()
    try:
        return asyncio.run(run(arguments.only, arguments.write, arguments.keep))
    except (ToolsUnavailable, KafkaUnavailable) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
