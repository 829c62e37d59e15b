"""The image is made of exactly what its lock files name, and says so."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tidegate.tests.architecture.source import tree_of

from .source_tree import ROOT, product_modules, pyproject

IMAGE = ROOT / "deploy" / "image"
LOCKS = ("build", "node", "spark")
# The top-level module of a project, where it has another name.
MODULES = {
    "grpcio": "grpc",
    "protobuf": "google",
    "pyjwt": "jwt",
    "google-re2": "re2",
    "opentelemetry-proto": "opentelemetry",
    "prometheus-client": "prometheus_client",
}
OF_EXTRAS = ("spark", "chaos")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, IMAGE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(name: str) -> list[str]:
    """One for each package: its line, and those of its hashes."""
    return re.split(r"\n(?=\S)", (IMAGE / "locks" / f"{name}.lock").read_text().strip())


def locked(name: str) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for block in blocks(name):
        project, version = block.splitlines()[0].removesuffix(" \\").split("==")
        found[canonicalize_name(project)] = Version(version.partition(" ")[0])
    return found


def required(name: str) -> list[Requirement]:
    project = pyproject()
    texts = {
        "build": project["build-system"]["requires"],
        "node": project["project"]["dependencies"],
        "spark": [
            text for part in ("spark", "java") for text in project["project"]["optional-dependencies"][part]
        ]
        + project["project"]["dependencies"],
    }
    return [Requirement(text) for text in texts[name]]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_every_dependency_within_its_range(name: str) -> None:
    versions = locked(name)
    outside = [
        str(each)
        for each in required(name)
        if (version := versions.get(canonicalize_name(each.name))) is None or version not in each.specifier
    ]
    assert outside == [], "run `make lock`"


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_a_version_or_a_hash(name: str) -> None:
    """And so none names a host or a file, which a lock may be made to install from."""
    for block in blocks(name):
        first, *rest = block.splitlines()
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][0-9a-z.+]* \\", first), first
        assert rest, f"{first} has no hash"
        for line in rest:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line


def test_locks_agree_about_what_they_share() -> None:
    node = locked("node")
    for other in ("build", "spark"):
        versions = locked(other)
        assert {name: versions[name] for name in versions.keys() & node.keys()} == {
            name: node[name] for name in versions.keys() & node.keys()
        }
    assert node.keys() <= locked("spark").keys()


@pytest.mark.parametrize("name", ["node", "spark"])
def test_a_lock_has_what_its_packages_need_themselves(name: str) -> None:
    """Those that are installed here say what they need; with `--no-deps` nothing else would bring it."""
    versions = locked(name)
    missing = []
    for project in versions:
        try:
            needs = importlib.metadata.requires(project) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            applies = need.marker is None or need.marker.evaluate({"extra": "", "python_version": "3.11"})
            if applies and canonicalize_name(need.name) not in versions:
                missing.append(f"{project} needs {need}")
    assert missing == []


@pytest.mark.xdist_group("source")
def test_every_module_that_a_node_imports_is_of_a_dependency() -> None:
    """A package that only the tests' environment has is missing from the image."""
    modules = {MODULES.get(each.name, each.name) for each in required("node")}
    imported = {
        top
        for path in product_modules()
        if path.parts[0] not in OF_EXTRAS
        for name in imports(tree_of((ROOT / path).read_text()))
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names
    }
    assert imported - modules == {"_typeshed"}  # for mypy alone


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def dockerfile() -> str:
    text = (IMAGE / "Dockerfile").read_text()
    return re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text))


def test_the_image_installs_only_wheels_that_a_lock_admits() -> None:
    commands = [
        part.strip()
        for part in re.split(r"&&|\n", dockerfile())
        if re.search(r"\bpip\b.*(install|wheel) ", part)
    ]
    assert len(commands) == 6
    for command in commands:
        assert "--no-deps" in command
        fetches = "--require-hashes" in command and re.search(r"-r deploy/image/locks/\w+\.lock", command)
        assert fetches or "--no-index" in command, command
        if " install " in command:
            assert "--only-binary :all:" in command or command.endswith("/wheels/*.whl"), command
    assert "setup.py" not in dockerfile()


