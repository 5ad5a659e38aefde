"""The identity component: built from a config, reloaded, and updated with revocations."""

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
from tests.trust.identities import IdentityHarness, harness, open_authority, resolve_caller
from tests.trust.identity.issuers import ISSUER, NOW, Signer, claims

__all__ = ["harness"]

LOOPBACK = Credentials("loopback")


def test_rejects_two_callers_with_same_token(tmp_path: Path) -> None:
    """Whoever shows it would be taken for the one who may do more."""
    agent = TokenConfig(name="agent", token="${env:T}")
    chief = TokenConfig(name="chief", token="s3cret", may=["call", "approve"])
    with pytest.raises(InterlockError, match="chief: it is the same token as that of agent") as no:
        IdentityHarness(tmp_path, tokens=[agent, chief])
    assert no.value.failure is CONFIG
    assert "s3cret" not in str(no.value)
    harness = IdentityHarness(tmp_path, tokens=[agent])
    with pytest.raises(InterlockError, match="the same token"):
        harness.identity.configure(harness.config_with([agent, chief]))
    assert harness.caller("s3cret").name == "agent"


def test_config_defines_all_callers(tmp_path: Path) -> None:
    token = TokenConfig(
        name="ci", token="${env:T}", may=["call", "approve"], roles=["robots"], scopes=["read"]
    )
    harness = IdentityHarness(
        tmp_path,
        tokens=[token],
        local_roles=["operators"],
        local_scopes=["admin"],
        certificates=[CertificateConfig(name="edge", san="edge.example.com")],
        tls=TlsConfig(certificate="c", key="k", client_ca="ca"),
    )
    assert harness.caller("s3cret") == Caller(
        "ci",
        can_register=False,
        can_view_approvals=True,
        kind="token",
        roles=("robots",),
        scopes=("read",),
    )
    assert harness.caller(None, "local") == Caller("local", roles=("operators",), scopes=("admin",))
    assert harness.caller(harness.signer.token()).name == "corp:somebody"
    _, shown = harness.store.create("agent")
    harness.identity.watch.check()
    assert harness.caller(shown).name == "agent"
    edge = Credentials("192.0.2.7", certificate_names=("edge.example.com",))
    assert harness.identity.authenticator(edge).kind == "certificate"
    for name in ("local", "parent", "ci", "edge", "agent", "corp:somebody"):
        assert name in harness.identity
    assert "corp:other" not in harness.identity
    assert 7 not in harness.identity


def test_empty_config_allows_loopback_callers_only(tmp_path: Path) -> None:
    identity = IdentityComponent(
        Config(state_dir=str(tmp_path / "state")), environ={}, base_dir=tmp_path
    )
    assert identity.authenticator(LOOPBACK) == Caller("local")
    assert identity.metadata() is None
    assert not (tmp_path / "state").exists()
    with pytest.raises(InterlockError):
        identity.authenticator(Credentials("192.0.2.7"))


@pytest.mark.spec("AX-10.1-2")
def test_token_audience_must_name_node(tmp_path: Path) -> None:
    harness = IdentityHarness(tmp_path, resource=None)
    here, there = "http://127.0.0.1:8420/mcp", "http://127.0.0.1:8421/mcp"
    harness.identity.set_url(here)
    assert harness.caller(harness.signer.token(aud=here))
    assert "`aud`" in harness.refused(harness.signer.token(aud=there))
    harness.identity.configure(
        harness.config_with(
            issuers=[IssuerConfig(issuer=ISSUER, jwks_file="keys.json", audience=["x"])]
        )
    )
    assert harness.caller(harness.signer.token(aud="x"))
    assert "`aud`" in harness.refused(harness.signer.token(aud=here))


@pytest.mark.spec("ST-4.8.5-2")
def test_revocation_is_reported_within_interval(harness: IdentityHarness) -> None:
    first, shown = harness.store.create("agent")
    harness.identity.watch.start()
    harness.clock.advance(1.0)
    signed = harness.signer.token()
    assert harness.caller(shown).name == "agent"
    assert harness.caller(signed).name == "corp:somebody"
    harness.store.revoke([first.id])
    harness.clock.advance(1.0)
    assert harness.revoked == [frozenset({"agent"})]
    assert "was revoked" in harness.refused(shown)
    assert "agent" not in harness.identity
    harness.store.revoke_external("subject", "corp:somebody")
    harness.clock.advance(1.0)
    assert harness.revoked[1:] == [frozenset({"corp:somebody"})]
    assert "was revoked" in harness.refused(signed)
    other = harness.signer.token(sub="other", jti="t-2")
    assert harness.caller(other).name == "corp:other"
    harness.store.revoke_external("jti", "t-2")
    harness.clock.advance(1.0)
    assert harness.revoked[2:] == [frozenset({"corp:other"})]
    assert "was revoked" in harness.refused(other)
    # Nothing happened since, and nothing is told.
    harness.clock.advance(10.0)
    assert len(harness.revoked) == 3


