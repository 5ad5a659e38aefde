"""What comes back from an authorization server, read and checked. Pure.

Two ways lead back: the redirect that the browser follows, which anybody could have made up, and the
answers of the token and registration endpoints.
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
_MOST_SAID: Final = 200


class TokenResponse(msgspec.Struct, frozen=True):
    """A token response (RFC 6749 5.1). Some write `expires_in` as text."""

    access_token: str
    token_type: str = "Bearer"
    expires_in: float | str | None = None
    scope: str | None = None
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return f"TokenResponse(scope={self.scope!r})"

    @property
    def lifetime(self) -> float:
        """Seconds, or 0 when nobody knows."""
        try:
            seconds = float(self.expires_in or 0)
        except ValueError:
            return 0.0
        return seconds if 0 < seconds < 1e9 else 0.0


class RegistrationResponse(msgspec.Struct, frozen=True):
    """A client information response (RFC 7591 3.2.1), as far as it is used."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return f"RegistrationResponse(client_id={self.client_id!r})"


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: str
    error_description: str | None = None


def read_redirect(address: str, *, state: str, server: AuthorizationServer) -> str:
    """The code in the address to which the browser was sent back. Raises SignInProblem.

    State and issuer come first: of an answer that is not from whom it should be, nothing is
    believed, told or acted on, also not its error.
    """
    try:
        query = parse_qs(urlsplit(address).query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise SignInProblem("the answer of the browser cannot be read.") from None
    if any(len(values) > 1 for values in query.values()):
        raise SignInProblem(
            "the answer of the browser says something twice, so it was tampered with."
        )
    said = {name: values[0] for name, values in query.items()}
    if not hmac.compare_digest(said.get("state", "").encode(), state.encode()):
        raise SignInProblem(
            "the answer of the browser belongs to another sign-in (its state is not ours). "
            "Begin again."
        )
    issuer = said.get("iss")
    if issuer is None and server.authorization_response_iss_parameter_supported:
        raise SignInProblem(
            f"the answer does not say that it is from {server.issuer}, as that server promises."
        )
    if issuer is not None and issuer != server.issuer:
        raise SignInProblem(
            f"the answer is from another authorization server than {server.issuer}."
        )
    if "error" in said:
        code = error_code(said["error"])
        if code == "access_denied":
            raise SignInProblem("it was refused in the browser.", code=code)
        about = _words(said.get("error_description"), ())
        raise SignInProblem(f"the authorization server refused: {code}{about}.", code=code)
    if not said.get("code"):
        raise SignInProblem("the answer of the browser has no code.")
    return said["code"]


def read_token(status: int, body: bytes, *, secrets: Iterable[str]) -> TokenResponse:
    """The token in an answer of the token endpoint. Raises SignInProblem."""
    if status not in (200, 201):
        raise refusal(status, body, "the authorization server refused", secrets)
    try:
        found = msgspec.json.decode(body, type=TokenResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not a word of it is repeated: whatever it is, there may be a token in it.
        if _error_of(body) is not None:
            # Some answer 200 and an error.
            raise refusal(400, body, "the authorization server refused", secrets) from None
        raise SignInProblem(
            "the token endpoint answered with something that is no token."
        ) from None
    if found.token_type.lower() != "bearer":
        raise SignInProblem("it got a token that is no bearer token, which is not supported.")
    for token in (found.access_token, found.refresh_token):
        if token is not None and not _B64TOKEN.fullmatch(token):
            raise SignInProblem("it got a token that cannot be sent.")
    return found


def read_registration(status: int, body: bytes) -> RegistrationResponse:
    """The client in an answer of the registration endpoint. Raises SignInProblem."""
    if status not in (200, 201):
        raise refusal(status, body, "the authorization server did not register this node", ())
    try:
        given = msgspec.json.decode(body)
        if not isinstance(given, dict):
            raise msgspec.DecodeError
        # Some write an empty value where they have none.
        plain = {name: value for name, value in given.items() if value not in (None, "")}
        found = msgspec.convert(plain, type=RegistrationResponse)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise SignInProblem(
            "the registration endpoint answered with something that is no client."
        ) from None
    return found


def refusal(status: int, body: bytes, what: str, secrets: Iterable[str]) -> SignInProblem:
    """The trouble in an answer that is none of the good ones."""
    if 300 <= status < 400:
        return SignInProblem(f"{what}: it redirects (HTTP {status}), which is not followed.")
    error = _error_of(body)
    if error is None:
        passing = status >= 500 or status == 429
        return SignInProblem(f"{what} (HTTP {status}).", passing=passing)
    code = error_code(error.error)
    passing = code in ("temporarily_unavailable", "server_error", "slow_down") or status >= 500
    about = _words(error.error_description, secrets)
    return SignInProblem(f"{what}: {code}{about}.", passing=passing, code=code)


def error_code(text: str) -> str:
    """The `error` of an answer, fit for a sentence."""
    return text if _ERROR_CODE.fullmatch(text) else "an error without a name"


def _error_of(body: bytes) -> _ErrorAnswer | None:
    try:
        return msgspec.json.decode(body, type=_ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _words(description: str | None, secrets: Iterable[str]) -> str:
    """What the server says about an error, without what it was told in confidence."""
    if not description:
        return ""
    mask = Mask()
    mask.add(secrets)
    text = mask(description)[:_MOST_SAID]
    text = "".join(one if one.isprintable() else "\ufffd" for one in text).rstrip(" .")
    return f" ({text})" if text else ""
