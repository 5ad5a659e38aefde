"""`interlock contracts status|watch|accept`: tools whose contract broke since somebody accepted it,
how the registry fares, and accepting what broke."""

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
from interlock.contracts.commands.options import JsonOption, RegistryOption, counted, refuse_nothing
from interlock.contracts.config import ContractsConfig
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.feature_reports import load_reports
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.contracts.accepted_contracts import BrokenContract
    from interlock.contracts.changed_tools import ToolChange
    from interlock.contracts.sightings import Sighting, SightingStore
    from interlock.core.config import Config
    from interlock.manifests.workspace import Workspace


# -- Contracts of drivers (TOOL.md) that break what was accepted of them, for the commands that
# show such breaks and accept them.


def broken_contracts(
    config: Config, base_dir: Path, workspace: Workspace
) -> dict[str, BrokenContract]:
    """Those of a workspace, by key: held against what a node of this config accepted."""
    from interlock.contracts.accepted_contracts import AcceptedContractStore

    if not config.section(ContractsConfig).watch:
        return {}
    served = [workspace.contracts[key] for key in sorted(workspace.serving)]
    return AcceptedContractStore.of(config, os.environ, base_dir).broken(served)


def declared_breaks(config: Config, base_dir: Path) -> list[tuple[ToolChange, BrokenContract]]:
    """How each of them is shown."""
    held = config.section(ContractsConfig).on_break == "hold"
    found = []
    for reports in load_reports():
        workspace = None
        if isinstance(reports, ContractSource):
            workspace = reports.workspace(config, base_dir)
        if workspace is None:
            continue
        for key, one in broken_contracts(config, base_dir, workspace).items():
            drivers = [workspace.drivers[key].id for key in workspace.serving[key]]
            found.append((one.shown(held=held, drivers=drivers), one))
    return found


def accept_declared(config: Config, base_dir: Path, broken: BrokenContract) -> None:
    """Callers have to live with it. Raises InterlockError."""
    from interlock.contracts.accepted_contracts import AcceptedContractStore
    from interlock.errors import INTERNAL, InterlockError

    try:
        AcceptedContractStore.of(config, os.environ, base_dir).accept(broken.contract)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InterlockError(INTERNAL, f"it cannot be written down: {why}.") from None


_EVERY: Final = 1.0
_STYLES: Final = {True: "red", False: "green"}


def status(
    tool: Annotated[
        str | None, typer.Argument(metavar="[TOOL]", help="Only this one, whole.")
    ] = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
    node: NodeOption = None,
) -> None:
    """Show tools whose contract broke, whom that concerns, and how the registry fares.

    Exit code 1 when there is a tool that broke and nobody has accepted it. With --registry a
    registry is looked at also where no node ever ran.

    \b
    Examples:
      interlock contracts status
      interlock contracts status files.read_file --json
      interlock contracts status --registry contracts
    """
    meant = node_discovery.find_local_node(config, node)
    fares = _registry(meant, registry)
    seen = _rows(meant) if registry is None or _has_seen(meant) else []
    rows = [row for row in seen if tool in (None, row.tool)]
    if json:
        output.print_json({"tools": rows, "registry": fares})
    else:
        for row in rows:
            _show(row)
        if not rows:
            output.print_note("no tool broke." if tool is None else f"{tool} did not break.")
        _show_registry(fares)
    if rows:
        raise typer.Exit(output.FAILED)


def watch(
    config: config_source.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    node: NodeOption = None,
) -> None:
    """Show tools that broke, and go on as others do, until Ctrl-C.

    A node of this config must run for anything new to be seen.
    """
    import msgspec

    meant = node_discovery.find_local_node(config, node)
    told: dict[str, Any] = {}
    while True:
        now = {row.tool: row for row in _rows(meant)}
        for name, row in now.items():
            if told.get(name) != row:
                if json:
                    print(msgspec.json.encode(row).decode(), flush=True)
                else:
                    _show(row)
        for name in told.keys() - now.keys():
            if json:
                print(msgspec.json.encode({"tool": name, "settled": True}).decode(), flush=True)
            else:
                print(f"{name}: settled", flush=True)
        told = now
        time.sleep(_EVERY)


