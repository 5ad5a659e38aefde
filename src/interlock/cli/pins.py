"""`interlock pins`: which tools a human has accepted as they are, which changed since then and are
held, what changed, and accepting it."""

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

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Tool = Annotated[str, typer.Argument(metavar="TOOL", help="Its name, such as files.delete.")]
Tools = Annotated[
    list[str] | None, typer.Argument(metavar="[TOOL]...", help="Names, such as files.delete.")
]

_WITHIN: Final = 5.0
"""How long a running node may take to say what a tool is now."""
_EVERY: Final = 0.05
_STYLES: Final = {"-": "red", "+": "green", "@": "cyan"}


@pins.callback()
def _pins() -> None:
    """Show which tools are pinned or held, and accept what changed.

    A pinned tool is to stay what it was when a human accepted it. When its server says something
    else of it, it is held: in no list, and not to be called, until a human accepts the change.
    """


@pins.command("list")
def list_pins(
    config: config_source.ConfigOption = None,
    held: Annotated[bool, typer.Option("--held", help="Only those that are held.")] = False,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show every tool that is pinned, and which of them are held.

    \b
    Example:
      interlock pins list --held
    """
    target = node_discovery.find_local_node(config, node)
    rows: list[dict[str, Any]] = []
    if _path(target).exists():
        with _store(target) as store:
            seen = store.all_seen()
            rows = [_row(pin, seen.get(pin.tool)) for pin in store.pins()]
    if held:
        rows = [row for row in rows if row["state"] == "held"]
    if json:
        output.print_json(rows)
        return
    widest = max((len(row["tool"]) for row in rows), default=0)
    for row in rows:
        why = f"  {' and '.join(row['changed'])} changed" if row["changed"] else ""
        when = format_local(row["at"])
        by = output.sanitize(row["by"])
        print(f"{row['tool']:<{widest}}  {row['state']:<6}  {when}  {by}{why}")
    if not rows:
        output.print_note("no tool is held." if held else "no tool is pinned.")
    elif any(row["state"] == "held" for row in rows):
        diff_tool, accept_tool = map(
            target.selector.format_command, ("pins diff TOOL", "pins accept TOOL")
        )
        output.print_note(f"`{diff_tool}` shows what changed, `{accept_tool}` accepts it.")


@pins.command()
def diff(
    tool: Tool,
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show what changed in a tool since it was accepted. Exit code 1 when something did.

    What cannot be seen is written as its number, so that nothing can hide in a description.

    \b
    Example:
      interlock pins diff files.delete
    """
    target = node_discovery.find_local_node(config, node)
    with _store(target) as store:
        pin, seen = _found(store, tool)
    if pin is None:
        listed = target.selector.format_command("pins list")
        output.print_problem(f"{tool} is not pinned: `{listed}` has those that are.")
        raise typer.Exit(output.FAILED)
    if json:
        output.print_json(_row(pin, seen) | {"diff": _difference(pin, seen)})
    elif seen is None:
        output.print_note(f"{tool} is as {_accepted(pin)}.")
    else:
        _show(_difference(pin, seen))
    if seen is not None:
        raise typer.Exit(output.FAILED)


@pins.command()
def accept(
    tools: Tools = None,
    every: Annotated[bool, typer.Option("--all", help="Every tool that is held.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Accept tools as they are now. Shows what is accepted, and asks.

    A tool that is held can be called again; one that was never pinned is pinned from now on, for
    which the node must run. A running node heeds it within a second.

    \b
    Examples:
      interlock pins accept files.delete
      interlock pins accept --all
    """
    target = node_discovery.find_local_node(config, node)
    with _store(target) as store:
        names = list(dict.fromkeys(tools or []))
        if every:
            names += [name for name in _held(store) if name not in names]
            if not names:
                output.print_note("no tool is held.")
        elif not names:
            raise typer.BadParameter("name a tool, or say --all")
        failed = [name for name in names if not _accept(store, target, name, yes)]
    if failed:
        raise typer.Exit(output.FAILED)


@pins.command()
def forget(
    tools: Annotated[list[str], typer.Argument(metavar="TOOL...", help="Names of tools.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Let tools change as they like again, until somebody accepts them anew.

    With `pins.mode: first_seen` a running node pins them at once, as they are then.

    \b
    Example:
      interlock pins forget files.delete
    """
    missing = 0
    with _store(node_discovery.find_local_node(config, node)) as store:
        for name in tools:
            if store.forget(name):
                print(f"{name} is pinned no more.")
            else:
                missing += 1
                output.print_note(f"{name} was not pinned.")
    if missing:
        raise typer.Exit(output.FAILED)


# -- accepting


def _accept(store: PinStore, target: node_discovery.TargetNode, tool: str, yes: bool) -> bool:
    pin, seen = _found(store, tool)
    if pin is not None and seen is None:
        output.print_note(f"{tool} is as {_accepted(pin)}: there is nothing to accept.")
        return True
    if seen is None:
        seen = _as_it_is_now(store, target, tool)
        if seen is None:
            return False
    if pin is None:
        from interlock.core.catalog.tool_contracts import contract_lines

        _show([f"  {line}" for line in contract_lines(seen.definition)])
    else:
        _show(_difference(pin, seen))
    if not yes and not _agreed(tool):
        output.print_note(f"{tool} was not accepted.")
        return False
    store.accept(seen, getpass.getuser())
    print(f"{tool} is accepted as shown ({seen.digest[:16]}).")
    return True


def _agreed(tool: str) -> bool:
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: look at the change, then say --yes")
    return output.confirm(f"Accept {tool} as shown?")


def _as_it_is_now(
    store: PinStore, target: node_discovery.TargetNode, tool: str
) -> SeenContract | None:
    """What a tool is that was never pinned: only a running node knows."""
    if target.fetch_summary() is None:
        output.print_problem(
            f"{tool} was never pinned, and no node runs that could say what it is now."
        )
        return None
    store.want(tool)
    deadline = time.monotonic() + _WITHIN
    while time.monotonic() < deadline:
        seen = store.seen(tool)
        if seen is not None:
            return seen
        time.sleep(_EVERY)
    tools = target.selector.format_command("tools")
    output.print_problem(f"the node knows no tool {tool}: `{tools}` has the names.")
    return None


# -- what is there


@contextmanager
def _store(target: node_discovery.TargetNode) -> Iterator[PinStore]:
    """The pins of the node that is target. Raises ConfigError, InterlockError."""
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.trust.pin_store import PinStore

    path = _path(target)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"there is nothing at {path}: no node of {target.config.listen} has pinned anything.",
        )
    store = PinStore(path)
    try:
        yield store
    finally:
        store.close()


def _path(target: node_discovery.TargetNode) -> Path:
    from interlock.core.paths import pins_path

    return pins_path(target.config, os.environ, target.base_dir)


def _found(store: PinStore, tool: str) -> tuple[Pin | None, SeenContract | None]:
    """What was accepted of a tool, and what was seen of it since, if that is something else."""
    pin, seen = store.pin(tool), store.seen(tool)
    if pin is None or (seen is not None and seen.digest == pin.digest):
        # What was once seen of a tool that is not pinned may be old.
        return pin, None
    return pin, seen


def _held(store: PinStore) -> list[str]:
    seen = store.all_seen()
    return [pin.tool for pin in store.pins() if _row(pin, seen.get(pin.tool))["state"] == "held"]


def _row(pin: Pin, seen: SeenContract | None) -> dict[str, Any]:
    from interlock.core.catalog.tool_contracts import changed_members

    held = seen is not None and seen.digest != pin.digest
    return {
        "tool": pin.tool,
        "state": "held" if held else "pinned",
        "digest": pin.digest,
        "by": pin.by,
        "at": pin.at,
        "seen": seen.digest if held and seen is not None else None,
        "changed": (
            list(changed_members(pin.definition, seen.definition))
            if held and seen is not None
            else []
        ),
    }


def _difference(pin: Pin, seen: SeenContract | None) -> list[str]:
    from interlock.core.catalog.tool_contracts import difference

    if seen is None:
        return []
    return difference(
        pin.definition,
        seen.definition,
        f"{pin.tool}  {_accepted(pin)}",
        f"{pin.tool}  as it was seen on {format_local(seen.at)}",
    )


def _accepted(pin: Pin) -> str:
    return f"it was accepted by {output.sanitize(pin.by)} on {format_local(pin.at)}"


def _show(lines: list[str]) -> None:
    from rich.text import Text

    console = output.create_console()
    for line in lines:
        console.print(Text(line, style=_STYLES.get(line[:1], "")), soft_wrap=True)
