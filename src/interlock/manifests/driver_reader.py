"""A DRIVER.md to a `DriverManifest`, strictly, or everything that is wrong with it at once.

AIP-30's fields are checked first, then AIP-32's. Unknown keys at the top level are tolerated, since
other kinds of drivers have their own, but they are mentioned.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.core.config.problems import BadValue, ConfigError, KeyPath, Problem, one_of, quoted
from interlock.manifests import lint, placeholders, schemas
from interlock.manifests.document import (
    Caution,
    ManifestDocument,
    ReadResult,
    in_order,
    read_document,
    read_source,
    whole_file,
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

# -- Deprecated fields of MCP drivers, translated: `server_ref` (a path to a server.json) and
# `mcp_tools` (the server's tool → contract). The fields of AIP-32 win where both are there.

DEPRECATED: Final = ("server_ref", "mcp_tools", "mcp_tool_name", "prompts_ref")
"""Names that texts about drivers use, and no schema has."""

ReadText = Callable[[str], str]
"""The text of a file that a manifest names. Raises BadValue."""


def translate(
    document: ManifestDocument, read_text: ReadText | None
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


def _deprecated(document: ManifestDocument, old: str, new: str) -> Caution:
    return Caution(
        document.file, document.line((old,)), "deprecated_field", f"{old} is deprecated; use {new}"
    )


def _server_ref(document: ManifestDocument, read_text: ReadText | None) -> list[Problem]:
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


def _mcp_tools(document: ManifestDocument) -> list[Problem]:
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


# -- What must hold beyond the shape of the fields: AIP-30 first, then AIP-32.

TRANSPORTS: Final = {
    "binary": ("stdio",),
    "npm": ("stdio",),
    "docker": ("stdio", "http", "sse"),
    "remote": ("sse", "http"),
}
"""Which transports a kind of server can be spoken to over."""

_DETECTABLE: Final = {
    "exit_code": re.compile(r"[0-9]{1,3}"),
    "http_status": re.compile(r"[1-5][0-9]{2}"),
    "exception": re.compile(r"[A-Za-z_][\w.]*"),
    "header": re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:.+"),
}
_SAFE_PARSE: Final = 500


def universal_checks(document: ManifestDocument) -> list[Problem]:
    """AIP-30: ranges, patterns, signs of expiry, probes."""
    values = document.value
    problems: list[Problem] = []
    tools: set[str] = set()
    for index, entry in enumerate(values["implements"]):
        _range(document, ("implements", index, "version"), entry["version"], problems)
        if entry["tool"] in tools:
            problems.append(
                document.problem(
                    ("implements", index, "tool"),
                    f"{quoted(entry['tool'])} is implemented twice",
                    "keep one of the two entries",
                )
            )
        tools.add(entry["tool"])
    if "version_check" in values:
        check = values["version_check"]
        _range(document, ("version_check", "range"), check["range"], problems)
        _pattern(document, check["parse"], problems)
    if "auth" in values:
        problems += _auth(document, values["auth"])
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


def mcp_checks(document: ManifestDocument, *, has_code: bool, plain_http: bool) -> list[Problem]:
    """AIP-32: server and transport, the binding of every entry, prompts, resources, secrets."""
    values = document.value
    problems = _server(document, values["server"], values["transport"], plain_http=plain_http)
    # The rest of the driver may be wrong when this is asked.
    entries = values.get("implements")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if not has_code and "tool" in entry and "mcp" not in entry.get("metadata", {}):
            problems.append(
                document.problem(
                    ("implements", index),
                    f"{quoted(str(entry['tool']))} has no metadata.mcp, and no code serves it",
                    "add metadata.mcp.tool_name: the name of the server's tool",
                )
            )
    if "protocol_version" in values and not revision(values["protocol_version"]):
        problems.append(
            document.problem(
                ("protocol_version",),
                f"{quoted(values['protocol_version'])} is no revision of MCP",
                f"write {one_of(list(REVISIONS))}, or the start of one",
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


def secret_checks(document: ManifestDocument) -> list[Problem]:
    """AIP-19: placeholders stand where secrets may stand, and speak of secrets that are listed."""
    values = document.value
    listed = _inner(values, "auth", "state").get("env") or ()
    problems: list[Problem] = []
    for path, text in texts_with("${", values if document.with_placeholders else None):
        if not placeholders.has_placeholders(text):
            continue
        if path[:2] not in (("server", "env"), ("server", "auth")):
            problems.append(
                document.problem(
                    path,
                    "a secret must not stand here, where others can see it",
                    "use ${secrets.NAME} in server.env or server.auth; $${ writes ${ itself",
                )
            )
            continue
        try:
            names = placeholders.find_secret_names(text)
        except BadValue as bad:
            problems.append(document.problem(path, bad.message, bad.hint))
            continue
        problems += [
            document.problem(
                path, f"the secret {name} is not listed", f"add {name} to auth.state.env"
            )
            for name in names
            if name not in listed
        ]
    secret = _inner(values, "server", "auth").get("secret")
    if isinstance(secret, str) and "$" not in secret and secret not in listed:
        problems.append(
            document.problem(
                ("server", "auth", "secret"),
                f"the secret {secret} is not listed",
                f"add {secret} to auth.state.env",
            )
        )
    return problems


def revision(text: str) -> str:
    """The newest revision of MCP that starts with a text, or an empty text."""
    return next((known for known in REVISIONS if known.startswith(text)), "")


def _server(
    document: ManifestDocument, server: dict[str, Any], transport: str, *, plain_http: bool
) -> list[Problem]:
    kind = server["kind"]
    problems: list[Problem] = []
    if transport not in TRANSPORTS[kind]:
        problems.append(
            document.problem(
                ("transport",),
                f"a {kind} server cannot be spoken to over {transport}",
                f"write {one_of(TRANSPORTS[kind])}",
            )
        )
    elif kind == "docker" and transport != "stdio" and "port" not in server:
        problems.append(
            document.problem(
                ("server",), f"a docker server over {transport} needs port",
                "add the port that the image listens on",
            )
        )  # fmt: skip
    if "auth" in server and kind != "remote":
        problems.append(
            document.problem(
                ("server", "auth"),
                "only a remote server is shown who calls this way",
                "pass the secret in server.env",
            )
        )
    if kind == "remote":
        problems += _url(document, server["url"], plain_http=plain_http)
    return problems


def _url(document: ManifestDocument, url: str, *, plain_http: bool) -> list[Problem]:
    path = ("server", "url")
    try:
        parts = urlsplit(url)
        _ = parts.port  # looked at only when it is asked for
        broken = not parts.hostname or any(ch.isspace() for ch in url)
    except ValueError:
        return [document.problem(path, "this is not a URL", "write https://host/path")]
    if broken:
        return [document.problem(path, "this is not a URL", "write https://host/path")]
    if parts.username is not None or parts.password is not None:
        return [
            document.problem(
                path, "credentials must not stand in a URL", "name the secret in server.auth"
            )
        ]
    if parts.scheme == "http" and not plain_http and not lint.is_loopback(url):
        return [
            document.problem(
                path,
                "everybody on the way could read what goes to another machine over http://",
                f"write https://{parts.netloc}{parts.path}",
            )
        ]
    return []


def _auth(document: ManifestDocument, auth: dict[str, Any]) -> Iterator[Problem]:
    detect = auth.get("expiry", {}).get("detect", ())
    for sign in (detect,) if isinstance(detect, str) else detect:
        prefix, _, rest = sign.partition(":")
        pattern = _DETECTABLE.get(prefix)
        if pattern is not None and not pattern.fullmatch(rest):
            yield document.problem(
                ("auth", "expiry", "detect"),
                f"{quoted(sign)} does not say what to look for",
                "write exit_code:4, http_status:401, exception:Name or header:NAME:VALUE",
            )
    completes = auth.get("login", {}).get("completes_when")
    if completes is not None and bool(completes.get("cmd")) == ("http" in completes):
        yield document.problem(
            ("auth", "login", "completes_when"),
            "a login completes by a command or by an answer over HTTP",
            "write either cmd or http",
        )


def _inner(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A block below others, empty where there is none."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _range(document: ManifestDocument, path: KeyPath, text: str, problems: list[Problem]) -> None:
    try:
        check_range(text)
    except BadValue as bad:
        problems.append(document.problem(path, bad.message, bad.hint))


def _pattern(document: ManifestDocument, text: str, problems: list[Problem]) -> None:
    path = ("version_check", "parse")
    try:
        groups = re.compile(text).groups if len(text) <= _SAFE_PARSE else -1
    except (re.error, RecursionError, OverflowError):
        groups = -1
    if groups < 1:
        wrong = "this is not a regular expression" if groups else "nothing is captured here"
        problems.append(
            document.problem(path, wrong, r"put the version in brackets, such as v(\S+)")
        )


def texts_with(part: str, value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Every text below a value that has `part` in it, and where it stands."""
    if isinstance(value, str):
        if part in value:
            yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_with(part, inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts_with(part, inner, (*path, index))


# -- reading

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
) -> ReadResult[DriverManifest]:
    """The driver in a file, and what was found on the way."""
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
    """The driver in a text, and what was found on the way."""
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
        return ReadResult(problems=found, cautions=cautions)
    is_mcp = values["kind"] == "mcp"
    universal = universal_checks(document)
    own: list[Problem] = []
    if is_mcp:
        own = mcp_checks(document, has_code=has_code, plain_http=plain_http)
        own += secret_checks(document)
        cautions += _unknown_server_keys(document, values["server"])
    manifest, faults = build_driver(
        values,
        file,
        lines=tuple(
            document.line(("implements", index)) for index in range(len(values["implements"]))
        ),
        digest=digest,
    )
    universal += [document.problem(path, bad.message, bad.hint) for path, bad in faults]
    if universal or own:
        return ReadResult(problems=in_order(universal, own), cautions=cautions)
    cautions += lint.lint_driver(manifest, document.line)
    return ReadResult(manifest, cautions=cautions)


def _explained(
    document: ManifestDocument, problems: list[Problem], *, has_code: bool, plain_http: bool
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


def build_driver(
    values: dict[str, Any], file: Path, *, lines: tuple[int, ...], digest: str
) -> tuple[DriverManifest, list[FieldFault]]:
    """The manifest of values that are valid, and what only shows when they are taken apart."""
    faults: list[FieldFault] = []
    is_mcp = values["kind"] == "mcp"
    asked = values.get("protocol_version", "") if is_mcp else ""
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
        protocol_version=revision(asked) if asked else "",
        source=values,
        digest=digest,
    )
    return manifest, faults


def _binding(entry: dict[str, Any]) -> McpBinding | None:
    binding = entry.get("metadata", {}).get("mcp")
    return McpBinding(**binding) if binding else None


def _unknown_keys(document: ManifestDocument) -> list[Caution]:
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


def _unknown_server_keys(document: ManifestDocument, server: dict[str, Any]) -> list[Caution]:
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
