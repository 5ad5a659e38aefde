"""What is wrong with an upstream, found by trying it: one connection of its own, one list.

Returns findings; how they are printed is `doctor`'s business. An upstream's own words pass
through redaction before they leave this module.
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

from interlock.cli.tool_names import tools_of, unmatched_names
from interlock.core.call import UpstreamLostError
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
from interlock.core.upstreams.session_pool import denied
from interlock.core.upstreams.transports.stdio import STDERR_SAID
from interlock.errors import InterlockError
from interlock.protocol.mcp import RELAYED_CAPABILITIES, remove_capabilities
from interlock.terminal import output
from interlock.terminal.assumed_effects import describe_assumed
from interlock.terminal.feature_reports import Diagnosis, Trial, load_reports
from interlock.terminal.node_client import CLIENT_INFO

_LIST_WITHIN: Final = 30.0
_STDERR_SHOWN: Final = 8
_STRAY: Final = "stray line"
"""Said already of a server that did not register."""

_HOW_TO_INSTALL: Final = {
    "npx": "npx comes with Node.js: install Node.js 20 or later",
    "npm": "npm comes with Node.js: install Node.js 20 or later",
    "node": "install Node.js 20 or later",
    "uvx": "uvx comes with uv: install uv (pip install uv)",
    "uv": "install uv (pip install uv)",
    "docker": "install Docker, and start its daemon",
    "python": "on many machines it is called python3",
    "bunx": "bunx comes with Bun: install Bun",
    "deno": "install Deno",
}
_MISSING_CREDENTIAL: Final = re.compile(
    r"api.?key|token|credential|secret|password|unauthori[sz]ed|environment variable|is not set"
    r"|must be set|is required|missing",
    re.IGNORECASE,
)


async def diagnose(key: str, server: ServerConfig, config: Config, base_dir: Path) -> Diagnosis:
    """Try one upstream, as a node would."""
    options: ConnectorOptions = {
        "own_info": msgspec.json.encode(CLIENT_INFO),
        "resolve": lambda one: _resolved(one, base_dir),
        "secrets": lambda one: secret_values(one, environ=os.environ, base_dir=base_dir),
        "clock": asyncio.get_running_loop().time,
        "bearer": BearerRegistry(TokenStore(tokens_path(config, os.environ, base_dir))).bearer(key),
    }
    with _trial(key, server, options) as trial:
        return await _tried(key, server, config, base_dir, trial)


def _trial(
    key: str, server: ServerConfig, options: ConnectorOptions
) -> AbstractContextManager[Trial]:
    for reports in load_reports():
        found = reports.trial(key, server, options)
        if found is not None:
            return found
    return nullcontext(Trial(Connector(key, server, **options)))


async def _tried(
    key: str, server: ServerConfig, config: Config, base_dir: Path, trial: Trial
) -> Diagnosis:
    connector = trial.connector
    begun = time.monotonic()
    try:
        # As the node does: what a server lists may depend on what its client can do.
        peer = await connector.connect(remove_capabilities(RELAYED_CAPABILITIES, denied(server)))
        try:
            definitions = await list_tools(peer, timeout=_LIST_WITHIN)
            registered = trial.registered()
        finally:
            trial.release()
            await peer.close()
    except InterlockError as error:
        last = last_words(list(connector.stderr))
        return Diagnosis(
            key=key,
            ok=False,
            seconds=time.monotonic() - begun,
            noise=connector.noise,
            problem=redact_about(key, _without_stderr(_sentence(error), last)),
            advice=([] if _STRAY in error.message else _noise_advice(connector.noise))
            + advice(server, error, last, base_dir),
            stderr=last,
        )
    offering = read_offering(
        key,
        server,
        definitions,
        root_segment=config.root_segment,
        http=peer.link.is_http,
        registered=registered,
        unannotated=config.unannotated,
    )
    set_aside = [{"name": one.name, "reason": one.reason} for one in offering.set_aside]
    about = [str(peer.server_info.get(part, "")) for part in ("name", "version")]
    return Diagnosis(
        key=key,
        ok=True,
        seconds=time.monotonic() - begun,
        era=peer.era.value,
        revision=peer.revision,
        server=" ".join(about).strip(),
        tools=len(offering.tools),
        set_aside=set_aside,
        noise=peer.noise,
        assumed=describe_assumed((key, tool.effect) for tool in offering.tools),
        warnings=[
            f"{format_path(path)}: {message}; {hint}"
            for path, message, hint in unmatched_names(config, [(key, tools_of(offering))])
        ],
        advice=_noise_advice(peer.noise) + _filter_advice(server, definitions, offering.tools),
    )


def _without_stderr(sentence: str, lines: Sequence[str]) -> str:
    """A sentence without the line of stderr that it ends in: `lines` has all of it."""
    what, quotes, _ = sentence.partition(STDERR_SAID)
    return what if quotes and lines else sentence


def last_words(lines: list[str]) -> list[str]:
    """The end of what a server wrote to stderr, for print."""
    lines = [line for line in lines if line.strip()]
    half = len(lines) // 2
    if half and lines[:half] == lines[half:]:
        # It was tried twice, in either era, and said the same twice.
        lines = lines[half:]
    return [output.sanitize(redact(line)) for line in lines[-_STDERR_SHOWN:]]


def advice(
    server: ServerConfig, error: InterlockError, stderr: Sequence[str], base_dir: Path
) -> list[str]:
    """What a person can do about it."""
    if isinstance(error, ConfigError):
        return [problem.hint for problem in error.problems if problem.hint]
    if server.url is not None:
        return _advice_for_url(server, error)
    program = _program(server)
    if not _exists(program, base_dir):
        name = Path(program).name
        return [_HOW_TO_INSTALL.get(name, f"install {name}, or give its whole path in `command`")]
    if "did not register, but speaks MCP" in error.message:
        # What to do is in the sentence.
        return []
    if "did not" in error.message and "within" in error.message:
        return [
            f"give it longer: start_timeout: {server.start_timeout * 4:g}s",
            "start it by hand and see what it waits for: a first start may be downloading",
        ]
    if any(_MISSING_CREDENTIAL.search(line) for line in stderr):
        return [
            "it seems to lack a setting or a credential: name it under `env` of this server, "
            "such as env: {NAME: ${env:NAME}}; a started server inherits nothing else"
        ]
    return [f"start it by hand to see more: {redact(shlex.join([program, *server.args]))}"]


def _advice_for_url(server: ServerConfig, error: InterlockError) -> list[str]:
    status = error.status if isinstance(error, UpstreamLostError) else 0
    if "interlock login" in error.message:
        return []
    if status in (401, 403):
        return ["give it a token: headers: {Authorization: Bearer ${env:NAME}}"]
    if status in (404, 405):
        return ["check the path of the URL: many servers answer at /mcp, older ones at /sse"]
    if status >= 500:
        return ["the server itself fails: look at its own log"]
    if "refused" in error.message or "Cannot connect" in error.message:
        return [f"try to reach it from here: curl -i {redact(server.url or '')}"]
    if "within" in error.message:
        return [f"give it longer: start_timeout: {server.start_timeout * 4:g}s"]
    return []


def _noise_advice(noise: int) -> list[str]:
    if not noise:
        return []
    lines = "1 line that is" if noise == 1 else f"{noise} lines that are"
    return [f"it wrote {lines} not MCP to stdout; its log belongs on stderr"]


def _filter_advice(
    server: ServerConfig, definitions: Sequence[object], shown: Sequence[object]
) -> list[str]:
    if definitions and not shown and (server.allow or server.deny):
        return [f"allow and deny leave none of its {len(definitions)} tools"]
    return []


def _resolved(server: ServerConfig, base_dir: Path) -> ServerConfig:
    resolved = resolve_server(server, environ=os.environ, base_dir=base_dir)
    if resolved.command is not None and resolved.cwd is None:
        return msgspec.structs.replace(resolved, cwd=str(base_dir))
    return resolved


def _program(server: ServerConfig) -> str:
    command = server.command or ""
    if server.args:
        return command
    try:
        return shlex.split(command)[0]
    except (ValueError, IndexError):
        return command


def _exists(program: str, base_dir: Path) -> bool:
    return shutil.which(program) is not None or (base_dir / program).exists()


def _sentence(error: InterlockError) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(problem.message for problem in error.problems)
    return error.message
