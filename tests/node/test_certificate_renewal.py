"""Certificates are read again when their files change, and faulty files change nothing."""

from __future__ import annotations

import asyncio
import datetime
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from tidegate.controller.remote import client as controller_client
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.remote.metadata_follower import MetadataFollower
from tidegate.node.serving.grpc_peers import NodesOnly
from tidegate.node.upkeep.certificate_renewal import CertificateRenewal, ExpiryCollector, Renewable
from tidegate.proto import controller_pb2 as pb
from tidegate.proto import controller_pb2_grpc
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.connections.grpc_tls import node_credentials
from tidegate.runtime.connections.tls import MutualTls, TlsError, TlsFiles
from tidegate.runtime.network import bind_grpc, grpc_node_channel, grpc_server
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually


def put(files: TlsFiles, target: TlsFiles) -> None:
    """Replaces the files of `target`."""
    for new, old in (
        (files.certificate, target.certificate),
        (files.key, target.key),
        (files.authorities, target.authorities),
    ):
        assert new is not None
        assert old is not None
        shutil.copy(new, old.with_suffix(".new"))
        old.with_suffix(".new").replace(old)


def test_the_files_of_another_node_are_not_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = MutualTls.load(authority.issue("node-1"), 1)
    before = own.pem, own.server.newest, own.client.newest
    assert not own.reload()
    put(authority.issue("node-2"), own.files)
    with pytest.raises(TlsError, match="needs the DNS name node-1"):
        own.reload()
    assert (own.pem, own.server.newest, own.client.newest) == before
    put(authority.issue("node-1", "node-7"), own.files)
    assert own.reload()
    assert own.pem is not before[0]
    assert own.server.newest is not before[1]
    assert own.client.newest is not before[2]


class Streams(controller_pb2_grpc.ControllerServicer):
    """A controller that follows nothing: its streams stay silent after one update."""

    def __init__(self) -> None:
        self.certificates: list[str] = []

    async def FollowMetadata(
        self, request: pb.FollowMetadataRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.MetadataUpdate]:
        self.certificates.append(str(context.auth_context()["x509_common_name"]))
        yield pb.MetadataUpdate(controller_epoch=1)
        await asyncio.Event().wait()


async def test_a_follower_of_the_metadata_goes_over_to_the_new_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream on the old channel is cancelled in the end, which must not end the follower."""
    monkeypatch.setattr(controller_client, "LAST_CALLS_S", 0.1)
    # the other methods are not asked for
    authority, streams, clock = Authority(tmp_path), cast(Any, Streams)(), SystemClock()
    server = grpc_server(interceptors=(NodesOnly(),))
    controller_pb2_grpc.add_ControllerServicer_to_server(streams, server)
    certificates = MutualTls.load(authority.issue("node-1"), 1)
    port = bind_grpc(server, "127.0.0.1", 0, node_credentials(certificates))
    await server.start()
    own = MutualTls.load(authority.issue("node-2"), 2)
    client = ControllerClient(
        {1: f"127.0.0.1:{port}"},
        clock,
        channel_factory=lambda node_id, target: grpc_node_channel(target, node_id, own),
    )
    follower = MetadataFollower(client, 2, clock, silence_s_max=30)
    await follower.start()
    await eventually(lambda: len(streams.certificates) == 1)
    put(authority.issue("node-2", "second"), own.files)
    assert own.reload()
    await client.renew_channels()
    await eventually(lambda: len(streams.certificates) == 2)
    assert "second" in streams.certificates[1]
    assert "second" not in streams.certificates[0]
    await follower.stop()
    await client.close()
    await server.stop(0)


class Files:
    """Renewable files with a fault, or a change, when the test says so."""

    def __init__(self) -> None:
        self.changed = False
        self.fault = ""
        self.looks = 0
        self.renewed = 0
        self.not_after = datetime.datetime.now(datetime.UTC)

    def reload(self) -> bool:
        self.looks += 1
        if self.fault:
            raise TlsError(self.fault)
        changed, self.changed = self.changed, False
        return changed

    async def on_renewed(self) -> None:
        self.renewed += 1


async def test_a_fault_is_said_once_and_the_next_change_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidegate.node.upkeep.certificate_renewal.LOOK_INTERVAL_S", 0.01)
    files, failures = Files(), list[BaseException]()
    renewables = {"nodes": Renewable(files, files.on_renewed)}
    renewal = CertificateRenewal(renewables, SystemClock(), failures.append)
    files.fault = "the key is missing"
    renewal.start()
    await eventually(lambda: files.looks > 5)
    assert caplog.text.count("certificates_not_renewed") <= 1
    files.fault, files.changed = "", True
    await eventually(lambda: files.renewed == 1)
    await renewal.stop()
    assert failures == []
    (family,) = ExpiryCollector(renewables).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"of": "nodes"}, files.not_after.timestamp())
    ]
