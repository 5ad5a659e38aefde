"""A DRIVER.md to a `DriverManifest`, strictly, or everything that is wrong with it at once.

AIP-30's fields are checked first, then AIP-32's. Unknown keys at the top level are tolerated, since
other kinds of drivers have their own, but they are mentioned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from interlock.core.config.problems import BadValue, ConfigError, KeyPath, Problem
from interlock.manifests import lint, schemas
from interlock.manifests.document import Document, read_document
from interlock.manifests.driver import (
    Auth,
    Completion,
    ConnectionOptions,
    Cost,
    DeclaredPrompt,
    DeclaredResource,
    DriverManifest,
    HealthCheck,
    HttpProbe,
    Implements,
    InstallStep,
    Login,
    MappedFrom,
    McpBinding,
    Refresh,
    RemoteAuth,
    Requires,
    Retry,
    ServerBlock,
    VersionCheck,
)
from interlock.manifests.driver_checks import mcp_checks, revision, secret_checks, universal_checks
from interlock.manifests.findings import Caution, Reading, in_order, whole_file
from interlock.manifests.front_matter import read_source
from interlock.manifests.paths import find_inside
from interlock.manifests.schema_errors import explain, nearest
from interlock.manifests.schemas import DRIVER, MCP, SERVER_FIELDS
from interlock.primitives.durations import ISO_DURATION_HINT, SECONDS, parse_duration

_MOST_SECONDS: Final = 10 * SECONDS["y"]

# -- Deprecated fields of MCP drivers, translated: `server_ref` (a path to a server.json) and
# `mcp_tools` (the server's tool → contract). The fields of AIP-32 win where both are there.

DEPRECATED: Final = ("server_ref", "mcp_tools", "mcp_tool_name", "prompts_ref")
"""Names that texts about drivers use, and no schema has."""

ReadText = Callable[[str], str]
"""The text of a file that a manifest names. Raises BadValue."""


def translate(
    document: Document, read_text: ReadText | None
) -> tuple[list[Problem], list[Caution]]:
    """Puts the fields of AIP-32 in place of deprecated ones, in the document itself."""
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
            instead = "implements[].metadata.mcp.tool_name" if "tool" in name else "prompts"
            cautions.append(
                Caution(
                    document.file,
                    document.line((name,)),
                    "unknown_field",
                    f"{name} means nothing here; use {instead}",
                )
            )
    return problems, cautions


def _deprecated(document: Document, old: str, new: str) -> Caution:
    return Caution(
        document.file, document.line((old,)), "deprecated_field", f"{old} is deprecated; use {new}"
    )


def _server_ref(document: Document, read_text: ReadText | None) -> list[Problem]:
    path = document.value["server_ref"]
    where = ("server_ref",)
    if not isinstance(path, str) or not path:
        return [document.problem(where, "expected the path of a server.json", "use server instead")]
    if read_text is None:
        return [
            document.problem(where, "no file can be read from here", "write the fields of server")
        ]
    try:
        block = server_of(msgspec.json.decode(read_text(path)))
    except BadValue as bad:
        return [document.problem(where, bad.message, bad.hint)]
    except (msgspec.DecodeError, RecursionError):
        return [document.problem(where, "the file is not JSON", "use server instead")]
    document.value = {**document.value, "server": block}
    document.moved["server"] = "server_ref"
    return []


def server_of(config: Any) -> dict[str, Any]:
    """The server block that a server.json stands for: our own, or a client's. Raises BadValue."""
    if isinstance(config, dict):
        if isinstance(config.get("mcpServers"), dict) and len(config["mcpServers"]) == 1:
            (config,) = config["mcpServers"].values()
        if isinstance(config, dict):
            if "kind" in config:
                return config
            if isinstance(config.get("url"), str):
                return {"kind": "remote", "url": config["url"]}
            if isinstance(config.get("command"), str):
                return _from_command(config)
    raise BadValue(
        "the file names no server", "write kind, command or url into it, or use server instead"
    )


