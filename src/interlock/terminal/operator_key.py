"""An operator's private key: a file of this user's, and what is signed with it.

It is not the node's: the node knows the public part only. It may have a passphrase, which is asked
for on the terminal or read from a file, and never taken from the command line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from interlock.errors import CONFIG, InterlockError
from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PROOF_SECONDS: Final = 120
_SHORTEST_PASSPHRASE: Final = 8


def keys_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's private keys are."""
    return config_source.user_config_path(environ).parent / "keys"


def check_name(name: str) -> str:
    """The name of an operator, which is the name of a file too."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter("a name has letters, digits, `.`, `_` and `-`, at most 64.")
    return name


def create_key(name: str, passphrase: bytes | None) -> tuple[Path, Path, bytes]:
    """A new Ed25519 key: its private file, its public file and the public part (PEM).

    Raises InterlockError when there is one of this name.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    folder = keys_dir()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _not_kept(folder, error) from None
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    key = Ed25519PrivateKey.generate()
    lock = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    descriptor = _new_file(private, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
            file.flush()
            os.fsync(file.fileno())
        public.write_bytes(shown)
    except BaseException:
        # Half a key signs nothing, and is in the way of a whole one.
        delete_key_files(private, public)
        raise
    return private, public, shown


def delete_key_files(*paths: Path) -> None:
    """Remove a key that was made just now."""
    for path in paths:
        if path.is_file():
            path.unlink()


def _new_file(path: Path, mode: int) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise InterlockError(
            CONFIG,
            f"{path} is there already: choose another name, or move it away "
            "(who signs with it now could not any more).",
        ) from None
    except OSError as error:
        raise _not_kept(path.parent, error) from None


def _not_kept(folder: Path, error: OSError) -> InterlockError:
    reason = error.strerror or str(error)
    return InterlockError(
        CONFIG,
        f"a key cannot be kept in {folder}: {reason}. "
        "Set $XDG_CONFIG_HOME to a folder that you can write to.",
    )


def choose_key(given: Path | None) -> Path:
    """The key to sign with: the one that is named, else the only one. Raises InterlockError."""
    if given is not None:
        if given.exists() or given.suffix or len(given.parts) > 1:
            return given
        # A name will do.
        return keys_dir() / f"{given}.pem"
    named = os.environ.get("INTERLOCK_KEY")
    if named:
        return Path(named)
    folder = keys_dir()
    found = sorted(folder.glob("*.pem")) if folder.is_dir() else []
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.stem for one in found)
        raise InterlockError(CONFIG, f"there are several keys ({names}): choose with --key NAME.")
    raise InterlockError(
        CONFIG,
        f"there is no key in {folder}. Make one with: interlock keys new NAME\n"
        "A passkey or a key of a browser signs on the approval page instead.",
    )


def check_key_file(path: Path) -> None:
    """Raises InterlockError for a file that cannot be a private key, before anybody is asked."""
    if b"PRIVATE KEY-----" not in _text(path):
        raise InterlockError(CONFIG, f"the key {path} cannot be used: it is no private key (PEM).")


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InterlockError(CONFIG, f"the key {path} cannot be read: {error.strerror}.") from None


def load_key(path: Path, passphrase_file: Path | None = None) -> Ed25519PrivateKey:
    """Raises InterlockError for a file that is no key, and for a wrong passphrase."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _text(path)
    passphrase = None
    if b"ENCRYPTED" in text:
        passphrase = read_passphrase(passphrase_file, f"Passphrase of {path.stem}")
    try:
        key = load_pem_private_key(text, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        why = "that is not its passphrase" if passphrase else "it is no private key (PEM)"
        raise InterlockError(CONFIG, f"the key {path} cannot be used: {why}.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InterlockError(CONFIG, f"the key {path} is not an Ed25519 key.")
    return key


def read_passphrase(file: Path | None, prompt: str, *, new: bool = False) -> bytes:
    """From the file, else from whoever sits there. Raises InterlockError."""
    if file is not None:
        try:
            phrase = file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise InterlockError(CONFIG, f"{file} cannot be read: {error}.") from None
    elif not sys.stdin.isatty():
        none = ", or --no-passphrase for a key without one" if new else ""
        raise InterlockError(
            CONFIG,
            f"nobody is there to type the passphrase: give it with --passphrase-file FILE{none}.",
        )
    else:
        phrase = getpass(f"{prompt}: ", stream=sys.stderr)
        if new and getpass("Once more: ", stream=sys.stderr) != phrase:
            raise InterlockError(CONFIG, "the two passphrases are not the same.")
    if new and len(phrase) < _SHORTEST_PASSPHRASE:
        raise InterlockError(
            CONFIG, f"a passphrase has at least {_SHORTEST_PASSPHRASE} characters."
        )
    return phrase.encode()


def sign_proof(key: Ed25519PrivateKey, *, now: float, claims: dict[str, Any]) -> str:
    """A proof: a compact JWS over these claims, good for two minutes.

    `now`: the node's time, so that a clock that is off does not matter.
    """
    import warnings

    from joserfc import jws
    from joserfc.jwk import OKPKey

    signer = OKPKey.import_key(key)
    said = {**claims, "iat": int(now), "exp": int(now) + PROOF_SECONDS}
    header = {"alg": "EdDSA", "typ": "JWT", "kid": signer.thumbprint()}
    import msgspec

    with warnings.catch_warnings():
        # Its name for Ed25519 is an old one; it is what everybody reads.
        warnings.simplefilter("ignore")
        return jws.serialize_compact(
            header, msgspec.json.encode(said), signer, algorithms=["EdDSA"]
        )


def warn_if_readable(path: Path) -> None:
    """A private key that others can read is worth a word."""
    try:
        if path.stat().st_mode & 0o077:
            output.print_note(f"Warning: others can read {path}. Run: chmod 600 {path}")
    except OSError:
        return