def accept(
    tools: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOOL]...", help="Names, such as files.read_file."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every tool that broke.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Accept what tools are now, though it breaks their callers. Shows it, and asks.

    A tool that is held can be called again; a running node heeds it within a second. A tool that
    its server does not list any more is forgotten.

    \b
    Examples:
      interlock contracts accept files.read_file
      interlock contracts accept --all --yes
    """
    meant = node_discovery.find_local_node(config, node)
    failed = False

    declared = {row.tool: (row, one) for row, one in declared_breaks(meant.config, meant.base_dir)}
    with _store(meant) as store:
        names = list(dict.fromkeys(tools or []))
        if every:
            open_now = [*declared, *(one.tool for one in store.open_ones())]
            names += [one for one in open_now if one not in names]
            if not names:
                output.print_note("no tool broke.")
        elif not names:
            raise typer.BadParameter("name a tool, or say --all")
        for name in names:
            if name in declared:
                failed |= not _accept_declared(meant, *declared[name], yes)
            else:
                failed |= not _accept(meant, store, name, yes)
    if failed:
        raise typer.Exit(output.FAILED)


def _accept(meant: node_discovery.TargetNode, store: SightingStore, tool: str, yes: bool) -> bool:
    seen = store.get(tool)
    if seen is None:
        output.print_problem(f"no node of this config has seen a tool {tool}.")
        return False
    if not seen.is_open:
        output.print_note(f"{tool} did not break: there is nothing to accept.")
        return True
    _show(_row(meant, seen))
    if not _agreed(tool, yes):
        return False
    if not store.accept(seen, getpass.getuser()):
        output.print_problem(f"{tool} changed once more meanwhile: look at it again.")
        return False
    print(f"{tool} is forgotten." if seen.gone else f"{tool} is accepted as {seen.version}.")
    return True


def _accept_declared(
    meant: node_discovery.TargetNode, row: ToolChange, broken: BrokenContract, yes: bool
) -> bool:
    """A contract of a TOOL.md."""

    _show(row)
    if not _agreed(row.tool, yes):
        return False
    accept_declared(meant.config, meant.base_dir, broken)
    print(f"{row.tool} is accepted as {row.to_version}.")
    return True


def _agreed(tool: str, yes: bool) -> bool:
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked here: look at the change, then say --yes")
        if not output.confirm(f"Accept {tool} as shown?"):
            output.print_note(f"{tool} was not accepted.")
            return False
    return True


# -- what is there


@contextmanager
def _store(meant: node_discovery.TargetNode) -> Iterator[SightingStore]:
    """What the node that is meant has seen. Raises InterlockError."""
    from interlock.contracts.paths import sightings_path
    from interlock.contracts.sightings import SightingStore
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError

    path = sightings_path(meant.config, os.environ, meant.base_dir)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"there is nothing at {path}: no node of {meant.config.listen} has seen any tool.",
        )
    store = SightingStore(path)
    try:
        yield store
    finally:
        store.close()


def _has_seen(meant: node_discovery.TargetNode) -> bool:
    from interlock.contracts.paths import sightings_path

    return sightings_path(meant.config, os.environ, meant.base_dir).exists()


def _rows(meant: node_discovery.TargetNode) -> list[ToolChange]:

    with _store(meant) as store:
        rows = [_row(meant, one) for one in store.open_ones()]
    return [*(row for row, _ in declared_breaks(meant.config, meant.base_dir)), *rows]


def _row(meant: node_discovery.TargetNode, one: Sighting) -> ToolChange:
    from interlock.contracts.change_review import breaks_of
    from interlock.contracts.changed_tools import shown
    from interlock.core.paths import journal_path

    config = meant.config
    journal = journal_path(config, os.environ, meant.base_dir)
    breaks = breaks_of(one.tool, config, journal, lambda _: [], time.time())
    return shown(one, held=config.section(ContractsConfig).on_break == "hold", breaks=breaks)


def _registry(meant: node_discovery.TargetNode, named: Path | None) -> dict[str, Any] | None:
    """How the registry fares that is named, or that of the config. None: it has none. Raises
    InterlockError when there is nothing where somebody named one."""
    from interlock.contracts.paths import registry_path
    from interlock.contracts.registry.registry import ContractRegistry
    from interlock.errors import InterlockError

    path = registry_path(meant.config, meant.base_dir) if named is None else named.expanduser()
    if path is None:
        return None
    told: dict[str, Any] = {"folder": str(path)}
    if named is not None:
        refuse_nothing(ContractRegistry(path))
    try:
        registry = ContractRegistry(path)
        try:
            return {**told, "metrics": registry.metrics(), "problems": registry.problems()}
        finally:
            registry.close()
    except InterlockError as error:
        return {**told, "problems": [error.message]}


# -- words


def _show(row: ToolChange) -> None:
    from rich.text import Text

    console = output.create_console()
    state = "held" if row.held else "broke"
    line = f"{row.tool}  {row.from_version} → {row.to_version}  {state} since {row.since}"
    console.print(Text(output.sanitize(line), style="bold"), soft_wrap=True)
    for change in row.changes:
        mark = "✗" if change.breaking else "·"
        line = f"  {mark} {change.reason} {change.path}  {change.message}"
        text = output.sanitize(line.replace("\n", " "))
        console.print(Text(text, style=_STYLES[change.breaking]), soft_wrap=True)
    for what, names in (
        ("callers", row.breaks.callers),
        ("drivers", row.breaks.drivers),
        ("learned rules", row.breaks.rules),
    ):
        if names:
            print(output.sanitize(f"  breaks {what}: {', '.join(names)}"))


def _show_registry(registry: dict[str, Any] | None) -> None:
    if registry is None:
        output.print_note(
            "no registry: contracts: {registry: DIR} keeps the history of every schema."
        )
        return
    metrics = registry.get("metrics")
    if metrics is not None:
        head = "nothing yet" if metrics.head is None else f"at {metrics.head[:12]}"
        output.print_note(f"registry {registry['folder']}: {counted(metrics.schema_count)}, {head}")
    for problem in registry["problems"]:
        output.print_note(output.sanitize(f"! {problem}"))
