"""`interlock drivers list` and `explain`: which drivers there are, and which serves what."""

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

_MOST_NAMED: Final = 4
_STYLES: Final = {"refused": "red", "failing": "red", "unauthed": "yellow", "running": "green"}


def list_drivers(
    json: Json = False, config: config_source.ConfigOption = None, node: NodeOption = None
) -> None:
    """Show the drivers, how they stand, and the contracts that they serve.

    A running node is asked: that of the config, or, where it was started with --listen, the one
    that --node names. Without one, the files tell, and what is installed and which secrets there
    are.

    \b
    States:
      running     its server is at work
      ready       its server has the tools that it needs; it is started when it is needed
      unverified  nobody has asked its server yet
      unauthed    a secret is missing, or somebody has to sign in: interlock drivers login
      failing     it is not installed, of the wrong version, or its server does not answer
      refused     its files are invalid, or the config does not let it be used

    A DRIVER.md that becomes invalid while the node runs is reported below its driver, whose last
    valid version stays in use.
    """
    from interlock.drivers.commands.offline_status import statuses
    from interlock.terminal.event_loop import run

    project, told, wrong = ask_node(config, node, quiet=json)
    rows = run(statuses(project)) if told is None else told
    served = _contracts(project, rows, wrong)
    if json:
        output.print_json({"running": told is not None, "drivers": rows, "contracts": served})
        return
    if not rows:
        output.print_note(_none(project, node, asked=told is not None))
        return
    _print_drivers(rows)
    print()
    _print_contracts(served)


def _none(project: DriverProject, node: str | None, *, asked: bool) -> str:
    """What to say where there is no driver: a node may run by other files than those here."""
    if not asked:
        return "there is no driver here; `interlock drivers new` makes one."
    says = f"the node at {node or project.config.listen} has no driver"
    here = len(project.workspace.drivers)
    if node is not None or not here:
        return f"{says}; `interlock drivers new` makes one."
    count = "one is" if here == 1 else f"{here} are"
    return (
        f"{says}, but {count} declared here: perhaps it runs by another config. "
        "If yours was started with --listen, name it with --node."
    )


def explain(
    tool: Annotated[
        str, typer.Argument(metavar="TOOL", help="A contract: its id.", show_default=False)
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="What the call would bring: some drivers do not take every input.",
            show_default=False,
        ),
    ] = None,
    pin: Pin = None,
    region: Region = None,
    json: Json = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Show which driver would serve a contract, and why not the others. Nothing is called.

    Exit code 1 when no driver would.

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

    project, told, _ = ask_node(config, node, quiet=json)
    contract = project.contract(tool)
    try:
        inputs = read_arguments(words or [], contract.inputs)
    except ArgumentError as bad:
        raise typer.BadParameter(str(bad)) from None
    known = {row.id: row for row in told or []}
    decision = run(decide(contract, project, inputs, pinned=pin, region=region, known=known))
    if json:
        row = resolved_row(
            decision, user_id="", workspace_id=workspace_id(project.base_dir), at=time.time()
        )
        order = [candidate.driver.key for candidate in decision.order]
        failure = None if decision.failure is None else decision.failure.name
        output.print_json({**row, "order": order, "code": failure, "message": decision.message})
    else:
        for line in explained(decision):
            print(say.printable(line))
        for row in told or []:
            if row.state == "failing" and contract.key in {b.contract for b in row.bindings}:
                say.note(
                    f"Note: {row.id} failed when it was last tried: {say.printable(row.problem)}"
                )
    if decision.selected is None:
        raise typer.Exit(output.FAILED)