def _from_command(config: dict[str, Any]) -> dict[str, Any]:
    args = config.get("args", [])
    block: dict[str, Any] = {"kind": "binary", "path": config["command"], "args": args}
    if PurePosixPath(config["command"]).name == "npx" and isinstance(args, list):
        words = [word for word in args if word not in ("-y", "--yes")]
        if words and isinstance(words[0], str):
            block = {"kind": "npm", "package": words[0], "args": words[1:]}
    if "env" in config:
        block["env"] = config["env"]
    return block


def _mcp_tools(document: Document) -> list[Problem]:
    tools, entries = document.value["mcp_tools"], document.value.get("implements")
    if not isinstance(tools, dict) or not all(isinstance(one, str) for one in tools.values()):
        return [
            document.problem(
                ("mcp_tools",), "expected names of tools with the contract of each",
                "use implements[].metadata.mcp.tool_name",
            )
        ]  # fmt: skip
    if not isinstance(entries, list):
        return []
    by_contract = {contract: tool for tool, contract in tools.items()}
    served: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("tool"), str):
            metadata = entry.get("metadata", {})
            tool = by_contract.get(_contract_of(entry["tool"]))
            if tool is not None and isinstance(metadata, dict) and "mcp" not in metadata:
                entry = {**entry, "metadata": {**metadata, "mcp": {"tool_name": tool}}}
        served.append(entry)
    document.value = {**document.value, "implements": served}
    return []


def _contract_of(tool: str) -> str:
    """The contract's id that a path stands for, as folders are named: `tools/fs-read/TOOL.md`."""
    path = PurePosixPath(tool)
    return path.parent.name if path.suffix == ".md" else tool


# -- A DRIVER.md that both schemas accept, as structs. Durations and placeholders are read on the
# way; what is wrong with them comes back as problems, because only the reader knows where they
# stand.

Fault = tuple[KeyPath, BadValue]
"""Where, and what is wrong."""

_NOTHING: Final[dict[str, Any]] = {}
_NO_CONNECTION_OPTIONS: Final = ConnectionOptions()
_ANY_MACHINE: Final = Requires()


def build_driver(
    values: dict[str, Any],
    file: Path,
    *,
    protocol_version: str,
    lines: tuple[int, ...],
    digest: str,
) -> tuple[DriverManifest, list[Fault]]:
    """The manifest of values that are valid, and what only shows when they are taken apart."""
    faults: list[Fault] = []
    is_mcp = values["kind"] == "mcp"
    get = values.get
    manifest = DriverManifest(
        file=file,
        id=values["id"],
        name=values["name"],
        description=values["description"],
        version=values["version"],
        kind=values["kind"],
        implements=tuple(
            _implements(entry, line, mcp=is_mcp)
            for entry, line in zip(values["implements"], lines, strict=True)
        ),
        server=_server(values["server"]) if is_mcp else None,
        transport=values["transport"] if is_mcp else "stdio",
        protocol_version=protocol_version,
        prompts=tuple(_prompt(one) for one in get("prompts", ())) if is_mcp else (),
        resources=tuple(_resource(one) for one in get("resources", ())) if is_mcp else (),
        connection=_connection(get("connection_options")) if is_mcp else _NO_CONNECTION_OPTIONS,
        auth=_auth(values["auth"], faults) if "auth" in values else None,
        install=tuple(
            InstallStep(one["method"], {key: one[key] for key in one if key != "method"})
            for one in get("install", ())
        ),
        version_check=VersionCheck(**values["version_check"])
        if "version_check" in values
        else None,
        health_check=_health(values["health_check"], faults) if "health_check" in values else None,
        egress=tuple(get("network", _NOTHING).get("egress", ())),
        region=tuple(values["region"]) if "region" in values else ("global",),
        policy_tags=tuple(get("policy_tags", ())),
        tags=tuple(get("tags", ())),
        requires=_requires(values["requires"]) if "requires" in values else _ANY_MACHINE,
        cost=_cost(get("cost_override")),
        timeout_override_ms=get("timeout_override_ms"),
        retry=_retry(get("retry_override")),
        metadata=get("metadata", {}),
        runner=get("runner", {}),
        source=values,
        digest=digest,
    )
    return manifest, faults


