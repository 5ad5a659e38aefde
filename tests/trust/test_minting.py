"""Hop tokens: minted with narrow scopes and verified strictly."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from interlock.core.call import Call, Caller, Credentials
from interlock.core.catalog.offering import Tool
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.protocol.mcp import RESOURCES_READ
from interlock.protocol.scopes import is_subset, scopes_cover
from interlock.trust.hop_tokens import (
    LEEWAY_SECONDS,
    MAX_TOKEN_SECONDS,
    HopTokenMinter,
    HopTokenReader,
    HopTokens,
    ParentIssuer,
)
from interlock.trust.scopes import check_scopes
from interlock.trust.signing_keys import SigningKeys
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.clock import ManualClock
from tests.support.offerings import definition, offer

NODE, CHILD = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"


class World:
    """A node that mints, and one below it that reads."""

    def __init__(self) -> None:
        self.clock = ManualClock(500.0)
        self.keys = SigningKeys(None, wall_clock=self.clock.wall)
        self.signed: list[dict[str, Any]] = []
        self.minter = HopTokenMinter(self.sign, clock=self.clock, wall_clock=self.clock.wall)
        self.above: ParentIssuer | None = ParentIssuer(NODE, CHILD, self.keys.jwks())
        self.tokens = HopTokenReader(lambda: self.above, wall_clock=self.clock.wall)

    def sign(self, claims: dict[str, Any]) -> str:
        self.signed.append(claims)
        return self.keys.sign(claims)

    def stamp(self, prefix: str = "edge.") -> HopTokens:
        return HopTokens(
            self.minter, CHILD, issuer=lambda: NODE, encode=lambda token: token.encode(),
            prefix=prefix,
        )  # fmt: skip

    def token(self, call: Call) -> str:
        return self.minter.mint(call, CHILD, NODE, "edge.")[0]

    def read(self, token: str | None) -> Caller | None:
        return self.tokens(Credentials("local", assigned_name="parent", hop_token=token))

    def refuses(self, token: str | None, why: str) -> None:
        with pytest.raises(InterlockError, match=why) as error:
            self.read(token)
        assert error.value.failure is UNAUTHENTICATED
        if token:
            assert token not in error.value.message


@pytest.fixture
def world() -> World:
    return World()


def tool(name: str = "github.list", *, mutable: bool = False) -> Tool:
    annotations = {"readOnlyHint": not mutable}
    [one] = offer(
        "edge", [definition(name, annotations=annotations)], registered="aggregator"
    ).tools
    return one


LIST = tool()
OWNER = Caller("owner", kind="token", scopes=("write:edge.github.*", "read"), id="tok1")


def call_of(caller: Caller = OWNER, route: Tool | None = LIST, deadline: float = 560.0) -> Call:
    call = tool_call("edge.github.list")
    call.caller, call.route, call.deadline = caller, route, deadline
    return call


# -- made


@pytest.mark.spec("ST-4.8.4-5", "AX-10.1-2")
def test_token_has_exact_claims(world: World) -> None:
    caller = world.read(world.token(call_of()))
    [claims] = world.signed
    now = int(world.clock.wall())
    assert claims == {
        "iss": NODE,
        "sub": "owner",
        "client_id": "tok1",
        "aud": CHILD,
        "scope": "read:github.list",
        "iat": now,
        "exp": now + 60,
        "jti": claims["jti"],
    }
    assert caller == Caller(
        "parent", can_register=False, kind="parent", scopes=("read:github.list",), id="tok1",
        parent_caller="owner",
    )  # fmt: skip


@pytest.mark.spec("ST-4.8.5-1", "ST-4.8.4-5")
@pytest.mark.parametrize(
    ("deadline", "expires", "life"),
    [
        (3600.0, None, 900),
        (math.inf, None, 900),
        (0.0, None, 900),
        (60.0, None, 60),
        (60.0, 20.0, 20),
        (0.5, None, 0.5),
        (60.0, 1.5, 1.5),
        (-1.0, None, 0),
        (60.0, -5.0, -5.0),
    ],
)
def test_token_lifetime_is_shortest_limit(
    world: World, deadline: float, expires: float | None, life: float
) -> None:
    """The shortest of a quarter of an hour, the call's deadline, and what its caller has left."""
    ends = None if expires is None else world.clock.wall() + expires
    call = call_of(
        Caller("owner", expires_at=ends), deadline=deadline and world.clock.now + deadline
    )
    world.token(call)
    [claims] = world.signed
    assert claims["exp"] == world.clock.wall() + life
    assert claims["exp"] - claims["iat"] <= 900
    assert claims.get("sub_exp") == ends


