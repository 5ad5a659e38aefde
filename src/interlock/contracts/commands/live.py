"""The commands `interlock contracts status`, `watch` and `accept`: tools with breaking changes, and
the state of the registry.
"""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.contracts.commands.contract_source import ContractSource
from interlock.contracts.commands.options import (
    JsonOption,
    RegistryOption,
    check_not_empty,
    format_contract_count,
)
from interlock.contracts.config import ContractsConfig
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.feature_reports import load_reports
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.contracts.accepted_contracts import BrokenContract
    from interlock.contracts.changed_tools import ToolChange
    from interlock.contracts.tool_records import ToolRecord, ToolRecordStore
    from interlock.core.config import Config
    from interlock.manifests.workspace import Workspace


# -- Contracts of drivers (TOOL.md) with breaking changes, for the commands that show and accept
# them.


def broken_contracts(
    config: Config, base_dir: Path, workspace: Workspace
) -> dict[str, BrokenContract]:
    """Return the contracts of a workspace with breaking changes, by key.

    They are compared with the contracts that a node of this config accepted.
    """
    from interlock.contracts.accepted_contracts import AcceptedContractStore

    if not config.section(ContractsConfig).watch:
        return {}
    served_contracts = [workspace.contracts[key] for key in sorted(workspace.serving)]
    store = AcceptedContractStore.from_config(config, os.environ, base_dir)
    return store.find_broken(served_contracts)


def declared_breaks(config: Config, base_dir: Path) -> list[tuple[ToolChange, BrokenContract]]:
    """Return the breaking changes of all declared contracts, for display."""
    is_held = config.section(ContractsConfig).on_break == "hold"
    breaks = []
    for reports in load_reports():
        workspace = None
        if isinstance(reports, ContractSource):
            workspace = reports.workspace(config, base_dir)
        if workspace is None:
            continue
        for key, broken in broken_contracts(config, base_dir, workspace).items():
            drivers = [workspace.drivers[key].id for key in workspace.serving[key]]
            breaks.append((broken.to_tool_change(is_held=is_held, drivers=drivers), broken))
    return breaks


def accept_declared(config: Config, base_dir: Path, broken: BrokenContract) -> None:
    """Accept a breaking change of a declared contract. Raises InterlockError."""
    from interlock.contracts.accepted_contracts import AcceptedContractStore
    from interlock.errors import INTERNAL, InterlockError

    try:
        AcceptedContractStore.from_config(config, os.environ, base_dir).accept(broken.contract)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InterlockError(INTERNAL, f"cannot store the accepted contract: {reason}.") from None


_POLL_SECONDS: Final = 1.0
_STYLES: Final = {True: "red", False: "green"}


def status(
    tool: Annotated[
        str | None, typer.Argument(metavar="[TOOL]", help="Show only this tool.")
    ] = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
    node: NodeOption = None,
) -> None:
    """Show tools with breaking changes, who depends on them, and the state of the registry.

    Exit code 1 if a breaking change has not been accepted. With --registry, the state of a
    registry is shown also where no node ever ran.

    \b
    Examples:
      interlock contracts status
      interlock contracts status files.read_file --json
      interlock contracts status --registry contracts
    """
    target = node_discovery.find_local_node(config, node)
    registry_status = _registry_status(target, registry)
    changes = _find_changes(target) if registry is None or _has_records(target) else []
    selected = [change for change in changes if tool in (None, change.tool)]
    if json:
        output.print_json({"tools": selected, "registry": registry_status})
    else:
        for change in selected:
            _print_change(change)
        if not selected:
            output.print_note(
                "No tool has a breaking change."
                if tool is None
                else f"{tool} has no breaking change."
            )
        _print_registry(registry_status)
    if selected:
        raise typer.Exit(output.FAILED)


def watch(
    config: config_source.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    node: NodeOption = None,
) -> None:
    """Show tools with breaking changes, now and as they occur, until Ctrl-C.

    New changes appear only while a node of this config runs.
    """
    import msgspec

    target = node_discovery.find_local_node(config, node)
    printed: dict[str, Any] = {}
    while True:
        changes = {change.tool: change for change in _find_changes(target)}
        for name, change in changes.items():
            if printed.get(name) != change:
                if json:
                    print(msgspec.json.encode(change).decode(), flush=True)
                else:
                    _print_change(change)
        for name in printed.keys() - changes.keys():
            if json:
                print(msgspec.json.encode({"tool": name, "resolved": True}).decode(), flush=True)
            else:
                print(f"{name}: resolved", flush=True)
        printed = changes
        time.sleep(_POLL_SECONDS)


