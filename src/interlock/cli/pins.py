"""`interlock pins`: the pinned tools, the changes of held tools, and accepting these changes."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.trust.pin_store import Pin, PinStore, SeenContract

pins = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Tool = Annotated[
    str, typer.Argument(metavar="TOOL", help="Name of the tool, such as files.delete.")
]
Tools = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOOL]...", help="Names of tools, such as files.delete."),
]

_TIMEOUT_SECONDS: Final = 5.0
"""The time limit for a running node to report the present definition of a tool."""
_POLL_SECONDS: Final = 0.05
_STYLES: Final = {"-": "red", "+": "green", "@": "cyan"}


@pins.callback()
def _pins() -> None:
    """Show pinned and held tools, and accept changed tools.

    A pinned tool must stay as it was when a person accepted it. When its definition changes, the
    tool is held: it is not listed and cannot be called until a person accepts the change.
    """


@pins.command("list")
def list_pins(
    config: config_source.ConfigOption = None,
    held: Annotated[bool, typer.Option("--held", help="Only held tools.")] = False,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """List the pinned tools with their state: pinned or held.

    \b
    Example:
      interlock pins list --held
    """
    target = node_discovery.find_local_node(config, node)
    rows: list[dict[str, Any]] = []
    if _pins_path(target).exists():
        with _open_store(target) as store:
            contract = store.all_seen()
            rows = [_describe_pin(pin, contract.get(pin.tool)) for pin in store.pins()]
    if held:
        rows = [row for row in rows if row["state"] == "held"]
    if json:
        output.print_json(rows)
        return
    name_width = max((len(row["tool"]) for row in rows), default=0)
    for row in rows:
        changes_text = f"  {' and '.join(row['changed'])} changed" if row["changed"] else ""
        pinned_at = format_local(row["at"])
        pinned_by = output.sanitize(row["by"])
        print(
            f"{row['tool']:<{name_width}}  {row['state']:<6}  {pinned_at}  "
            f"{pinned_by}{changes_text}"
        )
    if not rows:
        output.print_note("No tool is held." if held else "No tool is pinned.")
    elif any(row["state"] == "held" for row in rows):
        diff_tool, accept_tool = map(
            target.selector.format_command, ("pins diff TOOL", "pins accept TOOL")
        )
        output.print_note(f"Show a change: `{diff_tool}`. Accept it: `{accept_tool}`")


@pins.command()
def diff(
    tool: Tool,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show how a tool changed since it was accepted. The exit code is 1 if it changed.

    Invisible characters are shown as their code, so that a description cannot hide text.

    \b
    Example:
      interlock pins diff files.delete
    """
    target = node_discovery.find_local_node(config, node)
    with _open_store(target) as store:
        pin, contract = _read_pin(store, tool)
    if pin is None:
        list_command = target.selector.format_command("pins list")
        output.print_problem(f"{tool} is not pinned. List the pinned tools: `{list_command}`")
        raise typer.Exit(output.FAILED)
    if json:
        output.print_json(_describe_pin(pin, contract) | {"diff": _diff_lines(pin, contract)})
    elif contract is None:
        output.print_note(f"{tool} is unchanged; {_format_acceptance(pin)}.")
    else:
        _print_diff(_diff_lines(pin, contract))
    if contract is not None:
        raise typer.Exit(output.FAILED)