def test_the_base_images_are_arguments_and_a_release_names_their_digests() -> None:
    stages = dict(re.findall(r"(?m)^FROM (\S+) AS (\S+)", dockerfile()))
    # the compiler is in no image: what is made with it is copied
    assert {base: stages[base] for base in stages if base not in ("build", "runtime")} == {
        "${BUILD_IMAGE}": "build",
        "${PYTHON_IMAGE}": "runtime",
    }
    python, build = f"PYTHON_IMAGE=python@sha256:{'0' * 64}", f"BUILD_IMAGE=python@sha256:{'1' * 64}"
    for given in ([], [python], [build], [python, "BUILD_IMAGE=python:3.11"], ["PYTHON_IMAGE=python", build]):
        refused = make_image(*given, "BUILDER=false")
        assert refused.returncode != 0
        assert "has no digest" in refused.stderr
    taken = make_image(python, build, "BUILDER=echo")
    assert taken.returncode == 0, taken.stderr
    assert taken.stdout.count(f"--build-arg {python} --build-arg {build}") == 2


def make_image(*given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--silent", "image", *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_image_is_not_made_without_the_kernel() -> None:
    assert '/opt/tidegate/bin/python -c "import tidegate.spark.decoding.kernel"' in dockerfile()


class TestBillOfMaterials:
    @staticmethod
    def distribution(folder: Path, name: str, version: str, *headers: str) -> None:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *headers]
        (info / "METADATA").write_text("\n".join(lines) + "\n")

    def run(
        self, folder: Path, lock: str, base: str = "python@sha256:" + "0" * 64
    ) -> subprocess.CompletedProcess[str]:
        file = folder / "node.lock"
        file.write_text(lock)
        command = [
            sys.executable,
            str(IMAGE / "sbom.py"),
            "--site",
            str(folder),
            "--lock",
            str(file),
            "--base",
            base,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_it_names_each_package_with_licence_hashes_and_needs(self, tmp_path: Path) -> None:
        self.distribution(
            tmp_path, "tidegate", "1.0", "License-Expression: Apache-2.0", "Requires-Dist: Py_One>=1"
        )
        self.distribution(tmp_path, "Py_One", "1.5", "Classifier: License :: OSI Approved :: MIT License")
        done = self.run(tmp_path, f"py-one==1.5 \\\n    --hash=sha256:{'a' * 64}\n")
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)
        assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
        assert made["metadata"]["component"]["version"] == "1.0"
        base, package = made["components"]
        assert base["version"] == "sha256:" + "0" * 64
        assert package["purl"] == "pkg:pypi/py-one@1.5"
        assert package["licenses"] == [{"license": {"name": "MIT License"}}]
        assert package["properties"] == [{"name": "tidegate:lock:sha256", "value": "a" * 64}]
        needs = {each["ref"]: each["dependsOn"] for each in made["dependencies"]}
        assert needs == {"pkg:pypi/tidegate@1.0": ["pkg:pypi/py-one@1.5"], "pkg:pypi/py-one@1.5": []}

    def test_a_package_that_no_lock_knows_stops_the_build(self, tmp_path: Path) -> None:
        self.distribution(tmp_path, "tidegate", "1.0")
        self.distribution(tmp_path, "stranger", "1.0")
        done = self.run(tmp_path, f"py-one==1.5 \\\n    --hash=sha256:{'a' * 64}\n")
        assert done.returncode != 0
        assert "stranger" in done.stderr


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 packages asked about, 0 with known"),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}],
            1,
            "a 1: X-1, fixed in 2",
        ),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            3,
            "NOT AUDITED: the package index has no data of vulnerabilities for b",
        ),
        ([], 3, "NOT AUDITED"),
    ],
)
def test_an_audit_without_data_is_no_clean_audit(
    answers: list[dict[str, object]], code: int, said: str
) -> None:
    found, lines = script("audit").verdict(answers)
    assert found == code
    assert said in "\n".join(lines)
