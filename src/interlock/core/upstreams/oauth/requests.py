"""What is sent to an authorization server: the page's address, and forms for its endpoints.

The only module that imports `authlib`, when it is first needed: parameters, PKCE, and client
authentication are its work. Its exceptions do not leave this module.
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
"""The ways to prove oneself to a token endpoint that this node has."""


def require_extra(key: str) -> None:
    """Raises InterlockError, with what to install, when authlib is not there."""
    try:
        import authlib  # noqa: F401
    except ImportError:
        raise InterlockError(
            CONFIG,
            f"Signing in to {key} needs a part of Interlock that is not installed: "
            "pip install 'interlock[oauth]', or '.[oauth]' in a checkout.",
        ) from None


def new_verifier() -> str:
    """A PKCE code verifier: 86 characters that nobody can guess."""
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
    """The page on which a human agrees."""
    from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
    from authlib.oauth2.rfc7636 import create_s256_code_challenge

    more: dict[str, Any] = {}
    if scope and "offline_access" in scope.split():
        # OpenID Connect hands out refresh tokens only to whom the human was asked about.
        more["prompt"] = "consent"
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
            **more,
        )
    except ValueError:
        raise SignInProblem(
            "its authorization endpoint has an address that cannot be used."
        ) from None
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
    """Headers and body of a request to the token endpoint. Raises SignInProblem.

    `algorithms` are those that the server takes for a signed client assertion.
    """
    from authlib.oauth2.rfc6749.parameters import prepare_token_request

    given = {name: value for name, value in fields.items() if value}
    if client.method != "none" and client.method != "client_secret_post":
        # For these two authlib adds it; elsewhere it helps servers that look for it in the form.
        given.setdefault("client_id", client.client_id)
    body: str = prepare_token_request(grant_type, "", **given)
    return _authenticated(client, endpoint, body, private_key, algorithms)


def revocation_request(
    client: RegisteredClient, endpoint: str, token: str, hint: str, *, private_key: str = ""
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request to give a token back (RFC 7009). Raises SignInProblem."""
    from authlib.oauth2.rfc7009 import prepare_revoke_token_request

    body, _ = prepare_revoke_token_request(token, hint)
    return _authenticated(client, endpoint, body, private_key, None)


def _authenticated(
    client: RegisteredClient,
    endpoint: str,
    body: str,
    private_key: str,
    algorithms: list[str] | None,
) -> tuple[dict[str, str], bytes]:
    from authlib.oauth2.auth import ClientAuth

    method: Any = client.method
    client_id, secret = client.client_id, client.client_secret
    if method == "private_key_jwt":
        method, secret = _signed(client, private_key, algorithms)
    elif method == "client_secret_basic":
        # RFC 6749 2.3.1 wants both encoded before they are joined; authlib joins them as they are.
        client_id, secret = quote(client_id, safe=""), quote(secret, safe="")
    elif method not in METHODS:
        raise SignInProblem(
            "the authorization server wants this node to prove itself in a way it does not know."
        )
    auth = ClientAuth(client_id, secret, method)
    _, headers, sent = auth.prepare("POST", endpoint, {"Content-Type": FORM}, body)
    return headers, sent.encode("ascii")


def _signed(
    client: RegisteredClient, private_key: str, algorithms: list[str] | None
) -> tuple[Any, Any]:
    """The method `private_key_jwt`, and the key it signs with."""
    from authlib.oauth2.rfc7523 import PrivateKeyJWT

    key = _key(private_key)
    fitting = _fitting(key)
    algorithm = next((one for one in fitting if one in (algorithms or fitting)), None)
    if algorithm is None:
        raise SignInProblem(
            f"its private_key can sign with {', '.join(fitting)}, and the authorization server "
            "takes none of these."
        )
    # The audience is the issuer: an assertion for a token endpoint could be carried to another.
    return PrivateKeyJWT(client.issuer, headers={"typ": "JWT"}, alg=algorithm), key


def _key(pem: str) -> RSAKey | ECKey | OKPKey:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: tuple[type[RSAKey | ECKey | OKPKey], ...] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            # Of another kind, or no key at all.
            continue
        if key.is_private:
            return key
    raise SignInProblem("its private_key is no private key in PEM form.")


def _fitting(key: RSAKey | ECKey | OKPKey) -> list[str]:
    from joserfc.jwk import ECKey, RSAKey

    if isinstance(key, RSAKey):
        return list(_RSA_ALGORITHMS)
    if isinstance(key, ECKey):
        known = _EC_ALGORITHMS.get(key.curve_name)
        return [] if known is None else [known]
    return ["EdDSA"]
