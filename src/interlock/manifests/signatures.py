"""Signatures of drivers: `DRIVER.sig` beside the files of a driver.

`DRIVER.sig` has the SHA-256 of each file that a node uses, and an Ed25519 signature over them. A
changed, added or removed file makes it invalid. The config says which keys are trusted.
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
"""The files of a driver's folder that a node reads."""
_PREFIX: Final = b"interlock driver v1\n"
"""Prevents that the signature counts for any other kind of document signed with the same key."""


class _Signature(msgspec.Struct, frozen=True):
    files: dict[str, str]
    key: str
    signature: str


class SignatureProblem(ValueError):
    """The reason why a driver's signature does not count, as a sentence."""


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a key: the beginning of its digest."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def sign(folder: Path, key: Ed25519PrivateKey) -> Path:
    """Sign the current files of a driver. Return the signature file. Raises OSError."""
    files = _digests(folder)
    signature = _Signature(
        files,
        key_id(key.public_key()),
        base64.b64encode(key.sign(_message(files))).decode(),
    )
    path = folder / SIGNATURE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(signature), indent=2) + b"\n")
    return path


def verify(folder: Path, trusted: Sequence[Ed25519PublicKey], *, manifest: str = "") -> str:
    """Return the id of the trusted key that signed the current files of a driver. Raises
    SignatureProblem.

    Args:
        manifest: the SHA-256 of the DRIVER.md that was read. It must be the signed one, because the
            file may have been replaced for a moment.
    """
    try:
        signed = msgspec.json.decode((folder / SIGNATURE).read_bytes(), type=_Signature)
        signature = base64.b64decode(signed.signature, validate=True)
    except FileNotFoundError:
        raise SignatureProblem(
            "The driver is not signed, and only signed drivers are used here (drivers.trust). "
            "Sign it: `interlock drivers sign`"
        ) from None
    except (OSError, msgspec.DecodeError, ValueError):
        raise SignatureProblem(f"{SIGNATURE} cannot be read. Sign the driver again.") from None
    for key in trusted:
        try:
            key.verify(signature, _message(signed.files))
        except InvalidSignature:
            continue
        current = _digests(folder)
        changed = sorted(
            name for name in current.keys() | signed.files.keys()
            if current.get(name) != signed.files.get(name)
        )  # fmt: skip
        if changed:
            raise SignatureProblem(
                f"{', '.join(changed)} changed after the signature. "
                "Review the driver, and sign it again."
            )
        if manifest and signed.files.get(MANIFEST) != manifest:
            raise SignatureProblem(
                f"{MANIFEST} is not the signed file: it was replaced while it was read. Check who "
                "writes into the folder, and save the file again."
            )
        return key_id(key)
    raise SignatureProblem(
        f"The driver is signed with a key ({signed.key[:32]}) that is not in drivers.trust."
    )


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key from a PEM file. Raises SignatureProblem."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError):
        raise SignatureProblem(f"{path} is not a public key in PEM format.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureProblem(f"{path} is not an Ed25519 key.")
    return key


def _digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in SIGNED
        if (folder / name).is_file()
    }


def _message(files: dict[str, str]) -> bytes:
    return _PREFIX + b"".join(f"{name} {files[name]}\n".encode() for name in sorted(files))
