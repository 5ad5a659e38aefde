"""A node in the foreground: prints its address, shows its status, and stops on a signal."""

from __future__ import annotations

import logging
import socket
from urllib.parse import urlsplit, urlunsplit

from interlock.app.run import NodeRun
from interlock.cli.config_warnings import collect_config_warnings, collect_tool_warnings
from interlock.core.config import Config
from interlock.core.config.secrets import EnvReference, references
from interlock.terminal import log_lines
from interlock.terminal.clients import client_lines
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.feature_reports import load_reports

_log = logging.getLogger("interlock.node")


async def run_in_foreground(source: ConfigSource, *, live: bool) -> None:
    """Run the node of this config until it is stopped. Raises InterlockError."""
    log_buffer = log_lines.log_to_buffer() if live else None
    if log_buffer is None:
        log_lines.log_to_stderr()
    run = NodeRun(
        source.load_to_listen,
        base_dir=source.base_dir,
        config_path=source.path,
        find_warnings=lambda config: collect_config_warnings(config, source),
        find_tool_warnings=lambda config, offerings: collect_tool_warnings(
            config, source, offerings
        ),
    )
    node = await run.start()
    try:
        _print_introduction(node.config, node.url or "")
        if log_buffer is None:
            await run.stopping.wait()
            _log.info("node: stopping")
        else:
            # Imported late, so that the node listens earlier.
            from interlock.cli.live_view import show_live_view

            await show_live_view(run, log_buffer)
    finally:
        await run.stop()
    if log_buffer is None:
        _log.info("node: stopped")


def _print_introduction(config: Config, url: str) -> None:
    """Print the URL and the setup lines for clients."""
    print(f"\nInterlock is listening at {url}\n", flush=True)
    public_url = url_for_others(url)
    lines = client_lines(public_url, find_token_variable(config))
    width = max(len(client) for client, _ in lines)
    for client, line in lines:
        print(f"  {client:<{width}}  {line}")
    for reports in load_reports():
        for label, line in reports.client_lines(config, public_url):
            print(f"  {label:<{width}}  {line}")
    print(flush=True)


def url_for_others(url: str) -> str:
    """Return a URL that other machines can use: replace 0.0.0.0 and :: by the host name."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):
        return url
    name = socket.gethostname()
    # A name such as localhost means another machine elsewhere.
    host = "THIS-MACHINE" if not name or name.startswith("localhost") else name
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))


def find_token_variable(config: Config) -> str | None:
    """Return the environment variable of the first token that may call. None: no token needed."""
    for token in config.tokens:
        if "call" not in token.may:
            continue
        for reference in references(token.token):
            if isinstance(reference, EnvReference):
                return reference.name
    return "INTERLOCK_TOKEN" if config.tokens else None
