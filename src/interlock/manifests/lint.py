"""Cautions about valid manifests: habits that cause trouble later.

Every rule has a code. No rule rejects a manifest; callers that want that use `strict`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.core.config.problems import KeyPath
from interlock.core.config.quantities import Address
from interlock.core.redaction import is_secret_key, is_secret_value
from interlock.manifests.binding import EntryBinding
from interlock.manifests.document import Caution
from interlock.manifests.model import DriverManifest, ServerBlock
from interlock.manifests.placeholders import has_placeholders

Line = Callable[[KeyPath], int]
"""Returns the line of a field. 0: unknown."""

_ABSOLUTE: Final = re.compile(r"(?:.*=)?(?:/|~[/\w]|[A-Za-z]:[\\/])")
_HOME: Final = re.compile(r"(?:/(?:home|Users|root)/|~|[A-Za-z]:[\\/]Users[\\/])")
_TENANT: Final = re.compile(
    r"(?<![a-z])(?:tenant|customer|account|org|organization|user|workspace)[_-]?(?:id|name|key)?"
    r"(?![a-z])",
    re.IGNORECASE,
)
_TENANT_FLAG: Final = re.compile(
    r"--?(?:tenant|customer|account|org|organization|user)[\w-]*", re.IGNORECASE
)
_HARMLESS: Final = frozenset({"", "***", "true", "false", "none", "null"})
_METHODS: Final = ("npm", "pip", "docker", "vendored", "download")


DETECT_PREFIXES: Final = ("exit_code", "http_status", "exception", "header")


def is_loopback(url: str) -> bool:
    try:
        return Address(urlsplit(url).hostname or "", 0).loopback
    except ValueError:
        return False


def _unknown_line(path: KeyPath) -> int:
    return 0


def lint_fields(values: dict[str, Any], file: Path, line: Line = _unknown_line) -> list[Caution]:
    """Check the fields as they are written, also of an invalid manifest."""
    name = str(file)
    found = [
        Caution(name, line((key,)), "discouraged_field", f"{key} is a field that no driver needs")
        for key in ("driver", "concrete")
        if key in values
    ]
    kind, transport, server = values.get("kind"), values.get("transport"), values.get("server")
    if kind != "mcp":
        if "transport" in values:
            sentence = "transport is for drivers of the kind mcp"
            found.append(Caution(name, line(("transport",)), "discouraged_field", sentence))
        return found
    id_, folder = values.get("id"), file.parent.name
    if isinstance(id_, str):
        if folder and folder != id_:
            sentence = f"the folder is {folder}, but the id is {id_}: use the same name for both"
            found.append(Caution(name, line(("id",)), "folder_name", sentence))
        if not id_.endswith("-mcp"):
            sentence = f"by convention the id of an MCP driver ends with -mcp, such as {id_}-mcp"
            found.append(Caution(name, line(("id",)), "id_suffix", sentence))
    server_kind = server.get("kind") if isinstance(server, dict) else None
    local, remote = server_kind in ("binary", "npm", "docker"), server_kind == "remote"
    if remote and transport == "stdio":
        sentence = "a remote server needs http or sse; stdio is for local servers"
        found.append(Caution(name, line(("transport",)), "transport_choice", sentence))
    elif local and transport in ("http", "sse"):
        sentence = f"stdio is recommended for a local server; {transport} is for remote ones"
        found.append(Caution(name, line(("transport",)), "transport_choice", sentence))
    elif remote and transport == "http" and (values.get("prompts") or values.get("resources")):
        sentence = "sse is recommended for a remote server that sends notifications"
        found.append(Caution(name, line(("transport",)), "transport_choice", sentence))
    return found


def lint_driver(driver: DriverManifest, line: Line = _unknown_line) -> list[Caution]:
    """Check one driver by its manifest."""
    file = str(driver.file)
    found = [
        Caution(file, line(path), code, sentence) for path, code, sentence in _driver_rules(driver)
    ]
    return found


def lint_bindings(
    driver: DriverManifest,
    bindings: Sequence[EntryBinding],
    skill_exists: Callable[[DriverManifest, str], bool] | None = None,
    *,
    hooks: Collection[str] | None = None,
    offered: Collection[str] | None = None,
    prompts: Collection[str] | None = None,
    resources: Collection[str] | None = None,
) -> list[Caution]:
    """Check a driver against its contracts, its code and its server.

    Args:
        hooks: the names that its driver.py defines. None: unknown.
        offered: the names of the tools that the server lists. None: unknown.
        prompts: the names of the prompts that the server lists. None: unknown.
        resources: the URI templates that the server lists. None: unknown.
    """
    file = str(driver.file)
    found: list[Caution] = []
    for binding in bindings:
        entry, contract = binding.entry, binding.contract
        wants_context = contract.context_schema is not None and hooks is not None
        if wants_context and not {"build_arguments", "execute"} & set(hooks or ()):
            sentence = (
                f"{contract.id} has a context, but nothing passes it on: "
                "define build_arguments in driver.py"
            )
            found.append(Caution(file, entry.line, "context_unused", sentence))
        if entry.mcp is None:
            sentence = f"{contract.id} has no tool_name, so it cannot be checked against the server"
            if driver.kind == "mcp":
                found.append(Caution(file, entry.line, "tool_name_unchecked", sentence))
        elif offered is not None and entry.mcp.tool_name not in offered:
            sentence = f"the server offers no tool {entry.mcp.tool_name}"
            found.append(Caution(file, entry.line, "tool_name_missing", sentence))
    if hooks is not None and "refresh" not in hooks and driver.auth is not None:
        refresh = driver.auth.refresh
        if refresh is not None and not refresh.cmd and not refresh.url:
            sentence = (
                "auth.refresh has no command and no URL, and driver.py has no refresh: "
                "the sign-in will expire"
            )
            found.append(Caution(file, 0, "refresh_without_hook", sentence))
    for resource in driver.resources:
        if resources is not None and resource.uri_template not in resources:
            sentence = f"the server has no resources {resource.uri_template}"
            found.append(Caution(file, 0, "resource_missing", sentence))
    for prompt in driver.prompts:
        if prompts is not None and prompt.name not in prompts:
            sentence = f"the server has no prompt {prompt.name}"
            found.append(Caution(file, 0, "prompt_missing", sentence))
        if skill_exists is None or not prompt.skill_ref:
            continue
        if not skill_exists(driver, prompt.skill_ref):
            sentence = f"the prompt {prompt.name} names a skill that does not exist"
            found.append(Caution(file, 0, "skill_missing", f"{sentence}: {prompt.skill_ref}"))
    return found


def _driver_rules(driver: DriverManifest) -> Iterator[tuple[KeyPath, str, str]]:
    server = driver.server
    if server is not None:
        yield from _server_rules(driver, server)
    if "*" in driver.egress:
        yield (
            ("network", "egress"),
            "any_egress",
            'egress "*" lets the server reach every host; list the hosts that it needs',
        )
    if driver.auth is not None:
        for sign in driver.auth.expiry_detect:
            if sign.partition(":")[0] not in DETECT_PREFIXES:
                yield (
                    ("auth", "expiry", "detect"),
                    "unknown_sign",
                    f"{sign.partition(':')[0]} is not a supported sign of expiry",
                )
        refresh = driver.auth.refresh
        if refresh is not None and refresh.every is None and (refresh.cmd or refresh.url):
            yield (
                ("auth", "refresh"),
                "refresh_never",
                "auth.refresh has no every, so it only runs after a sign-in has expired",
            )
    for index, step in enumerate(driver.install):
        if step.method not in _METHODS:
            yield (
                ("install", index),
                "install_method",
                f"the install method {step.method} is not supported here and is skipped",
            )
    for index, resource in enumerate(driver.resources):
        if resource.ref_kind_id and not resource.ref_kind_id.startswith("mcp_"):
            yield (
                ("resources", index, "ref_kind_id"),
                "ref_kind_prefix",
                f"kinds of references to MCP resources begin with mcp_; {resource.ref_kind_id} "
                "does not",
            )
    if driver.engine != "subprocess":
        yield (
            ("runner",),
            "runner_engine",
            f"the engine {driver.engine} is not supported: a server is a process",
        )
    for name in ("examples", "metadata"):
        yield from _find_secrets(driver.source.get(name), (name,))
    for index, entry in enumerate(driver.implements):
        if len(entry.metadata) > (entry.mcp is not None):
            yield from _find_secrets(entry.metadata, ("implements", index, "metadata"))


def _server_rules(
    driver: DriverManifest, server: ServerBlock
) -> Iterator[tuple[KeyPath, str, str]]:
    for index, text in enumerate(server.args):
        if _ABSOLUTE.match(text):
            yield (
                ("server", "args", index),
                "hard_coded_path",
                "the path is fixed: it differs on another machine or in another workspace",
            )
        if _TENANT_FLAG.fullmatch(text.partition("=")[0]):
            yield (
                ("server", "args", index),
                "tenant_at_spawn",
                _tenant_sentence(text.partition("=")[0]),
            )
    for name, text in server.env.items():
        if _HOME.match(text):
            yield (
                ("server", "env", name),
                "hard_coded_path",
                f"the path in {name} is fixed: it differs on another machine",
            )
        if _TENANT.fullmatch(name):
            yield ("server", "env", name), "tenant_at_spawn", _tenant_sentence(name)
        elif not has_placeholders(text) and _is_literal_secret(name, text):
            yield (
                ("server", "env", name),
                "literal_secret",
                f"{name} looks like a secret in the file; write ${{secrets.NAME}}",
            )
    if server.path and _HOME.match(server.path):
        yield ("server", "path"), "hard_coded_path", "the program is in a user's home folder"
    if server.kind == "remote":
        if server.url.startswith("http://") and not is_loopback(server.url):
            yield (
                ("server", "url"),
                "remote_without_tls",
                "http:// is not encrypted; use https://",
            )
        if driver.install:
            yield ("install",), "install_of_remote", "nothing is installed for a remote server"


def _tenant_sentence(name: str) -> str:
    return (
        f"{name} is fixed when the server starts, and all callers share it; pass the caller in the "
        "arguments of each call"
    )


def _is_literal_secret(name: str, text: str) -> bool:
    if text.lower() in _HARMLESS or _ABSOLUTE.match(text):
        return False
    return is_secret_value(text) or (is_secret_key(name) and len(text) >= 8)


def _find_secrets(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _find_secrets(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _find_secrets(inner, (*path, index))
    elif isinstance(value, str):
        key = path[-1] if isinstance(path[-1], str) else ""
        if _is_literal_secret(key, value):
            yield path, "secret_in_text", "this looks like a secret; keep secrets out of manifests"
