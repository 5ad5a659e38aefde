"""State that the node gives to a caller to bring back: nobody can read, change or borrow it.

What is sealed is encrypted and bound to a caller, to the request it belongs to, and to an hour.
The key is the node's own; with the key kept, a seal outlives a restart.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.core.call import Call
from interlock.errors import INVALID_STATE, UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol.jsonrpc import decode_value

KEY_BYTES: Final = 32
_NONCE: Final = 12
_LONGEST: Final = 1024 * 1024
_MARK: Final = "i1."


class SealedState(msgspec.Struct, array_like=True):
    """What is inside."""

    caller: str
    request: bytes
    """A digest of the request that it may come back with."""
    until: float
    """On the wall clock."""
    held: str = ""
    """The handle of an upstream call that waits for answers; with `again`, the approval's id."""
    upstream: str | None = None
    """The upstream's own state, to be handed back to it."""
    again: bool = False
    """Nothing was done yet: the request is simply made again."""


class StateSealer:
    """Makes and opens seals. Encryption is loaded with the first of them."""

    def __init__(self, key: bytes, wall_clock: Callable[[], float]) -> None:
        self._key = key
        self._wall_clock = wall_clock
        self._cipher: Any = None

    def seal(
        self,
        call: Call,
        seconds: float,
        *,
        held: str = "",
        upstream: str | None = None,
        again: bool = False,
    ) -> str:
        """State for the caller of this very request to bring back within this many seconds.

        Raises InterlockError for a server's state that is too long to be brought back.
        """
        caller = "" if call.caller is None else call.caller.name
        inside = SealedState(
            caller, digest_request(call), self._wall_clock() + seconds, held, upstream, again
        )
        nonce = os.urandom(_NONCE)
        sealed = self._load().encrypt(nonce, msgspec.msgpack.encode(inside), None)
        state = _MARK + _text(nonce + sealed)
        if len(state) > _LONGEST:
            raise InterlockError(
                UPSTREAM_PROTOCOL, f"The `requestState` of {call.upstream} is too long to be kept."
            )
        return state

    def open(self, state: str, call: Call) -> SealedState:
        """What a caller brought back. Raises InterlockError unless it is its own, here and now."""
        caller = "" if call.caller is None else call.caller.name
        inside = self._decrypt(state)
        if (
            inside is None
            or inside.caller != caller
            or inside.request != digest_request(call)
            or inside.until < self._wall_clock()
        ):
            # Which of these it is, is nobody's business who has to ask.
            raise stale_state_error()
        return inside

    def _decrypt(self, state: str) -> SealedState | None:
        if not state.startswith(_MARK) or len(state) > _LONGEST:
            return None
        body = state[len(_MARK) :]
        try:
            raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
            if _text(raw) != body:
                # The decoder overlooks what does not belong: there is one way to write a seal.
                return None
            opened = self._load().decrypt(raw[:_NONCE], raw[_NONCE:], None)
            return msgspec.msgpack.decode(opened, type=SealedState)
        except Exception:
            # Forged bytes fail in as many ways as there are: none of them is worth telling apart.
            return None

    def key_for(self, purpose: bytes) -> bytes:
        """A key of its own for something else that is to be sealed by this node."""
        return blake2b(purpose, key=self._key, digest_size=KEY_BYTES).digest()

    def _load(self) -> Any:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(self._key)
        return self._cipher


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def digest_request(call: Call) -> bytes:
    """What a request is, so far as bringing back state must not change it."""
    name = call.name if call.route is None else call.route.canonical
    # Put in order: a client may write the same arguments in another one when it comes back.
    arguments = msgspec.json.encode(decode_value(call.arguments), order="sorted")
    parts = (call.method.encode(), call.upstream.encode(), name.encode(), arguments)
    whole = blake2b(digest_size=16)
    for part in parts:
        whole.update(b"%d:" % len(part) + part)
    return whole.digest()


def stale_state_error() -> InterlockError:
    return InterlockError(
        INVALID_STATE,
        "Invalid or expired `requestState`: make the request again without it.",
        {"reason": "invalid_request_state"},
    )
