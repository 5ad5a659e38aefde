"""Verification codes: shown to people, never to a model.

This is the only module that holds a code: in memory, while it can be entered, in an object that
cannot be printed, copied or serialized. The store has only a salted digest.
"""

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
_GROUP_SIZE: Final = 4
_SALT_BYTES: Final = 16
_MAX_CODE_CHARACTERS: Final = 200
# Digits that people type for letters of the alphabet.
_MISREAD_CHARACTERS: Final = str.maketrans(
    {"0": "O", "1": "I", "8": "B", "-": None, " ": None, "\n": None}
)

_log = logging.getLogger("interlock.safety")


class CodeChannel(Protocol):
    """Shows codes to people where no model can read them."""

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        """Show a code. Returns at once. Exceptions never contain the code."""


class VerificationCode:
    """A code. It has no value that could be printed by mistake."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        text = b32encode(secrets.token_bytes(CODE_BYTES)).decode()
        self._text = "-".join(
            text[index : index + _GROUP_SIZE] for index in range(0, len(text), _GROUP_SIZE)
        )

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "VerificationCode(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a verification code cannot be serialized")

    def __copy__(self) -> NoReturn:
        raise TypeError("a verification code cannot be copied")


class VerificationCodes:
    """Creates, shows and removes codes."""

    def __init__(self) -> None:
        self.channels: Sequence[CodeChannel] = ()
        """The channels that show a new code."""
        self.shown_at_terminal = True
        """True if operators can see codes at the terminal and the page after signing in."""
        self._open: dict[str, VerificationCode] = {}

    def set_channels(self, channels: Sequence[CodeChannel], *, shown_at_terminal: bool) -> None:
        """Use these channels from now on."""
        self.channels = channels
        self.shown_at_terminal = shown_at_terminal

    def __repr__(self) -> str:
        return f"VerificationCodes({len(self._open)} open)"

    def create(self, challenge_id: str, sentence: str) -> CodeDigest:
        """Create a code for a challenge and show it. Returns its salted digest."""
        code = self._open[challenge_id] = VerificationCode()
        salt = secrets.token_bytes(_SALT_BYTES)
        for channel in self.channels:
            try:
                channel.show(challenge_id, code.reveal(), sentence)
            except Exception as error:
                # Log only the type: the message of another party's channel could contain anything.
                kind = type(error).__name__
                _log.error("code channel %s: cannot show a code: %s", type(channel).__name__, kind)
        return CodeDigest(salt, _digest(salt, code.reveal()))

    def reveal(self, challenge_id: str) -> str | None:
        """Return a code for an operator who has signed in.

        None: the code is no longer known, or is shown by channels only.
        """
        code = self._open.get(challenge_id) if self.shown_at_terminal else None
        return None if code is None else code.reveal()

    def remove(self, challenge_id: str) -> None:
        self._open.pop(challenge_id, None)


def matches_code(code_digest: CodeDigest, text: str) -> bool:
    """Return whether text is the code, in any common spelling. Takes constant time."""
    return hmac.compare_digest(
        code_digest.digest, _digest(code_digest.salt, text[:_MAX_CODE_CHARACTERS])
    )


def _digest(salt: bytes, code: str) -> bytes:
    normalized = code.strip().upper().translate(_MISREAD_CHARACTERS)
    return sha256(salt + normalized.encode("utf-8", "surrogatepass")).digest()
