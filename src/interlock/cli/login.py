"""`interlock login` and `interlock logout`: sign in to a server that asks for it, and out again."""

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

_WITHIN: Final = 300.0

ServerArgument = Annotated[
    str, typer.Argument(metavar="SERVER", help="The key of a server in the config.")
]


def login(
    server: ServerArgument,
    config: config_source.ConfigOption = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address of the page to open.")
    ] = False,
) -> None:
    """Sign in to a server that wants a human to agree (OAuth).

    A page of the server's own opens in the browser. The token that comes of it is kept for this
    user; a running node takes it up within a second or two, and renews it by itself. Where the
    browser runs on another machine, paste the address that it ends up at.

    \b
    Examples:
      interlock login jira
      interlock login jira --no-browser
    """
    from interlock.terminal.event_loop import run

    source = config_source.find_source(config)
    loaded = source.load()
    meant = _meant(loaded, server, source.base_dir)
    grant = run(
        _sign_in(server, meant, _wallet(loaded, server, meant, source.base_dir), no_browser)
    )
    scope = f", with the scopes {output.sanitize(grant.scope)}" if grant.scope else ""
    print(f"Signed in to {server}{scope}.")
    if not grant.refresh_token and grant.ends:
        output.print_note("The server gave no way to renew it: it will ask for a sign-in again.")


def logout(server: ServerArgument, config: config_source.ConfigOption = None) -> None:
    """Sign out of a server: its tokens are given back and forgotten.

    Example: interlock logout jira
    """
    from interlock.terminal.event_loop import run

    source = config_source.find_source(config)
    loaded = source.load()
    meant = _meant(loaded, server, source.base_dir)
    known = run(_sign_out(server, meant, _wallet(loaded, server, meant, source.base_dir)))
    print(f"Signed out of {server}." if known else f"There was no sign-in to {server}.")


def _meant(config: Config, key: str, base_dir: Path) -> ServerConfig:
    """The server, with its references resolved. Raises ConfigError for one without a sign-in."""
    from interlock.core.config import ConfigError, resolve_server
    from interlock.core.upstreams.oauth.bearer import wants_oauth
    from interlock.core.upstreams.oauth.requests import require_extra
    from interlock.core.upstreams.oauth.urls import is_secure

    found = config.servers.get(key)
    if found is None:
        names = ", ".join(sorted(config.servers)) or "none"
        raise ConfigError.of(f"there is no server {key!r} in the config", f"there are: {names}")
    if found.url is None:
        raise ConfigError.of(
            f"{key} is started by the node", "what it needs to know goes under its env"
        )
    if not wants_oauth(found):
        why = (
            "oauth.enabled is false"
            if not found.oauth.enabled
            else "its headers have Authorization"
        )
        raise ConfigError.of(f"the node does not sign in to {key}: {why}", "remove that first")
    if found.oauth.grant == "client_credentials":
        raise ConfigError.of(
            f"{key} needs nobody to sign in: the node does so with its own credentials",
            "try it with: interlock doctor",
        )
    server = resolve_server(found, environ=os.environ, base_dir=base_dir)
    if not is_secure(server.url or ""):
        raise ConfigError.of(
            f"{key} is reached over plain http, where a token would be anybody's",
            "use its https URL",
        )
    require_extra(key)
    return server


def _wallet(config: Config, key: str, server: ServerConfig, base_dir: Path) -> UpstreamGrants:
    from interlock.core.paths import tokens_path
    from interlock.core.upstreams.oauth.grants import UpstreamGrants
    from interlock.core.upstreams.oauth.token_store import TokenStore
    from interlock.core.upstreams.oauth.urls import canonical

    store = TokenStore(tokens_path(config, os.environ, base_dir))
    return UpstreamGrants(store, key, canonical(server.url or ""))


async def _sign_in(
    key: str, server: ServerConfig, wallet: UpstreamGrants, no_browser: bool
) -> Grant:
    import time

    from interlock.core.upstreams.oauth import challenge as scopes
    from interlock.core.upstreams.oauth.errors import told
    from interlock.core.upstreams.oauth.fetch import fetch
    from interlock.core.upstreams.oauth.loopback import LoopbackBrowser
    from interlock.core.upstreams.oauth.registration import redirect_port
    from interlock.core.upstreams.oauth.sign_in import SignInRequest, challenge_of, sign_in

    kept = await wallet.grant()
    previous = None if kept is None else kept.grant
    settings = server.oauth
    more = ""
    if previous is not None:
        more = scopes.union("" if settings.scopes else previous.asked, previous.wanted)
    browser = LoopbackBrowser(lambda url: _show(key, url, no_browser), within=_WITHIN)
    with told(key):
        # A registration is good for one port: the last one is tried again first.
        port = settings.redirect_port or redirect_port(
            None if previous is None else previous.client
        )
        await browser.open(port, exact=bool(settings.redirect_port))
        try:
            challenge = await challenge_of(server, fetch)
            occasion = SignInRequest(server.url or "", settings, challenge, previous, more)
            with _pasted(browser):
                grant = await sign_in(occasion, browser, wallet, fetch, now=time.time())
        finally:
            await browser.close()
    await wallet.keep(grant)
    return grant


async def _show(key: str, url: str, no_browser: bool) -> None:
    shown = output.sanitize(url)
    if no_browser or not await asyncio.to_thread(_open_page, url):
        output.print_note(f"Open this page to sign in to {key}:\n\n  {shown}\n")
    else:
        output.print_note(f"A page opens in your browser. If it does not:\n\n  {shown}\n")
    if sys.stdin.isatty():
        output.print_note(
            "If the browser ends up at a page that does not load, paste its address here."
        )


def _open_page(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False


class _pasted:
    """Takes what a human pastes into the terminal for where the browser came back to."""

    def __init__(self, browser: LoopbackBrowser) -> None:
        self._browser = browser
        self._reads = sys.stdin.isatty()

    def __enter__(self) -> None:
        if self._reads:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._line)

    def __exit__(self, *_: object) -> None:
        if self._reads:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _line(self) -> None:
        line = sys.stdin.readline()
        if not line:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        elif line.strip() and not self._browser.came_back(line.strip()):
            output.print_note("That is not the address of this sign-in.")


async def _sign_out(key: str, server: ServerConfig, wallet: UpstreamGrants) -> bool:
    from interlock.core.upstreams.oauth.errors import SignInProblem
    from interlock.core.upstreams.oauth.fetch import fetch
    from interlock.core.upstreams.oauth.sign_in import give_back

    kept = await wallet.grant()
    if kept is not None:
        try:
            await give_back(kept.grant, server.oauth, fetch)
        except SignInProblem as trouble:
            output.print_note(f"The token could not be given back: {trouble.why}")
    return await wallet.forget()
