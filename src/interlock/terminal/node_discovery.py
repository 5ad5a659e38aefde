"""Discovery of the user's running nodes: the node that a command targets, its address, its status.

A node is found by the sockets in its state folder. One socket speaks MCP. The other returns the
status without a token, because only this user can open it.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import typer
from msgspec import UNSET, Struct, UnsetType

from interlock.core.config import Config, ConfigError
from interlock.core.config.load import peek_config
from interlock.core.paths import is_trusted, socket_path, state_dir, state_home, status_path
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.terminal import config_source, output

_TIMEOUT_SECONDS: Final = 5.0
_LOCATION_KEYS: Final = ("listen", "state_dir")
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]")

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="ADDR",
        help="Use the running node at this host:port or port, instead of the config's node.",
        show_default=False,
    ),
]


class UpstreamSummary(Struct, frozen=True):
    """The fields of an upstream's status that concern its tools."""

    key: str
    state: str
    problem: str | None
    segment: str


class NodeSummary(Struct, frozen=True):
    """The fields of a node's status that commands use."""

    url: str | None
    upstreams: list[UpstreamSummary]
    topics_url: str | UnsetType | None = UNSET
    """Unset: the node is of an earlier version, which does not send it."""
    policy: str = ""
    """The version of its policy."""

    @property
    def address(self) -> str:
        return urlsplit(self.url or "").netloc


class NodeSelector(NamedTuple):
    """The options by which the user selected the node. Hints repeat the same options."""

    config: Path | None = None
    node: str | None = None

    @property
    def options(self) -> str:
        """The options to append to a command, with a leading space. Empty for the default node."""
        values = (("--config", self.config), ("--node", self.node))
        return "".join(f" {name} {shlex.quote(str(value))}" for name, value in values if value)

    def format_command(self, command: str) -> str:
        """Return a command for the same node, such as `interlock keys admit ID --node 8555`."""
        return f"interlock {command}{self.options}"

    @property
    def up_command(self) -> str:
        """The command that starts the node."""
        return f"interlock up{NodeSelector(self.config).options}"


class TargetNode(Struct, frozen=True):
    """The node that a command is about. It may be stopped."""

    source: config_source.ConfigSource | None
    config: Config
    base_dir: Path
    socket: Path
    config_error: ConfigError | None = None
    """The error in the present config file. A running node can still use an earlier version."""
    selector: NodeSelector = NodeSelector()

    def fetch_summary(self) -> NodeSummary | None:
        """Return the status of the node, or None if it is not running."""
        body = fetch_status(self.socket)
        return None if body is None else msgspec.json.decode(body, type=NodeSummary)


def find_node(config_path: Path | None, node: str | None = None) -> TargetNode:
    """Find the node of a config, or the node at an address.

    Args:
        config_path: the value of --config.
        node: the value of --node.

    Raises ConfigError if the named config file does not exist, because then no node is selected.
    """
    source = config_source.find_source_or_none(config_path)
    config, base_dir, problem = Config(), Path.cwd(), None
    if source is not None:
        base_dir = source.base_dir
        try:
            config = source.load()
        except ConfigError as error:
            if node is None and not os.path.lexists(source.path or ""):
                raise
            config, problem = peek_config(source.path or ""), error
    address = config_source.read_listen_address(node)
    if address is None or address == config.listen:
        path = socket_path(config, os.environ, base_dir)
        return TargetNode(source, config, base_dir, path, problem, NodeSelector(config_path, node))
    config = Config(listen=_find_listen_address(address))
    path = socket_path(config, os.environ, Path.cwd())
    return TargetNode(None, config, Path.cwd(), path, selector=NodeSelector(config_path, node))


def find_local_node(config_path: Path | None, node: str | None = None) -> TargetNode:
    """Find the node whose state files a command reads or changes. The node may be stopped.

    An invalid config is accepted while its node runs, so that urgent changes are possible.
    If neither a config nor an address selects a node, and another node is running, this raises an
    error that names the running node. Raises ConfigError, InterlockError.
    """
    target = find_node(config_path, node)
    if target.config_error is None and target.source is not None and node is None:
        return target
    if target.fetch_summary() is not None and (
        node is not None or can_locate_node(target.config_error)
    ):
        if target.config_error is not None:
            print_earlier_config_note(target.config_error)
        return target
    if target.config_error is not None:
        hint = describe_other_nodes(target)
        if hint:
            output.print_note(f"Note: {hint}")
        raise target.config_error
    never_ran = not state_dir(target.config, os.environ, target.base_dir).exists()
    if never_ran if node is not None else describe_other_nodes(target):
        raise not_running_error(target, selected_by_address=node is not None)
    return target


