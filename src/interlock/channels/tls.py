"""TLS 1.3, and nothing older: what whoever dials needs, and what both sides load."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, NoReturn

from interlock.errors import CONFIG, InterlockError


def client_context(
    ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """For whoever dials. Without a `ca` file those of the system are trusted.

    Raises InterlockError when a file cannot be used.
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
    """Return the kinds and values of the names in the certificate that the other side has shown.

    Empty where there is no TLS. Nothing is said of a certificate that was not verified.
    """
    tls: Any = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert()
    return tuple((certificate or {}).get("subjectAltName", ()))


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Show this certificate. Its key may be in the same file."""
    for path in (certificate, key):
        if path is not None:
            _check_readable(path)
    try:
        # Else a key with a password would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError, _Encrypted) as error:
        if isinstance(error, _Encrypted):
            why = "The key has a password, which nobody is there to type: store it without one."
        elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            why = "The key belongs to another certificate."
        else:
            why = "Both must be PEM files: a certificate with its chain, and its private key."
        shown = certificate if key is None else f"{certificate} with the key {key}"
        raise InterlockError(
            CONFIG, f"The certificate {shown} cannot be used for TLS. {why}"
        ) from None


def load_ca(context: ssl.SSLContext, ca: str) -> None:
    """Trust what this CA has signed."""
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise InterlockError(
            CONFIG, f"The CA file {ca} holds no certificate. It must be a PEM file."
        ) from None


class _Encrypted(Exception):
    """A private key has a password."""


def _no_password() -> NoReturn:
    raise _Encrypted


def _check_readable(path: str) -> None:
    """OpenSSL does not say which of its files it could not read."""
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise InterlockError(CONFIG, f"Cannot read {path} for TLS: {error.strerror}.") from None