def test_fractional_clock_does_not_extend_lifetime(world: World) -> None:
    world.clock.now += 0.75
    world.token(call_of(deadline=math.inf))
    world.token(call_of(deadline=world.clock.now + 59.9))
    for claims, most in zip(world.signed, (900, 59.9), strict=True):
        assert claims["exp"] - claims["iat"] <= MAX_TOKEN_SECONDS
        assert claims["exp"] <= world.clock.wall() + most
        assert claims["exp"] == int(claims["exp"])


SCOPES = st.lists(
    st.sampled_from(
        ["read", "write", "admin", "read:edge.*", "write:edge.github.*", "write:edge.x", "read:y.*"]
    ),
    max_size=3,
).map(tuple)


@pytest.mark.spec("ST-4.8.2-1", "ST-4.8.4-5")
@given(scopes=SCOPES, mutable=st.booleans(), name=st.sampled_from(["github.list", "x", "a_b.c"]))
def test_token_never_exceeds_scopes_of_caller(
    scopes: tuple[str, ...], mutable: bool, name: str
) -> None:
    world = World()
    one = tool(name, mutable=mutable)
    call = tool_call(one.canonical)
    call.caller, call.route = Caller("deputy", scopes=scopes), one
    caller = world.read(world.token(call))
    assert caller is not None
    assert caller.scopes is not None
    level = "write" if mutable else "read"
    assert bool(caller.scopes) is scopes_cover(scopes, level, one.canonical)
    # In the names of this node, what it allows is within what the caller may.
    assert is_subset(tuple(s.replace(":", ":edge.") for s in caller.scopes), scopes)


@pytest.mark.spec("ST-4.8.2-1")
def test_three_hops_keep_caller_and_narrow_scopes(world: World) -> None:
    caller = Caller("owner", kind="token", scopes=("write:edge.*",), id="tok1")
    name = "edge.c.d.list"
    for below in ("c.d.list", "d.list", "list"):
        call = tool_call(name)
        call.caller, call.route = caller, tool(below)
        result = world.read(world.token(call))
        assert result is not None
        assert (result.parent_caller, result.id, result.kind) == ("owner", "tok1", "parent")
        assert result.scopes == (f"read:{below}",)
        caller, name = result, below


def test_other_requests_get_remaining_read_scopes(world: World) -> None:
    call = Call(RESOURCES_READ, "test", LOCAL, SESSION, name="x://1")
    for scopes, left in (
        (None, ("read",)),
        (("write:edge.*", "read:other.*"), ("read:*",)),
        (("read:edge.github.*",), ("read:github.*",)),
        (("read:other.*",), ()),
    ):
        call.caller = Caller("owner", scopes=scopes)
        caller = world.read(world.token(call))
        assert caller is not None
        assert caller.scopes == left


# -- kept


@pytest.mark.spec("ST-4.8.5-1")
def test_token_is_reused_for_half_its_life(world: World) -> None:
    stamp = world.stamp()
    first = stamp(call_of(deadline=world.clock.now + 60))
    world.clock.now += 29
    assert stamp(call_of(deadline=world.clock.now + 60)) is first
    world.clock.now += 2
    second = stamp(call_of(deadline=world.clock.now + 60))
    assert second != first
    assert len(world.signed) == 2


def test_token_never_outlives_call_deadline(world: World) -> None:
    stamp = world.stamp()
    stamp(call_of(deadline=world.clock.now + 60))
    short = stamp(call_of(deadline=world.clock.now + 10))
    assert world.signed[-1]["exp"] <= world.clock.wall() + 10
    # And one that lives shorter is good for whoever has longer.
    assert stamp(call_of(deadline=world.clock.now + 60)) is short


def test_token_is_never_reused_for_other_caller(world: World) -> None:
    stamp = world.stamp()
    others = [
        call_of(),
        call_of(Caller("deputy", scopes=OWNER.scopes)),
        call_of(Caller("owner", scopes=("read",), id="tok1")),
        call_of(route=tool("github.other")),
        call_of(Caller("parent", kind="parent", parent_caller="owner")),
        call_of(Caller("parent", kind="parent", parent_caller="deputy")),
    ]
    assert len({stamp(item) for item in others}) == len(others)
    assert [stamp(item) for item in others] == [stamp(item) for item in others]
    assert len(world.signed) == len(others)


