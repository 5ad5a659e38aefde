"""`interlock drivers list` and `explain`: the drivers, and which driver serves a contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.drivers.commands.options import Pin, Region
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.options import Json

if TYPE_CHECKING:
    from interlock.drivers.commands.workspace import DriverProject
    from interlock.drivers.status import DriverStatus

_MAX_NAMES: Final = 4
_STYLES: Final = {"refused": "red", "failing": "red", "unauthed": "yellow", "running": "green"}


def list_drivers(
    json: Json = False, config: config_source.ConfigOption = None, node: NodeOption = None
) -> None:
    """List the drivers, their state and the contracts that they serve.

    The state comes from the running node: that of the config, or, for a node started with --listen,
    the one of --node. If no node runs, it comes from the files, the installed programs and the
    available secrets.

    \b
    States:
      running     the server runs
      ready       the server has the required tools; it starts when needed
      unverified  the server was not asked for its tools yet
      unauthed    a secret or a sign-in is missing: interlock drivers login
      failing     not installed, wrong version, or the server does not respond
      refused     invalid files, or excluded by the config

    A DRIVER.md that becomes invalid while the node runs is reported below its driver. The last
    valid version stays in use.
    """
    from interlock.drivers.commands.offline_status import statuses
    from interlock.terminal.event_loop import run

    project, node_rows, problems = read_node(config, node, quiet=json)
    rows = run(statuses(project)) if node_rows is None else node_rows
    contract_rows = _list_contracts(project, rows, problems)
    if json:
        output.print_json(
            {"running": node_rows is not None, "drivers": rows, "contracts": contract_rows}
        )
        return
    if not rows:
        output.print_note(_no_drivers_message(project, node, from_node=node_rows is not None))
        return
    _print_drivers(rows)
    print()
    _print_contracts(contract_rows)


def _no_drivers_message(project: DriverProject, node: str | None, *, from_node: bool) -> str:
    """Return the message if there are no drivers. The node may use other files than this folder."""
    if not from_node:
        return "no drivers here. Create one: `interlock drivers new`."
    prefix = f"the node at {node or project.config.listen} has no driver"
    local_count = len(project.workspace.drivers)
    if node is not None or not local_count:
        return f"{prefix}. Create one: `interlock drivers new`."
    count = "1 is" if local_count == 1 else f"{local_count} are"
    return (
        f"{prefix}, but {count} declared here. It may use another config. "
        "If your node was started with --listen, use --node."
    )


def explain(
    tool: Annotated[
        str, typer.Argument(metavar="TOOL", help="A contract: its id.", show_default=False)
    ],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Inputs of the call. Some drivers do not support every input.",
            show_default=False,
        ),
    ] = None,
    pin: Pin = None,
    region: Region = None,
    json: Json = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Show which driver would serve a call, and why not the others. Calls nothing.

    Exit code 1 if no driver would serve it.

    \b
    Examples:
      interlock drivers explain fs-read
      interlock drivers explain web.search query=mcp count=3 --region eu
      interlock drivers explain time.now --pin clock-mcp
    """
    import time

    from interlock.drivers.commands.offline_status import decide
    from interlock.drivers.lifecycle import workspace_id
    from interlock.drivers.resolver import explain as explained
    from interlock.drivers.resolver import resolved_row
    from interlock.terminal.call_arguments import ArgumentError, read_arguments
    from interlock.terminal.event_loop import run

    project, node_rows, _ = read_node(config, node, quiet=json)
    contract = project.contract(tool)
    try:
        inputs = read_arguments(pairs or [], contract.inputs)
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    states = {row.id: row for row in node_rows or []}
    decision = run(
        decide(contract, project, inputs, pinned=pin, region=region, node_statuses=states)
    )
    if json:
        row = resolved_row(
            decision, user_id="", workspace_id=workspace_id(project.base_dir), at=time.time()
        )
        order = [candidate.driver.key for candidate in decision.order]
        failure = None if decision.failure is None else decision.failure.name
        output.print_json({**row, "order": order, "code": failure, "message": decision.message})
    else:
        for line in explained(decision):
            print(output.sanitize(line))
        for status in node_rows or []:
            if status.state == "failing" and contract.key in {b.contract for b in status.bindings}:
                output.print_note(
                    f"Note: the last start of {status.id} failed: {output.sanitize(status.problem)}"
                )
    if decision.selected is None:
        raise typer.Exit(output.FAILED)


