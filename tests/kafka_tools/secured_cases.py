"""What is asked of Kafka's tools for security, on a node that asks clients who they are; in this order.

`{root}`, `{alice}` and `{bob}` are the options with which a tool comes as that user, `{token}` those with
which it comes by the delegation token that was made last, and `{hmac}` is that token's HMAC.
"""

from __future__ import annotations

from typing import Any

from .cases import Case


def _t(tool: str, arguments: str, **options: Any) -> Case:
    return Case(tool, arguments, **options)


def _acls(arguments: str, user: str = "root") -> Case:
    return Case("kafka-acls", f"{{{user}}} {arguments}", sort=True)


def _configs(entities: str, action: str = "--describe", user: str = "root") -> Case:
    """`entities`: `users:alice`, `users:*` for the default, `users` for all."""
    words = []
    for entity in entities.split():
        kind, _, name = entity.partition(":")
        words.append(f"--entity-type {kind}")
        if name:
            words.append("--entity-default" if name == "*" else f"--entity-name {name}")
    return Case("kafka-configs", f"{{{user}}} {' '.join(words)} {action}", sort=action == "--describe")


def _set(entities: str, values: str, user: str = "root") -> Case:
    return _configs(entities, f"--alter --add-config {values}", user)


def _unset(entities: str, names: str) -> Case:
    return _configs(entities, f"--alter --delete-config {names}")


_ACLS: list[Case] = [
    _acls("--list"),
    _acls("--add --allow-principal User:alice --operation Read --operation Write --topic t"),
    _acls("--add --allow-principal User:alice --operation All --topic pre --resource-pattern-type prefixed"),
    _acls("--add --deny-principal User:bob --deny-host 10.0.0.7 --operation Describe --topic t"),
    _acls("--add --allow-principal User:carol --producer --topic p --transactional-id x"),
    _acls("--add --allow-principal User:carol --producer --idempotent --topic p"),
    _acls("--add --allow-principal User:carol --consumer --topic p --group g"),
    _acls("--add --allow-principal User:dora --operation Alter --cluster"),
    _acls("--add --allow-principal User:dora --operation Describe --delegation-token any"),
    _acls("--add --allow-principal User:bob --operation CreateTokens --user-principal User:alice"),
    _acls("--list"),
    _acls("--list --topic t"),
    _acls("--list --topic pre-fixed --resource-pattern-type match"),
    _acls("--list --topic pre --resource-pattern-type prefixed"),
    _acls("--list --principal User:carol"),
    _acls("--list --cluster"),
    _acls("--add --allow-principal alice --operation Read --topic t"),
    _acls("--add --allow-principal User:alice --operation Read"),
    _acls("--remove --allow-principal User:alice --operation Read --topic t --force"),
    _acls("--remove --topic nothing --force"),
    _acls("--remove --topic p --force"),
    _acls("--list", "alice"),
    _acls("--add --allow-principal User:alice --operation All --topic t", "alice"),
    _acls("--list"),
]

_CONFIGS: list[Case] = [
    _set("users:alice", "producer_byte_rate=1000000,consumer_byte_rate=2000000"),
    _set("users:*", "request_percentage=200"),
    _set("clients:app", "controller_mutation_rate=5"),
    _set("clients:*", "producer_byte_rate=3000000"),
    _set("users:alice clients:app", "producer_byte_rate=1048576.5"),
    _set("users:alice clients:*", "consumer_byte_rate=4096"),
    _set("ips:10.0.0.9", "connection_creation_rate=7"),
    _set("ips:*", "connection_creation_rate=70"),
    _configs("users:alice"),
    _configs("users"),
    _configs("users:*"),
    _configs("clients"),
    _configs("users clients"),
    _configs("ips"),
    _set("users:alice", "producer_byte_rate=0"),
    _set("users:alice", "bogus=1"),
    _set("ips:10.0.0.9", "producer_byte_rate=1"),
    _unset("users:alice", "producer_byte_rate,consumer_byte_rate"),
    _unset("users:alice", "producer_byte_rate"),
    _configs("users:alice"),
    _set("users:alice", "SCRAM-SHA-512=[iterations=8192,password=wonder]"),
    _set("users:alice", "SCRAM-SHA-256=[password=wonder]"),
    _set("users:bob", "SCRAM-SHA-512=[password=b]"),
    _configs("users"),
    _configs("users:alice"),
    _set("users:alice", "SCRAM-SHA-512=[iterations=17,password=wonder]"),
    _unset("users:alice", "SCRAM-SHA-256"),
    _unset("users:nobody", "SCRAM-SHA-256"),
    _configs("users:alice"),
    _configs("users", user="alice"),
    _set("users:alice", "producer_byte_rate=9", "alice"),
]

_TOKENS: list[Case] = [
    _t("kafka-delegation-tokens", "{alice} --create --max-life-time-period -1 --renewer-principal User:bob"),
    _t("kafka-delegation-tokens", "{alice} --describe --owner-principal User:alice"),
    _t("kafka-delegation-tokens", "{alice} --describe"),
    _t("kafka-delegation-tokens", "{bob} --describe"),
    _t("kafka-delegation-tokens", "{bob} --renew --renew-time-period -1 --hmac {hmac}"),
    _t("kafka-delegation-tokens", "{token} --describe"),
    _t("kafka-delegation-tokens", "{token} --create --max-life-time-period -1"),
    _t("kafka-topics", "{token} --list"),
    _t("kafka-delegation-tokens", "{bob} --renew --renew-time-period -1 --hmac AAAA"),
    _t("kafka-delegation-tokens", "{bob} --create --max-life-time-period 60000 --owner-principal User:alice"),
    _t("kafka-delegation-tokens", "{bob} --create --max-life-time-period -1 --owner-principal User:dora"),
    _t("kafka-delegation-tokens", "{alice} --create --max-life-time-period -1 --renewer-principal Group:g"),
    _t("kafka-delegation-tokens", "{bob} --expire --expiry-time-period -1 --hmac {hmac}"),
    _t("kafka-delegation-tokens", "{alice} --expire --expiry-time-period -1 --hmac {hmac}"),
    _t("kafka-delegation-tokens", "{root} --describe --owner-principal User:alice"),
]  # fmt: skip

SECURED_CASES: list[Case] = [*_ACLS, *_CONFIGS, *_TOKENS]
