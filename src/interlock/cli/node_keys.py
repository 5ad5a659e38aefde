"""`interlock keys node`: the keys with which a node signs the tokens that it issues."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@node_keys.callback()
def _node_keys() -> None:
    """Show or rotate the keys with which the node signs its tokens.

    A node issues a short-lived token for every call that it forwards. It rotates its key every day.
    A previous key stays published for an hour after its last signature.
    """


@node_keys.command("list")
def list_keys(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """List the ids of the node's keys. The key that signs comes first.

    \b
    Example:
      interlock keys node list
    """
    rows = _open_keys(node_discovery.find_local_node(config, node)).list_keys()
    if json:
        output.print_json([key._asdict() for key in rows])
        return
    for key in rows:
        since = format_local(key.created)
        state = "signs" if key.signs else f"signed until {format_local(key.retired or 0.0)}"
        print(f"{key.kid}  since {since}  {state}")


@node_keys.command()
def rotate(config: config_source.ConfigOption = None, node: NodeOption = None) -> None:
    """Create a new key and sign with it. A running node applies it within seconds.

    Issued tokens stay valid until they expire, after 15 minutes at most.

    \b
    Example:
      interlock keys node rotate
    """
    print(
        f"The node signs with {_open_keys(node_discovery.find_local_node(config, node)).rotate()}"
    )


def _open_keys(target: node_discovery.TargetNode) -> SigningKeys:
    """Open the signing keys of the target node. Raises ConfigError, InterlockError."""
    from interlock.core.paths import signing_keys_path
    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.trust.signing_keys import SigningKeys

    path = signing_keys_path(target.config, os.environ, target.base_dir)
    if not path.exists():
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{path} does not exist: no node with the address {target.config.listen} has run here. "
            f"Start one: `{target.selector.up_command}`",
        )
    return SigningKeys(path)
