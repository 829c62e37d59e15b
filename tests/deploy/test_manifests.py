"""The manifests are valid Kubernetes, fit together, and keep the promises that operations.md makes for
them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tidegate
import yaml
from tidegate.runtime.connections.listeners import parse_listener

from . import manifests
from .manifests import (
    ALL,
    BACKFILL,
    BASE,
    CLUSTERS,
    ROOT,
    config_map,
    container,
    documents,
    of_kind,
    only,
    pod,
    pods,
    render,
    service,
)

PORTS = {
    "kafka": 9092,
    "grpc": 9093,
    "quorum": 9094,
    "metrics": 9095,
    "brokers": 9096,
    "controller-grpc": 9097,
    "administrators": 9098,
}
LISTENERS = {
    "kafka": "CLIENTS",
    "grpc": "GRPC",
    "quorum": "CONTROLLER",
    "metrics": "METRICS",
    "brokers": "BROKERS",
    "controller-grpc": "CONTROLLER_GRPC",
    "administrators": "ADMINISTRATORS",
}


@pytest.mark.parametrize("folder", ALL)
def test_every_kustomization_is_strictly_valid_kubernetes(folder: str, tmp_path: Path) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(render(folder))
    done = validate(rendered)
    assert done.returncode == 0, done.stdout + done.stderr


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", "--quiet", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_validation_would_catch_a_misspelt_field(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(render(BASE).replace("terminationGracePeriodSeconds", "terminationGracePeriodSecond"))
    assert validate(broken).returncode != 0


@pytest.mark.parametrize(("folder", "nodes"), CLUSTERS.items())
def test_the_quorum_has_a_voter_for_every_pod_at_the_pods_own_name(folder: str, nodes: int) -> None:
    stateful_set = only(folder, "StatefulSet")
    name, domain = stateful_set["metadata"]["name"], stateful_set["spec"]["serviceName"]
    assert stateful_set["spec"]["replicas"] == nodes
    expected = [f"{n}@{name}-{n}.{domain}:{PORTS['quorum']}:{PORTS['controller-grpc']}" for n in range(nodes)]
    assert config_map(folder, "tidegate-quorum")["voters"].split(",") == expected


@pytest.mark.parametrize(("folder", "nodes"), CLUSTERS.items())
def test_a_drain_leaves_a_quorum_and_enough_in_sync_replicas(folder: str, nodes: int) -> None:
    budget = only(folder, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert nodes - budget["maxUnavailable"] > nodes // 2
    settings = flat(tomllib.loads(config_map(folder, "tidegate")["node.toml"]))
    for replicas, in_sync in (
        ("default.replication.factor", "min.insync.replicas"),
        ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
        ("offsets.topic.replication.factor", "offsets.topic.min.isr"),
    ):
        assert settings[replicas] - budget["maxUnavailable"] >= settings[in_sync] >= 2  # type: ignore[operator]
        assert settings[replicas] <= nodes  # type: ignore[operator]


def flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return found


@pytest.mark.parametrize("folder", CLUSTERS)
def test_every_selector_finds_the_nodes_and_nothing_else(folder: str) -> None:
    labels = pod(folder)["metadata"]["labels"]
    others = [pod(BACKFILL), *(found for name, found in pods(folder).items() if "StatefulSet" not in name)]
    stateful_set = only(folder, "StatefulSet")["spec"]
    template = pod(folder)["spec"]
    selectors = [
        stateful_set["selector"]["matchLabels"],
        only(folder, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(folder, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(found["spec"]["selector"] for found in of_kind(folder, "Service")),
        *(
            term["labelSelector"]["matchLabels"]
            for term in template["affinity"]["podAntiAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
        ),
        *(constraint["labelSelector"]["matchLabels"] for constraint in template["topologySpreadConstraints"]),
    ]
    assert len(selectors) == 8
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()
        assert not any(selector.items() <= other["metadata"]["labels"].items() for other in others)


@pytest.mark.parametrize("folder", CLUSTERS)
def test_nodes_have_stable_names_that_resolve_before_they_are_ready(folder: str) -> None:
    stateful_set = only(folder, "StatefulSet")["spec"]
    headless = service(folder, stateful_set["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    assert stateful_set["podManagementPolicy"] == "Parallel"
    clients = service(folder, "tidegate")["spec"]
    assert not clients.get("publishNotReadyAddresses", False)
    assert {port["name"] for port in clients["ports"]} == {"kafka", "grpc"}


@pytest.mark.parametrize("folder", CLUSTERS)
def test_ports_mean_the_same_everywhere(folder: str) -> None:
    assert {port["name"]: port["containerPort"] for port in container(folder)["ports"]} == PORTS
    for found in of_kind(folder, "Service"):
        for port in found["spec"]["ports"]:
            assert port["port"] == PORTS[port["name"]]
            assert port["targetPort"] == port["name"]
    settings = flat(tomllib.loads(config_map(folder, "tidegate")["node.toml"]))
    listeners = settings["listeners"]
    assert isinstance(listeners, list)
    assert [str(each) for each in map(parse_listener, listeners)] == [
        f"{name}://:{PORTS[port]}" for port, name in LISTENERS.items()
    ]


@pytest.mark.parametrize("folder", CLUSTERS)
def test_every_nodes_data_outlives_its_pod(folder: str) -> None:
    stateful_set = only(folder, "StatefulSet")["spec"]
    [claim] = stateful_set["volumeClaimTemplates"]
    [mount] = [
        mount for mount in container(folder)["volumeMounts"] if mount["name"] == claim["metadata"]["name"]
    ]
    settings = flat(tomllib.loads(config_map(folder, "tidegate")["node.toml"]))
    folders = settings["log.dirs"]
    assert isinstance(folders, list)
    assert all(data.startswith(mount["mountPath"] + "/") for data in folders)
    assert stateful_set["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


@pytest.mark.parametrize("folder", CLUSTERS)
def test_probes_ask_for_real_health_on_the_metrics_port(folder: str) -> None:
    node = container(folder)
    probes = {name: node[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes["startupProbe"] == probes["livenessProbe"] == {"path": "/livez", "port": "metrics"}
    assert probes["readinessProbe"] == {"path": "/readyz", "port": "metrics"}
    annotations = pod(folder)["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == "/metrics"
    assert annotations["prometheus.io/port"] == str(PORTS["metrics"])


@pytest.mark.parametrize("folder", CLUSTERS)
def test_a_stop_has_time_to_hand_the_leaderships_over(folder: str) -> None:
    settings = flat(tomllib.loads(config_map(folder, "tidegate")["node.toml"]))
    timeout_ms = settings["controlled.shutdown.timeout.ms"]
    assert isinstance(timeout_ms, int)
    assert pod(folder)["spec"]["terminationGracePeriodSeconds"] * 1000 >= timeout_ms + 20_000
    assert "command" not in container(folder), (
        "a shell between the kubelet and the node would swallow SIGTERM"
    )


@pytest.mark.parametrize("folder", CLUSTERS)
def test_two_nodes_never_share_a_host(folder: str) -> None:
    affinity = pod(folder)["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert [term["topologyKey"] for term in affinity] == ["kubernetes.io/hostname"]
    assert pod(folder)["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"


def test_the_backfill_is_let_in_by_the_policy_of_the_nodes() -> None:
    labels = pod(BACKFILL)["metadata"]["labels"]
    rules = only(BASE, "NetworkPolicy")["spec"]["ingress"]
    admitting = [
        peer
        for rule in rules
        if {"grpc"} & {port["port"] for port in rule["ports"]}
        for peer in rule["from"]
        if "podSelector" in peer and peer["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    assert len(admitting) == 1
    clients = service(BASE, "tidegate")["metadata"]["name"]
    assert f"--bootstrap={clients}:{PORTS['grpc']}" in container(BACKFILL)["args"]


SCRIPTS = [
    (BACKFILL, "tidegate-backfill", "backfill.py"),
    (BASE, "tidegate-users-script", "users.py"),
    (BASE, "tidegate-certificates", "certificates.py"),
]


@pytest.mark.parametrize(("folder", "prefix", "name"), SCRIPTS)
def test_the_script_of_a_job_starts_outside_the_repository(
    folder: str, prefix: str, name: str, tmp_path: Path
) -> None:
    """As in its pod: beside nothing but an installed package."""
    file = tmp_path / name
    file.write_text(config_map(folder, prefix)[name])
    program = f"import runpy; runpy.run_path({str(file)!r})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_backfill_runs_its_script_with_its_users_properties() -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container(BACKFILL)["volumeMounts"]}
    assert container(BACKFILL)["args"][0] == f"{mounts['script']}/backfill.py"
    assert f"--command-config={mounts['client']}/client.properties" in container(BACKFILL)["args"]


@pytest.mark.parametrize("folder", ALL)
def test_pods_run_without_privileges_token_and_service_links(folder: str) -> None:
    accounts = of_kind(folder, "ServiceAccount")
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
    found = pods(folder)
    assert {template["spec"]["serviceAccountName"] for template in found.values()} == {
        account["metadata"]["name"] for account in accounts
    }
    for name, template in found.items():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] >= 10000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # Only what writes Secrets talks to the Kubernetes API.
        assert spec["automountServiceAccountToken"] is name.endswith(" tidegate-certificates")
        # A Service `tidegate` would put TIDEGATE_PORT into the environment, and a node refuses settings that
        # it does not know.
        assert spec["enableServiceLinks"] is False
        for each in [*spec["containers"], *spec.get("initContainers", ())]:
            security = each["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert each["resources"].keys() == {"requests", "limits"}


@pytest.mark.parametrize("folder", ALL)
def test_images_carry_the_projects_version(folder: str) -> None:
    """The version stands in `__init__.py`: the wheel takes it from there, and the manifests name the image by
    it."""
    for template in pods(folder).values():
        for each in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]:
            repository, _, tag = each["image"].partition(":")
            assert repository in ("tidegate/node", "tidegate/spark")
            assert tag == tidegate.__version__


@pytest.mark.parametrize("folder", ALL)
def test_all_objects_are_in_one_namespace_and_every_reference_resolves(folder: str) -> None:
    namespaces = {
        found["metadata"].get("namespace") for found in documents(folder) if found["kind"] != "Namespace"
    }
    assert namespaces == {"tidegate"}
    maps = {found["metadata"]["name"] for found in of_kind(folder, "ConfigMap")}
    claims = {found["metadata"]["name"] for found in of_kind(folder, "PersistentVolumeClaim")}
    for volume in [volume for template in pods(folder).values() for volume in template["spec"]["volumes"]]:
        assert "configMap" not in volume or volume["configMap"]["name"] in maps
        assert "persistentVolumeClaim" not in volume or volume["persistentVolumeClaim"]["claimName"] in claims
    assert manifests.environment(folder, "tidegate")


def test_every_manifest_is_part_of_a_kustomization() -> None:
    used: set[Path] = set()
    for kustomization in manifests.KUBERNETES.rglob("kustomization.yaml"):
        content = yaml.safe_load(kustomization.read_text())
        files = [
            file for generator in content.get("configMapGenerator", []) for file in generator.get("files", [])
        ]
        used |= {kustomization} | {
            (kustomization.parent / name).resolve() for name in [*content.get("resources", []), *files]
        }
    there = {path for path in manifests.KUBERNETES.rglob("*") if path.is_file()}
    assert {path for path in there if path.parent.name != "__pycache__"} <= used


def dockerfile_targets() -> dict[str, list[str]]:
    """Instructions by stage, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "image" / "Dockerfile").read_text())
    stages: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("FROM "):
            stages[line.rpartition(" AS ")[2]] = current = [line]
        elif line and not line.startswith("#") and stages:
            current.append(line)
    return stages


