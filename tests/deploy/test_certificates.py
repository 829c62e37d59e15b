"""The certificates in the Secrets are those that nodes, clients and the Services need, and each listener is
reached by those alone that the network policy names."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from cryptography import x509
from tidegate.node.settings.configuration import load
from tidegate.runtime.connections.tls import MutualTls, TlsFiles
from tidegate.security.certificates import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    Authority,
    CertificateError,
    Lifetime,
)

from .manifests import (
    BASE,
    CERT_MANAGER,
    CLUSTERS,
    KUBERNETES,
    SECURED,
    config_map,
    documents,
    environment,
    of_kind,
    only,
    pod,
    pods,
)
from .test_manifests import LISTENERS, PORTS

DAY_MS = 86_400_000
NOW_MS = 1_750_000_000_000
OWN = [folder for folder in SECURED if folder != CERT_MANAGER]
Data = Mapping[str, bytes]


def script(path: str) -> ModuleType:
    file = KUBERNETES / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


own = script("components/own-certificates/certificates.py")


def made(folder: str, wall_ms: int = NOW_MS, existing: Mapping[str, Data] | None = None) -> dict[str, Data]:
    """The Secrets after the Job ran."""
    voters = config_map(folder, "tidegate-quorum")["voters"]
    before = existing or {}
    planned: dict[str, Data] = own.planned(before, own.host_names(voters, "tidegate"), wall_ms)
    return {**before, **planned}


def dns_names(certificate: bytes) -> set[str]:
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    return set(
        extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.DNSName
        )
    )


def connected_names(folder: str, node: int) -> set[str]:
    """By which names clients and nodes connect to a node: Services, advertised listeners, voters."""
    voters = config_map(folder, "tidegate-quorum")["voters"]
    names = {voters.split(",")[node].partition("@")[2].split(":")[0]}
    for service in of_kind(folder, "Service"):
        if service["spec"].get("clusterIP") != "None":
            name = service["metadata"]["name"]
            names |= {name, f"{name}.tidegate", f"{name}.tidegate.svc", f"{name}.tidegate.svc.cluster.local"}
    file = config_map(folder, "tidegate")["node.toml"].encode()
    configuration = load(file, environment=environment(folder, "tidegate"), hostname=f"tidegate-{node}")
    listeners = configuration.listeners
    return names | {each.host for each in (*listeners.advertised, listeners.advertised_grpc)}


@pytest.mark.parametrize("folder", OWN)
def test_a_nodes_certificate_has_every_name_by_which_it_is_reached(folder: str, tmp_path: Path) -> None:
    secrets = made(folder)
    for node in range(SECURED[folder]):
        secret = secrets[f"tidegate-node-{node}"]
        assert dns_names(secret["tls.crt"]) >= connected_names(folder, node) | {f"node-{node}"}
        for other in range(SECURED[folder]):
            assert (f"node-{other}" in dns_names(secret["tls.crt"])) is (other == node)


def test_a_node_accepts_what_the_job_made_for_it_and_nothing_else(tmp_path: Path) -> None:
    secrets = made(BASE, int(time.time() * 1000))
    for name, data in secrets["tidegate-node-1"].items():
        (tmp_path / name).write_bytes(data)
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    assert MutualTls.load(files, 1).node_id == 1
    with pytest.raises(Exception, match="node-2"):
        MutualTls.load(files, 2)


def test_the_administrators_certificate_is_the_super_users_and_names_no_node() -> None:
    certificate = x509.load_pem_x509_certificate(made(BASE)["tidegate-administrator"]["tls.crt"])
    assert certificate.subject.rfc4514_string() == "CN=administrator"
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_what_holds_stays_and_what_ends_soon_is_renewed() -> None:
    first = made(BASE)
    assert made(BASE, NOW_MS + DAY_MS, first) == first
    late = NOW_MS + (CERTIFICATE_DAYS * 2 // 3 + 1) * DAY_MS
    renewed = made(BASE, late, first)
    assert renewed["tidegate-authority"] == first["tidegate-authority"]
    assert {name for name in first if renewed[name] != first[name]} == first.keys() - {"tidegate-authority"}
    assert all(renewed[name]["ca.crt"] == first[name]["ca.crt"] for name in first)


def test_more_nodes_get_certificates_of_the_same_authority() -> None:
    three = made(BASE)
    five = made("overlays/five-nodes", existing=three)
    assert {name: five[name] for name in three} == three
    assert five.keys() - three.keys() == {"tidegate-node-3", "tidegate-node-4"}


def test_a_node_with_a_strangers_certificate_gets_another() -> None:
    first = made(BASE)
    stranger = Authority.create("stranger", Lifetime.of_days(AUTHORITY_DAYS, NOW_MS))
    foreign = made(
        BASE,
        existing={"tidegate-authority": {"ca.crt": stranger.pem.certificate, "ca.key": stranger.pem.key}},
    )
    mixed = {**first, "tidegate-node-1": foreign["tidegate-node-1"]}
    healed = made(BASE, existing=mixed)
    assert {name for name in mixed if healed[name] != mixed[name]} == {"tidegate-node-1"}


def test_a_damaged_authority_is_never_replaced_by_itself() -> None:
    first = made(BASE)
    damaged = {**first, "tidegate-authority": {**first["tidegate-authority"], "ca.key": b"-----"}}
    with pytest.raises(CertificateError):
        made(BASE, existing=damaged)


@pytest.mark.parametrize("folder", OWN)
def test_the_job_may_read_and_patch_its_secrets_alone(folder: str) -> None:
    [rule] = only(folder, "Role")["rules"]
    secrets = {found["metadata"]["name"] for found in of_kind(folder, "Secret")}
    assert set(rule["resourceNames"]) == secrets == made(folder).keys()
    assert rule["verbs"] == ["get", "patch"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["secrets"])
    assert all("data" not in found for found in of_kind(folder, "Secret")), "applying again would empty it"
    [subject] = only(folder, "RoleBinding")["subjects"]
    job = pods(folder)["Job tidegate-certificates"]["spec"]
    assert subject["name"] == job["serviceAccountName"]
    assert subject["namespace"] == "tidegate"
    assert pods(folder)["CronJob tidegate-certificates"]["spec"] == job


def test_cert_manager_is_asked_for_the_same_certificates() -> None:
    asked = {found["metadata"]["name"]: found["spec"] for found in of_kind(CERT_MANAGER, "Certificate")}
    secrets = made(CERT_MANAGER)
    assert {spec["secretName"] for spec in asked.values()} == secrets.keys()
    for node in range(CLUSTERS[CERT_MANAGER]):
        spec = asked[f"tidegate-node-{node}"]
        assert set(spec["dnsNames"]) == dns_names(secrets[f"tidegate-node-{node}"]["tls.crt"])
        assert spec["commonName"] == f"node-{node}"
        assert {"server auth", "client auth"} <= set(spec["usages"])
    assert asked["tidegate-administrator"]["commonName"] == "administrator"
    assert "dnsNames" not in asked["tidegate-administrator"]
    issuers = {found["metadata"]["name"]: found["spec"] for found in of_kind(CERT_MANAGER, "Issuer")}
    for name, spec in asked.items():
        issuer = "tidegate-self-signed" if name == "tidegate-authority" else "tidegate"
        assert spec["issuerRef"] == {"name": issuer, "kind": "Issuer"}
        assert issuer in issuers
    assert asked["tidegate-authority"]["isCA"] is True
    assert issuers["tidegate"] == {"ca": {"secretName": "tidegate-authority"}}


@pytest.mark.parametrize(("folder", "nodes"), SECURED.items())
def test_a_node_sees_its_own_certificate_alone(folder: str, nodes: int) -> None:
    spec = pod(folder)["spec"]
    [certificates] = [each["projected"] for each in spec["volumes"] if each["name"] == "certificates"]
    sources = [each["secret"] for each in certificates["sources"]]
    assert [each["name"] for each in sources] == [f"tidegate-node-{node}" for node in range(nodes)]
    for node, each in enumerate(sources):
        assert not each.get("optional", False), "the pod must wait for it"
        assert {item["key"]: item["path"] for item in each["items"]} == {
            name: f"tidegate-{node}/{name}" for name in ("ca.crt", "tls.crt", "tls.key")
        }
    [node_container] = spec["containers"]
    mounted = {mount["name"]: mount for mount in node_container["volumeMounts"]}
    assert "certificates" not in mounted
    folder_of_node = mounted["own-certificate"]["mountPath"]
    settings = config_map(folder, "tidegate")["node.toml"]
    for name in ("ca.crt", "tls.crt", "tls.key"):
        assert f'"{folder_of_node}/{name}"' in settings
    [sidecar] = spec["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert {mount["name"] for mount in sidecar["volumeMounts"]} == {"certificates", "own-certificate"}


# Which pods may reach a listener: nodes, labelled pods of this or of every namespace, every pod.
ADMITTED = {
    "quorum": {"nodes"},
    "brokers": {"nodes"},
    "controller-grpc": {"nodes"},
    "administrators": {"here: tidegate.io/administrator"},
    "kafka": {"everywhere"},
    "grpc": {"everywhere: tidegate.io/grpc-client"},
    "metrics": {"namespace monitoring"},
}


def admitted(peer: Mapping[str, Mapping[str, Mapping[str, str]]], nodes: Mapping[str, str]) -> str:
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    if "namespaceSelector" not in peer:
        assert labels, "every pod of the namespace"
        return "nodes" if labels == nodes else f"here: {','.join(labels)}"
    namespace = peer["namespaceSelector"].get("matchLabels", {})
    if namespace:
        return f"namespace {','.join(namespace.values())}"
    return f"everywhere: {','.join(labels)}" if labels else "everywhere"


@pytest.mark.parametrize("folder", CLUSTERS)
def test_each_listener_admits_those_that_it_is_for(folder: str) -> None:
    policy = only(folder, "NetworkPolicy")["spec"]
    nodes = policy["podSelector"]["matchLabels"]
    assert nodes.items() <= pod(folder)["metadata"]["labels"].items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    found: dict[str, set[str]] = {}
    for rule in policy["ingress"]:
        assert rule.get("ports"), "a rule without ports admits to every port"
        for port in rule["ports"]:
            found.setdefault(port["port"], set()).update(admitted(peer, nodes) for peer in rule["from"])
    assert found == ADMITTED
    assert found.keys() == LISTENERS.keys()
    outgoing = {
        port["port"]
        for rule in policy["egress"]
        for peer in rule["to"]
        if "namespaceSelector" not in peer
        for port in rule["ports"]
    }
    assert outgoing == {PORTS[name] for name, peers in ADMITTED.items() if peers == {"nodes"}}


@pytest.mark.parametrize("folder", SECURED)
def test_the_users_job_comes_as_an_administrator(folder: str) -> None:
    template = pods(folder)["Job tidegate-users"]
    assert template["metadata"]["labels"]["tidegate.io/administrator"] == "true"
    spec = template["spec"]
    secrets = {each["name"]: each["secret"] for each in spec["volumes"] if "secret" in each}
    assert secrets["administrator"]["secretName"] == "tidegate-administrator"
    assert secrets["users"] == {"secretName": "tidegate-users", "defaultMode": 0o440, "optional": True}
    [users] = spec["containers"]
    assert f"--bootstrap=tidegate-administrators:{PORTS['administrators']}" in users["args"]
    services = {found["metadata"]["name"] for found in of_kind(folder, "Service")}
    assert "tidegate-administrators" in services


def test_no_manifest_holds_a_secret() -> None:
    for folder in CLUSTERS:
        for found in documents(folder):
            assert "stringData" not in found
            assert found["kind"] != "Secret" or "data" not in found


def test_users_are_files_of_a_secret(tmp_path: Path) -> None:
    users = script("components/users/users.py")
    (tmp_path / "alice").write_text("wonder land\n")
    (tmp_path / "bob").write_text("b")
    (tmp_path / "..data").mkdir()
    assert users.read_users(tmp_path) == {"alice": "wonder land", "bob": "b"}
    entry = users.upsertion("alice", "wonder land")
    assert (entry["name"], entry["mechanism"], len(entry["salted_password"])) == ("alice", 2, 64)
    assert b"wonder" not in entry["salted_password"] + entry["salt"]
