"""`interlock login` and `interlock logout`: sign in to a server that uses OAuth, and sign out."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.core.config import Config, ServerConfig
    from interlock.core.upstreams.oauth.grants import Grant, UpstreamGrants
    from interlock.core.upstreams.oauth.loopback import LoopbackBrowser

_TIMEOUT_SECONDS: Final = 300.0

ServerArgument = Annotated[
    str, typer.Argument(metavar="SERVER", help="Name of a server in the config.")
]


def login(
    server: ServerArgument,
    config: config_source.ConfigOption = None,
    no_browser: Annotated[
        bool,
        typer.Option("--no-browser", help="Print the address of the sign-in page, do not open it."),
    ] = False,
) -> None:
    """Sign in to a server that uses OAuth.

    The sign-in page of the server opens in the browser. The token is stored for this user. A
    running node uses it within two seconds, and renews it by itself. If the browser runs on another
    machine, paste the address of its last page here.

    \b
    Examples:
      interlock login jira
      interlock login jira --no-browser
    """
    from interlock.terminal.event_loop import run

    source = config_source.find_source(config)
    loaded = source.load()
    resolved = _resolve_server(loaded, server, source.base_dir)
    grant = run(
        _sign_in(
            server, resolved, _open_grants(loaded, server, resolved, source.base_dir), no_browser
        )
    )
    scope = f", with the scopes {output.sanitize(grant.scope)}" if grant.scope else ""
    print(f"Signed in to {server}{scope}.")
    if not grant.refresh_token and grant.expires_at:
        output.print_note(
            "The server sent no refresh token. Sign in again when the token has expired."
        )


def logout(server: ServerArgument, config: config_source.ConfigOption = None) -> None:
    """Sign out of a server: revoke its tokens and delete them.

    \b
    Example:
      interlock logout jira
    """
    from interlock.terminal.event_loop import run

    source = config_source.find_source(config)
    loaded = source.load()
    resolved = _resolve_server(loaded, server, source.base_dir)
    had_grant = run(
        _sign_out(server, resolved, _open_grants(loaded, server, resolved, source.base_dir))
    )
    print(f"Signed out of {server}." if had_grant else f"Not signed in to {server}.")


def _resolve_server(config: Config, key: str, base_dir: Path) -> ServerConfig:
    """Return the config of a server with resolved references.

    Raises ConfigError if the server does not need a sign-in.
    """
    from interlock.core.config import ConfigError, resolve_server
    from interlock.core.upstreams.oauth.bearer import can_use_oauth
    from interlock.core.upstreams.oauth.requests import require_extra
    from interlock.core.upstreams.oauth.urls import is_secure

    server_config = config.servers.get(key)
    if server_config is None:
        names = ", ".join(sorted(config.servers)) or "none"
        raise ConfigError.of(f"there is no server {key!r} in the config", f"there are: {names}")
    if server_config.url is None:
        raise ConfigError.of(
            f"{key} is started by the node, and has no sign-in", "put its credentials under its env"
        )
    if not can_use_oauth(server_config):
        reason = (
            "oauth.enabled is false"
            if not server_config.oauth.enabled
            else "its headers have Authorization"
        )
        raise ConfigError.of(f"the node does not sign in to {key}: {reason}", "remove this setting")
    if server_config.oauth.grant == "client_credentials":
        raise ConfigError.of(
            f"{key} needs no sign-in by a person: the node uses its own credentials",
            "test it: `interlock doctor`",
        )
    server = resolve_server(server_config, environ=os.environ, base_dir=base_dir)
    if not is_secure(server.url or ""):
        raise ConfigError.of(
            f"{key} has a plain http URL, where others could read the token",
            "use its https URL",
        )
    require_extra(key)
    return server


def _open_grants(config: Config, key: str, server: ServerConfig, base_dir: Path) -> UpstreamGrants:
    from interlock.core.paths import tokens_path
    from interlock.core.upstreams.oauth.grants import UpstreamGrants
    from interlock.core.upstreams.oauth.token_store import TokenStore
    from interlock.core.upstreams.oauth.urls import canonical

    store = TokenStore(tokens_path(config, os.environ, base_dir))
    return UpstreamGrants(store, key, canonical(server.url or ""))


async def _sign_in(
    key: str, server: ServerConfig, grants: UpstreamGrants, no_browser: bool
) -> Grant:
    import time

    from interlock.core.upstreams.oauth import challenge as scopes
    from interlock.core.upstreams.oauth.errors import convert_problems
    from interlock.core.upstreams.oauth.fetch import fetch
    from interlock.core.upstreams.oauth.loopback import LoopbackBrowser
    from interlock.core.upstreams.oauth.registration import redirect_port
    from interlock.core.upstreams.oauth.sign_in import SignInRequest, request_challenge, sign_in

    stored = await grants.grant()
    previous = None if stored is None else stored.grant
    settings = server.oauth
    extra_scopes = ""
    if previous is not None:
        extra_scopes = scopes.join_scopes(
            "" if settings.scopes else previous.requested_scope, previous.missing_scope
        )
    browser = LoopbackBrowser(
        lambda url: _show_sign_in_page(key, url, no_browser), timeout=_TIMEOUT_SECONDS
    )
    with convert_problems(key):
        # A client registration is for one port, so the port of the last sign-in is used first.
        port = settings.redirect_port or redirect_port(
            None if previous is None else previous.client
        )
        await browser.open(port, is_exact=bool(settings.redirect_port))
        try:
            challenge = await request_challenge(server, fetch)
            request = SignInRequest(server.url or "", settings, challenge, previous, extra_scopes)
            with _PastedAddressReader(browser):
                grant = await sign_in(request, browser, grants, fetch, now=time.time())
        finally:
            await browser.close()
    await grants.save(grant)
    return grant


async def _show_sign_in_page(key: str, url: str, no_browser: bool) -> None:
    url_text = output.sanitize(url)
    if no_browser or not await asyncio.to_thread(_open_page, url):
        output.print_note(f"Open this page to sign in to {key}:\n\n  {url_text}\n")
    else:
        output.print_note(f"A page opens in your browser. If it does not:\n\n  {url_text}\n")
    if sys.stdin.isatty():
        output.print_note("If the last page does not load, paste its address here.")


def _open_page(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False


class _PastedAddressReader:
    """Reads the redirect address that the user pastes into the terminal."""

    def __init__(self, browser: LoopbackBrowser) -> None:
        self._browser = browser
        self._is_terminal = sys.stdin.isatty()

    def __enter__(self) -> None:
        if self._is_terminal:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_line)

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _read_line(self) -> None:
        line = sys.stdin.readline()
        if not line:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        elif line.strip() and not self._browser.accept_redirect(line.strip()):
            output.print_note("This is not the address of this sign-in.")


async def _sign_out(key: str, server: ServerConfig, grants: UpstreamGrants) -> bool:
    from interlock.core.upstreams.oauth.errors import SignInProblem
    from interlock.core.upstreams.oauth.fetch import fetch
    from interlock.core.upstreams.oauth.sign_in import revoke_grant

    stored = await grants.grant()
    if stored is not None:
        try:
            await revoke_grant(stored.grant, server.oauth, fetch)
        except SignInProblem as error:
            output.print_note(f"The server did not revoke the token: {error.reason}")
    return await grants.delete()
