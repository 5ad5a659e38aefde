"""Who vouches for a driver: a signature beside its files, over everything of it that is used.

`DRIVER.sig` holds the SHA-256 of each file and an Ed25519 signature over them. A file that was
changed, added or removed since makes it void. Which keys are believed is for the config to say.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE: Final = "DRIVER.sig"
MANIFEST: Final = "DRIVER.md"
SIGNED: Final = (MANIFEST, "SECRETS.md", "driver.py", "server.json")
"""What of a driver's folder a node reads."""
_PREFIX: Final = b"interlock driver v1\n"
"""What is signed here can be taken for nothing else that somebody signs with the same key."""


class _Signature(msgspec.Struct, frozen=True):
    files: dict[str, str]
    key: str
    signature: str


class SignatureProblem(ValueError):
    """Why a driver's signature does not count, in a sentence."""


def key_id(key: Ed25519PublicKey) -> str:
    """By what a key is known: the beginning of its digest."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def sign(folder: Path, key: Ed25519PrivateKey) -> Path:
    """Sign a driver as it is now. Returns the file with the signature. Raises OSError."""
    files = _digests(folder)
    made = _Signature(
        files,
        key_id(key.public_key()),
        base64.b64encode(key.sign(_message(files))).decode(),
    )
    path = folder / SIGNATURE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
    return path


def verify(folder: Path, trusted: Sequence[Ed25519PublicKey], *, manifest: str = "") -> str:
    """The id of the trusted key that signed a driver as it is now. Raises SignatureProblem.

    `manifest`: the SHA-256 of the DRIVER.md that was read before, which must be the one that was
    signed. The file may have been another for a moment.
    """
    try:
        found = msgspec.json.decode((folder / SIGNATURE).read_bytes(), type=_Signature)
        signature = base64.b64decode(found.signature, validate=True)
    except FileNotFoundError:
        raise SignatureProblem(
            "It is not signed, and only signed drivers are used here (drivers.trust); "
            "sign it with: interlock drivers sign"
        ) from None
    except (OSError, msgspec.DecodeError, ValueError):
        raise SignatureProblem(f"{SIGNATURE} cannot be read; sign the driver again.") from None
    for key in trusted:
        try:
            key.verify(signature, _message(found.files))
        except InvalidSignature:
            continue
        now = _digests(folder)
        changed = sorted(
            name for name in now.keys() | found.files.keys()
            if now.get(name) != found.files.get(name)
        )  # fmt: skip
        if changed:
            raise SignatureProblem(
                f"{', '.join(changed)} changed since it was signed; look at it, and sign it again."
            )
        if manifest and found.files.get(MANIFEST) != manifest:
            raise SignatureProblem(
                f"{MANIFEST} was another when it was read than the one that is signed; look who "
                "writes into the folder, and save the file again."
            )
        return key_id(key)
    raise SignatureProblem(
        f"It is signed by a key ({found.key[:32]}) that is not among drivers.trust."
    )


def read_public_key(path: Path) -> Ed25519PublicKey:
    """A public key from a PEM file. Raises SignatureProblem."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError):
        raise SignatureProblem(f"{path} is no public key in PEM form.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureProblem(f"{path} is no Ed25519 key.")
    return key


def _digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in SIGNED
        if (folder / name).is_file()
    }


def _message(files: dict[str, str]) -> bytes:
    return _PREFIX + b"".join(f"{name} {files[name]}\n".encode() for name in sorted(files))
