"""Makes the cluster's authority and the certificates of its nodes and of the administrator, and writes them
into Secrets.  A Job runs it once, a CronJob every day; what is there and holds for long enough stays.

Secret tidegate-authority       ca.crt, ca.key: for this program alone
Secret tidegate-node-N          tls.crt, tls.key, ca.crt of a node
Secret tidegate-administrator   tls.crt, tls.key, ca.crt of the principal User:CN=administrator

A certificate is renewed when less than a third of its time is left, when its node has other names, and when
another authority signed it.  The Secrets exist already: the pod may read and patch those, and no others.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography import x509
from tidegate.security.certificates import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    Authority,
    Certificate,
    Lifetime,
    client_certificate,
    node_certificate,
)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"
AUTHORITY = "tidegate-authority"
ADMINISTRATOR = "tidegate-administrator"
SERVICES = ("tidegate", "tidegate-administrators")
TIMEOUT_S = 30.0

Data = Mapping[str, bytes]


def host_names(voters: str, namespace: str) -> dict[int, list[str]]:
    """Under which names the nodes are reached, by their ids.  `voters`: controller.quorum.voters."""
    found = {}
    for voter in voters.split(","):
        node, _, address = voter.partition("@")
        names = (address.split(":")[0], *SERVICES)
        found[int(node)] = [f"{name}{suffix}" for name in names for suffix in suffixes(namespace)]
    return found


def suffixes(namespace: str) -> tuple[str, ...]:
    return ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")


def planned(existing: Mapping[str, Data], nodes: Mapping[int, list[str]], wall_ms: int) -> dict[str, Data]:
    """What is to be written, by the Secret's name.  Pure but for the new keys.  Raises CertificateError for
    an authority that is damaged: a new one beside it would lock every client out."""
    changed: dict[str, Data] = {}
    kept = existing.get(AUTHORITY)
    if kept:
        authority = Authority.load(kept["ca.crt"], kept["ca.key"])
    else:
        authority = Authority.create("Tidegate", Lifetime.of_days(AUTHORITY_DAYS, wall_ms))
        changed[AUTHORITY] = {"ca.crt": authority.pem.certificate, "ca.key": authority.pem.key}
    lifetime = Lifetime.of_days(CERTIFICATE_DAYS, wall_ms)
    for node, hosts in nodes.items():
        secret = f"tidegate-node-{node}"
        if not holds(existing.get(secret, {}), authority, [f"node-{node}", *hosts], wall_ms):
            changed[secret] = filled(authority, node_certificate(authority, node, hosts, lifetime))
    if not holds(existing.get(ADMINISTRATOR, {}), authority, [], wall_ms):
        changed[ADMINISTRATOR] = filled(authority, client_certificate(authority, "administrator", lifetime))
    return changed


def filled(authority: Authority, made: Certificate) -> Data:
    return {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority.pem.certificate}


def holds(data: Data, authority: Authority, hosts: Iterable[str], wall_ms: int) -> bool:
    """Whether the certificate is of this authority, has these names, and holds for long enough."""
    if not data.keys() >= {"tls.crt", "tls.key", "ca.crt"} or data["ca.crt"] != authority.pem.certificate:
        return False
    certificate = x509.load_pem_x509_certificate(data["tls.crt"])
    extensions = certificate.extensions
    try:
        named = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = set(named.get_values_for_type(x509.DNSName))
    except x509.ExtensionNotFound:
        names = set()
    left_s = certificate.not_valid_after_utc.timestamp() - wall_ms / 1000
    return names == set(hosts) and left_s > CERTIFICATE_DAYS * 86_400 / 3


class Secrets:
    """The Secrets of a namespace, over the Kubernetes API."""

    def __init__(self, namespace: str) -> None:
        self._url = f"{API}/api/v1/namespaces/{namespace}/secrets/"
        self._token = (ACCOUNT / "token").read_text()
        self._tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))

    def read(self, name: str) -> Data:
        data = self._ask("GET", name).get("data") or {}
        return {key: base64.b64decode(text) for key, text in data.items()}

    def write(self, name: str, data: Data) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        self._ask("PATCH", name, json.dumps({"data": encoded}).encode())

    def _ask(self, method: str, name: str, body: bytes | None = None) -> dict[str, dict[str, str]]:
        """Raises HTTPError, URLError: the Job tries again."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/merge-patch+json"}
        request = urllib.request.Request(self._url + name, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:
            found: dict[str, dict[str, str]] = json.load(answer)
        return found


def main() -> None:
    namespace = os.environ["POD_NAMESPACE"]
    nodes = host_names(os.environ["VOTERS"], namespace)
    secrets = Secrets(namespace)
    names = [AUTHORITY, ADMINISTRATOR, *(f"tidegate-node-{node}" for node in nodes)]
    existing = {name: secrets.read(name) for name in names}
    # the authority comes first: should this end in the middle, the next run signs with the same one
    for name, data in planned(existing, nodes, int(time.time() * 1000)).items():
        secrets.write(name, data)
        print(f"wrote {name}")
    print("every certificate holds")


if __name__ == "__main__":
    main()
