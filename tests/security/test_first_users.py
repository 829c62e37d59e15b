"""The first administrator comes with the cluster, hashed, and only with a new one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.controller.planning.planner import ControllerConfig, ControllerPlanner
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import INITIAL_FEATURES
from tidegate.node.settings.security_settings import SecuritySettingError, first_users
from tidegate.proto import metadata_pb2 as pb
from tidegate.security.first_users import FirstUser, FirstUserError
from tidegate.security.scram import ScramMechanism

SALT = b"s" * 32
ADMIN = FirstUser.with_password("admin", "open sesame", SALT)


@given(
    name=st.from_regex(r"[a-zA-Z0-9 ._@ä=-]{0,20}[a-z]", fullmatch=True).map(str.strip),
    mechanism=st.sampled_from(ScramMechanism),
)
def test_the_text_of_a_user_is_read_again(name: str, mechanism: ScramMechanism) -> None:
    user = FirstUser.with_password(name, "pencil", SALT, mechanism)
    assert first_users(f"{user}; {ADMIN};") == (user, ADMIN)


def test_the_text_does_not_hold_the_password() -> None:
    assert "open sesame" not in str(ADMIN)
    assert "open sesame" not in repr(ADMIN)


TEXT = str(ADMIN)


@pytest.mark.parametrize(
    "text",
    [
        "SCRAM-SHA-512=[name=admin,password=open sesame]",
        TEXT.replace("SHA-512", "SHA-1"),
        TEXT.replace("SHA-512", "SHA-256"),
        TEXT.replace("iterations=8192", "iterations=1"),
        TEXT.replace("iterations=8192", "iterations=99999999"),
        TEXT.replace("salt=", "salt=*"),
        TEXT[:-1],
        "",
    ],
)
def test_other_texts_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(FirstUserError) as refused:
        FirstUser.parse(text)
    assert "sesame" not in str(refused.value)
    assert "storedkey=" not in str(refused.value).replace("storedkey=...", "")
    if text:
        with pytest.raises(SecuritySettingError, match=r"bootstrap\.scram\.credentials"):
            first_users(text)


def begin(state: ClusterState) -> list[pb.Operation]:
    planner = ControllerPlanner(state, ControllerConfig(first_users=(ADMIN,)), 0.0)
    return planner.begin_term(1, "cluster", "metadata", dict(INITIAL_FEATURES)).operations


def makes_users(operation: pb.Operation) -> bool:
    return operation.HasField("change_scram_credentials")


def test_the_first_term_makes_the_users_and_no_later_one_does() -> None:
    state = ClusterState()
    operations = begin(state)
    (change,) = [each.change_scram_credentials for each in operations if makes_users(each)]
    (record,) = change.set
    assert (record.user, record.stored_key) == ("admin", ADMIN.credential.stored_key)
    assert b"open sesame" not in change.SerializeToString()
    state.apply(1, 1, pb.Command(operations=operations).SerializeToString())
    assert state.security.scram == {("admin", ScramMechanism.SHA_512): ADMIN.credential}
    assert not [each for each in begin(state) if makes_users(each)]
