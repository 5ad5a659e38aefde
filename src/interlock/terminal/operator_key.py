"""Private keys of operators: files of the user, and the proofs that are signed with them.

A node only knows the public key. A private key can have a passphrase, which is read from the
terminal or from a file, and never from the command line.
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
from interlock.terminal import config_source, node_discovery, output

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PROOF_SECONDS: Final = 120
_MIN_PASSPHRASE_LENGTH: Final = 8
_DEFAULT_SELECTOR: Final = node_discovery.NodeSelector()


def keys_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with the user's private keys."""
    return config_source.user_config_path(environ).parent / "keys"


def check_name(name: str) -> str:
    """Check the name of an operator, which is also a file name. Raises BadParameter."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} is not a valid name. Use at most 64 letters, digits, `.`, `_` and `-`."
        )
    return name


def create_key(name: str, passphrase: bytes | None) -> tuple[Path, Path, bytes]:
    """Create an Ed25519 key. Return its private file, its public file and the public key (PEM).

    Raises InterlockError if a key with this name exists.
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
        raise _cannot_write_error(folder, error) from None
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    key = Ed25519PrivateKey.generate()
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    descriptor = _new_file(private, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
            file.flush()
            os.fsync(file.fileno())
        public.write_bytes(public_pem)
    except BaseException:
        # An incomplete key cannot sign, and would block the next attempt.
        delete_key_files(private, public)
        raise
    return private, public, public_pem


def delete_key_files(*paths: Path) -> None:
    """Delete the files of a key that was just created."""
    for path in paths:
        if path.is_file():
            path.unlink()


def _new_file(path: Path, mode: int) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise InterlockError(
            CONFIG,
            f"{path} exists. Choose another name, or move the file away "
            "(programs that sign with it then fail).",
        ) from None
    except OSError as error:
        raise _cannot_write_error(path.parent, error) from None


def _cannot_write_error(folder: Path, error: OSError) -> InterlockError:
    reason = error.strerror or str(error)
    return InterlockError(
        CONFIG,
        f"Cannot write a key to {folder}: {reason}. "
        "Set $XDG_CONFIG_HOME to a folder that you can write to.",
    )


def choose_key(
    key_path: Path | None, selector: node_discovery.NodeSelector = _DEFAULT_SELECTOR
) -> Path:
    """Choose the key to sign with: the named key, else the only key. Raises InterlockError.

    Args:
        selector: the options that selected the node, for the command that creates a key.
    """
    if key_path is not None:
        if key_path.exists() or key_path.suffix or len(key_path.parts) > 1:
            return key_path
        # The user named a key, not a file.
        return keys_dir() / f"{key_path}.pem"
    variable = os.environ.get("INTERLOCK_KEY")
    if variable:
        return Path(variable)
    folder = keys_dir()
    paths = sorted(folder.glob("*.pem")) if folder.is_dir() else []
    if len(paths) == 1:
        return paths[0]
    if paths:
        names = ", ".join(path.stem for path in paths)
        raise InterlockError(CONFIG, f"You have several keys ({names}). Choose one: --key NAME")
    raise InterlockError(
        CONFIG,
        f"There is no key in {folder}. Create one: `{selector.format_command('keys new NAME')}`\n"
        "A passkey or a browser key signs on the approval page instead.",
    )


def check_key_file(path: Path) -> None:
    """Check that a file looks like a private key, before the user is asked anything.

    Raises InterlockError.
    """
    if b"PRIVATE KEY-----" not in _read_file(path):
        raise InterlockError(
            CONFIG, f"{path} is not a private key (PEM). Name another key: --key NAME"
        )


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InterlockError(CONFIG, f"Cannot read the key {path}: {error.strerror}.") from None


def load_key(path: Path, passphrase_file: Path | None = None) -> Ed25519PrivateKey:
    """Read a private key, with its passphrase if it has one.

    Raises InterlockError for a file that is not a key, and for a wrong passphrase.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = _read_file(path)
    passphrase = None
    if b"ENCRYPTED" in text:
        passphrase = read_passphrase(passphrase_file, f"Passphrase of {path.stem}")
    try:
        key = load_pem_private_key(text, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        reason = "wrong passphrase" if passphrase else "it is not a private key (PEM)"
        raise InterlockError(CONFIG, f"Cannot use the key {path}: {reason}.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InterlockError(CONFIG, f"The key {path} is not an Ed25519 key.")
    return key


def read_passphrase(file: Path | None, prompt: str, *, new: bool = False) -> bytes:
    """Read a passphrase from a file, else from the terminal. Raises InterlockError.

    Args:
        new: ask twice, and check the length.
    """
    if file is not None:
        try:
            phrase = file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise InterlockError(CONFIG, f"Cannot read {file}: {error}.") from None
    elif not sys.stdin.isatty():
        alternative = ", or --no-passphrase for a key without a passphrase" if new else ""
        raise InterlockError(
            CONFIG,
            "Cannot ask for the passphrase: stdin is not a terminal. "
            f"Use --passphrase-file FILE{alternative}.",
        )
    else:
        limit_text = f" (at least {_MIN_PASSPHRASE_LENGTH} characters)" if new else ""
        phrase = getpass(f"{prompt}{limit_text}: ", stream=sys.stderr)
        if new and len(phrase) >= _MIN_PASSPHRASE_LENGTH:
            repeated = getpass("Repeat the passphrase: ", stream=sys.stderr)
            if repeated != phrase:
                raise InterlockError(CONFIG, "The two passphrases differ.")
    if new and len(phrase) < _MIN_PASSPHRASE_LENGTH:
        raise InterlockError(
            CONFIG,
            f"The passphrase is too short. Use at least {_MIN_PASSPHRASE_LENGTH} characters.",
        )
    return phrase.encode()


def sign_proof(key: Ed25519PrivateKey, *, now: float, claims: dict[str, Any]) -> str:
    """Create a proof: a compact JWS over the claims, valid for two minutes.

    Args:
        now: the time of the node, so that a wrong clock on this machine does not matter.
    """
    import warnings

    from joserfc import jws
    from joserfc.jwk import OKPKey

    signer = OKPKey.import_key(key)
    payload = {**claims, "iat": int(now), "exp": int(now) + PROOF_SECONDS}
    header = {"alg": "EdDSA", "typ": "JWT", "kid": signer.thumbprint()}
    import msgspec

    with warnings.catch_warnings():
        # `EdDSA` is a deprecated name for Ed25519, but all verifiers know it.
        warnings.simplefilter("ignore")
        return jws.serialize_compact(
            header, msgspec.json.encode(payload), signer, algorithms=["EdDSA"]
        )


def warn_if_readable(path: Path) -> None:
    """Warn the user if other users can read the private key."""
    try:
        if path.stat().st_mode & 0o077:
            output.print_note(f"Warning: other users can read {path}. Run: chmod 600 {path}")
    except OSError:
        return
