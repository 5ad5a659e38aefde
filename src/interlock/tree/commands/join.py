"""`interlock join`: register an unchanged MCP server in the tree of a node."""

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
from interlock.tree.registrant import Registrant, RegistrantState, suggest_fix

# -- The parent of `interlock join`, checked by the same rules as a parent in a config. Errors name
# the option.

_FILES: Final = ("ca", "certificate", "key", "authority_key")
_NEEDS: Final = {"certificate": "key", "key": "certificate", "authority_key": "authority"}


def create_parent_config(
    url: str,
    *,
    segment: str,
    backup: list[str],
    token_env: str | None,
    authority: str | None,
    heartbeat: str,
    files: Mapping[str, Path | None],
) -> ParentConfig:
    """Create the config of the parent from the options, and check all references.

    Raises BadParameter or ConfigError.
    """
    values: dict[str, str | float | list[str] | None] = {
        "segment": segment,
        "backup": backup,
        "authority": authority,
        "heartbeat": read_duration(heartbeat, "--heartbeat", zero=True),
    }
    values |= {field: None if file is None else str(file) for field, file in files.items()}
    for field, required in _NEEDS.items():
        if values.get(field) is not None and values.get(required) is None:
            raise typer.BadParameter(
                f"{_option_name(field)} requires {_option_name(required)}. Add it."
            )
    if token_env is not None:
        values["token"] = _token_reference(token_env)
    for field in _FILES:
        if values.get(field) is not None:
            _check_readable(_option_name(field), str(values[field]))
    if values.get("authority_key") is not None:
        values["authority_key"] = f"${{file:{values['authority_key']}}}"
    parent = _check_parent_section(url, values)
    origins = {field: _option_name(field) for field in (*_FILES, "authority", "heartbeat")}
    origins["token"] = f"--token-env: the environment variable {token_env}"
    # Imported late, because the signature library is slow to import.
    from interlock.tree.registrant import check_credentials

    check_credentials(resolve_parent(parent, environ=os.environ, base_dir=Path.cwd()), origins)
    return parent


def _check_parent_section(url: str, values: Mapping[str, object]) -> ParentConfig:
    settings = {name: value for name, value in values.items() if value not in (None, [])}
    # This node does not listen, so it cannot be its own parent.
    document = {"listen": "127.0.0.1:0", "parent": {"url": url, **settings}}
    try:
        parent = parse_config(msgspec.json.encode(document).decode()).section(ParentConfig)
    except ConfigError as error:
        problem = error.problems[0]
        field = problem.path.removeprefix("parent.").partition("[")[0]
        raise typer.BadParameter(
            f"{_option_name(field)}: {problem.message}; {problem.hint}."
        ) from None
    return parent


def _option_name(field: str) -> str:
    return "PARENT" if field == "url" else f"--{field.replace('_', '-')}"


def _token_reference(name: str) -> str:
    if not re.fullmatch(VARIABLE_PATTERN, name):
        # Do not show the value: it can be the token itself.
        raise typer.BadParameter("--token-env takes the name of an environment variable.")
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
            f"{option}: cannot read the file {path} ({reason})", "make it readable for this user"
        ) from None


# -- The registered server, in the foreground: a node that does not listen and has only this server.
#
# It prints state changes, and deregisters when it stops.


async def stay_joined(name: str, server: ServerConfig, parent: ParentConfig) -> None:
    """Keep a server registered until a signal comes.

    Raises InterlockError if the server does not start, or the parent rejects it permanently.
    """
    log_lines.log_to_stderr(logging.WARNING)
    # The state of the registration and start errors are printed by this command.
    for logger_name in ("interlock.tree", "interlock.node", "interlock.upstreams"):
        logging.getLogger(logger_name).setLevel(logging.ERROR)
    folder = _state_folder(parent)
    config = Config(
        listen="127.0.0.1:0",
        servers={name: replace(server, segment=parent.segment)},
        sections=[SubserversConfig(enabled=False), parent],
        state_dir=str(folder),
    )
    advice = "stop that one first, or choose another --segment"
    with segment_lock(folder / "join.lock", parent.segment, parent.url, advice=advice):
        stop_event = _install_signal_handlers()
        node = Node(config, base_dir=Path.cwd(), leaf=True)
        try:
            output.print_note(output.sanitize(_start_message(name, server)))
            node.start()
            await _run_until(stop_event, _wait_until_ready(node, name))
            if not stop_event.is_set():
                # From now on a failed server is restarted, which is logged.
                logging.getLogger("interlock.upstreams").setLevel(logging.WARNING)
                node.on_settled()
                await _run_until(
                    stop_event,
                    _StatePrinter(node, has_backup=bool(parent.backup)).wait_for_rejection(),
                )
        finally:
            registrant = node.component(Tree).registrant
            was_registered = (
                registrant is not None and registrant.state is RegistrantState.REGISTERED
            )
            await node.stop()
            if was_registered and registrant is not None:
                output.print_note(f"Deregistered from {registrant.url}")


def _start_message(name: str, server: ServerConfig) -> str:
    """Return the message for the start of the server, which can include a download."""
    if server.url is not None:
        return redact_about(name, f"connecting to {name} at {server.url} …")
    return redact_about(
        name, f"starting {name}: {shlex.join([server.command or '', *server.args])} …"
    )


async def _wait_until_ready(node: Node, name: str) -> None:
    """Wait for the server's first list of tools. Raises InterlockError if the server fails."""
    supervisor = node.supervisor(name)
    await supervisor.wait_for_first_attempt()
    if supervisor.state is ServerState.FAILED:
        raise InterlockError(UPSTREAM_UNAVAILABLE, supervisor.problem or f"Cannot reach {name}.")