def test_nameless_caller_gets_no_token(world: World) -> None:
    call = call_of()
    call.caller = None
    assert world.stamp()(call) == b""
    call.caller = Caller("")
    assert world.stamp()(call) == b""


def test_token_of_node_allows_reading_only(world: World) -> None:
    stamp = world.stamp()
    own = stamp.node_header_line()
    assert stamp.node_header_line() is own
    world.clock.now += MAX_TOKEN_SECONDS / 2 + 1
    assert stamp.node_header_line() is not own
    assert [item["scope"] for item in world.signed] == ["read", "read"]
    assert world.signed[0]["sub"] == NODE


def test_cached_tokens_are_limited(world: World) -> None:
    stamp = world.stamp()
    world.minter._sign = lambda claims: claims["jti"]
    for number in range(10_500):
        stamp(call_of(Caller(f"c{number}")))
    assert len(stamp._tokens) <= 10_000
    stamp.clear()
    assert not stamp._tokens


# -- read


def test_missing_token_means_parent_unless_required(world: World) -> None:
    assert world.read(None) is None
    world.tokens = HopTokenReader(
        lambda: world.above, wall_clock=world.clock.wall, is_required=True
    )
    world.refuses(None, "the call has none")


def test_token_is_verified_once_until_it_expires(world: World) -> None:
    token = world.token(call_of())
    first = world.read(token)
    assert world.read(token) is first
    world.clock.now += 60 + LEEWAY_SECONDS - 0.1
    assert world.read(token) is first
    world.clock.now += 0.2
    world.refuses(token, "it has expired")


def test_tokens_of_previous_keys_stay_valid_while_published(world: World) -> None:
    old = world.token(call_of())
    assert world.read(old) is not None
    world.keys.rotate()
    new = world.token(call_of())
    world.refuses(new, "a key that the parent node has not published")
    world.above = ParentIssuer(NODE, CHILD, world.keys.jwks())
    assert world.read(new) == world.read(old)
    world.above = ParentIssuer(NODE, CHILD, SigningKeys(None, wall_clock=world.clock.wall).jwks())
    world.refuses(old, "a key that the parent node has not published")


def test_rejects_tokens_without_parent_or_keys(world: World) -> None:
    token = world.token(call_of())
    for nothing in (b"", b"{", b"[]", b'{"keys":[{}]}', b'{"keys":7}', b" " * 40_000):
        world.above = ParentIssuer(NODE, CHILD, nothing)
        world.refuses(token, "has not published")
    world.above = None
    world.refuses(token, "this node has no parent")


def claims_of(world: World, **changed: Any) -> dict[str, Any]:
    now = int(world.clock.wall())
    claims = {
        "iss": NODE, "sub": "owner", "client_id": "tok1", "aud": CHILD, "scope": "read",
        "iat": now, "exp": now + 60, "jti": "1",
    }  # fmt: skip
    return {key: value for key, value in {**claims, **changed}.items() if value is not None}


@pytest.mark.spec("AX-10.1-2", "ST-4.8.5-1")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": NODE}, "for another node"),
        ({"aud": [CHILD, NODE]}, "for another node"),
        ({"aud": None}, "for another node"),
        ({"iss": CHILD}, "another node issued it"),
        ({"iss": None}, "another node issued it"),
        ({"exp": None}, "no valid `exp`"),
        ({"exp": "tomorrow"}, "no valid `exp`"),
        ({"exp": True}, "no valid `exp`"),
        ({"exp": 1e300}, "no valid `exp`"),
        ({"exp": 1}, "has expired"),
        ({"iat": None}, "no valid `iat`"),
        ({"iat": 1_900_000_000}, "not valid yet"),
        ({"exp": 1_800_000_500 + 901}, "more than 15 minutes"),
        ({"iat": 1}, "more than 15 minutes"),
        ({"sub": None}, "no valid `sub`"),
        ({"sub": ""}, "no valid `sub`"),
        ({"sub": ["owner"]}, "no valid `sub`"),
        ({"client_id": 7}, "no valid `client_id`"),
        ({"scope": None}, "no `scope`"),
        ({"scope": ["read"]}, "no `scope`"),
        ({"scope": "read everything"}, "`scope` cannot be parsed"),
        ({"sub_exp": "never"}, "no valid `sub_exp`"),
    ],
)
def test_rejects_wrong_claims(world: World, changed: dict[str, Any], reason: str) -> None:
    assert world.read(world.keys.sign(claims_of(world))) is not None
    world.refuses(world.keys.sign(claims_of(world, **changed)), reason)


