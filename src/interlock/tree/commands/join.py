"""`interlock join`: put an MCP server, as it is, into the tree of a node."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
from collections.abc import Coroutine, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from msgspec.structs import replace

from interlock.app.node import Node
from interlock.core.config import Config, ConfigError, ServerConfig, parse_config, redact_about
from interlock.core.config.quantities import VARIABLE_PATTERN
from interlock.core.instance_lock import segment_lock
from interlock.core.paths import state_home
from interlock.core.upstreams.supervisor import State as ServerState
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.text import format_count
from interlock.terminal import log_lines, output
from interlock.terminal.forced_exit import exit_now
from interlock.terminal.options import read_duration
from interlock.terminal.server_options import CommandArgument, EnvOption, HeaderOption, UrlOption
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig, SubserversConfig, resolve_parent
from interlock.tree.registrant import Registrant, RegistrantState, advice

# -- The node that `interlock join` is given, held to the same rules as one in a config. Whatever
# is wrong is told by the option that it came from.

_FILES: Final = ("ca", "certificate", "key", "authority_key")
_NEEDS: Final = {"certificate": "key", "key": "certificate", "authority_key": "authority"}


def parent_of(
    url: str,
    *,
    segment: str,
    backup: list[str],
    token_env: str | None,
    authority: str | None,
    heartbeat: str,
    files: Mapping[str, Path | None],
) -> ParentConfig:
    """With references, none of which leads nowhere. Raises BadParameter or ConfigError."""
    given: dict[str, str | float | list[str] | None] = {
        "segment": segment,
        "backup": backup,
        "authority": authority,
        "heartbeat": read_duration(heartbeat, "--heartbeat", zero=True),
    }
    given |= {field: None if file is None else str(file) for field, file in files.items()}
    for field, needed in _NEEDS.items():
        if given.get(field) is not None and given.get(needed) is None:
            raise typer.BadParameter(
                f"{_option(field)} is nothing without {_option(needed)}: give that too."
            )
    if token_env is not None:
        given["token"] = _variable(token_env)
    for field in _FILES:
        if given.get(field) is not None:
            _check_readable(_option(field), str(given[field]))
    if given.get("authority_key") is not None:
        given["authority_key"] = f"${{file:{given['authority_key']}}}"
    parent = _checked(url, given)
    origins = {field: _option(field) for field in (*_FILES, "authority", "heartbeat")}
    origins["token"] = f"--token-env: the environment variable {token_env}"
    # Not before: what signs proofs is slow to import.
    from interlock.tree.registrant import check_presented

    check_presented(resolve_parent(parent, environ=os.environ, base_dir=Path.cwd()), origins)
    return parent


def _checked(url: str, given: Mapping[str, object]) -> ParentConfig:
    settings = {name: value for name, value in given.items() if value not in (None, [])}
    # It listens nowhere, so no parent can be itself.
    document = {"listen": "127.0.0.1:0", "parent": {"url": url, **settings}}
    try:
        parent = parse_config(msgspec.json.encode(document).decode()).section(ParentConfig)
    except ConfigError as error:
        first = error.problems[0]
        where = first.path.removeprefix("parent.").partition("[")[0]
        raise typer.BadParameter(f"{_option(where)}: {first.message}; {first.hint}.") from None
    return parent


def _option(field: str) -> str:
    return "PARENT" if field == "url" else f"--{field.replace('_', '-')}"


def _variable(name: str) -> str:
    if not re.fullmatch(VARIABLE_PATTERN, name):
        # Not shown: somebody may have put the token itself there.
        raise typer.BadParameter("--token-env wants the name of an environment variable.")
    if name not in os.environ:
        raise ConfigError.of(
            f"--token-env: the environment variable {name} is not set",
            f"set the environment variable {name} to the token",
        )
    return f"${{env:{name}}}"


def _check_readable(option: str, path: str) -> None:
    try:
        with Path(path).expanduser().open("rb"):
            return
    except FileNotFoundError:
        raise ConfigError.of(
            f"{option}: the file {path} does not exist", "correct the path"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError.of(
            f"{option}: the file {path} cannot be read ({reason})", "make it readable for this user"
        ) from None


# -- A server in somebody else's tree, in the foreground: a node without a door that stands for
# it.
#
# It says when it is registered and when it is not, and ends when told to, with a goodbye.


async def stay_joined(name: str, server: ServerConfig, parent: ParentConfig) -> None:
    """Keep a server registered until a signal comes. Raises InterlockError when it cannot be
    started, or is not wanted."""
    log_lines.log_to_stderr(logging.WARNING)
    # How it stands with the parent is told in words of our own; and why the server cannot be
    # started, which is the end.
    for name_of_log in ("interlock.tree", "interlock.node", "interlock.upstreams"):
        logging.getLogger(name_of_log).setLevel(logging.ERROR)
    folder = _folder(parent)
    config = Config(
        listen="127.0.0.1:0",
        servers={name: replace(server, segment=parent.segment)},
        sections=[SubserversConfig(enabled=False), parent],
        state_dir=str(folder),
    )
    otherwise = "end that one first, or choose another --segment"
    with segment_lock(folder / "join.lock", parent.segment, parent.url, advice=otherwise):
        stopping = _heed_signals()
        node = Node(config, base_dir=Path.cwd(), leaf=True)
        try:
            output.print_note(output.sanitize(_begins(name, server)))
            node.start()
            await _first_of(stopping, _until_ready(node, name))
            if not stopping.is_set():
                # From now on it is started again when it fails, and somebody may want to know.
                logging.getLogger("interlock.upstreams").setLevel(logging.WARNING)
                node.settled()
                await _first_of(
                    stopping, _Telling(node, backed=bool(parent.backup)).until_refused()
                )
        finally:
            registrant = node.component(Tree).registrant
            left = registrant is not None and registrant.state is RegistrantState.REGISTERED
            await node.stop()
            if left and registrant is not None:
                output.print_note(f"left {registrant.url}")


def _begins(name: str, server: ServerConfig) -> str:
    """What is waited for until the server is ready; an npx or uvx may download it first."""
    if server.url is not None:
        return redact_about(name, f"connecting to {name} at {server.url} …")
    return redact_about(
        name, f"starting {name}: {shlex.join([server.command or '', *server.args])} …"
    )


async def _until_ready(node: Node, name: str) -> None:
    """Wait for the server's first list. Raises InterlockError when there is none to be had."""
    supervisor = node.supervisor(name)
    await supervisor.wait_for_first_attempt()
    if supervisor.state is ServerState.FAILED:
        raise InterlockError(
            UPSTREAM_UNAVAILABLE, supervisor.problem or f"{name} cannot be reached."
        )