def _implements(entry: dict[str, Any], line: int, *, mcp: bool) -> Implements:
    get = entry.get
    metadata = get("metadata", _NOTHING)
    narrowing = get("schema_narrowing", _NOTHING)
    binding = metadata.get("mcp") if mcp else None
    mapping = get("mapping")
    return Implements(
        tool=entry["tool"],
        version=entry["version"],
        line=line,
        drop_inputs=tuple(narrowing.get("drop_inputs", ())),
        drop_outputs=tuple(narrowing.get("drop_outputs", ())),
        mapping={key: _mapped(value) for key, value in mapping.items()} if mapping else {},
        cost=_cost(get("cost_override")),
        timeout_override_ms=get("timeout_override_ms"),
        retry=_retry(get("retry_override")),
        mcp=McpBinding(**binding) if binding else None,
        metadata=metadata if metadata is not _NOTHING else {},
    )


def _mapped(value: str | dict[str, str]) -> str | MappedFrom:
    if isinstance(value, str):
        return value
    return MappedFrom(value["from"], value.get("transform", ""))


def _server(block: dict[str, Any]) -> ServerBlock:
    get = block.get
    auth = get("auth")
    return ServerBlock(
        kind=block["kind"],
        path=get("path", ""),
        package=get("package", ""),
        image=get("image", ""),
        url=get("url", ""),
        args=tuple(get("args", ())),
        env=get("env", {}),
        auth=_remote_auth(auth) if auth else None,
        port=get("port"),
    )


def _remote_auth(auth: dict[str, str]) -> RemoteAuth:
    secret = auth["secret"].removeprefix("${secrets.").removesuffix("}")
    return RemoteAuth(
        type="bearer" if auth["type"] == "bearer" else "header",
        secret=secret,
        header=auth.get("header", "Authorization"),
    )


def _prompt(one: dict[str, Any]) -> DeclaredPrompt:
    return DeclaredPrompt(**one)


def _resource(one: dict[str, Any]) -> DeclaredResource:
    return DeclaredResource(**one)


def _connection(options: dict[str, Any] | None) -> ConnectionOptions:
    return ConnectionOptions(**options) if options else _NO_CONNECTION_OPTIONS


def _auth(auth: dict[str, Any], faults: list[Fault]) -> Auth:
    state = auth.get("state", _NOTHING)
    detect = auth.get("expiry", _NOTHING).get("detect", ())
    return Auth(
        ref=auth.get("ref", ""),
        state_paths=tuple(state.get("paths", ())),
        state_env=tuple(state.get("env", ())),
        login=_login(auth["login"]) if "login" in auth else None,
        refresh=_refresh(auth["refresh"], faults) if "refresh" in auth else None,
        expiry_detect=(detect,) if isinstance(detect, str) else tuple(detect),
    )


def _login(login: dict[str, Any]) -> Login:
    completes = login.get("completes_when")
    return Login(
        cmd=login.get("cmd", ""),
        url=login.get("url", ""),
        interactive=login.get("interactive", False),
        requires_callback_url=login.get("requires_callback_url", False),
        completes_when=_completion(completes) if completes is not None else None,
    )


def _completion(completes: dict[str, Any]) -> Completion:
    http = completes.get("http")
    return Completion(
        cmd=completes.get("cmd", ""),
        exit_code=completes.get("exit_code", 0),
        http=HttpProbe(**http) if http else None,
    )


