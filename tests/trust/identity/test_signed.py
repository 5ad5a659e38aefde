"""Signed tokens: which are accepted, and everything that is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, RSAKey

from interlock.core.call import Caller
from interlock.core.pipeline.authentication import KnownToken
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.trust.identity.api_tokens import AccessSnapshot
from interlock.trust.identity.claims import LEEWAY_SECONDS, ClaimMapping
from interlock.trust.identity.signed_tokens import MAX_TOKEN_LENGTH, Issuer, SignedTokens
from tests.trust.identity.issuers import ISSUER, NODE, NOW, ShownKeys, Signer, claims, part


class SignedHarness:
    """A node that believes one issuer."""

    def __init__(
        self, signer: Signer, *, access: AccessSnapshot | None = None, **changes: Any
    ) -> None:
        self.now = NOW
        self.keys = ShownKeys(signer)
        settings = {
            "algorithms": frozenset({"RS256", "ES256", "EdDSA"}),
            "mapping": ClaimMapping("jwt"),
        }
        issuer = Issuer(
            issuer=ISSUER, audience=lambda: [NODE], keys=self.keys, **{**settings, **changes}
        )
        self.tokens = SignedTokens(
            [issuer],
            revocations=access or AccessSnapshot(),
            reserved_names={"operator"},
            wall_clock=lambda: self.now,
        )

    def caller(self, token: str) -> Caller:
        result = self.tokens.find(token)
        assert result is not None
        return result.caller

    def refusal(self, token: str) -> str:
        with pytest.raises(InterlockError) as error:
            self.tokens.find(token)
        assert error.value.failure is UNAUTHENTICATED
        assert error.value.message.startswith("Invalid or expired credentials: ")
        for piece in token.split("."):
            assert not piece or piece not in error.value.message
        return error.value.message


@pytest.mark.spec("ST-4.8.3-1")
@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_accepts_token_of_known_issuer(algorithm: str) -> None:
    signer = Signer(algorithm)
    result = SignedHarness(signer).tokens.find(signer.token(roles=["developers", "on call"]))
    assert result == KnownToken(
        Caller(
            "somebody",
            can_register=False,
            kind="jwt",
            roles=("developers", "on call"),
            scopes=("read", "write:github.*"),
            expires_at=NOW + 600,
            id="t-1",
        ),
        NOW + 600 + LEEWAY_SECONDS,
        NOW + 600 + LEEWAY_SECONDS,
    )


@pytest.mark.spec("ST-4.8.4-1", "AX-10.1-2")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - LEEWAY_SECONDS}, "expired"),
        ({"exp": None}, "never expire"),
        ({"exp": "soon"}, "not a valid time"),
        ({"exp": True}, "not a valid time"),
        ({"nbf": NOW + LEEWAY_SECONDS + 1}, "not valid yet"),
        ({"iat": NOW + LEEWAY_SECONDS + 1}, "not valid yet"),
        ({"aud": "https://other.example.com/mcp"}, "another receiver (`aud`)"),
        ({"aud": "https://node.example.com"}, "another receiver (`aud`)"),
        ({"aud": [NODE + "/x", 7, None]}, "another receiver (`aud`)"),
        ({"aud": None}, "another receiver (`aud`)"),
        ({"aud": {NODE: 1}}, "another receiver (`aud`)"),
        ({"sub": None}, "names no caller"),
        ({"sub": ""}, "names no caller"),
        ({"sub": 7}, "names no caller"),
        ({"sub": "a\nb"}, "names no caller"),
        ({"sub": "x" * 300}, "names no caller"),
        ({"sub": "local"}, "has other credentials"),
        ({"sub": "parent"}, "has other credentials"),
        ({"sub": "config:x"}, "has other credentials"),
        ({"sub": "operator"}, "has other credentials"),
    ],
    ids=str,
)
def test_rejects_wrong_claims(changes: dict[str, Any], reason: str) -> None:
    signer = Signer()
    assert reason in SignedHarness(signer).refusal(signer.token(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - LEEWAY_SECONDS + 1},
        {"nbf": NOW + LEEWAY_SECONDS},
        {"iat": None, "jti": None},
        {"aud": ["https://other.example.com", NODE]},
        {"aud": NODE + "/"},
        {"exp": int(NOW) + 1},
    ],
    ids=str,
)
def test_tolerates_small_clock_difference(changes: dict[str, Any]) -> None:
    signer = Signer()
    assert SignedHarness(signer).caller(signer.token(**changes)).name == "somebody"


@pytest.mark.spec("ST-4.8.3-1")
def test_rejects_unsigned_and_unconfigured_algorithms() -> None:
    """`alg: none`, a secret that everybody knows, another curve, an algorithm nobody configured."""
    signer = Signer("RS256")
    harness = SignedHarness(signer)
    unsigned = f"{part({'alg': 'none', 'kid': 'k1'})}.{part(claims())}."
    for token in (
        unsigned,
        f"{part({'alg': 'None'})}.{part(claims())}.",
        f"{part({'kid': 'k1'})}.{part(claims())}.",
        signer.with_secret(signer.key.as_pem(private=False)),
        signer.with_secret(json.dumps(signer.public()).encode()),
        signer.token({"alg": "RS512"}),
        signer.token({"alg": "PS256"}),
        signer.token({"alg": ["RS256"]}),
    ):
        assert "algorithm" in harness.refusal(token)
    only_es = SignedHarness(signer, algorithms=frozenset({"ES256"}))
    assert "algorithm" in only_es.refusal(signer.token())


def test_rejects_signature_of_unknown_key() -> None:
    signer, thief = Signer(), Signer()
    harness = SignedHarness(signer)
    assert "signature" in harness.refusal(thief.token())
    # Its own key in the header convinces nobody.
    for header in (
        {"jwk": thief.public()},
        {"jku": "https://thief.example.com/jwks"},
        {"x5u": "https://thief.example.com/cert"},
    ):
        assert "signature" in harness.refusal(thief.token(header))
    assert "the issuer has no key for" in harness.refusal(Signer(kid="other").token())
    head, body, tail = signer.token().split(".")
    forged = part(claims(sub="admin"))
    assert "signature" in harness.refusal(f"{head}.{forged}.{tail}")
    assert "signature" in harness.refusal(f"{head}.{body}.{tail[:-4]}AAAA")
    assert "signature" in harness.refusal(f"{head}.{body}.")
    # An elliptic signature of nothing but zeros is no signature.
    assert "signature" in harness.refusal(f"{head}.{body}.{part(bytes(64))}")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"crit": ["exp"], "exp": 1}, "`crit`"),
        ({"crit": []}, "`crit`"),
        ({"b64": False}, "`crit`"),
        ({"typ": "logout+jwt"}, "`typ`"),
        ({"typ": "dpop+jwt"}, "`typ`"),
        ({"typ": 7}, "`typ`"),
        ({"kid": 7}, "key id"),
        ({"kid": ["k1"]}, "key id"),
    ],
    ids=str,
)
def test_rejects_bad_header(header: dict[str, Any], reason: str) -> None:
    signer = Signer()
    full = {"alg": "ES256", "kid": "k1", **header}
    token = f"{part(full)}.{part(claims())}.{part(b'x' * 64)}"
    if reason != "key id":
        token = signer.token({**header, "alg": "ES256"})
    assert reason in SignedHarness(signer).refusal(token)


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
def test_accepts_access_token_types(kind: str | None) -> None:
    signer = Signer()
    assert SignedHarness(signer).caller(signer.token({} if kind is None else {"typ": kind}))


def test_rejects_ambiguous_key_id() -> None:
    signer, other = Signer(), Signer()
    harness = SignedHarness(signer)
    token = signer.token()
    signer.shown.append(other.public())
    assert "the issuer has no key for" in harness.refusal(token)
    # The same key twice is one key; one for another algorithm is not meant.
    signer.shown[1:] = [signer.public(), Signer("EdDSA").public()]
    assert harness.caller(token)


def test_token_without_key_id_is_checked_with_all_keys() -> None:
    signer = Signer(kid=None)
    signer.shown = [Signer(kid=None).public(), Signer("EdDSA").public(), signer.public()]
    assert SignedHarness(signer).caller(signer.token())


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"},
        {"alg": "ES384"},
        {"key_ops": ["sign"]},
        {"key_ops": 1},
        {"x": "AAAA"},
        {"crv": 1},
    ],
    ids=str,
)
def test_ignores_keys_for_other_uses(change: dict[str, Any]) -> None:
    signer = Signer()
    signer.shown = [signer.public(**change)]
    assert "the issuer has no key for" in SignedHarness(signer).refusal(signer.token())


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_ignores_weak_and_symmetric_keys() -> None:
    signer = Signer("RS256")
    signer.key = RSAKey.generate_key(1024)
    signer.shown = [signer.public(), {"kty": "oct", "k": part(b"x" * 32), "kid": "k1"}]
    assert "the issuer has no key for" in SignedHarness(signer).refusal(signer.token())
    signer = Signer()
    signer.key = ECKey.generate_key("P-384")
    signer.shown = [signer.public()]
    assert SignedHarness(signer).keys.find("k1", "ES256") == []


def test_published_private_key_is_used_as_public_key() -> None:
    signer = Signer("EdDSA")
    signer.shown = [{**signer.key.as_dict(private=True), "kid": "k1"}]
    harness = SignedHarness(signer)
    assert harness.caller(signer.token())
    (key,) = harness.keys.find("k1", "EdDSA")
    assert not key.key.is_private


def test_ignores_tokens_of_other_formats() -> None:
    signer = Signer()
    harness = SignedHarness(signer)
    for bearer in (
        "", "a.b", "a.b.c", "opaque", "..", signer.token(iss="https://other.example.com"),
        signer.token(iss=None), signer.token(iss=[ISSUER]), signer.token(iss=ISSUER + "/"),
        f"{part([1])}.{part(claims())}.x", f"{part({'alg': 'ES256'})}.{part(b'nothing')}.x",
        "x" * MAX_TOKEN_LENGTH + "." + signer.token(),
    ):  # fmt: skip
        assert harness.tokens.find(bearer) is None
    # One that is not written as it must be is not read at all.
    head, body, tail = signer.token().split(".")
    assert harness.tokens.find(f"{head}.{body}=.{tail}") is None
    assert harness.tokens.find(f"{head} .{body}.{tail}") is None


@pytest.mark.parametrize(
    ("token_claims", "expected"),
    [
        ({"scope": "read"}, ("read",)),
        ({"scope": ["read", "write"]}, ("read", "write")),
        ({"scope": None, "scp": "read"}, ("read",)),
        ({"scope": "tools.use openid offline_access"}, ("read", "write:jira.*")),
        ({"scope": "write:github.* write:github.*"}, ("write:github.*",)),
        ({"scope": "openid profile"}, ()),
        ({"scope": None}, ()),
        ({"scope": ""}, ()),
        ({"scope": 7}, ()),
        ({"scope": [7, None, {}]}, ()),
        ({"scope": "reader READ read: write:a/b"}, ()),
    ],
    ids=str,
)
def test_maps_issuer_scopes_to_node_scopes(
    token_claims: dict[str, Any], expected: tuple[str, ...]
) -> None:
    signer = Signer()
    terms = ClaimMapping("jwt", scopes={"tools.use": ["read", "write:jira.*"]})
    assert (
        SignedHarness(signer, mapping=terms).caller(signer.token(**token_claims)).scopes == expected
    )


def test_maps_issuer_claims_to_caller() -> None:
    signer = Signer()
    terms = ClaimMapping("jwt", ("email",), "realm_access.roles", "corp:", may=("call", "approve"))
    harness = SignedHarness(signer, mapping=terms)
    fields = {"email": "a@example.com", "realm_access": {"roles": ["admin", 7]}, "jti": None}
    caller = harness.caller(signer.token(**fields))  # type: ignore[arg-type]
    assert (caller.name, caller.id) == ("corp:a@example.com", "corp:a@example.com")
    assert caller.roles == ("admin",)
    assert (caller.can_call, caller.can_register, caller.can_view_approvals) == (True, False, True)
    # Behind a prefix nobody can be taken for somebody else.
    assert harness.caller(signer.token(email="local")).name == "corp:local"


@pytest.mark.spec("ST-4.8.5-2")
def test_rejects_revoked_token() -> None:
    signer = Signer()
    token = signer.token()
    assert "revoked" in SignedHarness(
        signer, access=AccessSnapshot(jtis=frozenset({"t-1"}))
    ).refusal(token)
    since = SignedHarness(signer, access=AccessSnapshot(subjects={"somebody": NOW - 100}))
    assert "revoked" in since.refusal(signer.token(iat=NOW - 101))
    assert "revoked" in since.refusal(signer.token(iat=NOW - 100 + LEEWAY_SECONDS))
    assert "revoked" in since.refusal(signer.token(iat=None))
    # What was issued afterwards, and what is somebody else's, is good.
    assert since.caller(signer.token(iat=NOW - 99 + LEEWAY_SECONDS))
    assert since.caller(signer.token(sub="another", iat=NOW - 200))


@pytest.mark.spec("ST-4.8.5-3")
def test_accepts_tokens_during_key_rotation() -> None:
    signer = Signer()
    harness = SignedHarness(signer)
    first = signer.token()
    signer.rotate("k2")
    second = signer.token()
    signer.rotate("k3")
    for token in (first, second, signer.token()):
        assert harness.caller(token)
    assert {item["kid"] for item in signer.shown} == {"k1", "k2", "k3"}


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.text(alphabet="ABCabc019-_=", max_size=30), max_size=4).map(".".join),
        st.tuples(st.dictionaries(st.text(), st.integers()), st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x), max_leaves=5
        )).map(lambda two: f"{part(two[0])}.{part({'iss': ISSUER, 'x': str(two[1])})}.x"),
    )
)  # fmt: skip
def test_arbitrary_bearer_is_rejected_or_ignored(bearer: str) -> None:
    """Whatever comes: nobody is let in, and nothing but a refusal is raised."""
    refusal = None
    try:
        assert _HARNESS.tokens.find(bearer) is None
    except InterlockError as error:
        refusal = error
    assert refusal is None or refusal.failure is UNAUTHENTICATED


_HARNESS = SignedHarness(Signer())
