"""`interlock keys node`: the keys by which a node signs the tokens that it makes for others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from interlock.trust.signing_keys import SigningKeys

node_keys = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


@node_keys.callback()
def _node_keys() -> None:
    """Show or change the keys by which the node signs its own tokens.

    A node makes a short-lived token for every call that it passes on. It changes its key every day
    by itself; those of before are shown for an hour longer than they sign.
    """


@node_keys.command("list")
def list_keys(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Show the ids of the node's keys, the one that signs first.

    \b
    Example:
      interlock keys node list
    """
    rows = _keys(node_discovery.find_local_node(config, node)).rows()
    if json:
        output.print_json([one._asdict() for one in rows])
        return
    for one in rows:
        since = format_local(one.created)
        what = "signs" if one.signs else f"signed until {format_local(one.retired or 0.0)}"
        print(f"{one.kid}  since {since}  {what}")


@node_keys.command()
def rotate(config: config_source.ConfigOption = None, node: NodeOption = None) -> None:
    """Sign with a new key from now on. A running node heeds it within seconds.

    Tokens that are on their way stay good until they expire, a quarter of an hour at most.

    \b
    Example:
      interlock keys node rotate
    """
    print(f"signs with {_keys(node_discovery.find_local_node(config, node)).rotate()}")


def _keys(target: node_discovery.TargetNode) -> SigningKeys:
    """Those of the node that is target. Raises ConfigError, InterlockError."""
    from interlock.core.paths import signing_keys_path
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.trust.signing_keys import SigningKeys

    path = signing_keys_path(target.config, os.environ, target.base_dir)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"there is nothing at {path}: no node of {target.config.listen} has ever run here.",
        )
    return SigningKeys(path)
