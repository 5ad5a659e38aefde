"""A call as it is written down when it is stopped: everything that a human must know of it, and all
that it takes to make it later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import Raw

from interlock.call import Call, Client
from interlock.catalog.offering import CONTRACTS, META_CONTEXT, META_DRIVER, Tool
from interlock.catalog.pinning import approved_digest
from interlock.errors import INVALID_ARGUMENTS, InterlockError
from interlock.pipeline.approval.record import (
    Approval,
    canonical,
    digest_of,
    exact,
    masked,
    new_id,
)
from interlock.pipeline.policy.decision import Decision
from interlock.protocol.jsonrpc import decode_members, encode_members

_log = logging.getLogger("interlock.approvals")

_SENT_ALONG: Final = (META_CONTEXT, META_DRIVER)
"""What of the `_meta` of a call decides what it does: drivers read it. Everything else is about the
request that was held, and not about the one that is made for it."""


class Whole(NamedTuple):
    """All of a call that a human lets through, as it can be read in one way only."""

    arguments: Any
    meta: dict[str, Any] | None = None
    """What of its `_meta` is sent with it. None: nothing."""
    raw_meta: bytes = b""


def brought_along(call: Call, route: object) -> dict[str, Raw]:
    """What of its `_meta` decides what a call does. `route`: what is called."""
    if not isinstance(route, Tool) or route.upstream != CONTRACTS:
        return {}
    return only_sent_along(call.meta) or {}


def only_sent_along(meta: dict[str, Raw] | None) -> dict[str, Raw] | None:
    """What of a `_meta` could decide what a call does."""
    return {name: meta[name] for name in _SENT_ALONG if name in meta} or None if meta else None


def whole(call: Call, route: object) -> Whole:
    """All of it. `route`: what is called. Raises InterlockError."""
    arguments, along = exact(call.arguments), brought_along(call, route)
    if not along:
        return Whole(arguments)
    raw = encode_members(along)
    return Whole(arguments, exact(raw), raw)


def check_context(route: object, asked: Whole) -> None:
    """No human is asked about a call of a contract that would be refused for its context. Raises
    InterlockError."""
    check = route.check_context if isinstance(route, Tool) else None
    if check is not None:
        context = (asked.meta or {}).get(META_CONTEXT)
        check({} if context is None else context)


def sent_along(raw_meta: bytes) -> dict[str, Raw] | None:
    """The `_meta` of a call that is made for an approval."""
    return decode_members(raw_meta) if raw_meta else None


def about(call: Call) -> tuple[str, str]:
    """The canonical name of the tool and the digest of its contract, and of who serves it."""
    route = call.route
    if route is None:
        return call.name, ""
    return route.canonical, approved_digest(route) if isinstance(route, Tool) else ""


def written_down(
    call: Call,
    decision: Decision,
    asked: Whole,
    *,
    audience: str,
    policy: str,
    created: float,
    expires: float,
) -> Approval:
    """The record of a call that waits from now on. `asked`: all of it, read."""
    route, caller, client = call.route, call.caller, call.client
    assert caller is not None
    tool, contract = about(call)
    listed = route if isinstance(route, Tool) else None
    return Approval(
        id=new_id(),
        audience=audience,
        nonce=new_id(),
        caller=caller,
        # What it promised is for whoever waits for an answer, and then nobody may.
        client=Client(client.era, client.revision, client.name),
        face=call.face,
        name=call.name,
        tool=tool,
        upstream=call.upstream,
        route=tuple(tool.split(".")) if call.hop is None else call.hop.route,
        hop=call.hop,
        arguments=bytes(call.arguments),
        shown=shown(asked.arguments),
        meta=asked.raw_meta,
        meta_shown=shown(asked.meta) if asked.meta else b"",
        capability=b"{}" if listed is None else bytes(listed.capability()),
        effect=call.effect,
        description="" if listed is None else listed.description,
        digest=digest_of(tool, asked.arguments, contract, caller, asked.meta),
        contract=contract,
        policy=policy,
        rule=decision.rule,
        action=decision.action.word,
        reason=decision.reason if listed is None else _reason(decision, listed),
        created=created,
        expires=expires,
        proposal=call.proposal,
    )


def _reason(decision: Decision, tool: Tool) -> str:
    """Why it waits, and whose turn it is afterwards, where several could have it."""
    if not tool.served_by:
        return decision.reason
    drivers = " or ".join(one.partition(" ")[0] for one in tool.served_by)
    return f"{decision.reason} It would be served by {drivers}.".lstrip()


def shown(arguments: Any) -> bytes:
    """What people see. Raises InterlockError for what nobody could look through."""
    try:
        return canonical(masked(arguments))
    except RecursionError:
        raise InterlockError(
            INVALID_ARGUMENTS,
            "A human must look at this call, and its arguments are nested too deeply for that: "
            "make them flatter.",
        ) from None


def tell_of(told: Callable[[Tool, str], None], tool: Tool, by: str) -> None:
    """Have it noted that a human let a call of this tool through. Never raises."""
    try:
        told(tool, by)
    except Exception:
        _log.exception("%s could not be noted as approved", tool.canonical)
