"""Records that a node stores have the member names of the first release."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from interlock.aql.safety.store import (
    AgentExecution,
    BlockLift,
    CodeAttempts,
    PrincipalBlock,
    SafetyChallenge,
)
from interlock.contracts.accepted_contracts import AcceptedContract
from interlock.core.call import Caller
from interlock.core.upstreams.oauth.grants import Grant, RegisteredClient
from interlock.drivers.installation import InstallMarker

pytestmark = pytest.mark.feature("aql", "contracts", "drivers")

OWNER = ("ada", "token", "")
CALLER = Caller(
    "ada",
    can_call=False,
    can_register=False,
    can_join=True,
    can_view_approvals=True,
    expires_at=9.0,
    parent_caller="bob",
)
CALLER_MEMBERS = {
    "name": "ada",
    "calls": False,
    "registers": False,
    "joins": True,
    "approves": True,
    "expires": 9.0,
    "above": "bob",
}
CLIENT = RegisteredClient(
    "registered", "client", "https://issuer", auth_method="none", secret_expires_at=5.0
)
CLIENT_MEMBERS = {
    "kind": "registered",
    "client_id": "client",
    "issuer": "https://issuer",
    "method": "none",
    "secret_ends": 5.0,
}


@pytest.mark.parametrize(
    ("record", "members"),
    [
        (CALLER, CALLER_MEMBERS),
        (CLIENT, CLIENT_MEMBERS),
        (
            Grant(
                "https://server",
                "https://server",
                "https://issuer",
                "https://issuer/token",
                CLIENT,
                requested_scope="a",
                missing_scope="b",
                expires_at=7.0,
                renew_at=6.0,
            ),
            {
                "url": "https://server",
                "resource": "https://server",
                "issuer": "https://issuer",
                "token_endpoint": "https://issuer/token",
                "client": CLIENT_MEMBERS,
                "asked": "a",
                "wanted": "b",
                "ends": 7.0,
                "renew": 6.0,
            },
        ),
        (
            PrincipalBlock(OWNER, CALLER, "agent", "hint", "reason", 1.0),
            {
                "who": OWNER,
                "caller": CALLER_MEMBERS,
                "element": "agent",
                "hint": "hint",
                "reason": "reason",
                "at": 1.0,
            },
        ),
        (BlockLift(OWNER, 1.0, "bob", 2.0), {"who": OWNER, "of": 1.0, "by": "bob", "at": 2.0}),
        (CodeAttempts(OWNER, (1.0,)), {"who": OWNER, "failures": [1.0]}),
        (
            AcceptedContract("1.0.0", "d", {}, {}, reported_digest="e"),
            {"version": "1.0.0", "digest": "d", "inputs": {}, "outputs": {}, "told": "e"},
        ),
        (
            InstallMarker("npm", "digest", 1.0, {}),
            {"method": "npm", "wanted": "digest", "at": 1.0, "settings": {}},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_stored_member_names_are_unchanged(record: Any, members: dict[str, Any]) -> None:
    kind = type(record)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(members), type=kind) == record
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    assert members.keys() <= encoded.keys()


def test_owner_member_names_are_unchanged() -> None:
    assert "who" in AgentExecution.__struct_encode_fields__
    assert {"who", "sealed"} <= set(SafetyChallenge.__struct_encode_fields__)
