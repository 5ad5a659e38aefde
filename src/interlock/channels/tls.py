"""TLS 1.3 only: the client context, and the files that clients and servers load."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, NoReturn

from interlock.errors import CONFIG, InterlockError


def client_context(
    ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return the TLS context of a client. Without a `ca` file it trusts the CAs of the system.

    Raises:
        InterlockError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca is None:
        context.load_default_certs()
    else:
        load_ca(context, ca)
    if certificate is not None:
        load_certificate(context, certificate, key)
    return context


def verified_names(transport: asyncio.BaseTransport) -> tuple[tuple[str, str], ...]:
    """Return the kinds and values of the names in the verified certificate of the peer.

    Empty without TLS, and for a certificate that was not verified.
    """
    tls: Any = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert()
    return tuple((certificate or {}).get("subjectAltName", ()))


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Load the certificate of this side. Its key may be in the same file."""
    for path in (certificate, key):
        if path is not None:
            _check_readable(path)
    try:
        # Otherwise OpenSSL would ask for the password of a key on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError, _Encrypted) as error:
        if isinstance(error, _Encrypted):
            reason = "The key has a password. Store it without a password."
        elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            reason = "The key belongs to another certificate."
        else:
            reason = "Both must be PEM files: a certificate with its chain, and its private key."
        files = certificate if key is None else f"{certificate} with the key {key}"
        raise InterlockError(
            CONFIG, f"The certificate {files} cannot be used for TLS. {reason}"
        ) from None


def load_ca(context: ssl.SSLContext, ca: str) -> None:
    """Trust the certificates that this CA has signed."""
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise InterlockError(
            CONFIG, f"The CA file {ca} contains no certificate. It must be a PEM file."
        ) from None


class _Encrypted(Exception):
    """A private key has a password."""


def _no_password() -> NoReturn:
    raise _Encrypted


def _check_readable(path: str) -> None:
    """Check that a file is readable, since OpenSSL does not name the file in its error."""
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise InterlockError(CONFIG, f"Cannot read {path} for TLS: {error.strerror}.") from None
