"""TLS of gRPC: credentials of servers and channels from the PEM files of `runtime/tls.py`.

gRPC has its own TLS (BoringSSL, 1.2 and 1.3): versions and ciphers cannot be chosen, and a server's port
either requires certificates of its clients or asks for none.  A server reads its files again when they have
changed, at the next handshake; a channel keeps what it was made with.
"""

from __future__ import annotations

from pathlib import Path

import grpc
from cryptography.hazmat.primitives import serialization

from . import logs
from .tls import PEM_BYTES_MAX, ClientAuth, ServerTls, TlsError, TlsFiles

log = logs.get(__name__)


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Of a port.  Raises TlsError."""
    if tls.client_auth is ClientAuth.REQUESTED:
        raise TlsError("a gRPC listener requires certificates of its clients, or asks for none")
    files = tls.files
    seen, newest = files.fingerprint(), _certificates(files)

    def current() -> grpc.ServerCertificateConfiguration:
        """gRPC calls this for each handshake, in a thread of its own."""
        nonlocal seen, newest
        try:
            now = files.fingerprint()
            if now != seen:
                # OpenSSL says whether the files fit together: gRPC would fail each handshake
                ServerTls(files, tls.client_auth)
                seen, newest = now, _certificates(files)
        except TlsError as error:
            log.warning("certificates_not_used", listener="gRPC", reason=error)
        return newest

    required = tls.client_auth is ClientAuth.REQUIRED
    return grpc.dynamic_ssl_server_credentials(newest, current, required)


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Of a channel; without authorities gRPC's own list counts.  Raises TlsError."""
    certificate = None if files.certificate is None else _read(files.certificate)
    key = None if files.certificate is None else _key(files)
    authorities = None if files.authorities is None else _read(files.authorities)
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def _certificates(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    assert files.certificate is not None, "a server has one"
    authorities = None if files.authorities is None else _read(files.authorities)
    return grpc.ssl_server_certificate_configuration([(_key(files), _read(files.certificate))], authorities)


def _key(files: TlsFiles) -> bytes:
    """Decrypted, which gRPC cannot do."""
    path = files.key or files.certificate
    assert path is not None
    try:
        key = serialization.load_pem_private_key(_read(path), files.key_password.encode() or None)
    except (ValueError, TypeError) as error:
        raise TlsError(f"{path} has no private key that can be read: {error}") from error
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(PEM_BYTES_MAX)
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from error
