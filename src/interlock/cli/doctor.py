"""`interlock doctor`: test everything that a node needs, and suggest how to fix what fails."""

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
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Test each server, and say what is wrong and how to fix it.

    Every server is started or connected separately, also while a node is running. A running node
    reports the state of its parent and of the servers that registered with it. The exit code is 1
    if a test failed.

    \b
    Examples:
      interlock doctor
      interlock doctor --json | jq '.upstreams[] | select(.ok | not)'
    """
    from interlock.terminal.event_loop import run

    source = config_source.find_source(config)
    loaded = source.load()
    findings, diagnoses = run(_run_checks(loaded, source.base_dir, quiet=json))
    ok = all(result.ok for result in findings) and all(result.ok for result in diagnoses)
    if json:
        output.print_json({"ok": ok, "node": findings, "upstreams": diagnoses})
    elif ok:
        print("All checks passed.")
    else:
        checks = [result.subject for result in findings if not result.ok]
        servers = [result.key for result in diagnoses if not result.ok]
        for failures, noun in ((checks, "check"), (servers, "server")):
            if failures:
                print(f"{format_count(len(failures), noun)} failed: {', '.join(failures)}")
    if not ok:
        raise typer.Exit(output.FAILED)


async def _run_checks(
    config: Config, base_dir: Path, *, quiet: bool
) -> tuple[list[Finding], list[Diagnosis]]:
    from rich.text import Text

    from interlock.cli.diagnosis import diagnose
    from interlock.terminal.feature_reports import load_reports

    report = _fetch_status(config, base_dir)
    findings = await check_node(config, base_dir)
    for feature in load_reports():
        findings += feature.findings(config, base_dir, report)
    if not quiet:
        for finding in findings:
            _print_finding(finding)
    servers = config.enabled_servers
    tasks = {
        asyncio.create_task(diagnose(key, server, config, base_dir)): key
        for key, server in servers.items()
    }
    done: dict[str, Diagnosis] = {}
    status = None
    if sys.stderr.isatty() and not quiet and tasks:
        status = output.create_console(stderr=True).status("")
    try:
        with status or nullcontext():
            while tasks:
                if status is not None:
                    status.update(Text(f"testing {', '.join(tasks.values())}"))
                finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    key = tasks.pop(task)
                    done[key] = await task
                    if not quiet:
                        print_diagnosis(done[key])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    registered_diagnoses: list[Diagnosis] = []
    if report is not None:
        for feature in load_reports():
            registered_diagnoses += feature.diagnoses(report)
    if not quiet:
        for diagnosis in registered_diagnoses:
            print_diagnosis(diagnosis)
    return findings, [*(done[key] for key in servers), *registered_diagnoses]


def _fetch_status(config: Config, base_dir: Path) -> StatusReport | None:
    """Return the status of the node, or None if it is not running."""
    from interlock.core.paths import socket_path
    from interlock.core.status import StatusReport
    from interlock.terminal import node_discovery

    body = node_discovery.fetch_status(socket_path(config, os.environ, base_dir))
    return None if body is None else StatusReport.read(body)


async def check_node(config: Config, base_dir: Path) -> list[Finding]:
    """Check whether a node can run here: its address, its state folder, its journal."""
    from interlock.core.paths import journal_path, state_dir
    from interlock.terminal.node_client import connect_if_running

    link = await connect_if_running(config, base_dir)
    if link is not None:
        await link.close()
    folder = state_dir(config, os.environ, base_dir)
    journal = journal_path(config, os.environ, base_dir)
    findings = [
        _check_address(config, node_is_running=link is not None),
        _check_writable("state folder", folder),
    ]
    if config.journal.enabled:
        findings.append(_check_journal(journal))
    return findings


def _check_address(config: Config, *, node_is_running: bool) -> Finding:
    import socket

    if node_is_running:
        return Finding("address", True, f"a node is running at {config.listen}")
    host, port = config.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"cannot listen on {config.listen}: {reason}; choose another `listen`"
            return Finding("address", False, message)
    return Finding("address", True, f"{config.listen} is free; no node is running")


def _check_writable(name: str, folder: Path) -> Finding:
    # Not `Path.exists`: it fails if a parent folder is not readable.
    existing_folder = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(existing_folder):
        message = (
            f"cannot create {folder}: {existing_folder} is not a folder; set another state_dir"
        )
        return Finding(name, False, message)
    if not os.access(existing_folder, os.W_OK | os.X_OK):
        return Finding(name, False, f"cannot write to {folder}: make {existing_folder} writable")
    if existing_folder != folder:
        # Despite the permissions the folder may not be creatable, for example in /proc.
        try:
            with tempfile.TemporaryDirectory(dir=existing_folder):
                pass
        except OSError as error:
            message = f"cannot create {folder}: {error.strerror}; set another state_dir"
            return Finding(name, False, message)
    return Finding(name, True, str(folder))


def _check_journal(path: Path) -> Finding:
    from interlock.core.journal.reader import JournalReader
    from interlock.errors import InterlockError

    if not os.path.isfile(path) or not path.stat().st_size:
        return _check_writable("journal", path.parent)
    try:
        JournalReader(path).tail(1)
    except InterlockError as error:
        return Finding("journal", False, error.message)
    if not os.access(path, os.W_OK):
        return Finding("journal", False, f"cannot write to {path}; change its permissions")
    return Finding("journal", True, str(path))


def _print_finding(finding: Finding) -> None:
    from rich.text import Text

    mark = ("✓", "green") if finding.ok else ("✗", "red")
    output.create_console().print(
        Text.assemble(mark, output.sanitize(f" {finding.subject}: {finding.message}"))
    )


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the result for one upstream, with everything that a person needs to fix it."""
    from rich.text import Text

    console = output.create_console()
    sanitize = output.sanitize  # nearly all text here comes from a server
    if diagnosis.ok:
        count = format_count(diagnosis.tools, "tool")
        server_text = f", {' '.join(diagnosis.server.split())}" if diagnosis.server else ""
        ready_text = "registered" if diagnosis.registered else f"ready in {diagnosis.seconds:.2f} s"
        line = f"{count}, {diagnosis.era} {diagnosis.revision}, {ready_text}{server_text}"
        console.print(Text.assemble(("✓", "green"), sanitize(f" {diagnosis.key}: {line}")))
    else:
        console.print(
            Text.assemble(("✗", "red"), sanitize(f" {diagnosis.key}: {diagnosis.problem}"))
        )
    for tool in diagnosis.set_aside:
        line = f"    not shown: {' '.join(tool['name'].split())}: {tool['reason']}"
        console.print(Text(sanitize(line), style="yellow"))
    for warning in diagnosis.warnings:
        console.print(Text(sanitize(f"    warning: {warning}"), style="yellow"))
    if diagnosis.assumed:
        console.print(Text(f"    {' '.join(diagnosis.assumed)}", style="dim"))
    for line in diagnosis.stderr:
        console.print(Text(sanitize(f"    │ {line}"), style="dim"))
    for hint in diagnosis.advice:
        console.print(Text(sanitize(f"    → {hint}")))