class _StatePrinter:
    """Prints the state of the registration."""

    def __init__(self, node: Node, *, has_backup: bool) -> None:
        """Create the printer.

        Args:
            has_backup: True if other parents are tried after a rejection.
        """
        registrant = node.component(Tree).registrant
        assert registrant is not None
        self._node = node
        self._has_backup = has_backup
        self._registrant = registrant
        # A permanent rejection ends the command, so that the user can fix it.
        registrant.retries_rejections = False
        self._rejection: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_message = ""

    async def wait_for_rejection(self) -> None:
        """Wait until the parent rejects the server permanently, and raise InterlockError."""
        self._registrant.on_state = self._on_state
        self._on_state(self._registrant)
        await self._rejection

    def _on_state(self, registrant: Registrant) -> None:
        if registrant.state is RegistrantState.REGISTERED:
            tools = len(self._node.catalog.current.tools)
            print(
                f"Registered as {registrant.assigned_segment} at {registrant.url}, "
                f"{format_count(tools, 'tool')}",
                flush=True,
            )
            self._last_message = ""
        problem = registrant.problem
        if problem is None:
            return
        message = output.sanitize(f"{problem.message} {suggest_fix(problem)}".strip())
        if registrant.state is RegistrantState.ENDED and not self._rejection.done():
            full_message = message if registrant.url in message else f"{registrant.url}: {message}"
            self._rejection.set_exception(InterlockError(problem.failure, full_message))
        elif registrant.state is RegistrantState.WAITING and message != self._last_message:
            if not registrant.is_rejected or self._has_backup:
                output.print_note(f"{message} Retrying until Ctrl-C.")
            self._last_message = message


def _state_folder(parent: ParentConfig) -> Path:
    """Return the state folder for a server at a parent. It contains the id of the server there."""
    digest = blake2b(f"{parent.url} {parent.segment}".encode(), digest_size=6).hexdigest()
    return state_home(os.environ) / "join" / f"{parent.segment}-{digest}"


def _install_signal_handlers() -> asyncio.Event:
    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_interrupt() -> None:
        if stop_event.is_set():
            exit_now()
        stop_event.set()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.add_signal_handler(signal.SIGTERM, stop_event.set)
    loop.add_signal_handler(signal.SIGHUP, stop_event.set)
    return stop_event


async def _run_until(stop_event: asyncio.Event, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends or the stop event is set. Raises its error."""
    task = asyncio.ensure_future(coroutine)
    stop_task = asyncio.ensure_future(stop_event.wait())
    try:
        await asyncio.wait({task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stop_task.cancel()
        task.cancel()
        await asyncio.gather(task, stop_task, return_exceptions=True)


def join(
    parent: Annotated[
        str,
        typer.Argument(
            metavar="PARENT",
            help="Address of the node: wss://host/ax, ws://127.0.0.1:8420/ax or "
            "unix:/path/to/ax.sock.",
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
            help="First part of the tool names. Default: guessed from the command or URL.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="TEXT",
            help="Name of the server in log lines and errors. Default: the segment.",
            show_default=False,
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env",
            metavar="VARIABLE",
            help="Environment variable with the token for the node.",
            show_default=False,
        ),
    ] = None,
    backup: Annotated[
        list[str] | None,
        typer.Option(
            "--backup",
            metavar="PARENT",
            help="Use this node if the first one is lost. Can be repeated.",
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
            help="Owner of the segment, a DNS name. Prevents others from using the segment.",
            show_default=False,
        ),
    ] = None,
    authority_key: Annotated[
        Path | None,
        typer.Option(
            "--authority-key",
            metavar="FILE",
            help="Private key (PEM) that proves the authority.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="CA file for the node's certificate.", show_default=False
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="Client certificate (PEM). Its DNS names prove the authority, too.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="Private key of the certificate.", show_default=False
        ),
    ] = None,
    heartbeat: Annotated[
        str,
        typer.Option("--heartbeat", metavar="TIME", help="Interval of heartbeats. 0: none."),
    ] = "5s",
) -> None:
    """Register an MCP server with a node. The server itself needs no change.

    The server stays registered until Ctrl-C. If the node is lost, the connection is retried without
    a limit. If the server ends, it is restarted. Clients of the node see its tools with the
    segment, such as jira.search.

    A node on another machine requires a token. If a tool can change something, it also requires a
    proof that you own the segment: see --token-env, --authority and --authority-key.

    \b
    Examples:
      interlock join ws://127.0.0.1:8420/ax -- npx -y @modelcontextprotocol/server-filesystem .
      interlock join unix:/run/interlock/ax.sock --segment jira --url http://127.0.0.1:9001/mcp
      interlock join wss://node.example.com/ax --token-env NODE_TOKEN \\
        --authority dns:edge01.example.com --authority-key edge01.pem -- ./my-server
    """
    from interlock.terminal.server_options import guess_segment, read_server

    server = read_server(command or [], url, env or [], header or [])
    segment_name = segment or guess_segment(server)
    if not segment_name:
        raise typer.BadParameter("Cannot guess a segment from this. Set one with --segment.")
    settings = create_parent_config(
        parent,
        segment=segment_name,
        backup=list(backup or []),
        token_env=token_env,
        authority=authority,
        heartbeat=heartbeat,
        files={"ca": ca, "certificate": certificate, "key": key, "authority_key": authority_key},
    )
    # Errors of the command line are reported before slow imports.
    from interlock.terminal.event_loop import run

    run(stay_joined(name or segment_name, server, settings))
