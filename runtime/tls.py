"""Mutual TLS between the voters of the metadata quorum: both sides show a certificate of one authority, and
it names the node.

A certificate names node N by a DNS name (subject alternative name) whose first label is `node-N`, for example
`node-1` or `node-1.tidegate.internal`; it may name several.  The authority should sign for this quorum alone:
the owner of any of its certificates can vote.  TLS 1.3 only.  Files are read once, when the node starts.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANDSHAKE_S_MAX = 5.0


class TlsError(Exception):
    """The certificate, its key or the authority cannot be used; the message names the file or its fault."""


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """PEM files: this node's certificate (with the intermediate certificates), its key, the authority's
    certificate."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(slots=True, frozen=True)
class MutualTls:
    """Both ends of connections between nodes that authenticate each other."""

    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def load(cls, files: TlsFiles, node_id: int) -> MutualTls:
        """Raises TlsError also when the certificate is not `node_id`'s, has expired, or is not of the
        authority: a node whose certificate every peer would refuse should say so when it starts."""
        tls = cls(_context(ssl.PROTOCOL_TLS_SERVER, files), _context(ssl.PROTOCOL_TLS_CLIENT, files))
        try:
            named = certified_nodes(tls._own_certificate())
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise TlsError(f"{files.certificate} is not accepted by {files.authority}: {reason}") from error
        if node_id not in named:
            names = ", ".join(f"node-{node}" for node in sorted(named)) or "no node"
            raise TlsError(f"{files.certificate} names {names}: this node needs the DNS name node-{node_id}")
        return tls

    def _own_certificate(self) -> Mapping[str, Any]:
        """As a peer will see it: a handshake of this node with itself, in memory."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.client.wrap_bio(to_client, to_server)
        server = self.server.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):  # TLS 1.3 takes three half-turns
            for end in (client, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        return server.getpeercert() or {}


def certified_nodes(certificate: Mapping[str, Any] | None) -> frozenset[int]:
    """The node ids that a verified certificate names; none for None."""
    names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
    found = (re.fullmatch(r"node-(0|[1-9]\d{0,9})(\..*)?", name) for name in names)
    return frozenset(int(match[1]) for match in found if match is not None)


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # a certificate is a node's, wherever it runs: the hello says which node, and is compared
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=files.authority)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"{files.authority} is not a readable PEM file of certificates: {error}") from error
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"{files.certificate} and {files.key} are not a PEM certificate and its key: {error}"
        ) from error
    return context


def _no_password() -> str:
    """OpenSSL calls this for an encrypted key; without it OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; give one that is not, readable by this user only")