def test_the_image_runs_the_node_directly_and_not_as_root() -> None:
    stages = dockerfile_targets()
    assert list(stages)[-1] == "node", "a build without --target makes the last stage"
    user = str(pod(BASE)["spec"]["securityContext"]["runAsUser"])
    assert any(line == f"USER {user}:{user}" for line in stages["runtime"])
    assert stages["node"][0].startswith("FROM runtime ")
    assert stages["spark"][0].startswith("FROM runtime ")
    assert 'ENTRYPOINT ["tidegate-node"]' in stages["node"]
    assert "STOPSIGNAL SIGTERM" in stages["node"]
    assert f"EXPOSE {' '.join(map(str, PORTS.values()))}" in stages["node"]
    # TIDEGATE_ names settings: an unknown one would keep every container from starting.
    assert not any("TIDEGATE_" in line for lines in stages.values() for line in lines)


def test_the_image_is_built_from_all_that_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"] if "." in name}
    rules = (ROOT / ".dockerignore").read_text().split()
    admitted = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    modules = {f"{name}.py" for name in project["tool"]["setuptools"].get("py-modules", [])}
    build = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "__init__.py", "py.typed"}
    of_image = {"deploy/image/locks", "deploy/image/sbom.py"}
    assert admitted == folders | modules | build | of_image
    assert "*" in rules
