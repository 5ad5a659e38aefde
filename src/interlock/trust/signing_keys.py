"""The keys by which a node signs the tokens that it makes, in one file of its state folder.

The newest key signs. When another one takes its place its private part is thrown away, and its
public part is shown for as long as a token of it may still be good, so that nothing that was
signed is ever refused for a change of keys. Several processes may use the file: the node itself,
and whoever changes the key by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from interlock.core.ports import Clock
from interlock.errors import INTERNAL, InterlockError

ROTATION: Final = 24 * 3600.0
"""How long a key signs."""
OVERLAP: Final = 3600.0
"""How long a key that signs no more is shown: longer than any of its tokens is good."""
ALGORITHM: Final = "EdDSA"
_MOST_KEPT: Final = 24
"""So many keys are shown, however often they are changed."""
_LONGEST_FILE: Final = 64 * 1024
_LOCK_SECONDS: Final = 5.0
_LOCK_PAUSE: Final = 0.01

_log = logging.getLogger("interlock.state")


class _Key(msgspec.Struct, frozen=True):
    """One key, as it stands in the file."""

    kid: str
    x: str
    """The public part."""
    created: float
    d: str | None = None
    """The private part. None: it signs no more."""
    retired: float | None = None

    def __repr__(self) -> str:
        return f"_Key({self.kid})"


class _File(msgspec.Struct, frozen=True):
    keys: list[_Key] = msgspec.field(default_factory=list)


class StoredKeys(NamedTuple):
    """What there is to sign with, before anybody does."""

    keys: list[_Key]

    def __repr__(self) -> str:
        return f"StoredKeys({len(self.keys)})"


class KeyInfo(NamedTuple):
    """What may be said of a key."""

    kid: str
    created: float
    retired: float | None
    signs: bool


class SigningKeys:
    """The keys of one node, the newest first. Never empty."""

    def __init__(self, path: Path | None, *, wall_clock: Clock = time.time) -> None:
        """`path` of None, or one that cannot be used: the keys last as long as the process."""
        self._path = path
        self._wall_clock = wall_clock
        self._seen: tuple[int, int] | None = None
        self._keys: list[_Key] = []
        self._signer: Ed25519PrivateKey | None = None
        self._shown = b""
        try:
            self.refresh()
        except InterlockError as error:
            _log.warning("%s After a restart the node signs with another key.", error.message)
            self._path = None
            self.refresh()

    # -- signing

    @property
    def kid(self) -> str:
        """The id of the key that signs now."""
        return self._keys[0].kid

    def sign(self, claims: dict[str, Any]) -> str:
        """A token (JWT) with these claims, by the key of now."""
        signer = self._signer
        assert signer is not None
        header = {"alg": ALGORITHM, "typ": "at+jwt", "kid": self.kid}
        signed = _b64(msgspec.json.encode(header)) + b"." + _b64(msgspec.json.encode(claims))
        return (signed + b"." + _b64(signer.sign(signed))).decode()

    def jwks(self) -> bytes:
        """The public keys as a JSON Web Key Set. The same object until they are others."""
        return self._shown

    def rows(self) -> list[KeyInfo]:
        return [KeyInfo(one.kid, one.created, one.retired, one.d is not None) for one in self._keys]

    # -- changing

    def refresh(self) -> bool:
        """Change the key if it is time, drop those that nobody needs, and see what another process
        has changed. Whether the public keys are others now. Raises InterlockError."""
        return self.take(self.look())

    def look(self) -> StoredKeys | None:
        """The first half of `refresh`: all that touches the disk. It waits for whoever holds the
        file, so a running node does it beside its loop; one at a time. None: all is as it was.
        Raises InterlockError."""
        return self._changed(by_hand=False)

    def take(self, found: StoredKeys | None) -> bool:
        """The other half, where the keys are used: sign with what `look` found."""
        return found is not None and self._take(found.keys)

    def rotate(self) -> str:
        """Sign with a new key from now on: its id. Raises InterlockError."""
        self.take(self._changed(by_hand=True))
        return self.kid

    def _changed(self, *, by_hand: bool) -> StoredKeys | None:
        if self._path is None:
            return StoredKeys(self._due(self._keys, by_hand))
        if not by_hand and self._keys and self._is_seen() and self._settled(self._keys):
            return None
        try:
            with _locked(self._path):
                found = self._read()
                keys = self._due(found, by_hand)
                if keys != found:
                    self._write(keys)
                self._seen = self._stamp()
        except OSError as error:
            raise InterlockError(
                INTERNAL,
                f"The signing keys in {self._path} cannot be kept ({error.strerror or error}).",
            ) from None
        return StoredKeys(keys)

    def _due(self, keys: list[_Key], by_hand: bool) -> list[_Key]:
        """The keys as they ought to be now."""
        now = self._wall_clock()
        if by_hand or not keys or keys[0].d is None or self._is_old(keys[0], now):
            retired = [
                msgspec.structs.replace(
                    one, d=None, retired=now if one.retired is None else one.retired
                )
                for one in keys
            ]
            keys = [_new_key(now), *retired]
        return [
            one
            for place, one in enumerate(keys)
            if place == 0 or (place < _MOST_KEPT and self._is_needed(one, now))
        ]

    def _settled(self, keys: list[_Key]) -> bool:
        now = self._wall_clock()
        return not self._is_old(keys[0], now) and all(self._is_needed(one, now) for one in keys[1:])

    @staticmethod
    def _is_old(key: _Key, now: float) -> bool:
        # A key of the future was made before the clock was set back: nobody knows how old it is.
        return not -OVERLAP <= now - key.created < ROTATION

    @staticmethod
    def _is_needed(key: _Key, now: float) -> bool:
        return key.retired is None or abs(now - key.retired) < OVERLAP

    def _take(self, keys: list[_Key]) -> bool:
        before, self._keys = self._keys, keys
        if keys and (not before or before[0].kid != keys[0].kid or self._signer is None):
            private = keys[0].d
            assert private is not None
            self._signer = Ed25519PrivateKey.from_private_bytes(_bytes(private))
        if [one.kid for one in before] == [one.kid for one in keys]:
            return False
        self._shown = msgspec.json.encode({"keys": [_public(one) for one in keys]})
        return True

    # -- the file

    def _read(self) -> list[_Key]:
        assert self._path is not None
        try:
            with self._path.open("rb") as file:
                keys = msgspec.json.decode(file.read(_LONGEST_FILE), type=_File).keys
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError):
            keys = []
        if not keys or not all(map(_is_whole, keys)):
            _log.warning("%s does not hold signing keys: new ones are made", self._path)
            return []
        return keys

    def _write(self, keys: list[_Key]) -> None:
        """Whole or not at all, and for nobody else's eyes."""
        assert self._path is not None
        written = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_File(keys)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, self._path)
        except OSError:
            written.unlink(missing_ok=True)
            raise

    def _stamp(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _is_seen(self) -> bool:
        stamp = self._stamp()
        return stamp is not None and stamp == self._seen


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody else changes the file meanwhile. Raises OSError, also when somebody holds it for too
    long: whoever waits must come to an end."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        give_up = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise TimeoutError("another process holds the file") from None
                time.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(descriptor)


def _new_key(now: float) -> _Key:
    private = Ed25519PrivateKey.generate()
    x = _b64(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    d = _b64(private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())).decode()
    return _Key(_thumbprint(x), x, now, d)


def _thumbprint(x: str) -> str:
    """RFC 7638: the members that make the key, in their order."""
    return _b64(sha256(b'{"crv":"Ed25519","kty":"OKP","x":"%b"}' % x.encode()).digest()).decode()


def _public(key: _Key) -> dict[str, str]:
    return {
        "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": ALGORITHM, "kid": key.kid, "x": key.x,
    }  # fmt: skip


def _is_whole(key: _Key) -> bool:
    try:
        if len(_bytes(key.x)) != 32 or key.kid != _thumbprint(key.x):
            return False
        if key.d is None:
            return True
        private = Ed25519PrivateKey.from_private_bytes(_bytes(key.d))
    except ValueError:
        return False
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return _b64(public).decode() == key.x


def _b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
