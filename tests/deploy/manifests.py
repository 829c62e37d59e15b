"""Reads the manifests as Kubernetes would get them: rendered by `kubectl kustomize`, parsed, and found by
kind and name."""

from __future__ import annotations

import copy
import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tidegate.tests.machine import Need, lacks

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = "overlays/three-nodes"
CERT_MANAGER = "overlays/cert-manager"
TRIAL = "overlays/trial-without-security"
SECURED = {BASE: 3, "overlays/five-nodes": 5, CERT_MANAGER: 3}
CLUSTERS = {**SECURED, TRIAL: 3}
BACKFILL = "overlays/spark-backfill"
ALL = (*CLUSTERS, BACKFILL)

Document = dict[str, Any]


@functools.cache
def render(folder: str) -> str:
    if shutil.which("kubectl") is None:
        lacks(Need.KUBECTL, "kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(folder: str) -> list[Document]:
    return copy.deepcopy(_parsed(folder))


@functools.cache
def _parsed(folder: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(render(folder)) if document]


def of_kind(folder: str, kind: str) -> list[Document]:
    return [document for document in documents(folder) if document["kind"] == kind]


def only(folder: str, kind: str) -> Document:
    [document] = of_kind(folder, kind)
    return document


def service(folder: str, name: str) -> Document:
    [document] = [found for found in of_kind(folder, "Service") if found["metadata"]["name"] == name]
    return document


def pods(folder: str) -> dict[str, Document]:
    """The pod templates of the folder's workloads, by kind and name."""
    found = {}
    for document in documents(folder):
        name = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] in ("StatefulSet", "Job"):
            found[name] = document["spec"]["template"]
        elif document["kind"] == "CronJob":
            found[name] = document["spec"]["jobTemplate"]["spec"]["template"]
    return found


def pod(folder: str) -> Document:
    """The pod template of the nodes, or of the backfill."""
    [template] = [
        template
        for name, template in pods(folder).items()
        if name in ("StatefulSet tidegate", "Job tidegate-backfill")
    ]
    return template


def container(folder: str) -> Document:
    [found] = pod(folder)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def config_map(folder: str, prefix: str) -> dict[str, str]:
    """The data of the generated ConfigMap whose name is `prefix` and a hash."""
    [found] = [m for m in of_kind(folder, "ConfigMap") if m["metadata"]["name"].rpartition("-")[0] == prefix]
    return dict(found["data"])


def environment(folder: str, pod_namespace: str) -> dict[str, str]:
    """The container's environment as the kubelet would resolve it, the pod's name apart."""
    resolved: dict[str, str] = {}
    for variable in container(folder).get("env", []):
        if "value" in variable:
            value = variable["value"]
            for name, known in resolved.items():
                value = value.replace(f"$({name})", known)
        elif "configMapKeyRef" in variable["valueFrom"]:
            reference = variable["valueFrom"]["configMapKeyRef"]
            [found] = [m for m in of_kind(folder, "ConfigMap") if m["metadata"]["name"] == reference["name"]]
            value = found["data"][reference["key"]]
        else:
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
            value = pod_namespace
        resolved[variable["name"]] = value
    return resolved
