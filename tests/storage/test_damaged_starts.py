"""Every damage that `tidegate log verify` knows, before a start: it is refused, or mended, and never served
as something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tidegate.storage.directory.log_directory import DirectoryRefused
from tidegate.wire.errors import KafkaError

from .damages import CLEAN, UNCLEAN
from .data_folder import build, open_folder
from .test_segment_checksums import Seen, seen

Healthy = tuple[bool, Path, dict[str, Seen | None]]
"""Whether the stop was a clean one, the folder, and what its logs show."""

VALID_BYTES = "every checksum is right: a fault of software, which only a look at all batches together finds"
BY_CHECKSUM = "the reader's checksum tells"
NOT_FOUND = {
    **dict.fromkeys(
        (
            "offset-order", "epoch-order", "sequence-gap", "producer-epoch-order", "transaction-interrupted",
            "transaction-merged", "marker-epoch", "marker-coordinator-epoch", "marker-alone",
            "log-start-beyond-end",
            "clean-end-differs",
        ), VALID_BYTES,
    ),
    "batch-damaged": BY_CHECKSUM,
}  # fmt: skip
"""Kinds of damage that a start lets pass, each with the reason."""


def read(path: Path) -> tuple[dict[str, Seen | None], set[str]]:
    """What the logs show, None for one that refuses; and which are reported as unusable."""
    folder = open_folder(path)
    found: dict[str, Seen | None] = {}
    for log in folder.logs.values():
        try:
            found[log.name] = seen(log)
        except KafkaError:
            found[log.name] = None
    reported = {f"{topic}-{partition}" for topic, partition in (*folder.damaged, *folder.unusable)}
    folder.close(clean=False)
    return found, reported


@pytest.fixture(scope="module", params=[True, False], ids=["clean", "unclean"])
def healthy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    path = build(tmp_path_factory.mktemp("healthy") / "data", clean=request.param)
    copy = path.with_name("read")
    shutil.copytree(path, copy)
    return request.param, path, read(copy)[0]


def test_a_start_serves_nothing_wrong(healthy: Healthy, tmp_path: Path) -> None:
    is_clean, original, wanted = healthy
    cases = [
        (kind, damage)
        for kind, damages in (CLEAN if is_clean else UNCLEAN).items()
        for _name, damage in damages
    ]
    assert len(cases) > 10
    passed: set[str] = set()
    for number, (kind, damage) in enumerate(cases):
        path = tmp_path / str(number)
        shutil.copytree(original, path)
        damage(path)
        wrong = _wrong(path, wanted)
        if wrong and kind in NOT_FOUND:
            passed.add(kind)
        else:
            assert not wrong, f"{kind}, {damage.__name__}: {wrong}"
    assert passed == (NOT_FOUND.keys() if is_clean else {"batch-damaged"}), (
        "what is found by now need not be excused"
    )


def _wrong(path: Path, wanted: dict[str, Seen | None]) -> list[str]:
    try:
        found, reported = read(path)
    except DirectoryRefused:
        return []
    except AssertionError as error:  # what was read cannot be taken apart into batches
        return [str(error)]
    missing = [
        name for name in wanted if name not in found and name not in reported and (path / name).exists()
    ]
    different = [name for name, each in found.items() if each is not None and each != wanted.get(name)]
    return missing + different
