"""How the process that has started a node reads its pages when the metrics' listener has TLS.

As a kubelet it does not ask who vouches for the node: what it reads is shown, and decides nothing.  Where the
listener wants a certificate it shows the node's own.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from ..runtime.connections.listeners import SecurityProtocol, parse_security_protocols

METRICS = "METRICS"
PROTOCOLS = "listener.security.protocol.map"


def pages_tls(configuration: Mapping[str, object]) -> ssl.SSLContext | None:
    """None: the listener is plain text.  `configuration`: the node's settings."""

    def file(setting: str) -> str:
        found = configuration.get(f"listener.name.{METRICS.lower()}.{setting}", configuration.get(setting))
        return str(found or "").replace("{node.id}", str(configuration["node.id"]))

    entries = configuration.get(PROTOCOLS)
    protocols = parse_security_protocols(entries if isinstance(entries, list) else (), PROTOCOLS)
    if protocols.get(METRICS) is not SecurityProtocol.SSL:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(file("ssl.keystore.location"), file("ssl.key.location") or None)
    return context
