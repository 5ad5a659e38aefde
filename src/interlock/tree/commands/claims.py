"""`interlock claims`: the segments of a node that belong to an authority."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@claims.callback()
def _claims() -> None:
    """Show which authority owns which segment of a node, or remove a claim.

    A server that registers with an authority claims its segment. The claim stays when the server is
    gone: without a limit if the authority was proven, otherwise for a day.
    """


@claims.command("list")
def list_claims(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """List the valid claims.

    \b
    Example:
      interlock claims list
    """
    store = _open_store(node_discovery.find_local_node(config, node))
    try:
        claims_list = store.list_claims()
    finally:
        store.close()
    if json:
        output.print_json([claim._asdict() for claim in claims_list])
        return
    for claim in claims_list:
        last_used = format_local(claim.used)
        proof_text = "proven" if claim.verified else "not proven"
        print(
            f"{claim.segment:<20}  {claim.authority:<40}  {proof_text:<10}  last used {last_used}"
        )
    if not claims_list:
        output.print_note("No segment is claimed.")


@claims.command()
def remove(
    segment: Annotated[str, typer.Argument(help="Segment to release.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Remove the claim on a segment, so that another server can register it.

    A running node applies it at once.

    \b
    Example:
      interlock claims remove edge01
    """
    store = _open_store(node_discovery.find_local_node(config, node))
    try:
        was_claimed = store.remove_claim(segment)
    finally:
        store.close()
    if not was_claimed:
        output.print_note(f"{segment} is not claimed.")
        raise typer.Exit(1)
    print(f"The claim on {segment} is removed.")


def _open_store(target: node_discovery.TargetNode) -> TreeStore:
    """Open the tree store of the target node. Raises ConfigError, InterlockError."""
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.tree.store import TreeStore, tree_path

    path = tree_path(target.config, os.environ, target.base_dir)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{path} does not exist: no node with the address {target.config.listen} has run here. "
            f"Start one: `{target.selector.up_command}`",
        )
    return TreeStore(path)