class _Telling:
    """Tells a person how it stands with the parent."""

    def __init__(self, node: Node, *, backed: bool) -> None:
        """`backed`: there are other parents to be tried before a refusal is the end."""
        registrant = node.component(Tree).registrant
        assert registrant is not None
        self._node = node
        self._backed = backed
        self._registrant = registrant
        # A person or a script is there to hear of it, and can do something about it.
        registrant.stubborn = False
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told = ""

    async def until_refused(self) -> None:
        """Raises InterlockError when the parent does not want it, at first or any more."""
        self._registrant.on_state = self._moved
        self._moved(self._registrant)
        await self._refused

    def _moved(self, registrant: Registrant) -> None:
        if registrant.state is RegistrantState.REGISTERED:
            tools = len(self._node.catalog.current.tools)
            print(
                f"registered as {registrant.assigned_segment} at {registrant.url}; "
                f"{format_count(tools, 'tool')}",
                flush=True,
            )
            self._told = ""
        problem = registrant.problem
        if problem is None:
            return
        said = output.sanitize(f"{problem.message} {advice(problem)}".strip())
        if registrant.state is RegistrantState.ENDED and not self._refused.done():
            whole = said if registrant.url in said else f"{registrant.url}: {said}"
            self._refused.set_exception(InterlockError(problem.failure, whole))
        elif registrant.state is RegistrantState.WAITING and said != self._told:
            if not registrant.refused or self._backed:
                output.print_note(f"{said} Trying again until Ctrl-C.")
            self._told = said


