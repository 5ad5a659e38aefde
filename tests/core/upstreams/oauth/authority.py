"""An authorization server on a real socket of this loop, strict, with optional misbehaviour.

`Protected` is an MCP server that takes its tokens, `Wanderer` a browser that agrees to every page.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import fetch
from tests.core.upstreams.servers.http_server import (
    HANG_TIMEOUT,
    Request,
    ResponseWriter,
    Streamable,
)

JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class ReceivedRequest:
    """A request that the authority received."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = urlsplit(target).path
        self.headers = headers
        self.query = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
        self.json: Any = None
        self.form: dict[str, str] = {}
        if headers.get("content-type", "").startswith("application/json"):
            self.json = json.loads(body)
        elif body:
            pairs = parse_qsl(body.decode(), keep_blank_values=True)
            self.form = dict(pairs)
            assert len(pairs) == len(self.form), "a field was sent twice"


class Reply:
    """A response of the authority."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        self.status = status
        self.body = json.dumps(body).encode() if not isinstance(body, bytes) else body
        self.headers = {"content-type": "application/json", **headers}


class Client:
    """A registered client."""

    def __init__(self, redirect_uris: list[str], method: str, secret: str = "") -> None:
        self.redirect_uris = redirect_uris
        self.method = method
        self.secret = secret
        self.key: Any = None


class Token:
    """An access token with its scope and resource."""

    def __init__(self, client_id: str, scope: str, resource: str) -> None:
        self.client_id = client_id
        self.scope = scope
        self.resource = resource
        self.is_valid = True


Override = Callable[[ReceivedRequest], Reply | None]


class Authority:
    """An authorization server on 127.0.0.1. Its attributes may change while it runs."""

    def __init__(self, path: str = "", *, oidc: str = "") -> None:
        """`path`: the issuer's; `oidc`: serve OpenID metadata there (`inserted`, `appended`)."""
        self.path = path
        self.oidc = oidc
        self.port = 0
        self.requests: list[ReceivedRequest] = []
        self.metadata: dict[str, Any] = {}
        """Members of the metadata that are other than usual; None leaves one out."""
        self.overrides: dict[str, Override] = {}
        """By path: what to answer instead; None for the usual."""
        self.clients: dict[str, Client] = {}
        self.tokens: dict[str, Token] = {}
        self.refresh: dict[str, Token] = {}
        self.spent: dict[str, Token] = {}
        self.revoked: list[str] = []
        self.lifetime: Any = 3600
        self.rotates = True
        self.refreshable = True
        self.consents = True
        self.iss: Any = True
        """True: the issuer comes with the redirect; None: it does not; text: that."""
        self.state: str | None = None
        """What comes back as state, instead of what was sent."""
        self.says_scope = True
        self.method = "none"
        """How clients that register prove themselves."""
        self.gate: asyncio.Event | None = None
        """Until it is set, nobody gets a token."""
        self._codes: dict[str, dict[str, str]] = {}
        self._server: asyncio.Server | None = None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # -- life

    async def __aenter__(self) -> Authority:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a request makes the condition true."""
        if not condition():
            entry = (condition, asyncio.get_running_loop().create_future())
            self._waiting.append(entry)
            async with asyncio.timeout(HANG_TIMEOUT):
                await entry[1]
            self._waiting.remove(entry)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def requests_to(self, path: str) -> list[ReceivedRequest]:
        """Return the requests to one endpoint."""
        return [request for request in self.requests if request.path == f"{self.path}{path}"]

    def token_requests(self, grant_type: str) -> list[ReceivedRequest]:
        return [
            item for item in self.requests_to("/token") if item.form.get("grant_type") == grant_type
        ]

    def secrets(self) -> set[str]:
        """Return all secrets, which must not appear anywhere."""
        known = {*self.tokens, *self.refresh, *self.spent, *self._codes}
        known |= {client.secret for client in self.clients.values()}
        known |= {
            request.form[name]
            for request in self.requests
            for name in request.form
            if "code" in name
        }
        return known - {""}

    def expire(self) -> None:
        """Expire every access token."""
        for token in self.tokens.values():
            token.is_valid = False

    def register(self, client_id: str, *, secret: str = "", method: str = "none") -> None:
        self.clients[client_id] = Client([], method, secret)

    # -- serving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            fields = (line.partition(":") for line in lines if line)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            request = ReceivedRequest(method, target, headers, body)
            self.requests.append(request)
            for condition, future in self._waiting:
                if not future.done() and condition():
                    future.set_result(None)
            if self.gate is not None and request.path == f"{self.path}/token":
                await self.gate.wait()
            override = self.overrides.get(request.path)
            reply = (override(request) if override is not None else None) or self._answer(request)
            sent = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
            writer.write(
                f"HTTP/1.1 {reply.status} X\r\n{sent}content-length: {len(reply.body)}\r\n"
                "connection: close\r\n\r\n".encode()
                + reply.body
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, asked: ReceivedRequest) -> Reply:
        well_known = "/.well-known/oauth-authorization-server" + self.path
        if self.oidc == "inserted":
            well_known = "/.well-known/openid-configuration" + self.path
        elif self.oidc == "appended":
            well_known = self.path + "/.well-known/openid-configuration"
        if asked.path == well_known:
            return Reply(200, self.document())
        endpoints = {
            "/authorize": self._authorize,
            "/token": self._token,
            "/register": self._register,
            "/revoke": self._revoke,
        }
        serve = endpoints.get(asked.path.removeprefix(self.path))
        return Reply(404, {}) if serve is None else serve(asked)

    def document(self) -> dict[str, Any]:
        result = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [self.method],
            "authorization_response_iss_parameter_supported": self.iss is True,
            **self.metadata,
        }
        return {name: value for name, value in result.items() if value is not None}

    def _register(self, asked: ReceivedRequest) -> Reply:
        wish = asked.json
        assert wish["application_type"] == "native"
        client_id = f"client-{len(self.clients) + 1}"
        secret = "" if self.method == "none" else f"secret-{secrets.token_urlsafe(8)}"
        self.clients[client_id] = Client(wish["redirect_uris"], self.method, secret)
        supplied = {**wish, "client_id": client_id, "token_endpoint_auth_method": self.method}
        return Reply(201, supplied | ({"client_secret": secret} if secret else {}))

    def _authorize(self, asked: ReceivedRequest) -> Reply:
        query = asked.query
        client_id = query["client_id"]
        client = self.clients.get(client_id)
        if client is None and client_id.startswith("https://"):
            # What it would find in the document of that address.
            client = self.clients[client_id] = Client([query["redirect_uri"]], "none")
        if client is None or query.get("response_type") != "code":
            return Reply(400, {"error": "unauthorized_client"})
        if client.redirect_uris and query["redirect_uri"] not in client.redirect_uris:
            return Reply(400, {"error": "invalid_request"})
        if query.get("code_challenge_method") != "S256" or "resource" not in query:
            return Reply(400, {"error": "invalid_request"})
        code = f"code-{secrets.token_urlsafe(12)}"
        read_redirect_code = {"state": query["state"] if self.state is None else self.state}
        if self.iss is not None:
            read_redirect_code["iss"] = self.issuer if self.iss is True else self.iss
        if self.consents:
            self._codes[code] = query
            read_redirect_code["code"] = code
        else:
            read_redirect_code |= {"error": "access_denied", "error_description": "no, thank you"}
        return Reply(302, b"", location=f"{query['redirect_uri']}?{urlencode(read_redirect_code)}")

    def _token(self, asked: ReceivedRequest) -> Reply:
        form = asked.form
        client_id = self._proven(asked)
        if client_id is None:
            return Reply(401, {"error": "invalid_client"})
        if form["grant_type"] == "client_credentials":
            return self._issue(client_id, form.get("scope", ""), form["resource"], again=False)
        if form["grant_type"] == "authorization_code":
            supplied = self._codes.pop(form["code"], None)
            if supplied is None or supplied["client_id"] != client_id:
                return Reply(400, {"error": "invalid_grant"})
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            same = supplied["redirect_uri"] == form["redirect_uri"]
            if challenge != supplied["code_challenge"] or not same:
                return Reply(400, {"error": "invalid_grant"})
            if supplied["resource"] != form["resource"]:
                return Reply(400, {"error": "invalid_target"})
            return self._issue(client_id, supplied.get("scope", ""), form["resource"], again=True)
        if form["grant_type"] == "refresh_token":
            return self._refresh(client_id, form)
        return Reply(400, {"error": "unsupported_grant_type"})

    def _refresh(self, client_id: str, form: dict[str, str]) -> Reply:
        sent = form["refresh_token"]
        if sent in self.spent:
            # Somebody has a copy: nobody gets anything any more.
            self.refresh.clear()
            return Reply(400, {"error": "invalid_grant", "error_description": f"{sent} was used"})
        supplied = self.refresh.get(sent)
        if (
            supplied is None
            or supplied.client_id != client_id
            or supplied.resource != form["resource"]
        ):
            return Reply(400, {"error": "invalid_grant", "error_description": f"{sent} is no good"})
        if self.rotates:
            self.spent[sent] = self.refresh.pop(sent)
        return self._issue(client_id, supplied.scope, supplied.resource, again=self.rotates)

    def _issue(self, client_id: str, scope: str, resource: str, *, again: bool) -> Reply:
        token = f"access-{secrets.token_urlsafe(12)}"
        self.tokens[token] = Token(client_id, scope, resource)
        body: dict[str, Any] = {"access_token": token, "token_type": "bearer"}
        if self.lifetime is not None:
            body["expires_in"] = self.lifetime
        if self.says_scope:
            body["scope"] = scope
        if again and self.refreshable:
            body["refresh_token"] = f"refresh-{secrets.token_urlsafe(12)}"
            self.refresh[body["refresh_token"]] = self.tokens[token]
        return Reply(200, body)

    def _proven(self, asked: ReceivedRequest) -> str | None:
        form = asked.form
        basic = asked.headers.get("authorization", "").removeprefix("Basic ")
        if basic:
            pair = base64.b64decode(basic).decode().split(":")
            client_id, secret = map(unquote, pair)
            used = "client_secret_basic"
        elif "client_assertion" in form:
            client_id, secret, used = form["client_id"], "", "private_key_jwt"
        else:
            client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
            used = "client_secret_post" if secret else "none"
        client = self.clients.get(client_id)
        if client is None or client.method != used or client.secret != secret:
            return None
        if used == "private_key_jwt" and not self._signed(form, client_id, client.key):
            return None
        return client_id

    def _signed(self, form: dict[str, str], client_id: str, key: Any) -> bool:
        from joserfc import jwt

        if form["client_assertion_type"] != JWT_BEARER:
            return False
        claims = jwt.decode(form["client_assertion"], key).claims
        same = claims["iss"] == claims["sub"] == client_id and claims["aud"] == self.issuer
        return same and bool(claims["jti"]) and bool(claims["exp"])

    def _revoke(self, asked: ReceivedRequest) -> Reply:
        if self._proven(asked) is None:
            return Reply(401, {"error": "invalid_client"})
        token = asked.form["token"]
        self.revoked.append(token)
        self.refresh.pop(token, None)
        if token in self.tokens:
            self.tokens[token].is_valid = False
        return Reply(200, {})


class ProtectedServer(Streamable):
    """An MCP server that requires a token of its authority."""

    def __init__(self, authority: Authority, generations: str = "both", **more: Any) -> None:
        super().__init__(generations, **more)
        self.authority = authority
        self.override = self._guard
        self.scope: str | None = None
        """What its challenge asks for."""
        self.scopes_supported: list[str] | None = None
        self.needs: dict[str, str] = {}
        """Scopes that some tools need."""
        self.names_metadata = True
        self.prm: dict[str, Any] = {}
        """Members of its metadata that are other than usual; None leaves one out."""
        self.prm_path: str | None = "/.well-known/oauth-protected-resource/mcp"
        self.open = False
        """Whether everything but calls is for everybody."""
        self.refused = 0
        self.seen_tokens: list[str] = []

    async def _guard(self, request: Request, answer: ResponseWriter) -> bool:
        if request.method == "GET" and request.path.startswith("/.well-known/"):
            if request.path == self.prm_path:
                answer.json(self.document())
            else:
                answer.empty("404 Not Found")
            return True
        if self.open and request.rpc != "tools/call":
            return False
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        known = self.authority.tokens.get(token)
        if scheme != "Bearer" or known is None or not known.is_valid:
            self.refused += 1
            answer.empty("401 Unauthorized", **self._challenge())
            return True
        self.seen_tokens.append(token)
        needed = self.needs.get(request.tool)
        if needed is not None and needed not in known.scope.split():
            answer.empty("403 Forbidden", **self._challenge(needed))
            return True
        return False

    def document(self) -> dict[str, Any]:
        result = {
            "resource": self.url(),
            "authorization_servers": [self.authority.issuer],
            "scopes_supported": self.scopes_supported,
            **self.prm,
        }
        return {name: value for name, value in result.items() if value is not None}

    def _challenge(self, needed: str | None = None) -> dict[str, str]:
        parts = []
        if self.names_metadata and self.prm_path is not None:
            parts.append(f'resource_metadata="{self.url(self.prm_path)}"')
        if needed is not None:
            parts += ['error="insufficient_scope"', f'scope="{needed}"']
        elif self.scope is not None:
            parts.append(f'scope="{self.scope}"')
        return {"www_authenticate": "Bearer " + ", ".join(parts)}


class AutomaticBrowser:
    """A browser that follows redirects and stores the visited pages."""

    def __init__(self, redirect_uri: str = "http://localhost:3000/callback") -> None:
        self.redirect_uri = redirect_uri
        self.pages: list[str] = []

    async def visit(self, url: str) -> str:
        self.pages.append(url)
        for _ in range(5):
            response = await fetch("GET", url, {})
            if not 300 <= response.status < 400:
                raise SignInProblem(f"the page answers with HTTP {response.status}.")
            url = response.headers[b"location"].decode()
            if url.startswith(self.redirect_uri):
                return url
        raise SignInProblem("the page redirects in a circle.")

    def parameters(self, number: int = -1) -> dict[str, str]:
        """Return the parameters of a visited page."""
        return dict(parse_qsl(urlsplit(self.pages[number]).query))
