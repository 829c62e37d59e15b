"""TLS of gRPC: credentials of servers and channels from the PEM files of `tls.py`.

gRPC has its own TLS (BoringSSL, 1.2 and 1.3): versions and ciphers cannot be chosen, and a server's port
either requires certificates of its clients or asks for none.  A server reads its files again when they have
changed, at the next handshake; a channel keeps what it was made with.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc

from .. import logs
from .tls import ClientAuth, MutualTls, Pem, ServerTls, TlsError, TlsFiles

log = logs.get(__name__)


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Of a port.  Raises TlsError."""
    if tls.client_auth is ClientAuth.REQUESTED:
        raise TlsError("a gRPC listener requires certificates of its clients, or asks for none")
    files = tls.files
    seen, newest = files.fingerprint(), files.pem()

    def current() -> Pem:
        nonlocal seen, newest
        try:
            now = files.fingerprint()
            if now != seen:
                # OpenSSL says whether the files fit together: gRPC would fail each handshake
                ServerTls(files, tls.client_auth)
                seen, newest = now, files.pem()
        except TlsError as error:
            log.warning("certificates_not_used", listener="gRPC", reason=error)
        return newest

    return _dynamic(current, is_required=tls.client_auth is ClientAuth.REQUIRED)


def node_credentials(tls: MutualTls) -> grpc.ServerCredentials:
    """Of a port for nodes alone."""
    return _dynamic(lambda: tls.pem, is_required=True)


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Of a channel; without authorities gRPC's own list counts.  Raises TlsError."""
    return _of_channel(files.pem())


def node_channel_credentials(tls: MutualTls) -> grpc.ChannelCredentials:
    """Of a channel from node to node."""
    return _of_channel(tls.pem)


def _of_channel(pem: Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)


def _dynamic(current: Callable[[], Pem], *, is_required: bool) -> grpc.ServerCredentials:
    def configuration() -> grpc.ServerCertificateConfiguration:
        """gRPC calls this for each handshake, in a thread of its own."""
        pem = current()
        assert pem.key is not None, "a server has a certificate"
        assert pem.certificate is not None, "a server has a certificate"
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.authorities)

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration, is_required)
