"""Responses of an authorization server: decoding and checks. Pure.

There are two channels: the redirect of the browser, which anyone could forge, and the responses of
the token and registration endpoints.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from interlock.core.upstreams.oauth.discovery import AuthorizationServer
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.secret_mask import Mask

_ERROR_CODE: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
_B64TOKEN: Final = re.compile(r"[!-~]+")
_MAX_DESCRIPTION_LENGTH: Final = 200


class TokenResponse(msgspec.Struct, frozen=True):
    """A token response (RFC 6749 §5.1). Some servers write `expires_in` as text."""

    access_token: str
    token_type: str = "Bearer"
    expires_in: float | str | None = None
    scope: str | None = None
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return f"TokenResponse(scope={self.scope!r})"

    @property
    def lifetime(self) -> float:
        """The lifetime in seconds. 0: unknown."""
        try:
            seconds = float(self.expires_in or 0)
        except ValueError:
            return 0.0
        return seconds if 0 < seconds < 1e9 else 0.0


class RegistrationResponse(msgspec.Struct, frozen=True):
    """A client information response (RFC 7591 §3.2.1), as far as it is used."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return f"RegistrationResponse(client_id={self.client_id!r})"


class _ErrorResponse(msgspec.Struct, frozen=True):
    error: str
    error_description: str | None = None


def read_redirect(address: str, *, state: str, server: AuthorizationServer) -> str:
    """Return the code in the URL of a redirect. Raises SignInProblem.

    State and issuer are checked first (RFC 9207). Nothing of a forged redirect is used or shown,
    not even its error.
    """
    try:
        query = parse_qs(urlsplit(address).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise SignInProblem("the redirect of the browser is invalid.") from None
    if any(len(values) > 1 for values in query.values()):
        raise SignInProblem(
            "the redirect of the browser has duplicate parameters and may be forged."
        )
    parameters = {name: values[0] for name, values in query.items()}
    if not hmac.compare_digest(parameters.get("state", "").encode(), state.encode()):
        raise SignInProblem(
            "the redirect of the browser belongs to another sign-in (its state differs). Start "
            "again."
        )
    issuer = parameters.get("iss")
    if issuer is None and server.authorization_response_iss_parameter_supported:
        raise SignInProblem(
            f"the redirect has no issuer, although {server.issuer} promises to send it."
        )
    if issuer is not None and issuer != server.issuer:
        raise SignInProblem(
            f"the redirect is from another authorization server than {server.issuer}."
        )
    if "error" in parameters:
        code = error_code(parameters["error"])
        if code == "access_denied":
            raise SignInProblem("the request was denied in the browser.", code=code)
        description = _format_description(parameters.get("error_description"), ())
        raise SignInProblem(
            f"the authorization server rejected the request: {code}{description}.", code=code
        )
    if not parameters.get("code"):
        raise SignInProblem("the redirect of the browser has no code.")
    return parameters["code"]


def read_token(status: int, body: bytes, *, secrets: Iterable[str]) -> TokenResponse:
    """Return the token of a token response. Raises SignInProblem."""
    if status not in (200, 201):
        raise error_from_response(
            status, body, "the authorization server rejected the request", secrets
        )
    try:
        token = msgspec.json.decode(body, type=TokenResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Nothing of the response is repeated: it may contain a token.
        if _decode_error(body) is not None:
            # Some servers send 200 with an error.
            raise error_from_response(
                400, body, "the authorization server rejected the request", secrets
            ) from None
        raise SignInProblem("the response of the token endpoint is not a token response.") from None
    if token.token_type.lower() != "bearer":
        raise SignInProblem("the token is not a bearer token, which is not supported.")
    for value in (token.access_token, token.refresh_token):
        if value is not None and not _B64TOKEN.fullmatch(value):
            raise SignInProblem("the token has characters that cannot be sent.")
    return token


def read_registration(status: int, body: bytes) -> RegistrationResponse:
    """Return the client of a registration response. Raises SignInProblem."""
    if status not in (200, 201):
        raise error_from_response(
            status, body, "the authorization server did not register this node", ()
        )
    try:
        members = msgspec.json.decode(body)
        if not isinstance(members, dict):
            raise msgspec.DecodeError
        # Some servers write empty values for absent ones.
        present = {name: value for name, value in members.items() if value not in (None, "")}
        registration = msgspec.convert(present, type=RegistrationResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SignInProblem("the response of the registration endpoint is not a client.") from None
    return registration


def error_from_response(
    status: int, body: bytes, prefix: str, secrets: Iterable[str]
) -> SignInProblem:
    """Return the problem that an error response describes."""
    if 300 <= status < 400:
        return SignInProblem(f"{prefix}: redirects (HTTP {status}) are not followed here.")
    error = _decode_error(body)
    if error is None:
        is_temporary = status >= 500 or status == 429
        return SignInProblem(f"{prefix} (HTTP {status}).", is_temporary=is_temporary)
    code = error_code(error.error)
    is_temporary = code in ("temporarily_unavailable", "server_error", "slow_down") or status >= 500
    description = _format_description(error.error_description, secrets)
    return SignInProblem(f"{prefix}: {code}{description}.", is_temporary=is_temporary, code=code)


def error_code(text: str) -> str:
    """Return the `error` of a response in a form that is safe to print."""
    return text if _ERROR_CODE.fullmatch(text) else "an error without a name"


def _decode_error(body: bytes) -> _ErrorResponse | None:
    try:
        return msgspec.json.decode(body, type=_ErrorResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _format_description(description: str | None, secrets: Iterable[str]) -> str:
    """Return the error description of a server with secrets masked."""
    if not description:
        return ""
    mask = Mask()
    mask.add(secrets)
    text = mask(description)[:_MAX_DESCRIPTION_LENGTH]
    text = "".join(character if character.isprintable() else "\ufffd" for character in text).rstrip(
        " ."
    )
    return f" ({text})" if text else ""
