"""`interlock status`: how the running node fares, asked over its socket or its HTTP address."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source as where
from interlock.terminal import node_discovery as running
from interlock.terminal import node_http
from interlock.terminal import output as say
from interlock.terminal.node_discovery import NodeOption


def status(
    config: where.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: NodeOption = None,
) -> None:
    """Show the status of the running node: upstreams, drivers, calls, journal.

    Exit code 4 when no node is running.

    \b
    Examples:
      interlock status
      interlock status --json | jq '.upstreams[] | select(.state != "ready")'
    """
    import msgspec

    meant = running.meant(config, node)
    # Its own user needs no token. A node of somebody else is asked over HTTP.
    body = running.ask(meant.socket) or node_http.ask_over_http(meant, "/status")
    if meant.problem is not None:
        say.note(f"Note: the node runs by an earlier config: {meant.problem.problems[0]}")
    if json:
        say.as_json(msgspec.json.decode(body))
    else:
        _print(body, meant.named)


def _print(body: bytes, named: running.Named) -> None:
    import msgspec
    from rich.text import Text

    from interlock.app import NodeStatus
    from interlock.cli.parent_status import parent_is_well, parent_line
    from interlock.cli.upstream_table import UpstreamRows, upstream_row
    from interlock.core.config import redact_about
    from interlock.drivers.commands import rows as driver_rows

    node = msgspec.json.decode(body, type=NodeStatus)
    console = say.console()
    console.print(
        f"interlock {node.version} at {node.url}, pid {node.pid}, up {_span(node.uptime)}"
    )
    rows = [upstream_row(one) for one in node.upstreams]
    drivers = driver_rows.summary(node.drivers)
    if rows or not drivers:
        console.print(UpstreamRows(rows, len(rows)), end="")
    for one in node.upstreams:
        if one.problem:
            console.print(
                f"{one.key}: {say.printable(redact_about(one.key, one.problem))}", style="red"
            )
    if drivers:
        console.print(drivers)
    for line in driver_rows.troubles(node.drivers):
        console.print(Text(line, style="red"))
    if node.parent is not None:
        well = parent_is_well(node.parent)
        console.print(f"parent: {parent_line(node.parent)}", style=None if well else "red")
    for problem in node.problems:
        console.print(say.printable(problem), style="red")
    for tool in node.held:
        name = say.printable(tool)
        console.print(f"{name} is held: {named.command(f'pins diff {name}')}")
    if node.waiting:
        pending = format_count(node.waiting, "call")
        console.print(f"{pending} waiting for a human: {named.command('approvals')}")
    for name, topic in sorted(node.topics.items()):
        refused = f", {format_count(topic.refused, 'message')} refused" if topic.refused else ""
        console.print(
            f"topic {say.printable(name)}: {format_count(topic.members, 'member')}{refused}"
        )
    if node.notifications_dropped:
        dropped = format_count(node.notifications_dropped, "notification")
        console.print(f"{dropped} of subservers dropped: they came too fast to pass on")
    console.print(
        f"{format_count(node.calls, 'call')}, {node.failed} failed · "
        f"{format_count(node.tools, 'tool')} · "
        f"{format_count(node.sessions, 'session')} · journal {_journal(node.journal)}"
    )


def _journal(health: dict[str, Any] | None) -> str:
    if health is None:
        return "off"
    late = health.get("late", 0)
    if health["state"] == "slow":
        return f"slow ({health['reason']})"
    if health["state"] == "ok" and late:
        return f"ok ({format_count(late, 'call')} refused because the disk was late)"
    return f"{health['state']}{': ' + health['reason'] if health['reason'] else ''}"


def _span(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
