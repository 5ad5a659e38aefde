"""The strict reader of DRIVER.md. It returns a `DriverManifest`, or all problems at once.

The fields of AIP-30 are checked first, then those of AIP-32. Unknown keys at the top level cause
only a caution, because other kinds of drivers have keys of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.core.config.problems import (
    ConfigError,
    InvalidValueError,
    KeyPath,
    Problem,
    join_alternatives,
    quote,
)
from interlock.manifests import lint, placeholders, schemas
from interlock.manifests.document import (
    Caution,
    ManifestDocument,
    ReadResult,
    file_problem,
    read_document,
    read_source,
    sort_problems,
)
from interlock.manifests.fields import FieldFault, build
from interlock.manifests.model import (
    MCP_FIELDS,
    SERVER_FIELDS,
    DriverManifest,
    ImplementedContract,
    InstallStep,
    McpBinding,
)
from interlock.manifests.paths import find_inside
from interlock.manifests.ranges import check_range
from interlock.manifests.schemas import DRIVER, MCP, explain, nearest
from interlock.protocol.mcp import REVISIONS

# -- Translation of deprecated fields of MCP drivers: `server_ref` (the path of a server.json) and
# `mcp_tools` (maps a tool of the server to its contract). Fields of AIP-32 take precedence.

DEPRECATED: Final = ("server_ref", "mcp_tools", "mcp_tool_name", "prompts_ref")
"""Fields that published texts about drivers mention, and no schema has."""

ReadText = Callable[[str], str]
"""Returns the text of a file that a manifest names. Raises InvalidValueError."""


def translate(
    document: ManifestDocument, read_text: ReadText | None
) -> tuple[list[Problem], list[Caution]]:
    """Replace deprecated fields with the fields of AIP-32, in the document itself."""
    problems: list[Problem] = []
    cautions: list[Caution] = []
    values = document.value
    if "server_ref" in values:
        cautions.append(_deprecated(document, "server_ref", "server"))
        if "server" not in values:
            problems += _server_ref(document, read_text)
    if "mcp_tools" in values:
        cautions.append(_deprecated(document, "mcp_tools", "implements[].metadata.mcp.tool_name"))
        problems += _mcp_tools(document)
    for name in ("mcp_tool_name", "prompts_ref"):
        if name in values:
            replacement = "implements[].metadata.mcp.tool_name" if "tool" in name else "prompts"
            cautions.append(
                Caution(
                    document.file,
                    document.line((name,)),
                    "unknown_field",
                    f"{name} is not a field of a driver and is ignored; use {replacement}",
                )
            )
    return problems, cautions


def _deprecated(document: ManifestDocument, old: str, new: str) -> Caution:
    return Caution(
        document.file, document.line((old,)), "deprecated_field", f"{old} is deprecated; use {new}"
    )


def _server_ref(document: ManifestDocument, read_text: ReadText | None) -> list[Problem]:
    path = document.value["server_ref"]
    field = ("server_ref",)
    if not isinstance(path, str) or not path:
        return [document.problem(field, "expected the path of a server.json", "use server instead")]
    if read_text is None:
        return [
            document.problem(
                field, "files cannot be read here", "write the fields of server instead"
            )
        ]
    try:
        block = read_server_config(msgspec.json.decode(read_text(path)))
    except InvalidValueError as bad:
        return [document.problem(field, bad.message, bad.hint)]
    except (msgspec.DecodeError, RecursionError):
        return [document.problem(field, "the file is not JSON", "use server instead")]
    document.value = {**document.value, "server": block}
    document.source_keys["server"] = "server_ref"
    return []


def read_server_config(config: Any) -> dict[str, Any]:
    """Return the server block of a server.json, which has the format of AIP-32 or of an MCP client.

    Raises InvalidValueError.
    """
    if isinstance(config, dict):
        if isinstance(config.get("mcpServers"), dict) and len(config["mcpServers"]) == 1:
            (config,) = config["mcpServers"].values()
        if isinstance(config, dict):
            if "kind" in config:
                return config
            if isinstance(config.get("url"), str):
                return {"kind": "remote", "url": config["url"]}
            if isinstance(config.get("command"), str):
                return _command_server(config)
    raise InvalidValueError(
        "the file names no server", "add kind, command or url to it, or use server instead"
    )


def _command_server(config: dict[str, Any]) -> dict[str, Any]:
    args = config.get("args", [])
    block: dict[str, Any] = {"kind": "binary", "path": config["command"], "args": args}
    if PurePosixPath(config["command"]).name == "npx" and isinstance(args, list):
        words = [word for word in args if word not in ("-y", "--yes")]
        if words and isinstance(words[0], str):
            block = {"kind": "npm", "package": words[0], "args": words[1:]}
    if "env" in config:
        block["env"] = config["env"]
    return block


def _mcp_tools(document: ManifestDocument) -> list[Problem]:
    tools, entries = document.value["mcp_tools"], document.value.get("implements")
    if not isinstance(tools, dict) or not all(isinstance(tool, str) for tool in tools.values()):
        return [
            document.problem(
                ("mcp_tools",), "expected a mapping of tool names to contract ids",
                "use implements[].metadata.mcp.tool_name",
            )
        ]  # fmt: skip
    if not isinstance(entries, list):
        return []
    by_contract = {contract: tool for tool, contract in tools.items()}
    translated: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("tool"), str):
            metadata = entry.get("metadata", {})
            tool = by_contract.get(_contract_id(entry["tool"]))
            if tool is not None and isinstance(metadata, dict) and "mcp" not in metadata:
                entry = {**entry, "metadata": {**metadata, "mcp": {"tool_name": tool}}}
        translated.append(entry)
    document.value = {**document.value, "implements": translated}
    return []


def _contract_id(tool: str) -> str:
    """Return the contract id that a path suggests by its folder: `tools/fs-read/TOOL.md`."""
    path = PurePosixPath(tool)
    return path.parent.name if path.suffix == ".md" else tool


# -- Checks that a JSON Schema cannot express: AIP-30 first, then AIP-32.

TRANSPORTS: Final = {
    "binary": ("stdio",),
    "npm": ("stdio",),
    "docker": ("stdio", "http", "sse"),
    "remote": ("sse", "http"),
}
"""The transports of each kind of server."""

_SIGN_PATTERNS: Final = {
    "exit_code": re.compile(r"[0-9]{1,3}"),
    "http_status": re.compile(r"[1-5][0-9]{2}"),
    "exception": re.compile(r"[A-Za-z_][\w.]*"),
    "header": re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:.+"),
}
_MAX_PATTERN_LENGTH: Final = 500


def check_universal_fields(document: ManifestDocument) -> list[Problem]:
    """Check the fields of AIP-30: version ranges, patterns, signs of expiry, health checks."""
    values = document.value
    problems: list[Problem] = []
    tools: set[str] = set()
    for index, entry in enumerate(values["implements"]):
        _check_range(document, ("implements", index, "version"), entry["version"], problems)
        if entry["tool"] in tools:
            problems.append(
                document.problem(
                    ("implements", index, "tool"),
                    f"{quote(entry['tool'])} is implemented twice",
                    "keep one of the two entries",
                )
            )
        tools.add(entry["tool"])
    if "version_check" in values:
        check = values["version_check"]
        _check_range(document, ("version_check", "range"), check["range"], problems)
        _check_pattern(document, check["parse"], problems)
    if "auth" in values:
        problems += _check_auth(document, values["auth"])
    if "health_check" in values:
        check = values["health_check"]
        needed = {"exec": "cmd", "http": "http"}.get(check["method"])
        if needed and not check.get(needed):
            problems.append(
                document.problem(
                    ("health_check",), f"method {check['method']} needs {needed}", f"add {needed}"
                )
            )
    return problems


def check_mcp_fields(
    document: ManifestDocument, *, has_code: bool, plain_http: bool
) -> list[Problem]:
    """Check the fields of AIP-32: server, transport, bindings of entries, prompts, resources."""
    values = document.value
    problems = _check_server(document, values["server"], values["transport"], plain_http=plain_http)
    # The fields of AIP-30 may be invalid.
    entries = values.get("implements")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not has_code and "tool" in entry and "mcp" not in entry.get("metadata", {}):
            problems.append(
                document.problem(
                    ("implements", index),
                    f"{quote(str(entry['tool']))} has no metadata.mcp, and no driver.py serves it",
                    "add metadata.mcp.tool_name: the name of the server's tool",
                )
            )
    if "protocol_version" in values and not find_revision(values["protocol_version"]):
        problems.append(
            document.problem(
                ("protocol_version",),
                f"{quote(values['protocol_version'])} is not a revision of MCP",
                f"write {join_alternatives(list(REVISIONS))}, or a prefix of one",
            )
        )
    for index, prompt in enumerate(values.get("prompts", ())):
        if prompt["integrate_as"] == "skill_block" and not prompt.get("skill_ref"):
            problems.append(
                document.problem(
                    ("prompts", index), "skill_block needs skill_ref", "add the path of a SKILL.md"
                )
            )
    for index, resource in enumerate(values.get("resources", ())):
        if resource["integrate_as"] == "ref_kind" and not resource.get("ref_kind_id"):
            problems.append(
                document.problem(
                    ("resources", index),
                    "ref_kind needs ref_kind_id",
                    "add a name such as mcp_filesystem",
                )
            )
    return problems


def check_secrets(document: ManifestDocument) -> list[Problem]:
    """Check that placeholders are in allowed fields and name listed secrets (AIP-19)."""
    values = document.value
    listed = _nested_block(values, "auth", "state").get("env") or ()
    problems: list[Problem] = []
    for path, text in find_texts("${", values if document.may_have_placeholders else None):
        if not placeholders.has_placeholders(text):
            continue
        if path[:2] not in (("server", "env"), ("server", "auth")):
            problems.append(
                document.problem(
                    path,
                    "a secret is not allowed here, because other programs can read it",
                    "use ${secrets.NAME} in server.env or server.auth; write ${ itself as $${",
                )
            )
            continue
        try:
            names = placeholders.find_secret_names(text)
        except InvalidValueError as bad:
            problems.append(document.problem(path, bad.message, bad.hint))
            continue
        problems += [
            document.problem(
                path, f"the secret {name} is not listed", f"add {name} to auth.state.env"
            )
            for name in names
            if name not in listed
        ]
    secret = _nested_block(values, "server", "auth").get("secret")
    if isinstance(secret, str) and "$" not in secret and secret not in listed:
        problems.append(
            document.problem(
                ("server", "auth", "secret"),
                f"the secret {secret} is not listed",
                f"add {secret} to auth.state.env",
            )
        )
    return problems


def find_revision(prefix: str) -> str:
    """Return the newest revision of MCP with a prefix. Empty: there is none."""
    return next((revision for revision in REVISIONS if revision.startswith(prefix)), "")


def _check_server(
    document: ManifestDocument, server: dict[str, Any], transport: str, *, plain_http: bool
) -> list[Problem]:
    kind = server["kind"]
    problems: list[Problem] = []
    if transport not in TRANSPORTS[kind]:
        problems.append(
            document.problem(
                ("transport",),
                f"a {kind} server does not support the transport {transport}",
                f"write {join_alternatives(TRANSPORTS[kind])}",
            )
        )
    elif kind == "docker" and transport != "stdio" and "port" not in server:
        problems.append(
            document.problem(
                ("server",), f"a docker server with the transport {transport} needs port",
                "add the port on which the image listens",
            )
        )  # fmt: skip
    if "auth" in server and kind != "remote":
        problems.append(
            document.problem(
                ("server", "auth"),
                "auth is only for remote servers",
                "pass the secret in server.env",
            )
        )
    if kind == "remote":
        problems += _check_url(document, server["url"], plain_http=plain_http)
    return problems


def _check_url(document: ManifestDocument, url: str, *, plain_http: bool) -> list[Problem]:
    path = ("server", "url")
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
        broken = not parts.hostname or any(ch.isspace() for ch in url)
    except ValueError:
        return [document.problem(path, "this is not a URL", "write https://host/path")]
    if broken:
        return [document.problem(path, "this is not a URL", "write https://host/path")]
    if parts.username is not None or parts.password is not None:
        return [
            document.problem(
                path, "credentials are not allowed in a URL", "name the secret in server.auth"
            )
        ]
    if parts.scheme == "http" and not plain_http and not lint.is_loopback(url):
        return [
            document.problem(
                path,
                "http:// to another machine is not encrypted",
                f"write https://{parts.netloc}{parts.path}",
            )
        ]
    return []


def _check_auth(document: ManifestDocument, auth: dict[str, Any]) -> Iterator[Problem]:
    detect = auth.get("expiry", {}).get("detect", ())
    for sign in (detect,) if isinstance(detect, str) else detect:
        prefix, _, rest = sign.partition(":")
        pattern = _SIGN_PATTERNS.get(prefix)
        if pattern is not None and not pattern.fullmatch(rest):
            yield document.problem(
                ("auth", "expiry", "detect"),
                f"{quote(sign)} is not a valid sign of expiry",
                "write exit_code:4, http_status:401, exception:Name or header:NAME:VALUE",
            )
    completes = auth.get("login", {}).get("completes_when")
    if completes is not None and bool(completes.get("cmd")) == ("http" in completes):
        yield document.problem(
            ("auth", "login", "completes_when"),
            "a login completes by a command or by an HTTP request, not by both or neither",
            "write either cmd or http",
        )


def _nested_block(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return a nested block. Empty: there is none."""
    block: Any = values
    for key in keys:
        block = block.get(key) if isinstance(block, dict) else None
    return block if isinstance(block, dict) else {}


