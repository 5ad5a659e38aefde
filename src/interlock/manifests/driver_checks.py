"""What must hold in a DRIVER.md beyond the shape of its fields.

The first part is AIP-30's, the second AIP-32's; the reader reports them in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.core.config.problems import BadValue, KeyPath, Problem, one_of, quoted
from interlock.core.config.quantities import Address
from interlock.manifests import placeholders
from interlock.manifests.document import Document
from interlock.manifests.ranges import check_range
from interlock.protocol.mcp import REVISIONS

TRANSPORTS: Final = {
    "binary": ("stdio",),
    "npm": ("stdio",),
    "docker": ("stdio", "http", "sse"),
    "remote": ("sse", "http"),
}
"""Which transports a kind of server can be spoken to over."""

DETECT_PREFIXES: Final = ("exit_code", "http_status", "exception", "header")
_DETECTABLE: Final = {
    "exit_code": re.compile(r"[0-9]{1,3}"),
    "http_status": re.compile(r"[1-5][0-9]{2}"),
    "exception": re.compile(r"[A-Za-z_][\w.]*"),
    "header": re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:.+"),
}
_SAFE_PARSE: Final = 500


def universal_checks(document: Document) -> list[Problem]:
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


def mcp_checks(document: Document, *, has_code: bool, plain_http: bool) -> list[Problem]:
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


def secret_checks(document: Document) -> list[Problem]:
    """AIP-19: placeholders stand where secrets may stand, and speak of secrets that are listed."""
    values = document.value
    listed = _inner(values, "auth", "state").get("env") or ()
    problems: list[Problem] = []
    for path, text in texts_with("${", values if document.with_placeholders else None):
        if not placeholders.mentions(text):
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
            names = placeholders.names(text)
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


def is_loopback(url: str) -> bool:
    try:
        return Address(urlsplit(url).hostname or "", 0).loopback
    except ValueError:
        return False


def _server(
    document: Document, server: dict[str, Any], transport: str, *, plain_http: bool
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


def _url(document: Document, url: str, *, plain_http: bool) -> list[Problem]:
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
    if parts.scheme == "http" and not plain_http and not is_loopback(url):
        return [
            document.problem(
                path,
                "everybody on the way could read what goes to another machine over http://",
                f"write https://{parts.netloc}{parts.path}",
            )
        ]
    return []


def _auth(document: Document, auth: dict[str, Any]) -> Iterator[Problem]:
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


def _range(document: Document, path: KeyPath, text: str, problems: list[Problem]) -> None:
    try:
        check_range(text)
    except BadValue as bad:
        problems.append(document.problem(path, bad.message, bad.hint))


def _pattern(document: Document, text: str, problems: list[Problem]) -> None:
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
