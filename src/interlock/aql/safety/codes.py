"""Verification codes: shown to a human, never to a model. This is the only module that holds
one: for as long as it can be entered, in memory, in an object that cannot be printed, copied or
serialized. The store has a salted digest only."""

from __future__ import annotations

import hmac
import logging
import secrets
from base64 import b32encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NoReturn, Protocol

from interlock.aql.safety.store import CodeDigest

CODE_BYTES: Final = 20
"""160 bits."""
_GROUP: Final = 4
_SALT_BYTES: Final = 16
_LONGEST: Final = 200
# What people type for letters that the alphabet has.
_MISREAD: Final = str.maketrans({"0": "O", "1": "I", "8": "B", "-": None, " ": None, "\n": None})

_log = logging.getLogger("interlock.safety")


class CodeChannel(Protocol):
    """Shows codes to a human where no model can read them."""

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        """Never raises with the code in what it raises. Returns at once."""


class VerificationCode:
    """One code. It has no value that could be printed by mistake."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        drawn = b32encode(secrets.token_bytes(CODE_BYTES)).decode()
        self._text = "-".join(drawn[at : at + _GROUP] for at in range(0, len(drawn), _GROUP))

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "VerificationCode(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a code is not written down")

    def __copy__(self) -> NoReturn:
        raise TypeError("a code is not copied")


class VerificationCodes:
    """Draws codes, shows them, and forgets them."""

    def __init__(self) -> None:
        self.channels: Sequence[CodeChannel] = ()
        """Where each one is shown when it is drawn."""
        self.at_desk = True
        """Whether operators who proved to be one may look at them."""
        self._open: dict[str, VerificationCode] = {}

    def show_on(self, channels: Sequence[CodeChannel], *, at_desk: bool) -> None:
        """Use these channels from now on."""
        self.channels = channels
        self.at_desk = at_desk

    def __repr__(self) -> str:
        return f"VerificationCodes({len(self._open)} open)"

    def draw(self, challenge_id: str, sentence: str) -> CodeDigest:
        """A new code for a challenge, shown to the humans. Returns by what it is known again."""
        code = self._open[challenge_id] = VerificationCode()
        salt = secrets.token_bytes(_SALT_BYTES)
        for channel in self.channels:
            try:
                channel.show(challenge_id, code.reveal(), sentence)
            except Exception as trouble:
                # Only its kind: nobody knows what a channel of somebody else puts into a message.
                kind = type(trouble).__name__
                _log.error("a code could not be shown by %s: %s", type(channel).__name__, kind)
        return CodeDigest(salt, _digest(salt, code.reveal()))

    def reveal(self, challenge_id: str) -> str | None:
        """For an operator who proved to be one, and for nobody else. None: it is not known here
        any more, or is shown elsewhere only."""
        code = self._open.get(challenge_id) if self.at_desk else None
        return None if code is None else code.reveal()

    def forget(self, challenge_id: str) -> None:
        self._open.pop(challenge_id, None)


def fits(sealed: CodeDigest, given: str) -> bool:
    """Whether this is the code, in any spelling that people use. Takes the same time for all."""
    return hmac.compare_digest(sealed.digest, _digest(sealed.salt, given[:_LONGEST]))


def _digest(salt: bytes, code: str) -> bytes:
    spelled = code.strip().upper().translate(_MISREAD)
    return sha256(salt + spelled.encode("utf-8", "surrogatepass")).digest()