def _refresh(refresh: dict[str, Any], faults: list[Fault]) -> Refresh:
    every = _seconds(refresh.get("every"), ("auth", "refresh", "every"), faults)
    return Refresh(cmd=refresh.get("cmd", ""), url=refresh.get("url", ""), every=every)


def _health(check: dict[str, Any], faults: list[Fault]) -> HealthCheck:
    http = check.get("http")
    every = _seconds(check.get("every"), ("health_check", "every"), faults)
    return HealthCheck(
        method=check["method"],
        cmd=check.get("cmd", ""),
        http=HttpProbe(**http) if http else None,
        expect_exit=check.get("expect_exit", 0),
        every=every if every is not None else 300.0,
        timeout_ms=check.get("timeout_ms", 5000),
    )


def _seconds(text: str | None, path: KeyPath, faults: list[Fault]) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text, iso=True, most=_MOST_SECONDS)
    except ValueError as wrong:
        faults.append((path, BadValue(str(wrong), ISO_DURATION_HINT)))
        return None


def _requires(block: dict[str, Any]) -> Requires:
    return Requires(
        os=tuple(block.get("os", ())),
        arch=tuple(block.get("arch", ())),
        min_disk_mb=block.get("min_disk_mb", 0),
        min_memory_mb=block.get("min_memory_mb", 0),
    )


def _cost(block: dict[str, Any] | None) -> Cost | None:
    if block is None:
        return None
    return Cost(
        cost_class=block.get("cost_class"),
        units_per_call=block.get("cost_units_per_call"),
        currency=block.get("currency", ""),
    )


def _retry(block: dict[str, Any] | None) -> Retry | None:
    return Retry(**block) if block is not None else None


CODE_FILE: Final = "driver.py"
MANIFEST_FILE: Final = "DRIVER.md"

_UNIVERSAL: Final = frozenset(DRIVER["properties"])
_OF_MCP: Final = frozenset(MCP["properties"])
# Other kinds' words for the same, and keys that published files carry.
_QUIET: Final = frozenset({"spec", "driver_kind", *DEPRECATED})
_KNOWN: Final = _UNIVERSAL | _OF_MCP | _QUIET
_DISCOURAGED: Final = frozenset({"driver", "concrete"})
_UNNAMED: Final = Path(MANIFEST_FILE)


def read_driver(
    source: Path | str,
    *,
    file: Path | None = None,
    root: Path | None = None,
    has_code: bool | None = None,
    plain_http: bool = False,
    cautions: list[Caution] | None = None,
) -> DriverManifest:
    """The driver in a file, or in a text. Raises ManifestError with all problems.

    `root` is the workspace's folder (the driver's own when it is not given), `has_code` whether a
    driver.py may serve what the manifest does not bind. Cautions are added to the list given.
    """
    if isinstance(source, str):
        reading = parse_driver(
            source,
            file or _UNNAMED,
            root=root,
            has_code=bool(has_code),
            plain_http=plain_http,
        )
    else:
        reading = load_driver(source, root=root, has_code=has_code, plain_http=plain_http)
    return reading.unwrap(cautions)


def load_driver(
    path: Path,
    *,
    root: Path | None = None,
    has_code: bool | None = None,
    plain_http: bool = False,
    follow: bool = True,
) -> Reading[DriverManifest]:
    """The driver in a file, and what was found on the way."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return Reading(problems=error.problems)
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
) -> Reading[DriverManifest]:
    """The driver in a text, and what was found on the way."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return Reading(problems=error.problems)
    return read_fields(
        document, file, root=root, has_code=has_code, plain_http=plain_http, digest=digest
    )


