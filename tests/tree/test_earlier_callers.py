"""Tests of earlier callers and of revocations."""

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
from tests.trust.identities import (
    IdentityHarness,
    harness,
    introspect,
    open_authority,
    resolve_caller,
)
from tests.trust.identity.issuers import NOW

__all__ = ["harness"]


def test_earlier_caller_has_current_permissions(harness: IdentityHarness) -> None:
    token = TokenConfig(name="ci", token="${env:T}")
    harness.identity.configure(harness.config_with([token]))
    made, shown = harness.store.create("agent", scopes=["read"])
    harness.identity.watch.check()
    ci, agent = harness.caller("s3cret"), harness.caller(shown)
    signed, local = harness.caller(harness.signer.token()), harness.caller(None, "local")
    # As after a restart: nobody has shown anything yet.
    harness.identity.watch.retain_only()
    for one in (ci, agent, signed, local):
        assert harness.identity.recall(one) == one
    assert harness.identity.recall(Caller("ci", kind="certificate")) is None
    assert harness.identity.recall(Caller("agent", kind="token")) is None
    assert harness.identity.recall(Caller("another", kind="token", id=made.id)) is None
    harness.identity.configure(harness.config_with(local_scopes=["read"]))
    assert harness.identity.recall(ci) is None
    assert harness.identity.recall(local) == Caller("local", scopes=("read",))
    harness.store.revoke([made.id])
    harness.store.revoke_external("subject", "corp:somebody")
    harness.identity.watch.check()
    assert harness.identity.recall(agent) is None
    assert harness.identity.recall(signed) is None


def test_signed_token_is_valid_until_expiry(harness: IdentityHarness) -> None:
    signed = harness.caller(harness.signer.token())
    harness.now = NOW + 599
    assert harness.identity.recall(signed) == signed
    harness.identity.configure(harness.config_with(issuers=[]))
    assert harness.identity.recall(signed) is None
    harness.identity.configure(harness.config)
    assert harness.identity.recall(signed) == signed
    harness.now = NOW + 600
    assert harness.identity.recall(signed) is None


def test_parent_caller_is_valid_while_parent_is_configured(
    harness: IdentityHarness,
) -> None:
    through = Caller(
        "parent", kind="parent", parent_caller="deputy", scopes=("write",), expires_at=NOW + 60
    )
    unlimited = Caller("parent", kind="parent", parent_caller="visitor")
    # There is no parent any more, or never was.
    assert harness.identity.recall(through) is None
    assert harness.identity.recall(unlimited) is None
    parent = ParentConfig(url="wss://above.example", segment="edge")
    below = harness.config_with().with_sections(parent)
    harness.identity.configure(below)
    assert harness.identity.recall(through) == through
    assert harness.identity.recall(unlimited) == unlimited
    # What it showed to the parent is over.
    harness.now = NOW + 60
    assert harness.identity.recall(through) is None
    assert harness.identity.recall(unlimited) == unlimited
    harness.identity.configure(harness.config_with())
    assert harness.identity.recall(unlimited) is None


def test_revoked_token_affects_only_its_callers(harness: IdentityHarness) -> None:
    one, first = harness.store.create("agent")
    two, second = harness.store.create("agent")
    harness.identity.watch.check()
    by_one, by_two = harness.caller(first), harness.caller(second)
    harness.store.revoke([one.id])
    harness.identity.watch.check()
    [told] = harness.revoked
    assert isinstance(told, RevokedCallers)
    assert told == {"agent"}
    assert told.affects(by_one)
    assert not told.affects(by_two)
    assert not told.affects(Caller("another", id=one.id))
    assert harness.identity.watch.is_active("agent")
    harness.store.revoke([two.id])
    harness.identity.watch.check()
    last = harness.revoked[-1]
    assert isinstance(last, RevokedCallers)
    # Nothing of it is left, whatever it came with.
    assert last.affects(by_two)
    assert last.affects(Caller("agent", id="of a token that nobody remembers"))
    assert not harness.identity.watch.is_active("agent")


def test_revoked_jti_affects_token_and_revoked_subject_affects_all(
    harness: IdentityHarness,
) -> None:
    some, other = (harness.caller(harness.signer.token(jti=jti)) for jti in ("t-1", "t-2"))
    harness.store.revoke_external("jti", "t-1")
    harness.identity.watch.check()
    harness.store.revoke_external("subject", "corp:somebody")
    harness.identity.watch.check()
    by_jti, by_subject = harness.revoked
    assert isinstance(by_jti, RevokedCallers)
    assert isinstance(by_subject, RevokedCallers)
    assert (by_jti.affects(some), by_jti.affects(other)) == (True, False)
    assert (by_subject.affects(some), by_subject.affects(other)) == (True, True)


async def test_opaque_token_is_valid_while_introspection_confirms(
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

        robot = await resolve_caller(shows)
        assert robot.expires_at is None
        assert identity.recall(robot) == robot
        # Somebody else, and somebody of whom its server was never asked, as after a restart.
        assert identity.recall(replace(robot, name="app:other", id="app:other")) is None
        assert identity.recall(replace(robot, kind="jwt")) is None
        # The server was asked a while ago, and then again.
        now[0] = NOW + RECALL_SECONDS
        assert identity.recall(robot) is None
        await resolve_caller(shows)
        assert identity.recall(robot) == robot
        # It cannot be asked: what it said last holds.
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = lambda _: Reply(500, {})
        with pytest.raises(InterlockError, match="introspection server cannot check the token now"):
            await resolve_caller(shows)
        assert identity.recall(robot) == robot
        # It takes the token back.
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = introspect
        await resolve_caller(shows)
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = lambda _: Reply(200, {"active": False})
        with pytest.raises(InterlockError, match="no introspection server accepts the token"):
            await resolve_caller(shows)
        assert identity.recall(robot) is None
        # Revoked here.
        now[0] += CACHE_SECONDS
        authority.overrides["/introspect"] = introspect
        await resolve_caller(shows)
        assert identity.recall(robot) == robot
        store = AccessStore(access_path(identity._parts.config, {}, tmp_path), clock=lambda: now[0])
        store.revoke_external("subject", "app:robot")
        identity.watch.check()
        assert identity.recall(robot) is None