def test_token_without_scope_permits_nothing(world: World) -> None:
    caller = world.read(world.keys.sign(claims_of(world, scope="")))
    assert caller is not None
    assert caller.scopes == ()
    call = call_of(caller)
    with pytest.raises(InterlockError, match="owner lacks the scope"):
        check_scopes(call, LIST, {})


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def by_another_key(world: World) -> str:
    return SigningKeys(None, wall_clock=world.clock.wall).sign(claims_of(world))


def by_another_key_with_our_id(world: World) -> str:
    other = OKPKey.generate_key("Ed25519")
    header = {"alg": "EdDSA", "kid": world.keys.kid}
    return jwt.encode(header, claims_of(world), other, algorithms=["EdDSA"])


def unsigned(world: World) -> str:
    return f"{part({'alg': 'none', 'kid': world.keys.kid})}.{part(claims_of(world))}."


def unsigned_with_a_signature(world: World) -> str:
    _, body, signature = world.keys.sign(claims_of(world)).split(".")
    return f"{part({'alg': 'none', 'kid': world.keys.kid})}.{body}.{signature}"


def by_our_public_key_as_a_secret(world: World) -> str:
    [shown] = json.loads(world.keys.jwks())["keys"]
    secret = OctKey.import_key(shown["x"])
    header = {"alg": "HS256", "kid": world.keys.kid}
    return jwt.encode(header, claims_of(world), secret, algorithms=["HS256"])


def by_an_elliptic_key(world: World) -> str:
    key = ECKey.generate_key("P-256")
    header = {"alg": "ES256", "kid": world.keys.kid}
    return jwt.encode(header, claims_of(world), key, algorithms=["ES256"])


def by_an_rsa_key(world: World) -> str:
    key = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "kid": world.keys.kid, "jwk": key.as_dict(private=False)}
    return jwt.encode(header, claims_of(world), key, algorithms=["RS256"])


def with_more_scope(world: World) -> str:
    head, _, signature = world.keys.sign(claims_of(world)).split(".")
    return f"{head}.{part(claims_of(world, scope='admin'))}.{signature}"


def without_an_id(world: World) -> str:
    _, body, signature = world.keys.sign(claims_of(world)).split(".")
    return f"{part({'alg': 'EdDSA'})}.{body}.{signature}"


def critical(world: World) -> str:
    _, body, signature = world.keys.sign(claims_of(world)).split(".")
    header = {"alg": "EdDSA", "kid": world.keys.kid, "crit": ["b64"], "b64": False}
    return f"{part(header)}.{body}.{signature}"


def of_no_object(world: World) -> str:
    return world.keys.sign([1])  # type: ignore[arg-type]


@pytest.mark.spec("ST-4.8.2-1")
@pytest.mark.parametrize(
    "forge",
    [
        by_another_key,
        by_another_key_with_our_id,
        unsigned,
        unsigned_with_a_signature,
        by_our_public_key_as_a_secret,
        by_an_elliptic_key,
        by_an_rsa_key,
        with_more_scope,
        without_an_id,
        critical,
        of_no_object,
        lambda _: "",
        lambda _: "not a token",
        lambda _: "a.b.c",
        lambda world: world.keys.sign(claims_of(world)) + ".x",
        lambda world: world.keys.sign(claims_of(world)) + " ",
        lambda world: world.keys.sign(claims_of(world, jti="x" * 9_000)),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rejects_forged_tokens(world: World, forge: Callable[[World], str]) -> None:
    world.refuses(forge(world), "is not valid")


@given(st.data())
def test_rejects_token_with_any_changed_byte(data: st.DataObject) -> None:
    world = World()
    token = world.token(call_of())
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("AZaz09-_."))
    forged = token[:place] + letter + token[place + 1 :]
    if forged == token:
        return
    if place == len(token) - 1:
        # The last letter of a signature has bits that say nothing.
        with contextlib.suppress(InterlockError):
            assert world.read(forged) == world.read(token)
    else:
        world.refuses(forged, "is not valid")


def test_verified_tokens_are_limited(world: World) -> None:
    world.tokens._verified = {str(number): world.tokens._verified for number in range(10_000)}  # type: ignore[assignment]
    assert world.read(world.token(call_of())) is not None
    assert len(world.tokens._verified) == 1