def test_removed_token_is_reported_as_revoked(harness: IdentityHarness) -> None:
    _, shown = harness.store.create("agent")
    harness.identity.watch.check()
    assert harness.caller(shown)
    harness.store.path.unlink()
    harness.identity.watch.check()
    assert harness.revoked == [frozenset({"agent"})]
    assert "this API token is not known here" in harness.refused(shown)
    assert "is required" in harness.refused(None)


@pytest.mark.spec("ST-4.8.4-1")
async def test_expired_token_is_reported(harness: IdentityHarness) -> None:
    _, shown = harness.store.create("agent", expires=NOW + 100)
    harness.identity.watch.check()
    harness.caller(shown)
    harness.caller(harness.signer.token(exp=NOW + 50))
    harness.now = NOW + 50 + LEEWAY_SECONDS
    harness.identity.watch.check()
    assert harness.expired == [frozenset({"agent", "corp:somebody"})]
    assert harness.revoked == []
    # Who came with a new one in time is still there.
    harness.caller(harness.signer.token(exp=harness.now + 10, jti="a"))
    harness.caller(harness.signer.token(exp=harness.now + 500, jti="b"))
    harness.now += 10 + LEEWAY_SECONDS
    harness.identity.watch.check()
    assert len(harness.expired) == 1
    assert "corp:somebody" in harness.identity


def test_last_use_is_written_at_intervals(harness: IdentityHarness) -> None:
    async def scene() -> None:
        made, shown = harness.store.create("agent")
        harness.identity.watch.check()
        harness.caller(shown)
        assert harness.store.find(made.id)[0].last_used is None
        harness.now += STORE_USES_SECONDS
        harness.identity.watch.check()
        await harness.identity.close()
        assert harness.store.find(made.id)[0].last_used == NOW

    asyncio.run(scene())
    # What the node wrote itself changes nothing for anybody.
    known = dict(harness.identity.authenticator._cache)
    assert known
    harness.identity.watch.check()
    assert harness.identity.authenticator._cache == known


def test_broken_store_prevents_start(tmp_path: Path) -> None:
    """What was revoked in it would count again."""
    harness = IdentityHarness(tmp_path)
    harness.store.create("agent")
    harness.store.path.write_bytes(b"broken" * 500)
    with pytest.raises(InterlockError, match="cannot be used") as error:
        IdentityComponent(harness.config, environ={}, base_dir=tmp_path)
    assert error.value.failure is CONFIG


def test_store_that_breaks_while_running_is_reported(
    harness: IdentityHarness, caplog: pytest.LogCaptureFixture
) -> None:
    made, shown = harness.store.create("agent")
    harness.identity.watch.check()
    good = harness.store.path.read_bytes()
    harness.store.path.unlink()
    harness.store.path.write_bytes(b"broken" * 500)
    harness.identity.watch.check()
    harness.identity.watch.check()
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1
    assert "cannot be used" in harness.identity.problems()[0]
    assert harness.caller(shown).name == "agent"
    harness.store.path.write_bytes(good)
    harness.store.revoke([made.id])
    harness.identity.watch.check()
    assert harness.identity.problems() == []
    assert "was revoked" in harness.refused(shown)


