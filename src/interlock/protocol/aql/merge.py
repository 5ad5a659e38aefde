"""What an update makes of what was there, and how one sees that something has changed since."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

_ETAG_BYTES: Final = 8
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def deep(state: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`state` with `change` in it: objects are merged, null takes a field away, everything else
    replaces. Neither of the two is changed."""
    merged = dict(state)
    for name, new in change.items():
        if new is None:
            merged.pop(name, None)
        elif isinstance(new, dict):
            old = merged.get(name)
            # Merged into nothing where there was no object: what it takes away is not kept as null.
            merged[name] = deep(old if isinstance(old, dict) else {}, new)
        else:
            merged[name] = new
    return merged


def etag(value: Any) -> str:
    """The same for the same content, whatever the order of its members."""
    return blake2b(_encode(value), digest_size=_ETAG_BYTES).hexdigest()