def print_earlier_config_note(error: ConfigError) -> None:
    """Tell the user that the node still uses an earlier config, because the file is invalid."""
    output.print_note(
        f"Note: the config file is invalid; the node uses an earlier version: {error.problems[0]}"
    )


def can_locate_node(problem: ConfigError | None) -> bool:
    """Return whether a config with this error still identifies its node.

    Otherwise the node at the default address can be another one, which must not be changed by
    mistake.
    """
    return problem is None or not any(
        not problem.path
        or problem.path in _LOCATION_KEYS
        or any(f'"{name}"' in problem.hint for name in _LOCATION_KEYS)
        for problem in problem.problems
    )


def unreachable_error(target: TargetNode) -> InterlockError:
    """Create the error for a node that does not respond.

    A config error comes first, because it can be the reason. Other running nodes are then a note.
    """
    hint = describe_other_nodes(target)
    if target.config_error is not None:
        if hint:
            output.print_note(f"Note: {hint}")
        return target.config_error
    return InterlockError(
        UPSTREAM_UNAVAILABLE,
        f"No node is running at {target.config.listen}"
        + (f", but {hint}" if hint else f". Start it: `{target.selector.up_command}`"),
    )


def not_running_error(target: TargetNode, *, selected_by_address: bool = False) -> InterlockError:
    """Create the error for a node that is not running, with the next step.

    Args:
        selected_by_address: True if the user selected the node with --node.
    """
    if target.config_error is not None or describe_other_nodes(target):
        return unreachable_error(target)
    if selected_by_address:
        address = target.config.listen
        message = (
            f"No node of this user is running at {address}. "
            f"Start one there: `interlock up --listen {address}`"
        )
        return InterlockError(UPSTREAM_UNAVAILABLE, message)
    return config_source.no_config_error()


def describe_other_nodes(target: TargetNode) -> str:
    """Return a hint about other running nodes, such as `a node runs at X; use --node X`.

    Empty: no other node is running.
    """
    addresses = [summary.address for _, summary in _running_nodes(os.environ)]
    if not addresses:
        return ""
    if len(addresses) == 1:
        return f"a node runs at {addresses[0]}; use --node {addresses[0]}"
    return f"nodes run at {', '.join(sorted(addresses))}; choose one with --node"


def fetch_status(path: Path) -> bytes | None:
    """Return the status of the node with this MCP socket, as JSON. None: it is not running."""
    return read_socket(status_path(path))


def read_socket(path: Path) -> bytes | None:
    """Connect to a Unix socket of a node and read all data. None: the node is not running."""
    if not is_trusted(path.parent):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        try:
            connection.connect(str(path))
            body = bytearray()
            while data := connection.recv(65536):
                body += data
        except OSError:
            # No socket, or a killed node left its socket behind.
            return None
    return bytes(body) or None


def _find_listen_address(address: str) -> str:
    """Return the address as the running node spells it. Its state folder has that name."""
    host, _, port = address.rpartition(":")
    spellings = [address]
    if host in _LOCAL_HOSTS:
        spellings += [f"{listen}:{port}" for listen in _LOCAL_HOSTS]
    for listen in spellings:
        if os.path.exists(socket_path(Config(listen=listen), os.environ, Path.cwd())):
            return listen
    # The folder of a node whose port was chosen by the system has another name.
    addresses_in_use = (
        listen for listen, summary in _running_nodes(os.environ) if summary.address == address
    )
    return next(addresses_in_use, address)


def _running_nodes(environ: Mapping[str, str]) -> Iterator[tuple[str, NodeSummary]]:
    """Yield every running node of this user with a default state folder: `listen` and status."""
    try:
        names = sorted(os.listdir(state_home(environ)))
    except OSError:
        return
    for name in names:
        listen = _folder_address(name)
        body = fetch_status(socket_path(Config(listen=listen), environ, Path.cwd()))
        if body is not None:
            yield listen, msgspec.json.decode(body, type=NodeSummary)


def _folder_address(folder: str) -> str:
    """Return the address from which the name of a state folder was made."""
    host, _, port = folder.rpartition("-")
    try:
        return f"[{ip_address(host.replace('-', ':'))}]:{port}"
    except ValueError:
        return f"{host}:{port}"
