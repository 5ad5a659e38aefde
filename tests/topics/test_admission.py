"""Tests of the admission to a topic: id, capabilities and routing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Caller
from interlock.errors import InterlockError
from interlock.protocol.kinds import PROFILES
from interlock.topics.admission import (
    find_participant,
    find_settings,
    is_valid_id,
    list_capabilities,
    require_administrator,
)
from interlock.topics.config import ParticipantConfig, TopicConfig, TopicsConfig

WORKER, OPERATOR, STRANGER = Caller("worker-1"), Caller("ann", roles=("operator",)), Caller("x")
SEATS = [
    ParticipantConfig(callers=["worker-*"], profile="proposal_only", routing="directed"),
    ParticipantConfig(roles=["operator"], profile="full_access", capabilities=["x/*", "chat"]),
    ParticipantConfig(callers=["worker-1", "*"]),
]


def config(name: str = "ops", **topic: object) -> TopicsConfig:
    return TopicsConfig(rooms={name: TopicConfig(**topic)})  # type: ignore[arg-type]


def get_error(topics: TopicsConfig, topic: str, caller: Caller | None) -> InterlockError:
    with pytest.raises(InterlockError) as caught:
        find_participant(topics, topic, caller)
    return caught.value


def test_first_matching_participant_rule_applies() -> None:
    topics = config(participants=SEATS)
    _, worker = find_participant(topics, "ops", WORKER)
    assert (worker.id, worker.routing) == ("worker-1", "directed")
    assert worker.capabilities == PROFILES["proposal_only"]
    _, operator = find_participant(topics, "ops", OPERATOR)
    assert operator.capabilities == ("mcp/*", "chat", "x/*")
    assert operator.routing == "all"


@pytest.mark.spec("MX-4.1-20")
def test_default_profile_allows_proposals_and_chat() -> None:
    _, known = find_participant(config(access="private"), "ops", STRANGER)
    assert known.capabilities == ("mcp/proposal:*", "chat")
    _, seated = find_participant(
        config(participants=[ParticipantConfig(callers=["x"])]), "ops", STRANGER
    )
    assert seated.capabilities == ("mcp/proposal:*", "chat")
    _, other = find_participant(config(access="private", profile="read_only"), "ops", STRANGER)
    assert other.capabilities == PROFILES["read_only"]


def test_participant_rule_may_set_id() -> None:
    seat = ParticipantConfig(callers=["x"], id="planner")
    assert find_participant(config(participants=[seat]), "ops", STRANGER)[1].id == "planner"


def test_restricted_topic_needs_participant_rule() -> None:
    topics = config(participants=SEATS[:2])
    absent = get_error(topics, "other", STRANGER)
    closed = get_error(topics, "ops", STRANGER)
    assert closed.failure.http == 403
    # Nobody learns which topics there are.
    assert closed.message.replace("ops", "other") == absent.message
    assert closed.failure is absent.failure


@pytest.mark.parametrize("access", ["restricted", "private"])
def test_guests_join_only_public_topics(access: str) -> None:
    closed = get_error(config(access=access), "ops", None)
    absent = get_error(config(access=access), "other", None)
    assert closed.failure.http == 401
    assert (closed.failure, closed.message) == (absent.failure, absent.message)
    _, guest = find_participant(
        config(access="public", profile="full_access"), "ops", None, guest="guest-ab"
    )
    assert (guest.id, guest.capabilities) == ("guest-ab", PROFILES["initial"])
    _, known = find_participant(config(access="public", profile="full_access"), "ops", STRANGER)
    assert known.capabilities == PROFILES["full_access"]


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "*", "x" * 129, "ops\n", "é"])
def test_rejects_invalid_topic_names(topic: str) -> None:
    for caller in (None, STRANGER):
        assert get_error(config("*", access="public"), topic, caller).failure.http == 400


def test_exact_name_precedes_pattern() -> None:
    exact, first, second = (TopicConfig(max_participants=n) for n in (1, 2, 3))
    topics = TopicsConfig(rooms={"team-*": first, "team-a": exact, "*": second})
    assert find_settings(topics, "team-a") is exact
    assert find_settings(topics, "team-b") is first
    assert find_settings(topics, "x") is second
    assert find_settings(topics, "Team-b") is second
    assert find_settings(config(), "x") is None


@pytest.mark.spec("MX-3-17")
def test_rejects_reserved_participant_ids() -> None:
    for name in ("system", "system:gateway", "system/x", "a b", "a\n", "", "x" * 129):
        assert not is_valid_id(name)
        assert get_error(config(access="private"), "ops", Caller(name)).failure.http == 403
    topics = config(access="private", node="hub", record="heads")
    for name in ("hub", "recorder"):
        assert get_error(topics, "ops", Caller(name)).failure.http == 403
    # The recorder may come at any time.
    assert get_error(config(access="private"), "ops", Caller("recorder")).failure.http == 403
    assert is_valid_id("systematic")


@pytest.mark.spec("MX-3-17")
@pytest.mark.parametrize(
    "name",
    [
        "System:gateway", "SYSTEM", "sy\u017ftem:gateway", "system\u200b:gateway", "\u200bsystem",
        "\uff53ystem/x", "system-gateway", "system.x", "boss\u200b", "boss\u202e", "\u2066boss",
        "boss\ufe0f", "bo\u00adss", "boss\u3164", "boss\u00a0", "boss\ud800", "\x1b[2K",
    ],
)  # fmt: skip
def test_rejects_confusable_ids(name: str) -> None:
    assert not is_valid_id(name)
    assert get_error(config(access="private"), "ops", Caller(name)).failure.http == 403


@pytest.mark.parametrize(
    "name", ["agent", "ann@example.com", "tokyo/9", "作業者", "a:b", "systems"]
)
def test_accepts_valid_ids(name: str) -> None:
    assert find_participant(config(access="private"), "ops", Caller(name))[1].id == name


@pytest.mark.parametrize("access", ["private", "public"])
@pytest.mark.parametrize(
    "name", ["boss", "Boss", "BO\u017fS", "\uff42oss", "Recorder", "HUB", "Alice"]
)
def test_rejects_id_of_other_participant_rule(name: str, access: str) -> None:
    seat = ParticipantConfig(callers=["alice"], id="boss", profile="full_access")
    topics = config(access=access, node="hub", participants=[seat])
    assert get_error(topics, "ops", Caller(name)).failure.http == 403
    assert find_participant(topics, "ops", Caller("alice"))[1].id == "boss"
    # Nor where a seat for many would let it.
    many = config(participants=[seat, ParticipantConfig(callers=["*"])], node="hub")
    assert get_error(many, "ops", Caller(name)).failure.http == 403
    assert find_participant(many, "ops", Caller("bob"))[1].id == "bob"


def test_requires_administrator() -> None:
    topics = TopicsConfig(admins=["boss*"])
    require_administrator(topics, Caller("boss-1"))
    require_administrator(topics, Caller("boss-1", scopes=("read", "admin")))
    for caller in (Caller("agent"), Caller("Boss"), Caller("boss", scopes=("read",))):
        with pytest.raises(InterlockError) as caught:
            require_administrator(topics, caller)
        assert caught.value.failure.http == 403


@given(st.lists(st.sampled_from(["chat", "x/*", "mcp/*"])), st.sampled_from([None, *PROFILES]))
def test_combines_profile_and_rule_capabilities(own: list[str], name: str) -> None:
    made = list_capabilities(ParticipantConfig(profile=name, capabilities=own), "tool_only")  # type: ignore[arg-type]
    assert {*made} == {*PROFILES[name or "tool_only"], *own}
    assert len(made) == len({*made})


def test_none_profile_grants_only_rule_capabilities() -> None:
    monitor = ParticipantConfig(callers=["m"], profile="none", capabilities=["mcp/request:*/list"])
    assert list_capabilities(monitor, "full_access") == ("mcp/request:*/list",)
    assert list_capabilities(ParticipantConfig(callers=["m"], profile="none"), "full_access") == ()
