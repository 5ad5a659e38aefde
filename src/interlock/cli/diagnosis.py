"""Diagnosis of an upstream: a test connection and a list of its tools.

This module returns results; `doctor` prints them. Secrets are removed from all text of an upstream.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from interlock.cli.tool_names import find_unmatched_names, list_known_tools
from interlock.core.call import StartError, UpstreamLostError
from interlock.core.catalog.offering import read_offering
from interlock.core.config import (
    Config,
    ConfigError,
    ServerConfig,
    redact,
    redact_about,
    resolve_server,
)
from interlock.core.config.problems import format_path
from interlock.core.paths import tokens_path
from interlock.core.upstreams.connection import Connector, ConnectorOptions
from interlock.core.upstreams.listing import list_tools
from interlock.core.upstreams.oauth.bearer import BearerRegistry
from interlock.core.upstreams.oauth.token_store import TokenStore
from interlock.core.upstreams.secret_mask import secret_values
from interlock.core.upstreams.session_pool import denied_capabilities
from interlock.core.upstreams.transports.stdio import STDERR_LABEL
from interlock.errors import InterlockError
from interlock.protocol.mcp import RELAYED_CAPABILITIES, remove_capabilities
from interlock.terminal import output
from interlock.terminal.assumed_effects import describe_assumed
from interlock.terminal.feature_reports import Diagnosis, Trial, load_reports
from interlock.terminal.node_client import CLIENT_INFO

_LIST_TIMEOUT_SECONDS: Final = 30.0
_MAX_STDERR_LINES: Final = 8

_INSTALL_HINTS: Final = {
    "npx": "npx comes with Node.js: install Node.js 20 or later",
    "npm": "npm comes with Node.js: install Node.js 20 or later",
    "node": "install Node.js 20 or later",
    "uvx": "uvx comes with uv: install uv (pip install uv)",
    "uv": "install uv (pip install uv)",
    "docker": "install Docker, and start its daemon",
    "python": "on many machines the program is called python3",
    "bunx": "bunx comes with Bun: install Bun",
    "deno": "install Deno",
}
_MISSING_CREDENTIAL: Final = re.compile(
    r"api.?key|token|credential|secret|password|unauthori[sz]ed|environment variable|is not set"
    r"|must be set|is required|missing",
    re.IGNORECASE,
)


async def diagnose(key: str, server: ServerConfig, config: Config, base_dir: Path) -> Diagnosis:
    """Test one upstream, in the same way as a node connects to it."""
    options: ConnectorOptions = {
        "node_info": msgspec.json.encode(CLIENT_INFO),
        "resolve": lambda config: _resolve_server(config, base_dir),
        "secrets": lambda config: secret_values(config, environ=os.environ, base_dir=base_dir),
        "clock": asyncio.get_running_loop().time,
        "bearer": BearerRegistry(TokenStore(tokens_path(config, os.environ, base_dir))).bearer(key),
    }
    with _open_trial(key, server, options) as trial:
        return await _run_trial(key, server, config, base_dir, trial)


def _open_trial(
    key: str, server: ServerConfig, options: ConnectorOptions
) -> AbstractContextManager[Trial]:
    for reports in load_reports():
        trial = reports.open_trial(key, server, options)
        if trial is not None:
            return trial
    return nullcontext(Trial(Connector(key, server, **options)))


async def _run_trial(
    key: str, server: ServerConfig, config: Config, base_dir: Path, trial: Trial
) -> Diagnosis:
    connector = trial.connector
    started_at = time.monotonic()
    try:
        # The tools can depend on the client's capabilities, so declare the same as the node.
        upstream_client = await connector.connect(
            remove_capabilities(RELAYED_CAPABILITIES, denied_capabilities(server))
        )
        try:
            definitions = await list_tools(upstream_client, timeout=_LIST_TIMEOUT_SECONDS)
            registration = trial.registration()
        finally:
            trial.release()
            await upstream_client.close()
    except InterlockError as error:
        stderr_lines = last_stderr_lines(list(connector.stderr))
        return Diagnosis(
            key=key,
            ok=False,
            seconds=time.monotonic() - started_at,
            noise=connector.noise,
            problem=redact_about(key, _without_stderr(_error_message(error), stderr_lines)),
            advice=(
                []
                if isinstance(error, StartError) and error.has_stray_line
                else _noise_advice(connector.noise)
            )
            + suggest_fixes(server, error, stderr_lines, base_dir),
            stderr=stderr_lines,
        )
    offering = read_offering(
        key,
        server,
        definitions,
        root_segment=config.root_segment,
        http=upstream_client.transport.is_http,
        registered=registration,
        unannotated=config.unannotated,
    )
    set_aside = [{"name": tool.name, "reason": tool.reason} for tool in offering.rejected]
    server_info = [str(upstream_client.server_info.get(part, "")) for part in ("name", "version")]
    return Diagnosis(
        key=key,
        ok=True,
        seconds=time.monotonic() - started_at,
        era=upstream_client.era.value,
        revision=upstream_client.revision,
        server=" ".join(server_info).strip(),
        tools=len(offering.tools),
        set_aside=set_aside,
        noise=upstream_client.noise,
        assumed=describe_assumed((key, tool.effect) for tool in offering.tools),
        warnings=[
            f"{format_path(path)}: {message}; {hint}"
            for path, message, hint in find_unmatched_names(
                config, [(key, list_known_tools(offering))]
            )
        ],
        advice=_noise_advice(upstream_client.noise)
        + _filter_advice(server, definitions, offering.tools),
    )


def _without_stderr(message: str, lines: Sequence[str]) -> str:
    """Remove the line of stderr at the end of a message, if `lines` has all of stderr."""
    summary, separator, _ = message.partition(STDERR_LABEL)
    return summary if separator and lines else message


def last_stderr_lines(lines: list[str]) -> list[str]:
    """Return the last lines that a server wrote to stderr, safe to print."""
    lines = [line for line in lines if line.strip()]
    middle = len(lines) // 2
    if middle and lines[:middle] == lines[middle:]:
        # The server was started twice, once per protocol generation, and wrote the same twice.
        lines = lines[middle:]
    return [output.sanitize(redact(line)) for line in lines[-_MAX_STDERR_LINES:]]


def suggest_fixes(
    server: ServerConfig, error: InterlockError, stderr: Sequence[str], base_dir: Path
) -> list[str]:
    """Suggest what a person can do about a failed upstream."""
    if isinstance(error, ConfigError):
        return [problem.hint for problem in error.problems if problem.hint]
    if server.url is not None:
        return _advice_for_url(server, error)
    program = _find_program(server)
    if not _program_exists(program, base_dir):
        name = Path(program).name
        return [_INSTALL_HINTS.get(name, f"install {name}, or write its full path in `command`")]
    if isinstance(error, StartError) and error.has_advice:
        return []
    if isinstance(error, StartError) and error.is_timeout:
        return [
            f"allow more time: start_timeout: {server.start_timeout * 4:g}s",
            "start the server by hand and look at its output: the first start can be a download",
        ]
    if any(_MISSING_CREDENTIAL.search(line) for line in stderr):
        return [
            "a setting or a credential seems to be missing: add it under `env` of this server, "
            "such as env: {NAME: ${env:NAME}}; a server inherits no other variables"
        ]
    return [f"start the server by hand to see more: {redact(shlex.join([program, *server.args]))}"]


def _advice_for_url(server: ServerConfig, error: InterlockError) -> list[str]:
    if isinstance(error, StartError) and error.is_timeout:
        return [f"allow more time: start_timeout: {server.start_timeout * 4:g}s"]
    if not isinstance(error, UpstreamLostError):
        return []
    status = error.status
    if status in (401, 403):
        return ["send a token: headers: {Authorization: Bearer ${env:NAME}}"]
    if status in (404, 405):
        return ["check the path of the URL: many servers use /mcp, older servers use /sse"]
    if status >= 500:
        return ["the server itself fails: look at its log"]
    if not status and not error.was_sent:
        return [f"test the connection: curl -i {redact(server.url or '')}"]
    return []


def _noise_advice(noise: int) -> list[str]:
    if not noise:
        return []
    lines = "1 line that is" if noise == 1 else f"{noise} lines that are"
    return [f"it wrote {lines} not MCP to stdout; write log lines to stderr"]


def _filter_advice(
    server: ServerConfig, definitions: Sequence[object], visible_tools: Sequence[object]
) -> list[str]:
    if definitions and not visible_tools and (server.allow or server.deny):
        return [f"allow and deny remove all of its {len(definitions)} tools; correct them"]
    return []


def _resolve_server(server: ServerConfig, base_dir: Path) -> ServerConfig:
    resolved = resolve_server(server, environ=os.environ, base_dir=base_dir)
    if resolved.command is not None and resolved.cwd is None:
        return msgspec.structs.replace(resolved, cwd=str(base_dir))
    return resolved


def _find_program(server: ServerConfig) -> str:
    command = server.command or ""
    if server.args:
        return command
    try:
        return shlex.split(command)[0]
    except (ValueError, IndexError):
        return command


def _program_exists(program: str, base_dir: Path) -> bool:
    return shutil.which(program) is not None or (base_dir / program).exists()


def _error_message(error: InterlockError) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(problem.message for problem in error.problems)
    return error.message
