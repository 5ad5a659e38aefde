"""`interlock status`: how the running node fares, asked over its own HTTP address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.cli import say, where

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.config import Config

_WITHIN: Final = 5.0


def status(
    config: where.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Show how the running node fares: upstreams, calls, journal.

    Exit code 4 when no node is running.

    \b
    Examples:
      interlock status
      interlock status --json | jq '.upstreams[] | select(.state != "ready")'
    """
    import msgspec

    loaded, base_dir = where.load_or_default(where.source_if_any(config))
    body = _ask(loaded, base_dir)
    if json:
        say.as_json(msgspec.json.decode(body))
    else:
        _print(body)


def _ask(config: Config, base_dir: Path) -> bytes:
    import http.client

    from interlock.config import resolve
    from interlock.errors import INTERNAL, UPSTREAM_UNAVAILABLE, InterlockError

    address = config.address
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_WITHIN)
    headers = {}
    if config.tokens:
        token = resolve(config.tokens[0].token, environ=os.environ, base_dir=base_dir)
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", "/status", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"no node answers at {config.listen}. Start one with: interlock up",
        ) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise InterlockError(
            INTERNAL, f"{config.listen} answered with HTTP {answer.status}; is it a node?"
        )
    return body


def _print(body: bytes) -> None:
    import msgspec

    from interlock.cli.upstream_rows import UpstreamRows, upstream_row
    from interlock.config import redact_about
    from interlock.node import NodeStatus

    node = msgspec.json.decode(body, type=NodeStatus)
    console = say.console()
    console.print(
        f"interlock {node.version} at {node.url}, pid {node.pid}, up {_span(node.uptime)}"
    )
    rows = [upstream_row(one) for one in node.upstreams]
    console.print(UpstreamRows(rows, len(rows)), end="")
    for one in node.upstreams:
        if one.problem:
            console.print(
                f"{one.key}: {say.printable(redact_about(one.key, one.problem))}", style="red"
            )
    console.print(
        f"{node.calls} calls, {node.failed} failed · {node.tools} tools · "
        f"{node.sessions} sessions · journal {_journal(node.journal)}"
    )


def _journal(health: dict[str, Any] | None) -> str:
    if health is None:
        return "off"
    return f"{health['state']}{': ' + health['reason'] if health['reason'] else ''}"


def _span(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
