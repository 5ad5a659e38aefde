"""A TOOL.md to a `ToolContract`, strictly, or everything that is wrong with it at once.

A contract says what a tool takes, gives and changes, never how it is done. Its schemas come out
usable: valid, without references to elsewhere, and without circles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from interlock.config.problems import ConfigError, KeyPath, Problem
from interlock.manifests import schemas
from interlock.manifests.document import Document, read_document
from interlock.manifests.driver import Retry
from interlock.manifests.explaining import explain
from interlock.manifests.findings import Caution, Reading, in_order, whole_file
from interlock.manifests.front_matter import read_source
from interlock.manifests.schema_checks import check_schema, self_contained
from interlock.manifests.tool import DriverConstraints, Example, Needs, ToolContract

CONTRACT_FILE: Final = "TOOL.md"

_OF_A_DRIVER: Final = "move it to the DRIVER.md that implements the contract (AIP-30)"
SPECIAL: Final = {
    **{
        key: (f"a contract has no {key}: how it is done is a driver's matter", _OF_A_DRIVER)
        for key in ("code", "run", "runner", "secrets", "network", "entry")
    },
    "implements": (
        "contracts do not implement actions here: AIP-39 is not supported",
        "remove it; drivers name the contract under their own implements",
    ),
    **{
        key: (
            f"{key} is not part of a contract: files are not passed in and out here",
            "describe the values under inputs and outputs",
        )
        for key in ("inputsFiles", "outputsFiles", "_workflowFsRoot")
    },
    "contextSchema": ("contextSchema stands under metadata", "write it as metadata.contextSchema"),
    "execute": ("a contract has no body", _OF_A_DRIVER),
}
_OBJECT: Final = {"type": "object"}
_UNNAMED: Final = Path(CONTRACT_FILE)
_NOTHING: Final[dict[str, Any]] = {}


def read_contract(
    source: Path | str, *, file: Path | None = None, cautions: list[Caution] | None = None
) -> ToolContract:
    """The contract in a file, or in a text. Raises ManifestError with all problems."""
    if isinstance(source, str):
        return parse_contract(source, file or _UNNAMED).unwrap(cautions)
    return load_contract(source).unwrap(cautions)


def load_contract(path: Path, *, follow: bool = True) -> Reading[ToolContract]:
    """The contract in a file, and what was found on the way."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return Reading(problems=error.problems)
    return parse_contract(source.text, path, digest=source.digest)


def parse_contract(text: str, file: Path, *, digest: str = "") -> Reading[ToolContract]:
    """The contract in a text, and what was found on the way."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return Reading(problems=error.problems)
    return read_fields(document, file, digest=digest)


def read_fields(document: Document, file: Path, *, digest: str = "") -> Reading[ToolContract]:
    """The contract in a document, and what was found on the way."""
    values = document.value
    problems: list[Problem] = []
    if not schemas.validator("tool").is_valid(values):
        problems = explain(document, "tool", SPECIAL) or [
            whole_file(document.file, "this is not a contract", "see AIP-14")
        ]
    problems += _changes_unasked(document)
    problems += _schemas(document)
    if problems:
        return Reading(problems=in_order(problems))
    return Reading(build_contract(values, file, digest))


def build_contract(values: dict[str, Any], file: Path, digest: str = "") -> ToolContract:
    """The contract of values that are valid."""
    get = values.get
    needs = get("requires", _NOTHING)
    constraints = get("driver_constraints", _NOTHING)
    metadata = get("metadata", {})
    context = metadata.get("contextSchema")
    return ToolContract(
        file=file,
        id=values["id"],
        name=values["name"],
        description=values["description"],
        version=values["version"],
        inputs=self_contained(values["inputs"] or dict(_OBJECT)),
        outputs=self_contained(values["outputs"] or dict(_OBJECT)),
        idempotent=get("idempotent", False),
        mutates=tuple(get("mutates", ())),
        requires=Needs(
            network=tuple(needs.get("network", ())),
            secrets=tuple(needs.get("secrets", ())),
            tools=tuple(needs.get("tools", ())),
        ),
        approval=get("approval", "auto"),
        risk_level=get("risk_level", 0),
        cost_class=get("cost_class", "trivial"),
        timeout_ms=get("timeout_ms", 30_000),
        retry=Retry(**values["retry"]) if "retry" in values else None,
        default_implementation=get("default_implementation") or "",
        driver_constraints=DriverConstraints(
            forbid=tuple(constraints.get("forbid", ())),
            require_kind=tuple(constraints.get("require_kind", ())),
        ),
        examples=tuple(
            Example(
                input=one["input"],
                output=one.get("output"),
                has_output="output" in one,
                note=one.get("note", ""),
                name=one.get("name", ""),
            )
            for one in get("examples", ())
        ),
        tags=tuple(get("tags", ())),
        metadata=metadata,
        context_schema=self_contained(context) if context is not None else None,
        digest=digest,
    )


def _changes_unasked(document: Document) -> list[Problem]:
    values = document.value
    if values.get("mutates") and values.get("approval", "auto") == "auto":
        where: KeyPath = ("approval",) if "approval" in values else ("mutates",)
        return [
            document.problem(
                where,
                "approval auto is not allowed for a contract that changes something",
                "write approval: on-mutate or approval: always",
            )
        ]
    return []


def _schemas(document: Document) -> list[Problem]:
    values = document.value
    metadata = values.get("metadata")
    places: list[tuple[KeyPath, Any]] = [
        (("inputs",), values.get("inputs")),
        (("outputs",), values.get("outputs")),
    ]
    if isinstance(metadata, dict):
        places.append((("metadata", "contextSchema"), metadata.get("contextSchema")))
    problems: list[Problem] = []
    for path, schema in places:
        if not isinstance(schema, dict):
            continue  # missing, or said already
        for fault in check_schema(schema):
            problems.append(document.problem((*path, *fault.path), fault.message, fault.hint))
        if path == ("inputs",) and schema and schema.get("type") != "object":
            problems.append(
                document.problem(path, "inputs have names", "add type: object to the schema")
            )
    return problems
