"""Sealed `requestState` for clients: nobody can read or change it, or use it for another caller.

The state is encrypted, bound to a caller and to a request, and expires. The node stores its key, so
that sealed state is still valid after a restart.
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
_NONCE_BYTES: Final = 12
_MAX_STATE_LENGTH: Final = 1024 * 1024
_PREFIX: Final = "i1."


class SealedState(msgspec.Struct, array_like=True):
    """The content of sealed state."""

    caller: str
    request: bytes
    """The digest of the request in which it may be sent back."""
    expires_at: float
    """The end of its validity (wall clock)."""
    handle: str = ""
    """The handle of a suspended call. With `again`, the id of an approval."""
    upstream_state: str | None = None
    """The state of the upstream, which is sent back to it."""
    is_restart: bool = False
    """True if nothing was executed yet: the client makes the request again."""


class StateSealer:
    """Seals and opens state. The encryption library is imported at the first use."""

    def __init__(self, key: bytes, wall_clock: Callable[[], float]) -> None:
        self._key = key
        self._wall_clock = wall_clock
        self._cipher: Any = None

    def seal(
        self,
        call: Call,
        seconds: float,
        *,
        handle: str = "",
        upstream_state: str | None = None,
        is_restart: bool = False,
    ) -> str:
        """Return sealed state for the caller of this request, valid for this many seconds.

        Raises:
            InterlockError: the state of the upstream is too long.
        """
        caller = "" if call.caller is None else call.caller.name
        content = SealedState(
            caller,
            digest_request(call),
            self._wall_clock() + seconds,
            handle,
            upstream_state,
            is_restart,
        )
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._load().encrypt(nonce, msgspec.msgpack.encode(content), None)
        state = _PREFIX + _text(nonce + sealed)
        if len(state) > _MAX_STATE_LENGTH:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"The `requestState` of the upstream {call.upstream} is too long.",
            )
        return state

    def open(self, state: str, call: Call) -> SealedState:
        """Open state that a caller sent back.

        Raises:
            InterlockError: the state is forged, expired, of another caller or another request.
        """
        caller = "" if call.caller is None else call.caller.name
        content = self._decrypt(state)
        if (
            content is None
            or content.caller != caller
            or content.request != digest_request(call)
            or content.expires_at < self._wall_clock()
        ):
            # One error for all cases: a client must not learn which check failed.
            raise stale_state_error()
        return content

    def _decrypt(self, state: str) -> SealedState | None:
        if not state.startswith(_PREFIX) or len(state) > _MAX_STATE_LENGTH:
            return None
        body = state[len(_PREFIX) :]
        try:
            raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
            if _text(raw) != body:
                # The decoder ignores invalid characters: only the canonical form is accepted.
                return None
            opened = self._load().decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None)
            return msgspec.msgpack.decode(opened, type=SealedState)
        except Exception:
            # Forged bytes can fail in many ways. All of them mean that the state is invalid.
            return None

    def key_for(self, purpose: bytes) -> bytes:
        """Derive a separate key for another purpose."""
        return blake2b(purpose, key=self._key, digest_size=KEY_BYTES).digest()

    def _load(self) -> Any:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(self._key)
        return self._cipher


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


def digest_request(call: Call) -> bytes:
    """Return the digest of the parts of a request that must not change when state is sent back."""
    name = call.name if call.route is None else call.route.canonical
    # Sorted: a client may send the same arguments in another order the second time.
    arguments = msgspec.json.encode(decode_value(call.arguments), order="sorted")
    parts = (call.method.encode(), call.upstream.encode(), name.encode(), arguments)
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()


def stale_state_error() -> InterlockError:
    return InterlockError(
        INVALID_STATE,
        "Invalid or expired `requestState`. Make the request again without it.",
        {"reason": "invalid_request_state"},
    )
