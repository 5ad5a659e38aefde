"""`interlock status`: the status of the running node, over its socket or its HTTP address."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source, node_discovery, node_http, output
from interlock.terminal.node_discovery import NodeOption


def status(
    config: config_source.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    node: NodeOption = None,
) -> None:
    """Show the status of the running node: upstreams, drivers, calls, journal.

    The exit code is 4 if no node is running.

    \b
    Examples:
      interlock status
      interlock status --json | jq '.upstreams[] | select(.state != "ready")'
    """
    import msgspec

    target = node_discovery.find_node(config, node)
    # The user of the node needs no token. The node of another user is reached over HTTP.
    body = node_discovery.fetch_status(target.socket) or node_http.fetch_over_http(
        target, "/status"
    )
    if target.config_error is not None:
        node_discovery.print_earlier_config_note(target.config_error)
    if json:
        output.print_json(msgspec.json.decode(body))
    else:
        _print_status(body, target.selector)


def _print_status(body: bytes, selector: node_discovery.NodeSelector) -> None:
    from rich.text import Text

    from interlock.cli.upstream_table import UpstreamTable, format_upstream_row
    from interlock.core.config import redact_about
    from interlock.core.status import StatusReport
    from interlock.terminal.feature_reports import load_reports

    report = StatusReport.read(body)
    node, features = report.node, load_reports()
    console = output.create_console()
    console.print(
        f"interlock {node.version} at {node.url}, pid {node.pid}, up {_format_uptime(node.uptime)}"
    )
    rows = [format_upstream_row(upstream) for upstream in node.upstreams]
    summaries = list(filter(None, (feature.servers_summary(report) for feature in features)))
    if rows or not summaries:
        console.print(UpstreamTable(rows, len(rows)), end="")
    for upstream in node.upstreams:
        if upstream.problem:
            console.print(
                f"{upstream.key}: {output.sanitize(redact_about(upstream.key, upstream.problem))}",
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
        console.print(
            f"{name} is held because it changed: `{selector.format_command(f'pins diff {name}')}`"
        )
    if node.waiting:
        pending_text = format_count(node.waiting, "pending approval")
        console.print(f"{pending_text}: `{selector.format_command('approvals')}`")
    for feature in features:
        for activity in feature.activity_lines(report):
            console.print(activity)
    console.print(
        f"{format_count(node.calls, 'call')}, {node.failed} failed · "
        f"{format_count(node.tools, 'tool')} · "
        f"{format_count(node.sessions, 'session')} · journal {_format_journal(node.journal)}"
    )


def _format_journal(health: dict[str, Any] | None) -> str:
    if health is None:
        return "off"
    late_calls = health.get("late", 0)
    if health["state"] == "slow":
        return f"slow ({health['reason']})"
    if health["state"] == "ok" and late_calls:
        return f"ok ({format_count(late_calls, 'call')} rejected because the disk was too slow)"
    return f"{health['state']}{': ' + health['reason'] if health['reason'] else ''}"


def _format_uptime(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
