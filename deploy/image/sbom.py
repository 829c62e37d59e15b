"""Says which software an image holds, as CycloneDX 1.6 JSON: every installed package with its version, its
licence and the hashes of the files that the lock admits, and the base image.

    python sbom.py --site SITE_PACKAGES --lock LOCK --base IMAGE > sbom.cdx.json

The Dockerfile runs it; the file is /opt/tidegate/sbom.cdx.json in the image.  The same image gives the same
text: it holds no time and no random number.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = "tidegate"


def canonical(name: str) -> str:
    """PEP 503's form of a project's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_hashes(lock: str) -> dict[str, list[str]]:
    """SHA-256 of each file that the lock admits, by project."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", lock.strip()):
        name = block.partition("==")[0]
        found[canonical(name)] = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
    return found


def bill_of_materials(
    distributions: Sequence[importlib.metadata.Distribution], hashes: Mapping[str, Sequence[str]], base: str
) -> dict[str, object]:
    """Raises LookupError for a package that no lock knows: it came in beside the lock."""
    components, dependencies = [], []
    installed = {canonical(each.metadata["Name"]): each for each in distributions}
    root = installed[ROOT]
    unknown = sorted(installed.keys() - hashes.keys() - {ROOT})
    if unknown:
        raise LookupError(f"not in the lock: {', '.join(unknown)}")
    for name, each in sorted(installed.items()):
        needed = {canonical(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in each.requires or ()}
        present = sorted(needed & installed.keys())
        references = [_reference(other, installed[other].version) for other in present]
        dependencies.append({"ref": _reference(name, each.version), "dependsOn": references})
        if name != ROOT:
            components.append(_component(name, each, hashes[name]))
    image, _, digest = base.partition("@")
    container = {"type": "container", "bom-ref": base, "name": image, "version": digest or image}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(ROOT, root, ()) | {"type": "application"}},
        "components": [container, *components],
        "dependencies": dependencies,
    }


def _reference(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _component(name: str, found: importlib.metadata.Distribution, hashes: Sequence[str]) -> dict[str, object]:
    reference = _reference(name, found.version)
    made: dict[str, object] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": found.version,
        "purl": reference,
    }
    [expression] = found.metadata.get_all("License-Expression") or [""]
    names = [
        text.rpartition(" :: ")[2]
        for text in found.metadata.get_all("Classifier", [])
        if text.startswith("License :: ")
    ]
    if expression:
        made["licenses"] = [{"expression": expression}]
    elif names:
        made["licenses"] = [{"license": {"name": each}} for each in names]
    if hashes:  # of the files that may be installed: which one it was depends on the platform
        made["properties"] = [{"name": "tidegate:lock:sha256", "value": each} for each in sorted(hashes)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--site", required=True, help="the folder site-packages of the image's environment")
    parser.add_argument("--lock", required=True, type=Path)
    parser.add_argument("--base", required=True, help="the base image, by its digest")
    arguments = parser.parse_args()
    distributions = list(importlib.metadata.distributions(path=[arguments.site]))
    hashes = locked_hashes(arguments.lock.read_text())
    print(json.dumps(bill_of_materials(distributions, hashes, arguments.base), indent=1))


if __name__ == "__main__":
    main()