def _check_range(
    document: ManifestDocument, path: KeyPath, text: str, problems: list[Problem]
) -> None:
    try:
        check_range(text)
    except InvalidValueError as bad:
        problems.append(document.problem(path, bad.message, bad.hint))


def _check_pattern(document: ManifestDocument, text: str, problems: list[Problem]) -> None:
    path = ("version_check", "parse")
    try:
        groups = re.compile(text).groups if len(text) <= _MAX_PATTERN_LENGTH else -1
    except (re.error, RecursionError, OverflowError):
        groups = -1
    if groups < 1:
        message = (
            "this is not a supported regular expression" if groups else "the pattern has no group"
        )
        problems.append(
            document.problem(path, message, r"put the version in parentheses, such as v(\S+)")
        )


def find_texts(part: str, value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield every text in a value that contains `part`, with its path."""
    if isinstance(value, str):
        if part in value:
            yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find_texts(part, inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from find_texts(part, inner, (*path, index))


# -- reading

CODE_FILE: Final = "driver.py"
MANIFEST_FILE: Final = "DRIVER.md"

_UNIVERSAL_KEYS: Final = frozenset(DRIVER["properties"])
_MCP_KEYS: Final = frozenset(MCP["properties"])
# Synonyms of other kinds of drivers, and keys of published files.
_TOLERATED_KEYS: Final = frozenset({"spec", "driver_kind", *DEPRECATED})
_KNOWN_KEYS: Final = _UNIVERSAL_KEYS | _MCP_KEYS | _TOLERATED_KEYS
_DISCOURAGED_KEYS: Final = frozenset({"driver", "concrete"})
_DEFAULT_FILE: Final = Path(MANIFEST_FILE)


def read_driver(
    source: Path | str,
    *,
    file: Path | None = None,
    root: Path | None = None,
    has_code: bool | None = None,
    plain_http: bool = False,
    cautions: list[Caution] | None = None,
) -> DriverManifest:
    """Read the driver of a file or a text. Raises ManifestError with all problems.

    Args:
        file: the path of the manifest, if `source` is a text.
        root: the folder of the workspace. None: the folder of the driver.
        has_code: whether a driver.py may serve entries that the manifest does not bind. None: that
            depends on whether the file exists.
        plain_http: whether the URL of a remote server may be unencrypted.
        cautions: receives the cautions.
    """
    if isinstance(source, str):
        result = parse_driver(
            source,
            file or _DEFAULT_FILE,
            root=root,
            has_code=bool(has_code),
            plain_http=plain_http,
        )
    else:
        result = load_driver(source, root=root, has_code=has_code, plain_http=plain_http)
    return result.unwrap(cautions)


def load_driver(
    path: Path,
    *,
    root: Path | None = None,
    has_code: bool | None = None,
    plain_http: bool = False,
    follow: bool = True,
) -> ReadResult[DriverManifest]:
    """Read the driver of a file, with problems and cautions."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    if has_code is None:
        has_code = os.path.exists(os.path.join(os.path.dirname(path), CODE_FILE))
    return parse_driver(
        source.text,
        path,
        root=root,
        has_code=has_code,
        plain_http=plain_http,
        digest=source.digest,
    )


def parse_driver(
    text: str,
    file: Path,
    *,
    root: Path | None = None,
    has_code: bool = False,
    plain_http: bool = False,
    digest: str = "",
) -> ReadResult[DriverManifest]:
    """Read the driver of a text, with problems and cautions."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return read_driver_fields(
        document, file, root=root, has_code=has_code, plain_http=plain_http, digest=digest
    )


def read_driver_fields(
    document: ManifestDocument,
    file: Path,
    *,
    root: Path | None = None,
    has_code: bool = False,
    plain_http: bool = False,
    digest: str = "",
) -> ReadResult[DriverManifest]:
    """Read the driver of a document, with problems and cautions."""
    problems: list[Problem] = []
    cautions: list[Caution] = []
    values = document.value
    keys = values.keys()
    if not keys <= _UNIVERSAL_KEYS | _MCP_KEYS:
        if values.get("kind") == "mcp" and not keys.isdisjoint(DEPRECATED):
            home = root if root is not None else file.parent

            def read_text(path: str) -> str:
                try:
                    return read_source(find_inside(path, file.parent, home)).text
                except ConfigError as error:
                    raise InvalidValueError(
                        error.problems[0].message, error.problems[0].hint
                    ) from None

            problems, cautions = translate(document, read_text)
            values = document.value
        cautions += _unknown_keys(document)
    cautions += lint.lint_fields(values, file, document.line)
    if problems or not schemas.validator("whole-driver").is_valid(values):
        problems = _explain_problems(document, problems, has_code=has_code, plain_http=plain_http)
        return ReadResult(problems=problems, cautions=cautions)
    is_mcp = values["kind"] == "mcp"
    universal_problems = check_universal_fields(document)
    mcp_problems: list[Problem] = []
    if is_mcp:
        mcp_problems = check_mcp_fields(document, has_code=has_code, plain_http=plain_http)
        mcp_problems += check_secrets(document)
        cautions += _unknown_server_keys(document, values["server"])
    manifest, faults = build_driver(
        values,
        file,
        lines=tuple(
            document.line(("implements", index)) for index in range(len(values["implements"]))
        ),
        digest=digest,
    )
    universal_problems += [
        document.problem(path, error.message, error.hint) for path, error in faults
    ]
    if universal_problems or mcp_problems:
        all_problems = sort_problems(universal_problems, mcp_problems)
        return ReadResult(problems=all_problems, cautions=cautions)
    cautions += lint.lint_driver(manifest, document.line)
    return ReadResult(manifest, cautions=cautions)


def _explain_problems(
    document: ManifestDocument, problems: list[Problem], *, has_code: bool, plain_http: bool
) -> list[Problem]:
    """Return all problems of an invalid driver. A part that is valid by its schema gets further
    checks."""
    universal_problems = explain(document, "driver") or check_universal_fields(document)
    mcp_problems: list[Problem] = []
    # A driver with a server and without a kind is probably an MCP driver.
    if document.value.get("kind", "mcp" if "server" in document.value else "") == "mcp":
        mcp_problems = explain(document, "mcp") or check_mcp_fields(
            document, has_code=has_code, plain_http=plain_http
        )
        mcp_problems += check_secrets(document)
        reported = {(problem.path, problem.message) for problem in universal_problems}
        if "server_ref" in document.value:
            reported.add(("", "server is missing"))
        mcp_problems = [
            problem for problem in mcp_problems if (problem.path, problem.message) not in reported
        ]
    all_problems = sort_problems(universal_problems, problems + mcp_problems)
    return all_problems or [
        file_problem(document.file, "this is not a driver", "see AIP-30 and AIP-32")
    ]


def build_driver(
    values: dict[str, Any], file: Path, *, lines: tuple[int, ...], digest: str
) -> tuple[DriverManifest, list[FieldFault]]:
    """Build a manifest from valid values. Return it with the errors of conversions."""
    faults: list[FieldFault] = []
    is_mcp = values["kind"] == "mcp"
    requested = values.get("protocol_version", "") if is_mcp else ""
    manifest = build(
        DriverManifest,
        values,
        faults,
        skip=() if is_mcp else MCP_FIELDS,
        file=file,
        implements=tuple(
            build(
                ImplementedContract,
                entry,
                faults,
                ("implements", index),
                line=line,
                mcp=_binding(entry) if is_mcp else None,
            )
            for index, (entry, line) in enumerate(zip(values["implements"], lines, strict=True))
        ),
        install=tuple(
            InstallStep(step["method"], {key: step[key] for key in step if key != "method"})
            for step in values.get("install", ())
        ),
        protocol_version=find_revision(requested) if requested else "",
        source=values,
        digest=digest,
    )
    return manifest, faults


def _binding(entry: dict[str, Any]) -> McpBinding | None:
    binding = entry.get("metadata", {}).get("mcp")
    return McpBinding(**binding) if binding else None


def _unknown_keys(document: ManifestDocument) -> list[Caution]:
    """Return cautions about unknown keys. In drivers of other kinds, only typos are reported."""
    values = document.value
    is_mcp = values.get("kind") == "mcp"
    cautions = []
    for key in values:
        if key in _KNOWN_KEYS or key in _DISCOURAGED_KEYS:
            continue
        similar_key = nearest(key, _UNIVERSAL_KEYS | _MCP_KEYS)
        if similar_key in values:
            similar_key = ""
        if is_mcp or similar_key:
            advice = f'; did you mean "{similar_key}"?' if similar_key else ""
            cautions.append(
                Caution(
                    document.file,
                    document.line((key,)),
                    "unknown_field",
                    f"{key} is not a field of a driver and is ignored{advice}",
                )
            )
    return cautions


def _unknown_server_keys(document: ManifestDocument, server: dict[str, Any]) -> list[Caution]:
    server_keys = SERVER_FIELDS[server["kind"]]
    cautions = []
    for key in server:
        if key in server_keys or key in ("kind", "auth"):
            continue
        similar_key = nearest(key, server_keys)
        is_typo = similar_key and similar_key not in server
        advice = f'; did you mean "{similar_key}"?' if is_typo else ""
        cautions.append(
            Caution(
                document.file,
                document.line(("server", key)),
                "unknown_field",
                f"server.{key} is not a field of a {server['kind']} server and is ignored{advice}",
            )
        )
    return cautions
