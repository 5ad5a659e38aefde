"""Requests to an authorization server: the authorization URL, and forms for its endpoints.

The only module that imports `authlib`, on first use, for parameters, PKCE and client
authentication. Its exceptions do not leave this module.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from interlock.core.upstreams.oauth.discovery import PKCE_METHOD, AuthorizationServer
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.grants import RegisteredClient
from interlock.errors import CONFIG, InterlockError

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

FORM: Final = "application/x-www-form-urlencoded"
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA_ALGORITHMS: Final = ("RS256", "PS256", "RS384", "PS384", "RS512", "PS512")

SECRET_METHODS: Final = ("client_secret_basic", "client_secret_post")
METHODS: Final = ("none", *SECRET_METHODS, "private_key_jwt")
"""The supported authentication methods of the token endpoint."""


def require_extra(key: str) -> None:
    """Raise InterlockError with installation advice if authlib is not installed."""
    try:
        import authlib  # noqa: F401
    except ImportError:
        raise InterlockError(
            CONFIG,
            f"Cannot sign in to {key}: an optional dependency is not installed. Install it: "
            "pip install 'interlock[oauth]', or '.[oauth]' in a checkout.",
        ) from None


def new_verifier() -> str:
    """Return a PKCE code verifier of 86 random characters (RFC 7636 §4.1)."""
    return secrets.token_urlsafe(64)


def authorization_url(
    server: AuthorizationServer,
    client: RegisteredClient,
    *,
    state: str,
    verifier: str,
    scope: str | None,
    resource: str,
) -> str:
    """Return the URL of the page on which a person consents."""
    from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
    from authlib.oauth2.rfc7636 import create_s256_code_challenge

    extra: dict[str, Any] = {}
    if scope and "offline_access" in scope.split():
        # OpenID Connect issues refresh tokens only after a consent prompt.
        extra["prompt"] = "consent"
    try:
        address: str = prepare_grant_uri(
            server.authorization_endpoint,
            client_id=client.client_id,
            response_type="code",
            redirect_uri=client.redirect_uri,
            scope=scope,
            state=state,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method=PKCE_METHOD,
            resource=resource,
            **extra,
        )
    except ValueError:
        raise SignInProblem("its authorization endpoint has an invalid URL.") from None
    return address


def token_request(
    client: RegisteredClient,
    endpoint: str,
    fields: Mapping[str, str],
    *,
    grant_type: str,
    private_key: str = "",
    algorithms: list[str] | None = None,
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a request to the token endpoint. Raises SignInProblem.

    Args:
        algorithms: those that the server accepts for a signed client assertion.
    """
    from authlib.oauth2.rfc6749.parameters import prepare_token_request

    non_empty = {name: value for name, value in fields.items() if value}
    if client.auth_method != "none" and client.auth_method != "client_secret_post":
        # For these two authlib adds it. Others get it for servers that expect it in the form.
        non_empty.setdefault("client_id", client.client_id)
    body: str = prepare_token_request(grant_type, "", **non_empty)
    return _add_client_auth(client, endpoint, body, private_key, algorithms)


def revocation_request(
    client: RegisteredClient, endpoint: str, token: str, hint: str, *, private_key: str = ""
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a revocation request (RFC 7009). Raises SignInProblem."""
    from authlib.oauth2.rfc7009 import prepare_revoke_token_request

    body, _ = prepare_revoke_token_request(token, hint)
    return _add_client_auth(client, endpoint, body, private_key, None)


def _add_client_auth(
    client: RegisteredClient,
    endpoint: str,
    body: str,
    private_key: str,
    algorithms: list[str] | None,
) -> tuple[dict[str, str], bytes]:
    from authlib.oauth2.auth import ClientAuth

    method: Any = client.auth_method
    client_id, secret = client.client_id, client.client_secret
    if method == "private_key_jwt":
        method, secret = _create_assertion(client, private_key, algorithms)
    elif method == "client_secret_basic":
        # RFC 6749 §2.3.1: both are encoded before they are joined. authlib joins them as they are.
        client_id, secret = quote(client_id, safe=""), quote(secret, safe="")
    elif method not in METHODS:
        raise SignInProblem(
            "the authorization server requires an authentication method that the node does not "
            "support."
        )
    auth = ClientAuth(client_id, secret, method)
    _, headers, encoded_body = auth.prepare("POST", endpoint, {"Content-Type": FORM}, body)
    return headers, encoded_body.encode("ascii")


def _create_assertion(
    client: RegisteredClient, private_key: str, algorithms: list[str] | None
) -> tuple[Any, Any]:
    """Return the method `private_key_jwt` and its signing key."""
    from authlib.oauth2.rfc7523 import PrivateKeyJWT

    key = _import_key(private_key)
    supported = _supported_algorithms(key)
    algorithm = next(
        (candidate for candidate in supported if candidate in (algorithms or supported)), None
    )
    if algorithm is None:
        raise SignInProblem(
            f"its private_key supports {', '.join(supported)}, and the authorization server "
            "accepts none of these."
        )
    # The audience is the issuer: an assertion for a token endpoint could be replayed at another.
    return PrivateKeyJWT(client.issuer, headers={"typ": "JWT"}, alg=algorithm), key


def _import_key(pem: str) -> RSAKey | ECKey | OKPKey:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: tuple[type[RSAKey | ECKey | OKPKey], ...] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            # Another kind of key, or no key.
            continue
        if key.is_private:
            return key
    raise SignInProblem("its private_key is not a private key in PEM form.")


def _supported_algorithms(key: RSAKey | ECKey | OKPKey) -> list[str]:
    from joserfc.jwk import ECKey, RSAKey

    if isinstance(key, RSAKey):
        return list(_RSA_ALGORITHMS)
    if isinstance(key, ECKey):
        algorithm = _EC_ALGORITHMS.get(key.curve_name)
        return [] if algorithm is None else [algorithm]
    return ["EdDSA"]
