"""A DRIVER.md to a `DriverManifest`, strictly, or everything that is wrong with it at once.

AIP-30's fields are checked first, then AIP-32's. Unknown keys at the top level are tolerated, since
other kinds of drivers have their own, but they are mentioned.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from interlock.config.problems import BadValue, ConfigError, Problem
from interlock.manifests import aliases, lint, schemas
from interlock.manifests.document import Document, read_document
from interlock.manifests.driver import DriverManifest
from interlock.manifests.driver_building import build_driver
from interlock.manifests.driver_checks import (
    mcp_checks,
    revision,
    secret_checks,
    universal_checks,
)
from interlock.manifests.explaining import explain, nearest
from interlock.manifests.findings import Caution, Reading, in_order, whole_file
from interlock.manifests.front_matter import read_source
from interlock.manifests.paths import find_inside
from interlock.manifests.schema_driver import DRIVER, MCP, SERVER_FIELDS

CODE_FILE: Final = "driver.py"
MANIFEST_FILE: Final = "DRIVER.md"

_UNIVERSAL: Final = frozenset(DRIVER["properties"])
_OF_MCP: Final = frozenset(MCP["properties"])
# Other kinds' words for the same, and keys that published files carry.
_QUIET: Final = frozenset({"spec", "driver_kind", *aliases.DEPRECATED})
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
        if values.get("kind") == "mcp" and not keys.isdisjoint(aliases.DEPRECATED):
            home = root if root is not None else file.parent

            def read_text(path: str) -> str:
                try:
                    return read_source(find_inside(path, file.parent, home)).text
                except ConfigError as error:
                    raise BadValue(error.problems[0].message, error.problems[0].hint) from None

            problems, cautions = aliases.translate(document, read_text)
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
