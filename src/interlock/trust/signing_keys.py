"""The keys with which a node signs its tokens, in one file of its state folder.

The newest key signs. When it is replaced, its private part is deleted, and its public part stays
published for as long as a token of it may be valid, so that a rotation invalidates no token.
Several processes may use the file: the node, and the command that rotates the key.
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

ROTATION_SECONDS: Final = 24 * 3600.0
"""The time for which a key signs."""
OVERLAP_SECONDS: Final = 3600.0
"""The time for which a retired key stays published: longer than any of its tokens is valid."""
ALGORITHM: Final = "EdDSA"
_MAX_KEYS: Final = 24
"""The maximum number of published keys, also after many rotations."""
_MAX_FILE_BYTES: Final = 64 * 1024
_LOCK_TIMEOUT_SECONDS: Final = 5.0
_LOCK_RETRY_SECONDS: Final = 0.01

_log = logging.getLogger("interlock.state")


class _Key(msgspec.Struct, frozen=True):
    """A key in the file."""

    kid: str
    x: str
    """The public part, base64url."""
    created: float
    d: str | None = None
    """The private part. None: it is retired."""
    retired: float | None = None

    def __repr__(self) -> str:
        return f"_Key({self.kid})"


class _File(msgspec.Struct, frozen=True):
    keys: list[_Key] = msgspec.field(default_factory=list)


class StoredKeys(NamedTuple):
    """The keys of the file, before they are in use."""

    keys: list[_Key]

    def __repr__(self) -> str:
        return f"StoredKeys({len(self.keys)})"


class KeyInfo(NamedTuple):
    """Public information about a key."""

    kid: str
    created: float
    retired: float | None
    signs: bool


class SigningKeys:
    """The signing keys of a node, the newest first. Never empty."""

    def __init__(self, path: Path | None, *, wall_clock: Clock = time.time) -> None:
        """Args:
        path: None for keys in memory. An unusable path has the same effect, with a warning.
        """
        self._path = path
        self._wall_clock = wall_clock
        self._file_state: tuple[int, int] | None = None
        self._keys: list[_Key] = []
        self._signer: Ed25519PrivateKey | None = None
        self._jwks = b""
        try:
            self.refresh()
        except InterlockError as error:
            _log.warning(
                "signing keys: %s After a restart the node signs with another key.", error.message
            )
            self._path = None
            self.refresh()

    # -- Signing

    @property
    def kid(self) -> str:
        """The id of the signing key."""
        return self._keys[0].kid

    def sign(self, claims: dict[str, Any]) -> str:
        """Return a token (JWT) with these claims."""
        signer = self._signer
        assert signer is not None
        header = {"alg": ALGORITHM, "typ": "at+jwt", "kid": self.kid}
        signed = _b64(msgspec.json.encode(header)) + b"." + _b64(msgspec.json.encode(claims))
        return (signed + b"." + _b64(signer.sign(signed))).decode()

    def jwks(self) -> bytes:
        """Return the public keys as a JSON Web Key Set (RFC 7517). The same object until they
        change."""
        return self._jwks

    def list_keys(self) -> list[KeyInfo]:
        return [KeyInfo(key.kid, key.created, key.retired, key.d is not None) for key in self._keys]

    # -- Rotation

    def refresh(self) -> bool:
        """Rotate a key that is due, remove keys that are no longer needed, and read changes of
        other processes. Return whether the public keys changed. Raises InterlockError."""
        return self.apply(self.read_changes())

    def read_changes(self) -> StoredKeys | None:
        """Do the first half of `refresh`: all disk access.

        It waits for a lock of the file, so a running node calls it off the loop, one call at a
        time. None: nothing changed. Raises InterlockError.
        """
        return self._update(rotate=False)

    def apply(self, stored: StoredKeys | None) -> bool:
        """Do the second half of `refresh`, on the event loop: use the keys of `read_changes`."""
        return stored is not None and self._use(stored.keys)

    def rotate(self) -> str:
        """Replace the signing key and return the id of the new one. Raises InterlockError."""
        self.apply(self._update(rotate=True))
        return self.kid

    def _update(self, *, rotate: bool) -> StoredKeys | None:
        if self._path is None:
            return StoredKeys(self._rotate_due(self._keys, rotate))
        if not rotate and self._keys and self._is_unchanged() and self._is_current(self._keys):
            return None
        try:
            with _locked(self._path):
                stored = self._read()
                keys = self._rotate_due(stored, rotate)
                if keys != stored:
                    self._write(keys)
                self._file_state = self._read_file_state()
        except OSError as error:
            raise InterlockError(
                INTERNAL,
                f"The signing keys in {self._path} cannot be read or written "
                f"({error.strerror or error}). Check the disk and the permissions.",
            ) from None
        return StoredKeys(keys)

    def _rotate_due(self, keys: list[_Key], rotate: bool) -> list[_Key]:
        """Return the keys after rotation and cleanup."""
        now = self._wall_clock()
        if rotate or not keys or keys[0].d is None or self._is_old(keys[0], now):
            retired = [
                msgspec.structs.replace(
                    key, d=None, retired=now if key.retired is None else key.retired
                )
                for key in keys
            ]
            keys = [_new_key(now), *retired]
        return [
            key
            for index, key in enumerate(keys)
            if index == 0 or (index < _MAX_KEYS and self._is_needed(key, now))
        ]

    def _is_current(self, keys: list[_Key]) -> bool:
        now = self._wall_clock()
        return not self._is_old(keys[0], now) and all(self._is_needed(key, now) for key in keys[1:])

    @staticmethod
    def _is_old(key: _Key, now: float) -> bool:
        # A key from the future was made before the clock was set back: its age is unknown.
        return not -OVERLAP_SECONDS <= now - key.created < ROTATION_SECONDS

    @staticmethod
    def _is_needed(key: _Key, now: float) -> bool:
        return key.retired is None or abs(now - key.retired) < OVERLAP_SECONDS

    def _use(self, keys: list[_Key]) -> bool:
        before, self._keys = self._keys, keys
        if keys and (not before or before[0].kid != keys[0].kid or self._signer is None):
            private = keys[0].d
            assert private is not None
            self._signer = Ed25519PrivateKey.from_private_bytes(_bytes(private))
        if [key.kid for key in before] == [key.kid for key in keys]:
            return False
        self._jwks = msgspec.json.encode({"keys": [_public_jwk(key) for key in keys]})
        return True

    # -- The file

    def _read(self) -> list[_Key]:
        assert self._path is not None
        try:
            with self._path.open("rb") as file:
                keys = msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=_File).keys
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError):
            keys = []
        if not keys or not all(map(_is_valid, keys)):
            _log.warning(
                "signing keys %s: the file has no valid keys. Creating new keys.", self._path
            )
            return []
        return keys

    def _write(self, keys: list[_Key]) -> None:
        """Replace the file atomically, readable by its owner only."""
        assert self._path is not None
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(_File(keys)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _read_file_state(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def _is_unchanged(self) -> bool:
        state = self._read_file_state()
        return state is not None and state == self._file_state


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file against other processes. Raises OSError, also when another process holds the
    lock for too long."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError("another process has locked the file") from None
                time.sleep(_LOCK_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _new_key(now: float) -> _Key:
    private = Ed25519PrivateKey.generate()
    x = _b64(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    d = _b64(private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())).decode()
    return _Key(_thumbprint(x), x, now, d)


def _thumbprint(x: str) -> str:
    """Return the JWK thumbprint (RFC 7638): a digest of the required members in order."""
    return _b64(sha256(b'{"crv":"Ed25519","kty":"OKP","x":"%b"}' % x.encode()).digest()).decode()


def _public_jwk(key: _Key) -> dict[str, str]:
    return {
        "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": ALGORITHM, "kid": key.kid, "x": key.x,
    }  # fmt: skip


def _is_valid(key: _Key) -> bool:
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