def read_node(
    config: Any, node: str | None, *, quiet: bool
) -> tuple[DriverProject, list[DriverStatus] | None, dict[str, str]]:
    """Return the drivers by the files of the current config, their status in the running node (that
    of the config, or of --node), and why contracts are not offered, by contract key.

    Args:
        quiet: print no notes.
    """
    import msgspec

    from interlock.drivers.commands.workspace import open_project, project_of
    from interlock.drivers.status import ContractStatus, DriverStatus

    target = node_discovery.find_node(config, node)
    if target.config_error is not None:
        raise target.config_error
    response = node_discovery.fetch_status(target.socket)
    if response is None and node is not None:
        raise node_discovery.not_running_error(target, selected_by_address=True)
    # A node that was started with --listen uses this config too.
    project = project_of(target.config, target.base_dir) if target.source else open_project(config)
    if response is None:
        hint = node_discovery.describe_other_nodes(target)
        if not quiet:
            output.print_note(
                f"Note: no node at {target.config.listen}. The state is read from its files"
                + (f"; {hint}" if hint else "")
            )
        return project, None, {}

    status = msgspec.json.decode(response)
    rows = status.get("drivers")
    contracts = msgspec.convert(status.get("contracts", []), list[ContractStatus])
    problems = {contract.key: contract.problem for contract in contracts if contract.problem}
    return project, None if rows is None else msgspec.convert(rows, list[DriverStatus]), problems


def _list_contracts(
    project: DriverProject, rows: list[DriverStatus], problems: dict[str, str]
) -> list[dict[str, Any]]:
    serving: dict[str, list[str]] = {}
    for row in rows:
        for binding in row.bindings:
            names = serving.setdefault(binding.contract, [])
            if row.state != "refused" and not binding.problems:
                names.append(row.id)
    contracts_served = []
    keys = sorted({*serving, *project.workspace.contracts})
    ids = [key.partition("@")[0] for key in keys]
    for key, id in zip(keys, ids, strict=True):
        contract = project.workspace.contracts.get(key)
        contracts_served.append(
            {
                "contract": id if ids.count(id) == 1 else key,
                "version": "" if contract is None else contract.version,
                "drivers": serving.get(key, []),
                **({"problem": problems[key]} if key in problems else {}),
            }
        )
    return contracts_served


def _print_contracts(served: list[dict[str, Any]]) -> None:
    from rich.text import Text

    console = output.create_console()
    width = max((len(contract["contract"]) for contract in served), default=0)
    for contract in served:
        drivers = ", ".join(contract["drivers"]) or "no driver"
        print(f"{contract['contract']:<{width}}  {contract['version']:<8}  {drivers}")
        if "problem" in contract:
            text = f"    {output.sanitize(contract['problem'])}"
            console.print(Text(text, style="red"), soft_wrap=True)


def _row_label(row: DriverStatus) -> str:
    """Return the label of a row: a driver's id, or for an invalid file its kind."""
    from interlock.drivers.commands.status_lines import entry_kind

    # The id of an invalid file is the name of its folder, which is untrusted text.
    id, kind = output.sanitize(row.id), entry_kind(row)
    return id if kind == "driver" else f"{id} ({kind.removesuffix(' of')})"


def _print_drivers(rows: list[DriverStatus]) -> None:
    from rich.text import Text

    console = output.create_console()
    id_width = max(len(_row_label(row)) for row in rows)
    state_width = max(len(row.state) for row in rows)
    for row in sorted(rows, key=lambda row: row.id):
        names = [binding.contract.partition("@")[0] for binding in row.bindings]
        remainder = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        serves = ", ".join(names[:_MAX_NAMES]) + remainder
        console.print(
            Text.assemble(
                f"{_row_label(row):<{id_width}}  ",
                (f"{row.state:<{state_width}}", _STYLES.get(row.state, "")),
                f"  {row.version:<8}  {serves}",
            ),
            soft_wrap=True,
        )
        for line in filter(None, row.problem.splitlines()):
            console.print(Text(f"    {output.sanitize(line)}", style="red"), soft_wrap=True)
        for binding_status in row.bindings:
            for problem in binding_status.problems:
                text = f"    {binding_status.contract}: {output.sanitize(problem)}"
                console.print(Text(text, style="red"), soft_wrap=True)
        for warning in (
            *row.warnings,
            *(text for binding in row.bindings for text in binding.warnings),
        ):
            text = f"    Warning: {output.sanitize(warning)}"
            console.print(Text(text, style="yellow"), soft_wrap=True)