def ask_node(
    config: Any, node: str | None, *, quiet: bool
) -> tuple[DriverProject, list[DriverStatus] | None, dict[str, str]]:
    """The drivers by the files of the config that is found, what the running node says of them (the
    config's own, or the one that is named), and why it does not offer contracts, by their keys.
    `quiet`: nothing is noted beside."""
    import msgspec

    from interlock.drivers.commands.workspace import open_project, project_of
    from interlock.drivers.status import ContractStatus, DriverStatus

    meant = node_discovery.find_node(config, node)
    if meant.config_error is not None:
        raise meant.config_error
    told = node_discovery.fetch_status(meant.socket)
    if told is None and node is not None:
        raise node_discovery.not_running_error(meant, selected_by_address=True)
    # A node that was started with --listen runs by this config all the same.
    project = project_of(meant.config, meant.base_dir) if meant.source else open_project(config)
    if told is None:
        hint = node_discovery.describe_other_nodes(meant)
        if not quiet:
            output.print_note(
                f"Note: no node answers at {meant.config.listen}, so this is what the files say"
                + (f"; {hint}" if hint else "")
            )
        return project, None, {}

    status = msgspec.json.decode(told)
    rows = status.get("drivers")
    contracts = msgspec.convert(status.get("contracts", []), list[ContractStatus])
    wrong = {contract.key: contract.problem for contract in contracts if contract.problem}
    return project, None if rows is None else msgspec.convert(rows, list[DriverStatus]), wrong


def _contracts(
    project: DriverProject, rows: list[DriverStatus], wrong: dict[str, str]
) -> list[dict[str, Any]]:
    serving: dict[str, list[str]] = {}
    for row in rows:
        for binding in row.bindings:
            names = serving.setdefault(binding.contract, [])
            if row.state != "refused" and not binding.problems:
                names.append(row.id)
    found = []
    keys = sorted({*serving, *project.workspace.contracts})
    ids = [key.partition("@")[0] for key in keys]
    for key, id in zip(keys, ids, strict=True):
        contract = project.workspace.contracts.get(key)
        found.append(
            {
                "contract": id if ids.count(id) == 1 else key,
                "version": "" if contract is None else contract.version,
                "drivers": serving.get(key, []),
                **({"problem": wrong[key]} if key in wrong else {}),
            }
        )
    return found


def _print_contracts(served: list[dict[str, Any]]) -> None:
    from rich.text import Text

    console = say.console()
    widest = max((len(contract["contract"]) for contract in served), default=0)
    for contract in served:
        drivers = ", ".join(contract["drivers"]) or "nobody"
        print(f"{contract['contract']:<{widest}}  {contract['version']:<8}  {drivers}")
        if "problem" in contract:
            text = f"    {say.printable(contract['problem'])}"
            console.print(Text(text, style="red"), soft_wrap=True)


def _shown(row: DriverStatus) -> str:
    """A driver by its id; a file beside drivers that cannot be used by what it is."""
    from interlock.drivers.commands.status_lines import entry_kind

    # Where a file cannot be read, its folder's name stands for it, which may be anything.
    id, what = say.printable(row.id), entry_kind(row)
    return id if what == "driver" else f"{id} ({what.removesuffix(' of')})"


def _print_drivers(rows: list[DriverStatus]) -> None:
    from rich.text import Text

    console = output.create_console()
    id_width = max(len(_shown(row)) for row in rows)
    state_width = max(len(row.state) for row in rows)
    for row in sorted(rows, key=lambda row: row.id):
        names = [binding.contract.partition("@")[0] for binding in row.bindings]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        serves = ", ".join(names[:_MOST_NAMED]) + more
        console.print(
            Text.assemble(
                f"{_shown(row):<{id_width}}  ",
                (f"{row.state:<{state_width}}", _STYLES.get(row.state, "")),
                f"  {row.version:<8}  {serves}",
            ),
            soft_wrap=True,
        )
        for line in filter(None, row.problem.splitlines()):
            console.print(Text(f"    {output.sanitize(line)}", style="red"), soft_wrap=True)
        for bound in row.bindings:
            for problem in bound.problems:
                text = f"    {bound.contract}: {output.sanitize(problem)}"
                console.print(Text(text, style="red"), soft_wrap=True)
        for warning in (
            *row.warnings,
            *(text for binding in row.bindings for text in binding.warnings),
        ):
            text = f"    Warning: {say.printable(warning)}"
            console.print(Text(text, style="yellow"), soft_wrap=True)
