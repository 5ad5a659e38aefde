"""A node in the foreground: says where it is, shows how it fares, and ends when told to."""

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
    """Run the node of this config until it is asked to stop. Raises InterlockError."""
    kept = log_lines.log_to_buffer() if live else None
    if kept is None:
        log_lines.log_to_stderr()
    run = NodeRun(
        source.load_to_listen,
        base_dir=source.base_dir,
        watched=source.path,
        doubts=lambda config: collect_config_warnings(config, source),
        tool_doubts=lambda config, offerings: collect_tool_warnings(config, source, offerings),
    )
    node = await run.start()
    try:
        _introduce(node.config, node.url or "")
        if kept is None:
            await run.stopping.wait()
            _log.info("stopping")
        else:
            # Imported now: the node is listening already.
            from interlock.cli.live_view import show_while

            await show_while(run, kept)
    finally:
        await run.stop()
    if kept is None:
        _log.info("stopped")


def _introduce(config: Config, url: str) -> None:
    """The URL, and how each client is pointed at it."""
    print(f"\nInterlock is listening at {url}\n", flush=True)
    shown = url_for_others(url)
    lines = client_lines(shown, token_variable(config))
    width = max(len(client) for client, _ in lines)
    for client, line in lines:
        print(f"  {client:<{width}}  {line}")
    for reports in load_reports():
        for label, line in reports.client_lines(config, shown):
            print(f"  {label:<{width}}  {line}")
    print(flush=True)


def url_for_others(url: str) -> str:
    """A URL to paste: "every address of this machine" is one to listen on, not one to call."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):
        return url
    name = socket.gethostname()
    # A name that leads back to the machine itself is of no use to others.
    host = "THIS-MACHINE" if not name or name.startswith("localhost") else name
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))


def token_variable(config: Config) -> str | None:
    """The environment variable of the first token that may call, when the node wants tokens."""
    for token in config.tokens:
        if "call" not in token.may:
            continue
        for reference in references(token.token):
            if isinstance(reference, EnvReference):
                return reference.name
    return "INTERLOCK_TOKEN" if config.tokens else None