def read_fields(
    document: Document,
    file: Path,
    *,
    root: Path | None = None,
    has_code: bool = False,
    plain_http: bool = False,
    digest: str = "",
) -> Reading[DriverManifest]:
    """The driver in a document, and what was found on the way."""
    problems: list[Problem] = []
    cautions: list[Caution] = []
    values = document.value
    keys = values.keys()
    if not keys <= _UNIVERSAL | _OF_MCP:
        if values.get("kind") == "mcp" and not keys.isdisjoint(DEPRECATED):
            home = root if root is not None else file.parent

            def read_text(path: str) -> str:
                try:
                    return read_source(find_inside(path, file.parent, home)).text
                except ConfigError as error:
                    raise BadValue(error.problems[0].message, error.problems[0].hint) from None

            problems, cautions = translate(document, read_text)
            values = document.value
        cautions += _unknown_keys(document)
    cautions += lint.lint_fields(values, file, document.line)
    if problems or not schemas.validator("whole-driver").is_valid(values):
        found = _explained(document, problems, has_code=has_code, plain_http=plain_http)
        return Reading(problems=found, cautions=cautions)
    is_mcp = values["kind"] == "mcp"
    universal = universal_checks(document)
    own: list[Problem] = []
    if is_mcp:
        own = mcp_checks(document, has_code=has_code, plain_http=plain_http)
        own += secret_checks(document)
        cautions += _unknown_server_keys(document, values["server"])
    asked = values.get("protocol_version", "") if is_mcp else ""
    manifest, faults = build_driver(
        values,
        file,
        protocol_version=revision(asked) if asked else "",
        lines=tuple(
            document.line(("implements", index)) for index in range(len(values["implements"]))
        ),
        digest=digest,
    )
    universal += [document.problem(path, bad.message, bad.hint) for path, bad in faults]
    if universal or own:
        return Reading(problems=in_order(universal, own), cautions=cautions)
    cautions += lint.lint_driver(manifest, document.line)
    return Reading(manifest, cautions=cautions)


def _explained(
    document: Document, problems: list[Problem], *, has_code: bool, plain_http: bool
) -> list[Problem]:
    """Everything that is wrong. What the schemas have nothing against is looked at further."""
    universal = explain(document, "driver") or universal_checks(document)
    own: list[Problem] = []
    # Who says nothing of the kind, but much of a server, means an MCP driver.
    if document.value.get("kind", "mcp" if "server" in document.value else "") == "mcp":
        own = explain(document, "mcp") or mcp_checks(
            document, has_code=has_code, plain_http=plain_http
        )
        own += secret_checks(document)
        said = {(problem.path, problem.message) for problem in universal}
        if "server_ref" in document.value:
            said.add(("", "server is missing"))
        own = [problem for problem in own if (problem.path, problem.message) not in said]
    found = in_order(universal, problems + own)
    return found or [whole_file(document.file, "this is not a driver", "see AIP-30 and AIP-32")]


def _unknown_keys(document: Document) -> list[Caution]:
    """Keys that mean nothing here. Other kinds have their own, so of those only slips are told."""
    values = document.value
    is_mcp = values.get("kind") == "mcp"
    cautions = []
    for key in values:
        if key in _KNOWN or key in _DISCOURAGED:
            continue
        meant = nearest(key, _UNIVERSAL | _OF_MCP)
        if meant in values:
            meant = ""
        if is_mcp or meant:
            advice = f'; did you mean "{meant}"?' if meant else ""
            cautions.append(
                Caution(
                    document.file,
                    document.line((key,)),
                    "unknown_field",
                    f"{key} is not a field of a driver and is ignored{advice}",
                )
            )
    return cautions


def _unknown_server_keys(document: Document, server: dict[str, Any]) -> list[Caution]:
    known = SERVER_FIELDS[server["kind"]]
    cautions = []
    for key in server:
        if key in known or key in ("kind", "auth"):
            continue
        meant = nearest(key, known)
        advice = f'; did you mean "{meant}"?' if meant and meant not in server else ""
        cautions.append(
            Caution(
                document.file,
                document.line(("server", key)),
                "unknown_field",
                f"server.{key} means nothing to a {server['kind']} server and is ignored{advice}",
            )
        )
    return cautions