def accept(
    tools: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOOL]...", help="Names of tools, such as files.read_file."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Accept every tool with a breaking change.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Accept breaking changes of tools. Shows each change and asks for confirmation.

    A held tool can be called again; a running node applies it within a second. A tool that its
    server no longer lists is deleted from the records.

    \b
    Examples:
      interlock contracts accept files.read_file
      interlock contracts accept --all --yes
    """
    target = node_discovery.find_local_node(config, node)
    failed = False

    declared = {
        change.tool: (change, broken)
        for change, broken in declared_breaks(target.config, target.base_dir)
    }
    with _open_store(target) as store:
        names = list(dict.fromkeys(tools or []))
        if every:
            broken_names = [*declared, *(record.tool for record in store.find_broken())]
            names += [name for name in broken_names if name not in names]
            if not names:
                output.print_note("No tool has a breaking change.")
        elif not names:
            raise typer.BadParameter("Name a tool, or use --all.")
        for name in names:
            if name in declared:
                failed |= not _accept_declared(target, *declared[name], yes)
            else:
                failed |= not _accept(target, store, name, yes)
    if failed:
        raise typer.Exit(output.FAILED)


def _accept(
    target: node_discovery.TargetNode, store: ToolRecordStore, tool: str, yes: bool
) -> bool:
    record = store.get(tool)
    if record is None:
        output.print_problem(f"Unknown tool {tool}: no node of this config has recorded it.")
        return False
    if not record.is_broken:
        output.print_note(f"{tool} has no breaking change. There is nothing to accept.")
        return True
    _print_change(_make_change(target, record))
    if not _confirm(tool, yes):
        return False
    if not store.accept(record, getpass.getuser()):
        output.print_problem(
            f"{tool} has changed again. Run the command again to see the new change."
        )
        return False
    print(f"Deleted {tool}." if record.removed else f"Accepted {tool} {record.version}.")
    return True


def _accept_declared(
    target: node_discovery.TargetNode, change: ToolChange, broken: BrokenContract, yes: bool
) -> bool:
    """Accept a contract of a TOOL.md."""
    _print_change(change)
    if not _confirm(change.tool, yes):
        return False
    accept_declared(target.config, target.base_dir, broken)
    print(f"Accepted {change.tool} {change.to_version}.")
    return True


def _confirm(tool: str, yes: bool) -> bool:
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "Cannot ask for confirmation without a terminal. Check the change, then add --yes."
            )
        if not output.confirm(f"Accept {tool} as shown above?"):
            output.print_note(f"{tool} was not accepted.")
            return False
    return True


# -- data


@contextmanager
def _open_store(target: node_discovery.TargetNode) -> Iterator[ToolRecordStore]:
    """Open the tool records of a node. Raises InterlockError."""
    from interlock.contracts.paths import tool_records_path
    from interlock.contracts.tool_records import ToolRecordStore
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError

    path = tool_records_path(target.config, os.environ, target.base_dir)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{path} does not exist: the node at {target.config.listen} has recorded no tools. "
            "Start it: `interlock up`.",
        )
    store = ToolRecordStore(path)
    try:
        yield store
    finally:
        store.close()


def _has_records(target: node_discovery.TargetNode) -> bool:
    from interlock.contracts.paths import tool_records_path

    return tool_records_path(target.config, os.environ, target.base_dir).exists()


def _find_changes(target: node_discovery.TargetNode) -> list[ToolChange]:
    with _open_store(target) as store:
        changes = [_make_change(target, record) for record in store.find_broken()]
    declared = [change for change, _ in declared_breaks(target.config, target.base_dir)]
    return [*declared, *changes]


def _make_change(target: node_discovery.TargetNode, record: ToolRecord) -> ToolChange:
    from interlock.contracts.change_review import find_dependents
    from interlock.contracts.changed_tools import make_tool_change
    from interlock.core.paths import journal_path

    config = target.config
    journal = journal_path(config, os.environ, target.base_dir)
    dependents = find_dependents(record.tool, config, journal, lambda _: [], time.time())
    is_held = config.section(ContractsConfig).on_break == "hold"
    return make_tool_change(record, is_held=is_held, dependents=dependents)


def _registry_status(
    target: node_discovery.TargetNode, folder: Path | None
) -> dict[str, Any] | None:
    """Return the state of a registry: of `folder`, else of the config. None: no registry is
    configured.

    Raises InterlockError if `folder` has no registry.
    """
    from interlock.contracts.paths import registry_path
    from interlock.contracts.registry.registry import ContractRegistry
    from interlock.errors import InterlockError

    path = registry_path(target.config, target.base_dir) if folder is None else folder.expanduser()
    if path is None:
        return None
    status: dict[str, Any] = {"folder": str(path)}
    if folder is not None:
        check_not_empty(ContractRegistry(path))
    try:
        registry = ContractRegistry(path)
        try:
            return {**status, "metrics": registry.metrics(), "problems": registry.problems()}
        finally:
            registry.close()
    except InterlockError as error:
        return {**status, "problems": [error.message]}


# -- output


def _print_change(change: ToolChange) -> None:
    from rich.text import Text

    console = output.create_console()
    state = "held" if change.held else "broken"
    line = (
        f"{change.tool}  {change.from_version} → {change.to_version}  {state} since {change.since}"
    )
    console.print(Text(output.sanitize(line), style="bold"), soft_wrap=True)
    for difference in change.changes:
        mark = "✗" if difference.breaking else "·"
        line = f"  {mark} {difference.reason} {difference.path}  {difference.message}"
        text = output.sanitize(line.replace("\n", " "))
        console.print(Text(text, style=_STYLES[difference.breaking]), soft_wrap=True)
    for label, names in (
        ("callers", change.breaks.callers),
        ("drivers", change.breaks.drivers),
        ("learned rules", change.breaks.rules),
    ):
        if names:
            print(output.sanitize(f"  affected {label}: {', '.join(names)}"))


def _print_registry(registry: dict[str, Any] | None) -> None:
    if registry is None:
        output.print_note(
            "No registry. Add contracts: {registry: DIR} to keep the history of schemas."
        )
        return
    metrics = registry.get("metrics")
    if metrics is not None:
        head = "nothing yet" if metrics.head is None else f"at {metrics.head[:12]}"
        output.print_note(
            f"Registry {registry['folder']}: {format_contract_count(metrics.schema_count)}, {head}"
        )
    for problem in registry["problems"]:
        output.print_note(output.sanitize(f"! {problem}"))
