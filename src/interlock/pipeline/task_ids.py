"""The ids by which callers know tasks: sealed, bound to the caller, and always the same.

Whoever holds the id of a task may ask for it, so an upstream's own id does not leave the node: all
callers share the node's credentials there, and one caller's task must be nobody else's. Unlike
other seals these have no expiry and no chance in them: a client may compare ids and keep them.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import msgspec

_MARK: Final = "t1."
_LONGEST: Final = 8 * 1024
"""An id travels in a header."""


class TaskName(msgspec.Struct, array_like=True, frozen=True):
    """What an id stands for."""

    upstream: str
    id: str
    """The upstream's own id, or the handle of a task of the node's own."""
    own: bool = False


class TaskIds:
    """Makes ids and reads them. Encryption is loaded with the first of them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher: Any = None

    def seal(self, name: TaskName, caller: str) -> str | None:
        """The id by which this caller knows the task. None: it would be too long."""
        sealed = self._load().encrypt(msgspec.msgpack.encode(name), [caller.encode()])
        id = _MARK + urlsafe_b64encode(sealed).decode().rstrip("=")
        return id if len(id) <= _LONGEST else None

    def open(self, id: str, caller: str) -> TaskName | None:
        """The task that this caller knows by the id. None: there is none that it may know."""
        if not id.startswith(_MARK) or len(id) > _LONGEST:
            return None
        body = id[len(_MARK) :]
        try:
            raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
            opened = self._load().decrypt(raw, [caller.encode()])
            name = msgspec.msgpack.decode(opened, type=TaskName)
        except Exception:
            # Forged bytes fail in as many ways as there are: none of them is worth telling apart.
            return None
        # The decoder overlooks what does not belong: there is one way to write an id.
        return name if self.seal(name, caller) == id else None

    def _load(self) -> Any:
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV

            self._cipher = AESSIV(self._key)
        return self._cipher
