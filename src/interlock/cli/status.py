"""`interlock status`: how the running node fares, asked over its socket or its HTTP address."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source, node_discovery, node_http, output
from interlock.terminal.node_discovery import NodeOption


def status(
    config: config_source.ConfigOption = None,
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

    target = node_discovery.find_node(config, node)
    # Its own user needs no token. A node of somebody else is asked over HTTP.
    body = node_discovery.fetch_status(target.socket) or node_http.fetch_over_http(
        target, "/status"
    )
    if target.config_error is not None:
        output.print_note(
            f"Note: the node runs by an earlier config: {target.config_error.problems[0]}"
        )
    if json:
        output.print_json(msgspec.json.decode(body))
    else:
        _print(body, target.selector)


def _print(body: bytes, named: node_discovery.NodeSelector) -> None:
    from rich.text import Text

    from interlock.cli.upstream_table import UpstreamRows, upstream_row
    from interlock.core.config import redact_about
    from interlock.core.status import StatusReport
    from interlock.terminal.feature_reports import load_reports

    report = StatusReport.read(body)
    node, features = report.node, load_reports()
    console = output.create_console()
    console.print(
        f"interlock {node.version} at {node.url}, pid {node.pid}, up {_span(node.uptime)}"
    )
    rows = [upstream_row(one) for one in node.upstreams]
    summaries = list(filter(None, (one.servers_summary(report) for one in features)))
    if rows or not summaries:
        console.print(UpstreamRows(rows, len(rows)), end="")
    for one in node.upstreams:
        if one.problem:
            console.print(
                f"{one.key}: {output.sanitize(redact_about(one.key, one.problem))}",
                style="red",
            )
    for summary in summaries:
        console.print(summary)
    for feature in features:
        for problem in feature.server_problems(report):
            console.print(Text(problem, style="red"))
    for feature in features:
        for line in feature.status_lines(report):
            console.print(line.text, style=None if line.ok else "red")
    for problem in node.problems:
        console.print(output.sanitize(problem), style="red")
    for tool in node.held:
        name = output.sanitize(tool)
        console.print(f"{name} is held: {named.format_command(f'pins diff {name}')}")
    if node.waiting:
        pending = format_count(node.waiting, "call")
        console.print(f"{pending} waiting for a human: {named.format_command('approvals')}")
    for feature in features:
        for activity in feature.activity_lines(report):
            console.print(activity)
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
