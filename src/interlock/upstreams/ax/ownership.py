"""Who gets a segment: the first, its owner of old, or the same subserver come back."""

from __future__ import annotations

from interlock.errors import (
    AUTHORITY_REJECTED,
    FORBIDDEN,
    INVALID_SEGMENT,
    NAMESPACE_CONFLICT,
    TOO_BUSY,
    InterlockError,
)
from interlock.protocol import ax
from interlock.protocol.aql.words import SEGMENT
from interlock.upstreams.ax.desk import Place
from interlock.upstreams.ax.subserver import Claim, Subserver


class Holder:
    """Somebody who has a segment."""

    def __init__(self, info: Subserver) -> None:
        self.info = info


def check_claim(claim: Claim | None, wanted: ax.Registration, verified: bool) -> None:
    """Hold a registration against who had the segment before. Raises InterlockError.

    A proven claim displaces an unproven one, never the other way round.
    """
    if claim is None:
        return
    same = _same_authority(wanted.authority, claim.authority)
    if (same and (verified or not claim.verified)) or (verified and not claim.verified):
        return
    raise InterlockError(
        AUTHORITY_REJECTED,
        f"The segment {wanted.segment!r} belongs to {claim.authority}"
        + (", and that has to be proven." if same else ". Ask for another."),
        {"segment": wanted.segment},
    )


def check_segment(
    wanted: ax.Registration,
    verified: bool,
    *,
    place: Place | None,
    held: Holder | None,
    mine: Holder | None,
    room: bool,
) -> None:
    """Hold a registration against who is registered now. Raises InterlockError.

    `held` has the wanted segment, `mine` is the same caller's with the wanted subserver_id.
    """
    if wanted.segment == SEGMENT:
        raise _conflict(wanted, "the node's own operations are called so")
    if place is not None and wanted.segment != place.segment:
        raise InterlockError(
            INVALID_SEGMENT,
            f"The config calls it {place.segment!r}: it must register as that.",
            {"segment": wanted.segment, "expected": place.segment},
        )
    if mine is not None:
        info = mine.info
        if info.verified and not verified:
            raise InterlockError(
                AUTHORITY_REJECTED,
                f"It is registered as {info.segment!r} with a proof of its authority: whoever "
                "takes its place has to prove it too.",
                {"segment": wanted.segment},
            )
        if info.live and not _same_authority(info.authority, wanted.authority):
            raise _conflict(wanted, "it is registered with another authority")
    if held is not None and held is not mine:
        info = held.info
        heir = (
            not info.live
            and verified
            and info.verified
            and _same_authority(info.authority, wanted.authority)
        )
        if not heir:
            raise _conflict(
                wanted,
                "another subserver has it"
                if info.live
                else "another had it a moment ago, and may come back",
            )
    if held is None and mine is None and not room:
        raise InterlockError(
            TOO_BUSY, "This node has as many registrations as it may (`subservers.most`)."
        )


def _same_authority(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return ax.dns_name(one) == ax.dns_name(other)


def _conflict(wanted: ax.Registration, why: str) -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT,
        f"The segment {wanted.segment!r} cannot be had: {why}.",
        {"segment": wanted.segment},
    )


def taken_by_another(segment: str) -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT,
        f"The segment {segment!r} is that of a server in the config. Ask for another.",
        {"segment": segment},
    )


def replaced() -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT, "The same subserver has registered again, on another channel."
    )


def not_known() -> InterlockError:
    return InterlockError(FORBIDDEN, "Whoever registered it may not be here any more.")


def nobody_may() -> InterlockError:
    return InterlockError(FORBIDDEN, "Nobody may register with this node.")
