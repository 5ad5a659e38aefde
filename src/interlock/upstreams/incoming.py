"""What upstreams say, as far as a peer reads it by itself: requests, answers, notifications."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.protocol import mcp


class Incoming(msgspec.Struct, gc=False):
    """A message from an upstream. Our own ids are integers; its requests may have any id."""

    id: int | str | UnsetType | None = UNSET
    result: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


decode_incoming = msgspec.json.Decoder(Incoming).decode
decode_batch = msgspec.json.Decoder(list[Raw]).decode
decode_progress = msgspec.json.Decoder(mcp.ProgressParams).decode
decode_updated = msgspec.json.Decoder(mcp.UpdatedParams).decode
decode_cancelled = msgspec.json.Decoder(mcp.CancelledParams).decode

CHANGED: Final = {
    mcp.TOOLS_CHANGED: "tools",
    mcp.PROMPTS_CHANGED: "prompts",
    mcp.RESOURCES_CHANGED: "resources",
}
"""What a notification says has changed."""


def batch_of(data: bytes) -> list[Raw]:
    """The messages of a batch. Empty: it is none."""
    if data.lstrip()[:1] != b"[":
        return []
    try:
        return decode_batch(data)
    except (msgspec.DecodeError, RecursionError):
        return []
