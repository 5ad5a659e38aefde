"""`interlock claims`: which authority owns which segment of a node, and giving one up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from interlock.tree.store import TreeStore

claims = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


@claims.callback()
def _claims() -> None:
    """Show which authority owns which segment of a node, or give one up.

    Who registers with an authority keeps its segment, also when it is gone: for ever if the
    authority was proven, else for a day.
    """


@claims.command("list")
def list_claims(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Show every claim that holds.

    \b
    Example:
      interlock claims list
    """
    store = _store(node_discovery.find_local_node(config, node))
    try:
        found = store.claims()
    finally:
        store.close()
    if json:
        output.print_json([one._asdict() for one in found])
        return
    for one in found:
        used = format_local(one.used)
        proven = "proven" if one.verified else "not proven"
        print(f"{one.segment:<20}  {one.authority:<40}  {proven:<10}  last used {used}")
    if not found:
        output.print_note("no segment is claimed.")


@claims.command()
def forget(
    segment: Annotated[str, typer.Argument(help="The segment that anybody may have again.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Give a segment up, to whoever registers next. A running node heeds it at once.

    \b
    Example:
      interlock claims forget edge01
    """
    store = _store(node_discovery.find_local_node(config, node))
    try:
        had = store.forget_claim(segment)
    finally:
        store.close()
    if not had:
        output.print_note(f"nobody has claimed {segment}.")
        raise typer.Exit(1)
    print(f"{segment} belongs to nobody any more.")


def _store(target: node_discovery.TargetNode) -> TreeStore:
    """What the node that is target remembers of its tree. Raises ConfigError, InterlockError."""
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.tree.store import TreeStore, tree_path

    path = tree_path(target.config, os.environ, target.base_dir)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"there is nothing at {path}: no node of {target.config.listen} has ever run here.",
        )
    return TreeStore(path)
