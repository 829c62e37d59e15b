"""The certificates by which this node and the others know each other.

Each listener for nodes that is SSL has its files (`ssl.*`, or `listener.name.NAME.ssl.*`); listeners with the
same files share what is loaded, so that they change together.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runtime.connections.tls import MutualTls, TlsError, TlsFiles, certified_nodes
from ...runtime.network import FrameConnection
from ..settings.node_listeners import NodeListeners


class NodeCertificates:
    """See the module's text.  Raises TlsError, which names the listener."""

    def __init__(self, files: Mapping[str, TlsFiles], listeners: NodeListeners, node_id: int) -> None:
        """`files`: by the names of listeners."""
        self._loaded: dict[TlsFiles, MutualTls] = {}
        self._of: dict[str, MutualTls] = {}
        for name, each in files.items():
            try:
                self._of[name] = self._loaded.get(each) or MutualTls.load(each, node_id)
            except TlsError as error:
                raise TlsError(f"listener {name}: {error}") from error
            self._loaded[each] = self._of[name]
        brokers, quorum = listeners.inter_broker, listeners.controller
        self.brokers = None if brokers is None else self._of.get(brokers.name)
        """Of connections between brokers; None: they are plain text."""
        self.quorum = None if quorum is None else self._of.get(quorum.name)
        self.controllers = self._of.get(listeners.controller_grpc.name)
        """Of the controllers' gRPC service."""
        self._for_nodes = {each.name for each in listeners.for_nodes}

    def of(self, listener: str) -> MutualTls | None:
        """What this listener shows to other nodes; None for one that is not for nodes, or is plain text."""
        return self._of.get(listener) if listener in self._for_nodes else None

    @property
    def loaded(self) -> tuple[MutualTls, ...]:
        return tuple(self._loaded.values())


def require_node(connection: FrameConnection, node_id: int) -> None:
    """Raises ConnectionError, and closes the connection, unless the other end has shown the certificate of
    this node."""
    nodes = certified_nodes(connection.certificate)
    if node_id not in nodes:
        connection.abort("another node answers")
        raise ConnectionError(f"a certificate of nodes {sorted(nodes)} answers for node {node_id}")