def _folder(parent: ParentConfig) -> Path:
    """The state folder of a server at a parent: its id there is kept in it."""
    place = blake2b(f"{parent.url} {parent.segment}".encode(), digest_size=6).hexdigest()
    return state_home(os.environ) / "join" / f"{parent.segment}-{place}"


def _heed_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stopping.is_set():
            exit_now()
        stopping.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, stopping.set)
    return stopping


async def _first_of(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Until the work is done or has failed, or somebody wants it to end."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopped.cancel()
        working.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


def join(
    parent: Annotated[
        str,
        typer.Argument(
            metavar="PARENT",
            help="The node: wss://host/ax, ws://127.0.0.1:8420/ax or unix:/path/to/ax.sock.",
            show_default=False,
        ),
    ],
    command: CommandArgument = None,
    url: UrlOption = None,
    segment: Annotated[
        str | None,
        typer.Option(
            "--segment",
            "-s",
            metavar="NAME",
            help="What its tools' names begin with. Default: made from the command or URL.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="TEXT",
            help="What it is called here, in the log and in errors. Default: the segment.",
            show_default=False,
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env",
            metavar="VARIABLE",
            help="The variable that holds the token which the node wants to see.",
            show_default=False,
        ),
    ] = None,
    backup: Annotated[
        list[str] | None,
        typer.Option(
            "--backup",
            metavar="PARENT",
            help="Another node, for when the first is lost. May be repeated.",
            show_default=False,
        ),
    ] = None,
    env: EnvOption = None,
    header: HeaderOption = None,
    authority: Annotated[
        str | None,
        typer.Option(
            "--authority",
            metavar="dns:NAME",
            help="Who owns the segment: a DNS name. It keeps others from taking it.",
            show_default=False,
        ),
    ] = None,
    authority_key: Annotated[
        Path | None,
        typer.Option(
            "--authority-key",
            metavar="FILE",
            help="The private key (PEM) that proves the authority.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="The CA of the node's certificate.", show_default=False
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="A client certificate (PEM); its names prove the authority too.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="The certificate's private key.", show_default=False
        ),
    ] = None,
    heartbeat: Annotated[
        str,
        typer.Option("--heartbeat", metavar="TIME", help="How often it says that it is alive."),
    ] = "5s",
) -> None:
    """Put an MCP server into the tree of a node. The server need not know.

    It stays there until Ctrl-C. When the node is lost it is looked for again, for ever; a server
    that ends is started again. The node's clients see its tools behind the segment: jira.search.

    A node that listens beyond its own machine wants a token, and for tools that change something a
    proof of who owns the segment: see --token-env, --authority and --authority-key.

    \b
    Examples:
      interlock join ws://127.0.0.1:8420/ax -- npx -y @modelcontextprotocol/server-filesystem .
      interlock join unix:/run/interlock/ax.sock --segment jira --url http://127.0.0.1:9001/mcp
      interlock join wss://node.example.com/ax --token-env NODE_TOKEN \\
        --authority dns:edge01.example.com --authority-key edge01.pem -- ./my-server
    """
    from interlock.terminal.server_options import guess_segment, read_server

    server = read_server(command or [], url, env or [], header or [])
    called = segment or guess_segment(server)
    if not called:
        raise typer.BadParameter("no segment can be made from this: give one with --segment.")
    settings = parent_of(
        parent,
        segment=called,
        backup=list(backup or []),
        token_env=token_env,
        authority=authority,
        heartbeat=heartbeat,
        files={"ca": ca, "certificate": certificate, "key": key, "authority_key": authority_key},
    )
    # A mistake on the command line is told before anything slow is imported.
    from interlock.terminal.event_loop import run

    run(stay_joined(name or called, server, settings))
