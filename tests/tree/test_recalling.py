"""Who called earlier, and what ends when something of a caller is revoked."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from interlock.core.call import Caller, Credentials, RevokedCallers
from interlock.core.config import TokenConfig
from interlock.core.paths import access_path
from interlock.errors import InterlockError
from interlock.tree.config import ParentConfig
from interlock.trust.identity.component import RECALL_SECONDS
from interlock.trust.identity.opaque_tokens import CACHE_SECONDS
from interlock.trust.identity.token_store import AccessStore
from tests.core.upstreams.oauth.authority import Reply
from tests.trust.identities import Desk, desk, introspect, open_authority, settled
from tests.trust.identity.issuers import NOW

__all__ = ["desk"]


def test_who_called_earlier_is_known_with_the_rights_of_today(desk: Desk) -> None:
    token = TokenConfig(name="ci", token="${env:T}")
    desk.identity.configure(desk.config_with([token]))
    made, shown = desk.store.create("agent", scopes=["read"])
    desk.identity.watch.check()
    ci, agent = desk.caller("s3cret"), desk.caller(shown)
    signed, local = desk.caller(desk.signer.token()), desk.caller(None, "local")
    # As after a restart: nobody has shown anything yet.
    desk.identity.watch.retain_only()
    for one in (ci, agent, signed, local):
        assert desk.identity.recall(one) == one
    assert desk.identity.recall(Caller("ci", kind="certificate")) is None
    assert desk.identity.recall(Caller("agent", kind="token")) is None
    assert desk.identity.recall(Caller("another", kind="token", id=made.id)) is None
    desk.identity.configure(desk.config_with(local_scopes=["read"]))
    assert desk.identity.recall(ci) is None
    assert desk.identity.recall(local) == Caller("local", scopes=("read",))
    desk.store.revoke([made.id])
    desk.store.revoke_external("subject", "corp:somebody")
    desk.identity.watch.check()
    assert desk.identity.recall(agent) is None
    assert desk.identity.recall(signed) is None


def test_a_signed_token_is_recalled_as_long_as_it_says(desk: Desk) -> None:
    signed = desk.caller(desk.signer.token())
    desk.now = NOW + 599
    assert desk.identity.recall(signed) == signed
    desk.identity.configure(desk.config_with(issuers=[]))
    assert desk.identity.recall(signed) is None
    desk.identity.configure(desk.config)
    assert desk.identity.recall(signed) == signed
    desk.now = NOW + 600
    assert desk.identity.recall(signed) is None


def test_who_called_through_the_parent_is_recalled_as_long_as_it_is_somebody(desk: Desk) -> None:
    through = Caller(
        "parent", kind="parent", parent_caller="deputy", scopes=("write",), expires_at=NOW + 60
    )
    unlimited = Caller("parent", kind="parent", parent_caller="visitor")
    # There is no parent any more, or never was.
    assert desk.identity.recall(through) is None
    assert desk.identity.recall(unlimited) is None
    parent = ParentConfig(url="wss://above.example", segment="edge")
    below = desk.config_with().with_sections(parent)
    desk.identity.configure(below)
    assert desk.identity.recall(through) == through
    assert desk.identity.recall(unlimited) == unlimited
    # What it showed to the parent is over.
    desk.now = NOW + 60
    assert desk.identity.recall(through) is None
    assert desk.identity.recall(unlimited) == unlimited
    desk.identity.configure(desk.config_with())
    assert desk.identity.recall(unlimited) is None


def test_a_revoked_token_ends_what_came_with_it_only(desk: Desk) -> None:
    one, first = desk.store.create("agent")
    two, second = desk.store.create("agent")
    desk.identity.watch.check()
    by_one, by_two = desk.caller(first), desk.caller(second)
    desk.store.revoke([one.id])
    desk.identity.watch.check()
    [told] = desk.revoked
    assert isinstance(told, RevokedCallers)
    assert told == {"agent"}
    assert told.affects(by_one)
    assert not told.affects(by_two)
    assert not told.affects(Caller("another", id=one.id))
    assert desk.identity.watch.is_active("agent")
    desk.store.revoke([two.id])
    desk.identity.watch.check()
    last = desk.revoked[-1]
    assert isinstance(last, RevokedCallers)
    # Nothing of it is left, whatever it came with.
    assert last.affects(by_two)
    assert last.affects(Caller("agent", id="of a token that nobody remembers"))
    assert not desk.identity.watch.is_active("agent")


def test_a_revoked_jti_ends_that_token_and_a_revoked_subject_all(desk: Desk) -> None:
    some, other = (desk.caller(desk.signer.token(jti=jti)) for jti in ("t-1", "t-2"))
    desk.store.revoke_external("jti", "t-1")
    desk.identity.watch.check()
    desk.store.revoke_external("subject", "corp:somebody")
    desk.identity.watch.check()
    by_jti, by_subject = desk.revoked
    assert isinstance(by_jti, RevokedCallers)
    assert isinstance(by_subject, RevokedCallers)
    assert (by_jti.affects(some), by_jti.affects(other)) == (True, False)
    assert (by_subject.affects(some), by_subject.affects(other)) == (True, True)


async def test_an_opaque_token_without_an_end_is_recalled_while_its_server_stands_by_it(
    tmp_path: Path,
) -> None:
    now = [NOW]

    async with open_authority(tmp_path, wall_clock=lambda: now[0]) as (
        identity,
        authority,
        _signer,
    ):

        def shows() -> Caller:
            return identity.authenticator(Credentials("192.0.2.7", "opaque"))

        robot = await settled(shows)
        assert robot.expires_at is None
        assert identity.recall(robot) == robot
        # Somebody else, and somebody of whom its server was never asked, as after a restart.
        assert identity.recall(replace(robot, name="app:other", id="app:other")) is None
        assert identity.recall(replace(robot, kind="jwt")) is None
        # The server was asked a while ago, and then again.
        now[0] = NOW + RECALL_SECONDS
        assert identity.recall(robot) is None
        await settled(shows)
        assert identity.recall(robot) == robot
        # It cannot be asked: what it said last holds.
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = lambda _: Reply(500, {})
        with pytest.raises(InterlockError, match="introspection server cannot check the token now"):
            await settled(shows)
        assert identity.recall(robot) == robot
        # It takes the token back.
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = introspect
        await settled(shows)
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = lambda _: Reply(200, {"active": False})
        with pytest.raises(InterlockError, match="no introspection server accepts the token"):
            await settled(shows)
        assert identity.recall(robot) is None
        # Revoked here.
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = introspect
        await settled(shows)
        assert identity.recall(robot) == robot
        store = AccessStore(access_path(identity._parts.config, {}, tmp_path), clock=lambda: now[0])
        store.revoke_external("subject", "app:robot")
        identity.watch.check()
        assert identity.recall(robot) is None