@pins.command()
def accept(
    tools: Tools = None,
    accept_all: Annotated[bool, typer.Option("--all", help="Accept every held tool.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Accept the present definition of tools. Shows the changes and asks for a confirmation.

    A held tool can be called again. A tool that is not pinned is pinned; the node must run for
    this. A running node applies the change within a second.

    \b
    Examples:
      interlock pins accept files.delete
      interlock pins accept --all
    """
    target = node_discovery.find_local_node(config, node)
    with _open_store(target) as store:
        names = list(dict.fromkeys(tools or []))
        if accept_all:
            names += [name for name in _list_held_tools(store) if name not in names]
            if not names:
                output.print_note("No tool is held.")
        elif not names:
            raise typer.BadParameter("Name a tool, or use --all.")
        failed = [name for name in names if not _accept(store, target, name, yes)]
    if failed:
        raise typer.Exit(output.FAILED)


@pins.command()
def remove(
    tools: Annotated[list[str], typer.Argument(metavar="TOOL...", help="Names of tools.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Remove the pins of tools. The tools can then change until they are accepted again.

    With `pins.mode: first_seen`, a running node pins the present definition at once.

    \b
    Example:
      interlock pins remove files.delete
    """
    missing_count = 0
    with _open_store(node_discovery.find_local_node(config, node)) as store:
        for name in tools:
            if store.remove(name):
                print(f"{name} is no longer pinned.")
            else:
                missing_count += 1
                output.print_note(f"{name} was not pinned.")
    if missing_count:
        raise typer.Exit(output.FAILED)


# -- accepting


def _accept(store: PinStore, target: node_discovery.TargetNode, tool: str, yes: bool) -> bool:
    pin, contract = _read_pin(store, tool)
    if pin is not None and contract is None:
        output.print_note(
            f"{tool} is unchanged; {_format_acceptance(pin)}. There is nothing to accept."
        )
        return True
    if contract is None:
        contract = _fetch_current_contract(store, target, tool)
        if contract is None:
            return False
    if pin is None:
        from interlock.core.catalog.tool_contracts import format_contract

        _print_diff([f"  {line}" for line in format_contract(contract.definition)])
    else:
        _print_diff(_diff_lines(pin, contract))
    if not yes and not _confirm_tool(tool):
        output.print_note(f"{tool} was not accepted.")
        return False
    store.accept(contract, getpass.getuser())
    print(f"{tool} is accepted as shown ({contract.digest[:16]}).")
    return True


def _confirm_tool(tool: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "Cannot ask for a confirmation: stdin is not a terminal. "
            f"Look at the change (`interlock pins diff {tool}`), then add --yes."
        )
    return output.confirm(f"Accept {tool} as shown?")


def _fetch_current_contract(
    store: PinStore, target: node_discovery.TargetNode, tool: str
) -> SeenContract | None:
    """Fetch the present definition of a tool that is not pinned, from the running node."""
    if target.fetch_summary() is None:
        output.print_problem(
            f"{tool} is not pinned, and no node is running that knows its definition. "
            f"Start the node first: `{target.selector.up_command}`"
        )
        return None
    store.request_contract(tool)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        contract = store.find_seen_contract(tool)
        if contract is not None:
            return contract
        time.sleep(_POLL_SECONDS)
    tools_command = target.selector.format_command("tools")
    output.print_problem(f"The node has no tool {tool}. List the names: `{tools_command}`")
    return None


# -- reading the pins


@contextmanager
def _open_store(target: node_discovery.TargetNode) -> Iterator[PinStore]:
    """Open the pin store of the target node. Raises ConfigError, InterlockError."""
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.trust.pin_store import PinStore

    path = _pins_path(target)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{path} does not exist: no node with the address {target.config.listen} has pinned a "
            "tool.",
        )
    store = PinStore(path)
    try:
        yield store
    finally:
        store.close()


def _pins_path(target: node_discovery.TargetNode) -> Path:
    from interlock.core.paths import pins_path

    return pins_path(target.config, os.environ, target.base_dir)


def _read_pin(store: PinStore, tool: str) -> tuple[Pin | None, SeenContract | None]:
    """Return the accepted definition of a tool, and the changed definition if it has changed."""
    pin, contract = store.pin(tool), store.find_seen_contract(tool)
    if pin is None or (contract is not None and contract.digest == pin.digest):
        # The last seen definition of a tool that is not pinned can be outdated.
        return pin, None
    return pin, contract


def _list_held_tools(store: PinStore) -> list[str]:
    contract = store.all_seen()
    return [
        pin.tool
        for pin in store.pins()
        if _describe_pin(pin, contract.get(pin.tool))["state"] == "held"
    ]


def _describe_pin(pin: Pin, contract: SeenContract | None) -> dict[str, Any]:
    from interlock.core.catalog.tool_contracts import find_changed_members

    held = contract is not None and contract.digest != pin.digest
    return {
        "tool": pin.tool,
        "state": "held" if held else "pinned",
        "digest": pin.digest,
        "by": pin.by,
        "at": pin.at,
        "seen": contract.digest if held and contract is not None else None,
        "changed": (
            list(find_changed_members(pin.definition, contract.definition))
            if held and contract is not None
            else []
        ),
    }


def _diff_lines(pin: Pin, contract: SeenContract | None) -> list[str]:
    from interlock.core.catalog.tool_contracts import diff_contracts

    if contract is None:
        return []
    return diff_contracts(
        pin.definition,
        contract.definition,
        f"{pin.tool}  {_format_acceptance(pin)}",
        f"{pin.tool}  seen on {format_local(contract.at)}",
    )


def _format_acceptance(pin: Pin) -> str:
    return f"accepted by {output.sanitize(pin.by)} on {format_local(pin.at)}"


def _print_diff(lines: list[str]) -> None:
    from rich.text import Text

    console = output.create_console()
    for line in lines:
        console.print(Text(line, style=_STYLES.get(line[:1], "")), soft_wrap=True)
