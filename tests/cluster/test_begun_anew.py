"""A quorum that lost every disk is formed anew and knows of no topic: a broker with a healthy disk keeps what
it has."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster, LocalClusterError, LocalNode

from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("begun-anew"), pytest.mark.timeout(120)]


def roles_of(node: LocalNode) -> str:
    settings = tomllib.loads(node.log_path.with_name("config.toml").read_text())
    return str(settings["process.roles"])


async def test_a_broker_removes_nothing_for_metadata_that_was_begun_anew(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=2)
    await cluster.up()
    try:
        (controller,) = [node for node in cluster.nodes if "controller" in roles_of(node)]
        broker = next(node for node in cluster.nodes if node is not controller)
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("kept", 1, 2, {})])
        await Witness(cluster.bootstrap, "kept").write(10)
        await cluster.down()
        log = broker.directory / "data" / "kept-0" / f"{0:020}.log"
        written = log.read_bytes()
        shutil.rmtree(controller.directory / "data")
        for _ in range(2):  # nor at the next start, when the new metadata has come further
            with pytest.raises(LocalClusterError, match="begun anew"):
                await cluster.up()
        assert log.read_bytes() == written
    finally:
        await cluster.down()
