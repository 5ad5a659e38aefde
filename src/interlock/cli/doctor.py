"""`interlock doctor`: try everything that a node needs, and say how to mend what does not work."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source, output
from interlock.terminal.feature_reports import Diagnosis, Finding

if TYPE_CHECKING:
    from interlock.core.config import Config
    from interlock.core.status import StatusReport


def doctor(
    config: config_source.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
) -> None:
    """Try each server by itself, and say what is wrong and how to fix it.

    Every server is started or connected to once more, beside a node that may be running. A running
    node is asked how it stands with its parent, and with those who registered with it. Exit code 1
    when anything failed.

    \b
    Examples:
      interlock doctor
      interlock doctor --json | jq '.upstreams[] | select(.ok | not)'
    """
    from interlock.terminal.event_loop import run

    source = config_source.find_source(config)
    loaded = source.load()
    findings, found = run(_examine(loaded, source.base_dir, quiet=json))
    ok = all(one.ok for one in findings) and all(one.ok for one in found)
    if json:
        output.print_json({"ok": ok, "node": findings, "upstreams": found})
    elif ok:
        print("All is well.")
    else:
        checks = [one.what for one in findings if not one.ok]
        servers = [one.key for one in found if not one.ok]
        for bad, word in ((checks, "check"), (servers, "server")):
            if bad:
                print(f"{format_count(len(bad), word)} failed: {', '.join(bad)}")
    if not ok:
        raise typer.Exit(output.FAILED)


async def _examine(
    config: Config, base_dir: Path, *, quiet: bool
) -> tuple[list[Finding], list[Diagnosis]]:
    from rich.text import Text

    from interlock.cli.diagnosis import diagnose
    from interlock.terminal.feature_reports import load_reports

    report = _running(config, base_dir)
    findings = await node_findings(config, base_dir)
    for feature in load_reports():
        findings += feature.findings(config, base_dir, report)
    if not quiet:
        for finding in findings:
            _print_finding(finding)
    servers = config.enabled_servers
    waiting = {
        asyncio.create_task(diagnose(key, server, config, base_dir)): key
        for key, server in servers.items()
    }
    done: dict[str, Diagnosis] = {}
    status = None
    if sys.stderr.isatty() and not quiet and waiting:
        status = output.create_console(stderr=True).status("")
    try:
        with status or nullcontext():
            while waiting:
                if status is not None:
                    status.update(Text(f"trying {', '.join(waiting.values())}"))
                ready, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ready:
                    key = waiting.pop(task)
                    done[key] = await task
                    if not quiet:
                        print_diagnosis(done[key])
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    known: list[Diagnosis] = []
    if report is not None:
        for feature in load_reports():
            known += feature.diagnoses(report)
    if not quiet:
        for one in known:
            print_diagnosis(one)
    return findings, [*(done[key] for key in servers), *known]


def _running(config: Config, base_dir: Path) -> StatusReport | None:
    """The status of the node, if it runs."""
    from interlock.core.paths import socket_path
    from interlock.core.status import StatusReport
    from interlock.terminal import node_discovery

    told = node_discovery.fetch_status(socket_path(config, os.environ, base_dir))
    return None if told is None else StatusReport.read(told)


async def node_findings(config: Config, base_dir: Path) -> list[Finding]:
    """Can a node run here: its address, its folder, its journal?"""
    from interlock.core.paths import journal_path, state_dir
    from interlock.terminal.node_client import connect_if_running

    link = await connect_if_running(config, base_dir)
    if link is not None:
        await link.close()
    folder = state_dir(config, os.environ, base_dir)
    journal = journal_path(config, os.environ, base_dir)
    findings = [_address(config, running=link is not None), _writable("state folder", folder)]
    if config.journal.enabled:
        findings.append(_journal(journal))
    return findings


def _address(config: Config, *, running: bool) -> Finding:
    import socket

    if running:
        return Finding("address", True, f"a node is running at {config.listen}")
    host, port = config.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{config.listen} cannot be listened on: {reason}; choose another `listen`"
            return Finding("address", False, message)
    return Finding("address", True, f"{config.listen} is free; no node is running")


def _writable(what: str, folder: Path) -> Finding:
    # Not `Path.exists`: it fails where a folder above cannot be looked into.
    existing = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not os.path.isdir(existing):
        message = f"{folder} cannot be made: {existing} is not a folder; set another state_dir"
        return Finding(what, False, message)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(what, False, f"{folder} cannot be written: make {existing} writable")
    if existing != folder:
        # The rights may be there and the folder still cannot be made, as in /proc.
        try:
            with tempfile.TemporaryDirectory(dir=existing):
                pass
        except OSError as error:
            message = f"{folder} cannot be made: {error.strerror}; set another state_dir"
            return Finding(what, False, message)
    return Finding(what, True, str(folder))


def _journal(path: Path) -> Finding:
    from interlock.core.journal.reader import JournalReader
    from interlock.errors import InterlockError

    if not os.path.isfile(path) or not path.stat().st_size:
        return _writable("journal", path.parent)
    try:
        JournalReader(path).tail(1)
    except InterlockError as error:
        return Finding("journal", False, error.message)
    if not os.access(path, os.W_OK):
        return Finding("journal", False, f"{path} cannot be written")
    return Finding("journal", True, str(path))


def _print_finding(finding: Finding) -> None:
    from rich.text import Text

    mark = ("✓", "green") if finding.ok else ("✗", "red")
    output.create_console().print(
        Text.assemble(mark, output.sanitize(f" {finding.what}: {finding.message}"))
    )


def print_diagnosis(one: Diagnosis) -> None:
    """One upstream, with everything that a person needs to mend it."""
    from rich.text import Text

    console = output.create_console()
    show = output.sanitize  # nearly everything here was said by a server
    if one.ok:
        count = format_count(one.tools, "tool")
        about = f", {' '.join(one.server.split())}" if one.server else ""
        ready = "registered" if one.registered else f"ready in {one.seconds:.2f} s"
        line = f"{count}, {one.era} {one.revision}, {ready}{about}"
        console.print(Text.assemble(("✓", "green"), show(f" {one.key}: {line}")))
    else:
        console.print(Text.assemble(("✗", "red"), show(f" {one.key}: {one.problem}")))
    for aside in one.set_aside:
        line = f"    not shown: {' '.join(aside['name'].split())}: {aside['reason']}"
        console.print(Text(show(line), style="yellow"))
    for warning in one.warnings:
        console.print(Text(show(f"    warning: {warning}"), style="yellow"))
    if one.assumed:
        console.print(Text(f"    {' '.join(one.assumed)}", style="dim"))
    for line in one.stderr:
        console.print(Text(show(f"    │ {line}"), style="dim"))
    for hint in one.advice:
        console.print(Text(show(f"    → {hint}")))