@pytest.mark.parametrize(
    ("settings", "reason"),
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
def test_rejected_config_changes_nothing(
    harness: IdentityHarness, settings: dict[str, Any], reason: str
) -> None:
    config = harness.config_with(**settings)
    for act in (harness.identity.check, harness.identity.configure):
        with pytest.raises(InterlockError, match=reason) as error:
            act(config)
        assert error.value.failure is CONFIG
    assert harness.caller(harness.signer.token())


def test_rejects_issuer_configured_twice(harness: IdentityHarness) -> None:
    with pytest.raises(InterlockError, match="twice"):
        harness.identity.check(harness.config_with(issuers=[harness.issuer, harness.issuer]))


def test_changed_config_applies_at_once(harness: IdentityHarness) -> None:
    token = harness.signer.token()
    assert harness.caller(token)
    keys = harness.identity._parts.key_sets[ISSUER]
    harness.identity.minted = lambda credentials: Caller("above")
    harness.identity.configure(harness.config_with(local_roles=["x"]))
    assert harness.identity._parts.key_sets[ISSUER] is keys
    assert harness.caller(None, "local").roles == ("x",)
    assert harness.identity.authenticator(Credentials("", assigned_name="parent")).name == "above"
    harness.identity.configure(harness.config_with(issuers=[]))
    assert "corp:somebody" not in harness.identity
    with pytest.raises(InterlockError):
        harness.caller(token)


def test_issuer_subject_cannot_impersonate_local_caller(tmp_path: Path) -> None:
    issuer = IssuerConfig(issuer=ISSUER, jwks_file="keys.json")
    harness = IdentityHarness(tmp_path, tokens=[TokenConfig(name="ci", token="${env:T}")])
    harness.identity.configure(
        harness.config_with([TokenConfig(name="ci", token="${env:T}")], issuers=[issuer])
    )
    harness.store.create("agent")
    harness.identity.watch.check()
    for name in ("ci", "agent", "local", "parent"):
        assert "has other credentials" in harness.refused(harness.signer.token(sub=name))
    assert harness.caller(harness.signer.token(sub="else")).name == "else"


def test_issuer_prefixes_cannot_overlap(harness: IdentityHarness) -> None:
    (harness.folder / "public.json").write_bytes(Signer(kid="p").jwks())
    for prefix in ("", "c", "corp:", "corp:x:"):
        public = IssuerConfig(
            issuer="https://public.example", jwks_file="public.json", prefix=prefix
        )
        for issuers in ([public, harness.issuer], [harness.issuer, public]):
            with pytest.raises(InterlockError, match="callers could be confused"):
                harness.identity.check(harness.config_with(issuers=issuers))
    other = IssuerConfig(issuer="https://public.example", jwks_file="public.json", prefix="pub:")
    harness.identity.check(harness.config_with(issuers=[harness.issuer, other]))


def test_registrants_follow_config_and_revocation(harness: IdentityHarness) -> None:
    tokens = [
        TokenConfig(name="ci", token="${env:T}"),
        TokenConfig(name="edge", token="x" * 20, may=["register"]),
    ]
    harness.identity.configure(harness.config_with(tokens))
    made, _ = harness.store.create("meter", may=["register"])
    harness.store.create("agent")
    harness.identity.watch.check()
    harness.caller(harness.signer.token())
    actual = {name for name in ("local", "ci", "edge", "meter", "agent", "corp:somebody", "x")
             if name in harness.identity.registrants}  # fmt: skip
    assert actual == {"local", "edge", "meter", "corp:somebody"}
    harness.store.revoke([made.id])
    harness.identity.watch.check()
    assert "meter" not in harness.identity.registrants


def test_complement_contains_all_other_callers() -> None:
    rest = CallerComplement(frozenset({"a"}))
    assert "a" not in rest
    assert "b" in rest


# -- with an issuer and a server that have to be asked


@pytest.mark.spec("ST-4.8.3-1", "ST-4.8.5-4")
async def test_accepts_signed_and_opaque_tokens(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (identity, authority, signer):
        now = time.time()
        signed = signer.token(iss=authority.issuer, iat=now, exp=now + 60)

        def shows(bearer: str) -> Callable[[], Caller]:
            return lambda: identity.authenticator(Credentials("192.0.2.7", bearer))

        with pytest.raises(PendingIdentity):
            shows(signed)()
        assert (await resolve_caller(shows(signed))).name == "corp:somebody"
        assert (await resolve_caller(shows("opaque"))).name == "app:robot"
        # Known by now: nobody is asked, nothing waits.
        asked = len(authority.requests)
        assert shows(signed)().name == "corp:somebody"
        assert shows("opaque")().name == "app:robot"
        with pytest.raises(InterlockError, match="no introspection server accepts"):
            await resolve_caller(shows("made-up"))
        assert len(authority.requests) == asked + 1
        # A token of an issuer that nobody here knows is asked about, and refused.
        with pytest.raises(InterlockError, match="no introspection server accepts"):
            await resolve_caller(shows(signer.token()))


async def test_unknown_signature_without_key_id_refreshes_keys(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_authority(tmp_path, clock=clock) as (identity, authority, signer):
        moment = time.time()

        def shows(signer: Signer) -> Callable[[], Caller]:
            said = claims(iss=authority.issuer, iat=moment, exp=moment + 60)
            token = signer.sign({"alg": "ES256"}, json.dumps(said).encode())
            return lambda: identity.authenticator(Credentials("192.0.2.7", token))

        assert (await resolve_caller(shows(signer))).name == "corp:somebody"
        signer.rotate("k2", overlap=False)
        clock.now += UNKNOWN_KEY_PAUSE_SECONDS
        assert (await resolve_caller(shows(signer))).name == "corp:somebody"
        # Strangers have the keys read once in a while only.
        asked = len(authority.requests)
        for _ in range(3):
            with pytest.raises(InterlockError, match="signature"):
                await resolve_caller(shows(Signer()))
        assert len(authority.requests) == asked


@pytest.mark.spec("ST-4.8.5-3")
async def test_keys_are_fetched_before_first_token(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (identity, authority, signer):
        await identity.start()
        now = time.time()
        for kid in ("k2", "k3"):
            token = signer.token(iss=authority.issuer, iat=now, exp=now + 60)
            credentials = Credentials("192.0.2.7", token)
            assert (await resolve_caller(lambda c=credentials: identity.authenticator(c))).name
            signer.rotate(kid)
        assert len(authority.requests_to("/jwks")) <= 2


async def test_unavailable_issuer_is_reported_as_problem(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as (identity, authority, signer):
        await authority.stop()
        await identity.start()
        (problem,) = identity.problems()
        assert authority.issuer in problem
        assert identity.authenticator(Credentials("local")).name == "local"
        token = signer.token(iss=authority.issuer, exp=time.time() + 60)
        with pytest.raises(InterlockError, match="cannot be read now"):
            await resolve_caller(lambda: identity.authenticator(Credentials("192.0.2.7", token)))
