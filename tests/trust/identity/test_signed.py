"""Signed tokens: who is believed, and everything that is not."""

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


class Desk:
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
        known = self.tokens.find(token)
        assert known is not None
        return known.caller

    def refusal(self, token: str) -> str:
        with pytest.raises(InterlockError) as caught:
            self.tokens.find(token)
        assert caught.value.failure is UNAUTHENTICATED
        assert caught.value.message.startswith("Invalid or expired credentials: ")
        for piece in token.split("."):
            assert not piece or piece not in caught.value.message
        return caught.value.message


@pytest.mark.spec("ST-4.8.3-1")
@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_token_of_a_known_issuer_is_believed(algorithm: str) -> None:
    signer = Signer(algorithm)
    known = Desk(signer).tokens.find(signer.token(roles=["developers", "on call"]))
    assert known == KnownToken(
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
    ("changes", "why"),
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
def test_what_a_token_says_must_hold(changes: dict[str, Any], why: str) -> None:
    signer = Signer()
    assert why in Desk(signer).refusal(signer.token(**changes))


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
def test_clocks_may_differ_a_little(changes: dict[str, Any]) -> None:
    signer = Signer()
    assert Desk(signer).caller(signer.token(**changes)).name == "somebody"


@pytest.mark.spec("ST-4.8.3-1")
def test_a_signature_counts_by_its_algorithm_only() -> None:
    """`alg: none`, a secret that everybody knows, another curve, an algorithm nobody configured."""
    signer = Signer("RS256")
    desk = Desk(signer)
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
        assert "algorithm" in desk.refusal(token)
    only_es = Desk(signer, algorithms=frozenset({"ES256"}))
    assert "algorithm" in only_es.refusal(signer.token())


def test_nobody_else_can_sign() -> None:
    signer, thief = Signer(), Signer()
    desk = Desk(signer)
    assert "signature" in desk.refusal(thief.token())
    # Its own key in the header convinces nobody.
    for header in (
        {"jwk": thief.public()},
        {"jku": "https://thief.example.com/jwks"},
        {"x5u": "https://thief.example.com/cert"},
    ):
        assert "signature" in desk.refusal(thief.token(header))
    assert "the issuer has no key for" in desk.refusal(Signer(kid="other").token())
    head, body, tail = signer.token().split(".")
    forged = part(claims(sub="admin"))
    assert "signature" in desk.refusal(f"{head}.{forged}.{tail}")
    assert "signature" in desk.refusal(f"{head}.{body}.{tail[:-4]}AAAA")
    assert "signature" in desk.refusal(f"{head}.{body}.")
    # An elliptic signature of nothing but zeros is no signature.
    assert "signature" in desk.refusal(f"{head}.{body}.{part(bytes(64))}")


@pytest.mark.parametrize(
    ("header", "why"),
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
def test_a_header_that_cannot_be_believed(header: dict[str, Any], why: str) -> None:
    signer = Signer()
    full = {"alg": "ES256", "kid": "k1", **header}
    token = f"{part(full)}.{part(claims())}.{part(b'x' * 64)}"
    if why != "key id":
        token = signer.token({**header, "alg": "ES256"})
    assert why in Desk(signer).refusal(token)


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
def test_the_types_of_access_tokens(kind: str | None) -> None:
    signer = Signer()
    assert Desk(signer).caller(signer.token({} if kind is None else {"typ": kind}))


def test_one_key_id_is_one_key() -> None:
    signer, other = Signer(), Signer()
    desk = Desk(signer)
    token = signer.token()
    signer.shown.append(other.public())
    assert "the issuer has no key for" in desk.refusal(token)
    # The same key twice is one key; one for another algorithm is not meant.
    signer.shown[1:] = [signer.public(), Signer("EdDSA").public()]
    assert desk.caller(token)


def test_a_token_without_a_key_id_is_tried_with_all() -> None:
    signer = Signer(kid=None)
    signer.shown = [Signer(kid=None).public(), Signer("EdDSA").public(), signer.public()]
    assert Desk(signer).caller(signer.token())


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
def test_keys_for_something_else_do_not_count(change: dict[str, Any]) -> None:
    signer = Signer()
    signer.shown = [signer.public(**change)]
    assert "the issuer has no key for" in Desk(signer).refusal(signer.token())


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_weak_and_symmetric_keys_do_not_count() -> None:
    signer = Signer("RS256")
    signer.key = RSAKey.generate_key(1024)
    signer.shown = [signer.public(), {"kty": "oct", "k": part(b"x" * 32), "kid": "k1"}]
    assert "the issuer has no key for" in Desk(signer).refusal(signer.token())
    signer = Signer()
    signer.key = ECKey.generate_key("P-384")
    signer.shown = [signer.public()]
    assert Desk(signer).keys.find("k1", "ES256") == []


def test_a_published_private_key_is_taken_as_a_public_one() -> None:
    signer = Signer("EdDSA")
    signer.shown = [{**signer.key.as_dict(private=True), "kid": "k1"}]
    desk = Desk(signer)
    assert desk.caller(signer.token())
    (key,) = desk.keys.find("k1", "EdDSA")
    assert not key.key.is_private


def test_other_tokens_are_somebody_elses() -> None:
    signer = Signer()
    desk = Desk(signer)
    for bearer in (
        "", "a.b", "a.b.c", "opaque", "..", signer.token(iss="https://other.example.com"),
        signer.token(iss=None), signer.token(iss=[ISSUER]), signer.token(iss=ISSUER + "/"),
        f"{part([1])}.{part(claims())}.x", f"{part({'alg': 'ES256'})}.{part(b'nothing')}.x",
        "x" * MAX_TOKEN_LENGTH + "." + signer.token(),
    ):  # fmt: skip
        assert desk.tokens.find(bearer) is None
    # One that is not written as it must be is not read at all.
    head, body, tail = signer.token().split(".")
    assert desk.tokens.find(f"{head}.{body}=.{tail}") is None
    assert desk.tokens.find(f"{head} .{body}.{tail}") is None


@pytest.mark.parametrize(
    ("said", "meant"),
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
def test_scopes_in_this_nodes_words(said: dict[str, Any], meant: tuple[str, ...]) -> None:
    signer = Signer()
    terms = ClaimMapping("jwt", scopes={"tools.use": ["read", "write:jira.*"]})
    assert Desk(signer, mapping=terms).caller(signer.token(**said)).scopes == meant


def test_terms_of_an_issuer() -> None:
    signer = Signer()
    terms = ClaimMapping("jwt", ("email",), "realm_access.roles", "corp:", may=("call", "approve"))
    desk = Desk(signer, mapping=terms)
    said = {"email": "a@example.com", "realm_access": {"roles": ["admin", 7]}, "jti": None}
    caller = desk.caller(signer.token(**said))  # type: ignore[arg-type]
    assert (caller.name, caller.id) == ("corp:a@example.com", "corp:a@example.com")
    assert caller.roles == ("admin",)
    assert (caller.can_call, caller.can_register, caller.can_view_approvals) == (True, False, True)
    # Behind a prefix nobody can be taken for somebody else.
    assert desk.caller(signer.token(email="local")).name == "corp:local"


@pytest.mark.spec("ST-4.8.5-2")
def test_what_was_revoked_is_refused() -> None:
    signer = Signer()
    token = signer.token()
    assert "revoked" in Desk(signer, access=AccessSnapshot(jtis=frozenset({"t-1"}))).refusal(token)
    since = Desk(signer, access=AccessSnapshot(subjects={"somebody": NOW - 100}))
    assert "revoked" in since.refusal(signer.token(iat=NOW - 101))
    assert "revoked" in since.refusal(signer.token(iat=NOW - 100 + LEEWAY_SECONDS))
    assert "revoked" in since.refusal(signer.token(iat=None))
    # What was issued afterwards, and what is somebody else's, is good.
    assert since.caller(signer.token(iat=NOW - 99 + LEEWAY_SECONDS))
    assert since.caller(signer.token(sub="another", iat=NOW - 200))


@pytest.mark.spec("ST-4.8.5-3")
def test_no_gap_when_keys_rotate() -> None:
    signer = Signer()
    desk = Desk(signer)
    first = signer.token()
    signer.rotate("k2")
    second = signer.token()
    signer.rotate("k3")
    for token in (first, second, signer.token()):
        assert desk.caller(token)
    assert {one["kid"] for one in signer.shown} == {"k1", "k2", "k3"}


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
def test_anything_is_refused_or_not_ours(bearer: str) -> None:
    """Whatever comes: nobody is let in, and nothing but a refusal is raised."""
    refusal = None
    try:
        assert _DESK.tokens.find(bearer) is None
    except InterlockError as error:
        refusal = error
    assert refusal is None or refusal.failure is UNAUTHENTICATED


_DESK = Desk(Signer())
