"""An identity as a node has it: put together from a config, changed, and told of revocations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Caller, Credentials
from interlock.core.config import Config, TlsConfig, TokenConfig
from interlock.core.config.trust import CertificateConfig, IntrospectionConfig, IssuerConfig
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.errors import CONFIG, InterlockError
from interlock.trust.identity.claims import LEEWAY_SECONDS
from interlock.trust.identity.component import CallerComplement, IdentityComponent
from interlock.trust.identity.key_sets import UNKNOWN_KEY_PAUSE_SECONDS
from interlock.trust.identity.revocation_watch import STORE_USES_SECONDS
from tests.support.clock import ManualClock
from tests.trust.identities import Desk, desk, open_authority, settled
from tests.trust.identity.issuers import ISSUER, NOW, Signer, claims

__all__ = ["desk"]

LOOPBACK = Credentials("loopback")


def test_no_two_callers_have_one_token(tmp_path: Path) -> None:
    """Whoever shows it would be taken for the one who may do more."""
    agent = TokenConfig(name="agent", token="${env:T}")
    chief = TokenConfig(name="chief", token="s3cret", may=["call", "approve"])
    with pytest.raises(InterlockError, match="chief: it is the same token as that of agent") as no:
        Desk(tmp_path, tokens=[agent, chief])
    assert no.value.failure is CONFIG
    assert "s3cret" not in str(no.value)
    desk = Desk(tmp_path, tokens=[agent])
    with pytest.raises(InterlockError, match="the same token"):
        desk.identity.configure(desk.config_with([agent, chief]))
    assert desk.caller("s3cret").name == "agent"


def test_everybody_is_known_by_what_the_config_says(tmp_path: Path) -> None:
    token = TokenConfig(
        name="ci", token="${env:T}", may=["call", "approve"], roles=["robots"], scopes=["read"]
    )
    desk = Desk(
        tmp_path,
        tokens=[token],
        local_roles=["operators"],
        local_scopes=["admin"],
        certificates=[CertificateConfig(name="edge", san="edge.example.com")],
        tls=TlsConfig(certificate="c", key="k", client_ca="ca"),
    )
    assert desk.caller("s3cret") == Caller(
        "ci",
        can_register=False,
        can_view_approvals=True,
        kind="token",
        roles=("robots",),
        scopes=("read",),
    )
    assert desk.caller(None, "local") == Caller("local", roles=("operators",), scopes=("admin",))
    assert desk.caller(desk.signer.token()).name == "corp:somebody"
    _, shown = desk.store.create("agent")
    desk.identity.watch.check()
    assert desk.caller(shown).name == "agent"
    edge = Credentials("192.0.2.7", certificate_names=("edge.example.com",))
    assert desk.identity.authenticator(edge).kind == "certificate"
    for name in ("local", "parent", "ci", "edge", "agent", "corp:somebody"):
        assert name in desk.identity
    assert "corp:other" not in desk.identity
    assert 7 not in desk.identity


def test_an_empty_config_is_as_open_as_ever(tmp_path: Path) -> None:
    identity = IdentityComponent(
        Config(state_dir=str(tmp_path / "state")), environ={}, base_dir=tmp_path
    )
    assert identity.authenticator(LOOPBACK) == Caller("local")
    assert identity.metadata() is None
    assert not (tmp_path / "state").exists()
    with pytest.raises(InterlockError):
        identity.authenticator(Credentials("192.0.2.7"))


@pytest.mark.spec("AX-10.1-2")
def test_a_token_is_for_the_node_that_it_names(tmp_path: Path) -> None:
    desk = Desk(tmp_path, resource=None)
    here, there = "http://127.0.0.1:8420/mcp", "http://127.0.0.1:8421/mcp"
    desk.identity.set_url(here)
    assert desk.caller(desk.signer.token(aud=here))
    assert "`aud`" in desk.refused(desk.signer.token(aud=there))
    desk.identity.configure(
        desk.config_with(
            issuers=[IssuerConfig(issuer=ISSUER, jwks_file="keys.json", audience=["x"])]
        )
    )
    assert desk.caller(desk.signer.token(aud="x"))
    assert "`aud`" in desk.refused(desk.signer.token(aud=here))


@pytest.mark.spec("ST-4.8.5-2")
def test_what_is_revoked_is_told_within_the_time_that_is_set(desk: Desk) -> None:
    first, shown = desk.store.create("agent")
    desk.identity.watch.start()
    desk.clock.advance(1.0)
    signed = desk.signer.token()
    assert desk.caller(shown).name == "agent"
    assert desk.caller(signed).name == "corp:somebody"
    desk.store.revoke([first.id])
    desk.clock.advance(1.0)
    assert desk.revoked == [frozenset({"agent"})]
    assert "was revoked" in desk.refused(shown)
    assert "agent" not in desk.identity
    desk.store.revoke_external("subject", "corp:somebody")
    desk.clock.advance(1.0)
    assert desk.revoked[1:] == [frozenset({"corp:somebody"})]
    assert "was revoked" in desk.refused(signed)
    other = desk.signer.token(sub="other", jti="t-2")
    assert desk.caller(other).name == "corp:other"
    desk.store.revoke_external("jti", "t-2")
    desk.clock.advance(1.0)
    assert desk.revoked[2:] == [frozenset({"corp:other"})]
    assert "was revoked" in desk.refused(other)
    # Nothing happened since, and nothing is told.
    desk.clock.advance(10.0)
    assert len(desk.revoked) == 3


def test_a_token_that_is_taken_away_is_revoked_too(desk: Desk) -> None:
    _, shown = desk.store.create("agent")
    desk.identity.watch.check()
    assert desk.caller(shown)
    desk.store.path.unlink()
    desk.identity.watch.check()
    assert desk.revoked == [frozenset({"agent"})]
    assert "this API token is not known here" in desk.refused(shown)
    assert "is required" in desk.refused(None)


@pytest.mark.spec("ST-4.8.4-1")
async def test_whose_token_runs_out_is_told(desk: Desk) -> None:
    _, shown = desk.store.create("agent", expires=NOW + 100)
    desk.identity.watch.check()
    desk.caller(shown)
    desk.caller(desk.signer.token(exp=NOW + 50))
    desk.now = NOW + 50 + LEEWAY_SECONDS
    desk.identity.watch.check()
    assert desk.expired == [frozenset({"agent", "corp:somebody"})]
    assert desk.revoked == []
    # Who came with a new one in time is still there.
    desk.caller(desk.signer.token(exp=desk.now + 10, jti="a"))
    desk.caller(desk.signer.token(exp=desk.now + 500, jti="b"))
    desk.now += 10 + LEEWAY_SECONDS
    desk.identity.watch.check()
    assert len(desk.expired) == 1
    assert "corp:somebody" in desk.identity


def test_the_last_use_is_written_now_and_then(desk: Desk) -> None:
    async def scene() -> None:
        made, shown = desk.store.create("agent")
        desk.identity.watch.check()
        desk.caller(shown)
        assert desk.store.find(made.id)[0].last_used is None
        desk.now += STORE_USES_SECONDS
        desk.identity.watch.check()
        await desk.identity.close()
        assert desk.store.find(made.id)[0].last_used == NOW

    asyncio.run(scene())
    # What the node wrote itself changes nothing for anybody.
    known = dict(desk.identity.authenticator._cache)
    assert known
    desk.identity.watch.check()
    assert desk.identity.authenticator._cache == known


def test_a_broken_store_keeps_a_node_from_starting(tmp_path: Path) -> None:
    """What was revoked in it would count again."""
    desk = Desk(tmp_path)
    desk.store.create("agent")
    desk.store.path.write_bytes(b"broken" * 500)
    with pytest.raises(InterlockError, match="cannot be used") as caught:
        IdentityComponent(desk.config, environ={}, base_dir=tmp_path)
    assert caught.value.failure is CONFIG


def test_a_store_that_breaks_is_said_to_be_and_what_is_known_stays(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    made, shown = desk.store.create("agent")
    desk.identity.watch.check()
    good = desk.store.path.read_bytes()
    desk.store.path.unlink()
    desk.store.path.write_bytes(b"broken" * 500)
    desk.identity.watch.check()
    desk.identity.watch.check()
    assert len([one for one in caplog.records if "cannot be used" in one.message]) == 1
    assert "cannot be used" in desk.identity.problems()[0]
    assert desk.caller(shown).name == "agent"
    desk.store.path.write_bytes(good)
    desk.store.revoke([made.id])
    desk.identity.watch.check()
    assert desk.identity.problems() == []
    assert "was revoked" in desk.refused(shown)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"issuers": [IssuerConfig(issuer="x")]}, "no https address for its keys"),
        ({"certificates": [CertificateConfig(name="a", san="b")]}, "tls.client_ca"),
        (
            {
                "certificates": [CertificateConfig(name="local", san="b")],
                "tls": TlsConfig(certificate="c", key="k", client_ca="ca"),
            },
            "choose another name",
        ),
        (
            {
                "introspection": [
                    IntrospectionConfig(
                        url="https://a.example/i",
                        client_id="x",
                        client_secret="${env:T}",
                        prefix="corp:",
                    )
                ]
            },
            "callers could be confused",
        ),
        (
            {
                "introspection": [
                    IntrospectionConfig(
                        url="http://a.example/i",
                        client_id="x",
                        client_secret="${env:T}",
                        prefix="app:",
                    )
                ]
            },
            "not https",
        ),
        ({"tokens": [TokenConfig(name="a", token="${env:MISSING}")]}, "MISSING"),
    ],
)
def test_a_config_that_cannot_be_used_changes_nothing(
    desk: Desk, settings: dict[str, Any], why: str
) -> None:
    config = desk.config_with(**settings)
    for act in (desk.identity.check, desk.identity.configure):
        with pytest.raises(InterlockError, match=why) as caught:
            act(config)
        assert caught.value.failure is CONFIG
    assert desk.caller(desk.signer.token())


def test_an_issuer_twice_is_one_too_many(desk: Desk) -> None:
    with pytest.raises(InterlockError, match="twice"):
        desk.identity.check(desk.config_with(issuers=[desk.issuer, desk.issuer]))


def test_a_changed_config_counts_from_now_on(desk: Desk) -> None:
    token = desk.signer.token()
    assert desk.caller(token)
    keys = desk.identity._parts.key_sets[ISSUER]
    desk.identity.minted = lambda credentials: Caller("above")
    desk.identity.configure(desk.config_with(local_roles=["x"]))
    assert desk.identity._parts.key_sets[ISSUER] is keys
    assert desk.caller(None, "local").roles == ("x",)
    assert desk.identity.authenticator(Credentials("", assigned_name="parent")).name == "above"
    desk.identity.configure(desk.config_with(issuers=[]))
    assert "corp:somebody" not in desk.identity
    with pytest.raises(InterlockError):
        desk.caller(token)


def test_a_caller_of_an_issuer_cannot_pass_for_one_of_the_node(tmp_path: Path) -> None:
    issuer = IssuerConfig(issuer=ISSUER, jwks_file="keys.json")
    desk = Desk(tmp_path, tokens=[TokenConfig(name="ci", token="${env:T}")])
    desk.identity.configure(
        desk.config_with([TokenConfig(name="ci", token="${env:T}")], issuers=[issuer])
    )
    desk.store.create("agent")
    desk.identity.watch.check()
    for name in ("ci", "agent", "local", "parent"):
        assert "has other credentials" in desk.refused(desk.signer.token(sub=name))
    assert desk.caller(desk.signer.token(sub="else")).name == "else"


def test_one_issuer_cannot_pass_for_another(desk: Desk) -> None:
    (desk.folder / "public.json").write_bytes(Signer(kid="p").jwks())
    for prefix in ("", "c", "corp:", "corp:x:"):
        public = IssuerConfig(
            issuer="https://public.example", jwks_file="public.json", prefix=prefix
        )
        for issuers in ([public, desk.issuer], [desk.issuer, public]):
            with pytest.raises(InterlockError, match="callers could be confused"):
                desk.identity.check(desk.config_with(issuers=issuers))
    other = IssuerConfig(issuer="https://public.example", jwks_file="public.json", prefix="pub:")
    desk.identity.check(desk.config_with(issuers=[desk.issuer, other]))


def test_who_may_have_a_subserver_here(desk: Desk) -> None:
    tokens = [
        TokenConfig(name="ci", token="${env:T}"),
        TokenConfig(name="edge", token="x" * 20, may=["register"]),
    ]
    desk.identity.configure(desk.config_with(tokens))
    made, _ = desk.store.create("meter", may=["register"])
    desk.store.create("agent")
    desk.identity.watch.check()
    desk.caller(desk.signer.token())
    found = {name for name in ("local", "ci", "edge", "meter", "agent", "corp:somebody", "x")
             if name in desk.identity.registrants}  # fmt: skip
    assert found == {"local", "edge", "meter", "corp:somebody"}
    desk.store.revoke([made.id])
    desk.identity.watch.check()
    assert "meter" not in desk.identity.registrants


def test_everybody_but() -> None:
    rest = CallerComplement(frozenset({"a"}))
    assert "a" not in rest
    assert "b" in rest


# -- with an issuer and a server that have to be asked


@pytest.mark.spec("ST-4.8.3-1", "ST-4.8.5-4")
async def test_both_kinds_of_token_from_outside(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (identity, authority, signer):
        now = time.time()
        signed = signer.token(iss=authority.issuer, iat=now, exp=now + 60)

        def shows(bearer: str) -> Callable[[], Caller]:
            return lambda: identity.authenticator(Credentials("192.0.2.7", bearer))

        with pytest.raises(PendingIdentity):
            shows(signed)()
        assert (await settled(shows(signed))).name == "corp:somebody"
        assert (await settled(shows("opaque"))).name == "app:robot"
        # Known by now: nobody is asked, nothing waits.
        asked = len(authority.asked)
        assert shows(signed)().name == "corp:somebody"
        assert shows("opaque")().name == "app:robot"
        with pytest.raises(InterlockError, match="no introspection server accepts"):
            await settled(shows("made-up"))
        assert len(authority.asked) == asked + 1
        # A token of an issuer that nobody here knows is asked about, and refused.
        with pytest.raises(InterlockError, match="no introspection server accepts"):
            await settled(shows(signer.token()))


async def test_a_new_key_is_looked_for_when_tokens_do_not_say_which(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_authority(tmp_path, clock=clock) as (identity, authority, signer):
        moment = time.time()

        def shows(signer: Signer) -> Callable[[], Caller]:
            said = claims(iss=authority.issuer, iat=moment, exp=moment + 60)
            token = signer.sign({"alg": "ES256"}, json.dumps(said).encode())
            return lambda: identity.authenticator(Credentials("192.0.2.7", token))

        assert (await settled(shows(signer))).name == "corp:somebody"
        signer.rotate("k2", overlap=False)
        clock.now += UNKNOWN_KEY_PAUSE_SECONDS
        assert (await settled(shows(signer))).name == "corp:somebody"
        # Strangers have the keys read once in a while only.
        asked = len(authority.asked)
        for _ in range(3):
            with pytest.raises(InterlockError, match="signature"):
                await settled(shows(Signer()))
        assert len(authority.asked) == asked


@pytest.mark.spec("ST-4.8.5-3")
async def test_keys_are_there_before_anybody_asks(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (identity, authority, signer):
        await identity.start()
        now = time.time()
        for kid in ("k2", "k3"):
            token = signer.token(iss=authority.issuer, iat=now, exp=now + 60)
            credentials = Credentials("192.0.2.7", token)
            assert (await settled(lambda c=credentials: identity.authenticator(c))).name
            signer.rotate(kid)
        assert len(authority.to("/jwks")) <= 2


async def test_an_issuer_that_is_away_is_a_problem_and_no_more(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (identity, authority, signer):
        await authority.stop()
        await identity.start()
        (problem,) = identity.problems()
        assert authority.issuer in problem
        assert identity.authenticator(Credentials("local")).name == "local"
        token = signer.token(iss=authority.issuer, exp=time.time() + 60)
        with pytest.raises(InterlockError, match="cannot be read now"):
            await settled(lambda: identity.authenticator(Credentials("192.0.2.7", token)))
