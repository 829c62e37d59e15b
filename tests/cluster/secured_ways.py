"""A cluster whose clients prove who they are, in one of three ways, and what a client needs for it.

`pytest --secured WAY` runs the tests of foreign clients over such a cluster (`make secured-clients`).  The
user has every right, as the owner of a cluster that `tidegate cluster up --secure` has made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from tidegate.processes.administrator import NAME as ADMINISTRATOR
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.disk import RealDisk
from tidegate.security.client_security import ClientSecurity

SCRAM = "SCRAM-SHA-512"
CERTIFICATE = "SSL"
BEARER = "OAUTHBEARER"
WAYS = (SCRAM, CERTIFICATE, BEARER)
TOKEN_S = 3600
_JAVA_MODULES = {
    SCRAM: "scram.ScramLoginModule",
    BEARER: "oauthbearer.OAuthBearerLoginModule",
}


class SecuredCluster(LocalCluster):
    """Three nodes; each listener for Kafka's clients asks for a proof of the given kind."""

    def __init__(self, directory: Path, way: str, settings: Mapping[str, object]) -> None:
        self.way = way
        tokens = directory / "tokens"
        tokens.mkdir(parents=True)
        self.token_path, self._key_set = tokens / "token.jwt", tokens / "keys.json"
        self._signing_keys: list[dict[str, str]] = []
        of_way: dict[str, Mapping[str, object]] = {
            SCRAM: {},
            CERTIFICATE: {
                # the listener keeps its name
                "listener.security.protocol.map": [
                    "BROKERS:SSL",
                    "CONTROLLER:SSL",
                    "CONTROLLER_GRPC:SSL",
                    "SASL_SSL:SSL",
                    "GRPC:SASL_SSL",
                    "METRICS:PLAINTEXT",
                ],
                "listener.name.sasl_ssl.ssl.client.auth": "required",
                "super.users": f"User:{ADMINISTRATOR};User:CN={ADMINISTRATOR}",
            },
            BEARER: {
                "sasl.enabled.mechanisms": [SCRAM, BEARER],
                "sasl.oauthbearer.jwks.endpoint.url": f"file://{self._key_set}",
                "sasl.oauthbearer.expected.audience": ["tidegate"],
                "sasl.oauthbearer.expected.issuer": "tests",
            },
        }
        self.renew_token()
        super().__init__(directory / "nodes", 3, {**settings, **of_way[way]}, with_users=True)
        self.certificates.renew_client(ADMINISTRATOR)

    def renew_token(self) -> None:
        """Makes a token that a new key has signed.  The keys before it count until
        `forget_former_signing_keys`."""
        key, name = ec.generate_private_key(ec.SECP256R1()), f"key-{len(self._signing_keys)}"
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
        self._signing_keys.append(public | {"kid": name, "use": "sig"})
        self._write_key_set()
        now = int(time.time())
        claims = {
            "sub": ADMINISTRATOR, "aud": "tidegate", "iss": "tests", "iat": now, "exp": now + TOKEN_S,
            "scope": "kafka",
        }  # fmt: skip
        self.token_path.write_text(jwt.encode(claims, key, "ES256", headers={"kid": name}))

    def forget_former_signing_keys(self) -> None:
        del self._signing_keys[:-1]
        self._write_key_set()

    def _write_key_set(self) -> None:
        RealDisk().write_atomic(self._key_set, json.dumps({"keys": self._signing_keys}).encode())

    @property
    def of_our_client(self) -> ClientSecurity:
        """For our own client at the listener for Kafka's."""
        authorities = str(self.certificates.authorities)
        if self.way == CERTIFICATE:
            return ClientSecurity("SSL", authorities=authorities, certificate=self._certificate)
        if self.way == BEARER:
            return ClientSecurity(
                "SASL_SSL", authorities=authorities, mechanism=BEARER, bearer_token=self.token_path.read_text
            )
        return self.administrator.security()

    @property
    def _certificate(self) -> str:
        """With its key, which PKCS #8 has, as Java wants it."""
        return str(self.certificates.of_client(ADMINISTRATOR))

    @property
    def environment_of_programs(self) -> dict[str, str]:
        """What the programs of tests/clients read."""
        user = self.administrator.security()
        described = {
            "way": self.way,
            "ca": str(self.certificates.authorities),
            "certificate": self._certificate if self.way == CERTIFICATE else "",
            "username": user.username,
            "password": user.password,
            "token": self.token_path.read_text(),
        }
        properties = self.java_properties
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._java().items()))
        return {
            "CLIENT_SECURITY": json.dumps(described),
            "CLIENT_PROPERTIES": str(properties),
            # since CVE-2025-27817 the Java clients read only what this names
            "JAVA_TOOL_OPTIONS": f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{self.token_path}",
        }

    @property
    def java_properties(self) -> Path:
        """What a Java client loads, as soon as `environment_of_programs` was asked for."""
        return self.directory / "java.properties"

    def _java(self) -> dict[str, str]:
        properties = {
            "security.protocol": "SSL" if self.way == CERTIFICATE else "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authorities),
        }
        if self.way == CERTIFICATE:
            return properties | {"ssl.keystore.type": "PEM", "ssl.keystore.location": self._certificate}
        options = ""
        if self.way == SCRAM:
            user = self.administrator.security()
            options = f' username="{user.username}" password="{user.password}"'
        module = f"org.apache.kafka.common.security.{_JAVA_MODULES[self.way]}"
        properties |= {"sasl.mechanism": self.way, "sasl.jaas.config": f"{module} required{options};"}
        if self.way == BEARER:
            properties |= {
                "sasl.login.callback.handler.class": (
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
                ),
                "sasl.oauthbearer.token.endpoint.url": f"file://{self.token_path}",
            }
        return properties


def security_of(cluster: LocalCluster) -> ClientSecurity | None:
    """How our own client connects to the cluster of a test; None: by a plain listener."""
    return cluster.of_our_client if isinstance(cluster, SecuredCluster) else None
