"""The nodes of this user that run now: which one is target, where it is, and how it fares.

A node is found by its sockets, which stand in its state folder. One speaks MCP; the other tells how
the node fares, without a token, since only this user can open it.
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

_WITHIN: Final = 5.0
_WHERE_IT_IS: Final = ("listen", "state_dir")
_SAME_MACHINE: Final = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]")

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="ADDR",
        help="The running node at this host:port or port, instead of the config's.",
        show_default=False,
    ),
]


class UpstreamSummary(Struct, frozen=True):
    """What of an upstream's status matters to whoever looks for its tools."""

    key: str
    state: str
    problem: str | None
    segment: str


class NodeSummary(Struct, frozen=True):
    """The same of a node."""

    url: str | None
    upstreams: list[UpstreamSummary]
    topics_url: str | UnsetType | None = UNSET
    """Unset: a node of an earlier version does not say."""
    policy: str = ""
    """The version of its policy."""

    @property
    def address(self) -> str:
        return urlsplit(self.url or "").netloc


class NodeSelector(NamedTuple):
    """How the node was named on the command line. A hint names it in the same way."""

    config: Path | None = None
    node: str | None = None

    @property
    def options(self) -> str:
        """The options to append to a command, with a space in front; empty for the default."""
        given = (("--config", self.config), ("--node", self.node))
        return "".join(f" {name} {shlex.quote(str(value))}" for name, value in given if value)

    def format_command(self, words: str) -> str:
        """A command about the same node, such as `interlock keys admit ID --node 8555`."""
        return f"interlock {words}{self.options}"

    @property
    def up_command(self) -> str:
        """The command that starts the node."""
        return f"interlock up{NodeSelector(self.config).options}"


class TargetNode(Struct, frozen=True):
    """The node that a command is about, whether it runs or not."""

    source: config_source.ConfigSource | None
    config: Config
    base_dir: Path
    socket: Path
    config_error: ConfigError | None = None
    """Why the config as it stands cannot be used. A node may run by what it was before."""
    selector: NodeSelector = NodeSelector()

    def fetch_summary(self) -> NodeSummary | None:
        """How it fares; None when it does not run."""
        told = fetch_status(self.socket)
        return None if told is None else msgspec.json.decode(told, type=NodeSummary)


def find_node(given: Path | None, node: str | None = None) -> TargetNode:
    """The node of the config that is found, or the one at the address that is given.

    Raises ConfigError for a config that is named and is not there: it says nothing of any node.
    """
    source = config_source.find_source_or_none(given)
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
        return TargetNode(source, config, base_dir, path, problem, NodeSelector(given, node))
    config = Config(listen=_as_listened(address))
    path = socket_path(config, os.environ, Path.cwd())
    return TargetNode(None, config, Path.cwd(), path, selector=NodeSelector(given, node))


def find_local_node(given: Path | None, node: str | None = None) -> TargetNode:
    """The node whose files a command reads or changes, whether it runs or not.

    While it runs, a config that has become wrong does not stand in the way: what must be done now
    can be done. Where nothing says which node is target, and one runs elsewhere, that is told.
    Raises ConfigError, InterlockError.
    """
    one = find_node(given, node)
    if one.config_error is None and one.source is not None and node is None:
        return one
    if one.fetch_summary() is not None and (node is not None or can_locate_node(one.config_error)):
        if one.config_error is not None:
            output.print_note(
                f"Note: the node runs by an earlier config: {one.config_error.problems[0]}"
            )
        return one
    if one.config_error is not None:
        hint = describe_other_nodes(one)
        if hint:
            output.print_note(f"Note: {hint}")
        raise one.config_error
    never_ran = not state_dir(one.config, os.environ, one.base_dir).exists()
    if never_ran if node is not None else describe_other_nodes(one):
        raise not_running_error(one, named=node is not None)
    return one


def can_locate_node(problem: ConfigError | None) -> bool:
    """Whether a config with this problem still says which node is its own. Otherwise the one at
    the usual address may be another: nothing is changed there by mistake."""
    return problem is None or not any(
        not one.path
        or one.path in _WHERE_IT_IS
        or any(f'"{name}"' in one.hint for name in _WHERE_IT_IS)
        for one in problem.problems
    )


def unreachable_error(target: TargetNode) -> InterlockError:
    """The error for a node that does not answer. A config that cannot be used comes first: it may
    be the reason, and nodes that run elsewhere are only a note."""
    hint = describe_other_nodes(target)
    if target.config_error is not None:
        if hint:
            output.print_note(f"Note: {hint}")
        return target.config_error
    return InterlockError(
        UPSTREAM_UNAVAILABLE,
        f"no node answers at {target.config.listen}"
        + (f", but {hint}" if hint else f". Start one with: {target.selector.up_command}"),
    )


def not_running_error(target: TargetNode, *, named: bool = False) -> InterlockError:
    """No node answers where one was looked for: what to do instead."""
    if target.config_error is not None or describe_other_nodes(target):
        return unreachable_error(target)
    if named:
        address = target.config.listen
        message = (
            f"no node of this user answers at {address}. "
            f"Start one there with: interlock up --listen {address}"
        )
        return InterlockError(UPSTREAM_UNAVAILABLE, message)
    return config_source.no_config_error()


def describe_other_nodes(target: TargetNode) -> str:
    """`a node runs at X; use --node X`, when one does; else nothing."""
    found = [now.address for _, now in _live(os.environ)]
    if not found:
        return ""
    if len(found) == 1:
        return f"a node runs at {found[0]}; use --node {found[0]}"
    return f"nodes run at {', '.join(sorted(found))}; choose one with --node"


def fetch_status(path: Path) -> bytes | None:
    """The status of the node whose MCP socket is at `path`, as JSON; None when it does not run."""
    return read_socket(status_path(path))


def read_socket(path: Path) -> bytes | None:
    """What a node tells whoever connects to this socket of its own; None when it does not run."""
    if not is_trusted(path.parent):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_WITHIN)
        try:
            connection.connect(str(path))
            told = bytearray()
            while data := connection.recv(65536):
                told += data
        except OSError:
            # Nobody is there, or a killed node left its socket behind.
            return None
    return bytes(told) or None


def _as_listened(address: str) -> str:
    """The address as the node that runs there spells it: its state folder goes by that."""
    host, _, port = address.rpartition(":")
    spellings = [address]
    if host in _SAME_MACHINE:
        spellings += [f"{one}:{port}" for one in _SAME_MACHINE]
    for one in spellings:
        if os.path.exists(socket_path(Config(listen=one), os.environ, Path.cwd())):
            return one
    # One whose port the system chose goes by another name.
    live = (listen for listen, now in _live(os.environ) if now.address == address)
    return next(live, address)


def _live(environ: Mapping[str, str]) -> Iterator[tuple[str, NodeSummary]]:
    """Every node of this user that runs by a state folder in the usual place: `listen`, status."""
    try:
        names = sorted(os.listdir(state_home(environ)))
    except OSError:
        return
    for name in names:
        listen = _address(name)
        told = fetch_status(socket_path(Config(listen=listen), environ, Path.cwd()))
        if told is not None:
            yield listen, msgspec.json.decode(told, type=NodeSummary)


def _address(folder: str) -> str:
    """The address of which a state folder has its name."""
    host, _, port = folder.rpartition("-")
    try:
        return f"[{ip_address(host.replace('-', ':'))}]:{port}"
    except ValueError:
        return f"{host}:{port}"
