"""A SECRETS.md to the secrets that it lists. It never holds a value: a key that could carry one is
refused, and so is a text that looks like a secret itself. No message quotes either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

from interlock.core.config.problems import ConfigError, KeyPath, Problem
from interlock.core.redaction import is_secret_value
from interlock.manifests import schemas
from interlock.manifests.document import (
    Caution,
    ManifestDocument,
    ReadResult,
    in_order,
    read_document,
    read_source,
    whole_file,
)
from interlock.manifests.fields import build
from interlock.manifests.model import AccessEntry, AccessOperation, SecretEntry, SecretsInventory
from interlock.manifests.schemas import explain

INVENTORY_FILE: Final = "SECRETS.md"
FORBIDDEN: Final = ("value", "plaintext", "ciphertext", "secret", "data", "key", "token")
"""Keys under which a secret itself could stand."""

_GRANTED_BY: Final = ("role", "userId", "cap", "tool", "workflow")
_UNNAMED: Final = Path(INVENTORY_FILE)


def read_inventory(
    source: Path | str, *, file: Path | None = None, cautions: list[Caution] | None = None
) -> SecretsInventory:
    """The secrets that a file, or a text, lists. Raises ManifestError with all problems."""
    if isinstance(source, str):
        return parse_inventory(source, file or _UNNAMED).unwrap(cautions)
    return load_inventory(source).unwrap(cautions)


def load_inventory(path: Path, *, follow: bool = True) -> ReadResult[SecretsInventory]:
    """The secrets that a file lists, and what was found on the way."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return parse_inventory(source.text, path)


def parse_inventory(text: str, file: Path) -> ReadResult[SecretsInventory]:
    """The secrets that a text lists, and what was found on the way."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    problems = list(_values(document))
    if not schemas.validator("secrets").is_valid(document.value):
        said = {problem.path for problem in problems}
        found = explain(document, "secrets")
        problems += [problem for problem in found if problem.path not in said]
        problems = problems or [whole_file(str(file), "this lists no secrets", "see AIP-19")]
    if problems:
        return ReadResult(problems=in_order(problems))
    entries: dict[str, SecretEntry] = {}
    for index, one in enumerate(document.value["secrets"]):
        entry = build_secret(one, file, line=document.line(("secrets", index)))
        if entry.slug in entries:
            problems.append(
                document.problem(
                    ("secrets", index, "slug"),
                    f"{entry.slug} is listed already on line {entries[entry.slug].line}",
                    "keep one of the two",
                )
            )
        else:
            entries[entry.slug] = entry
    if problems:
        return ReadResult(problems=in_order(problems))
    return ReadResult(SecretsInventory(entries))


def build_secret(values: dict[str, Any], file: Path, *, line: int = 0) -> SecretEntry:
    """The secret of values that are valid."""
    granted = values.get("access", {})
    names = tuple(dict.fromkeys(_variables(values)))
    entry: SecretEntry = build(
        SecretEntry,
        values,
        [],
        file=file,
        access={
            operation: tuple(_grants(granted[operation]))
            for operation in get_args(AccessOperation)
            if operation in granted
        },
        env=names[0] if names else "",
        env_names=names,
        line=line,
    )
    return entry


def _grants(entries: list[dict[str, str]]) -> Iterator[AccessEntry]:
    for entry in entries:
        for kind in _GRANTED_BY:
            # Who may by a kind that is not known here, may not.
            if kind in entry:
                yield AccessEntry(kind, entry[kind])


def _variables(values: dict[str, Any]) -> Iterator[str]:
    bound = values.get("metadata", {}).get("bindings", {}).get("env", ())
    yield from (bound,) if isinstance(bound, str) else bound
    for exposure in values.get("exposures", ()):
        if exposure["kind"] == "env" and isinstance(exposure.get("name"), str):
            yield exposure["name"]


def _values(document: ManifestDocument) -> Iterator[Problem]:
    for path, key, value in _pairs(document.value, ()):
        if key in FORBIDDEN:
            yield document.problem(
                (*path, key),
                f"an inventory lists secrets and never holds one: {key} is not allowed",
                "keep the secret in a vault or in the environment, and list only its slug",
            )
        elif isinstance(value, str) and is_secret_value(value):
            yield document.problem(
                (*path, key),
                "this looks like a secret itself",
                "keep it out of the file, and change it: it may have been seen",
            )


def _pairs(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str | int, Any]]:
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, inner in pairs:
        yield path, key, inner
        yield from _pairs(inner, (*path, key))
