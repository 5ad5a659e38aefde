"""Reader of SECRETS.md. An inventory never holds a value: keys that could hold one are rejected,
and so is text that looks like a secret. No message quotes either."""

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
    file_problem,
    read_document,
    read_source,
    sort_problems,
)
from interlock.manifests.fields import build
from interlock.manifests.model import AccessEntry, AccessOperation, SecretEntry, SecretsInventory
from interlock.manifests.schemas import explain

INVENTORY_FILE: Final = "SECRETS.md"
FORBIDDEN: Final = ("value", "plaintext", "ciphertext", "secret", "data", "key", "token")
"""Keys that could hold a secret itself."""

_GRANTED_BY: Final = ("role", "userId", "cap", "tool", "workflow")
_DEFAULT_FILE: Final = Path(INVENTORY_FILE)


def read_inventory(
    source: Path | str, *, file: Path | None = None, cautions: list[Caution] | None = None
) -> SecretsInventory:
    """Read the inventory of a file or a text. Raises ManifestError with all problems."""
    if isinstance(source, str):
        return parse_inventory(source, file or _DEFAULT_FILE).unwrap(cautions)
    return load_inventory(source).unwrap(cautions)


def load_inventory(path: Path, *, follow: bool = True) -> ReadResult[SecretsInventory]:
    """Read the inventory of a file, with problems and cautions."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return parse_inventory(source.text, path)


def parse_inventory(text: str, file: Path) -> ReadResult[SecretsInventory]:
    """Read the inventory of a text, with problems and cautions."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    problems = list(_find_values(document))
    if not schemas.validator("secrets").is_valid(document.value):
        reported = {problem.path for problem in problems}
        schema_problems = explain(document, "secrets")
        problems += [problem for problem in schema_problems if problem.path not in reported]
        problems = problems or [file_problem(str(file), "this lists no secrets", "see AIP-19")]
    if problems:
        return ReadResult(problems=sort_problems(problems))
    entries: dict[str, SecretEntry] = {}
    for index, values in enumerate(document.value["secrets"]):
        entry = build_secret(values, file, line=document.line(("secrets", index)))
        if entry.slug in entries:
            problems.append(
                document.problem(
                    ("secrets", index, "slug"),
                    f"{entry.slug} is already listed on line {entries[entry.slug].line}",
                    "remove one of the two",
                )
            )
        else:
            entries[entry.slug] = entry
    if problems:
        return ReadResult(problems=sort_problems(problems))
    return ReadResult(SecretsInventory(entries))


def build_secret(values: dict[str, Any], file: Path, *, line: int = 0) -> SecretEntry:
    """Build an entry from valid values."""
    access = values.get("access", {})
    names = tuple(dict.fromkeys(_variables(values)))
    entry: SecretEntry = build(
        SecretEntry,
        values,
        [],
        file=file,
        access={
            operation: tuple(_grants(access[operation]))
            for operation in get_args(AccessOperation)
            if operation in access
        },
        env=names[0] if names else "",
        env_names=names,
        line=line,
    )
    return entry


def _grants(entries: list[dict[str, str]]) -> Iterator[AccessEntry]:
    for entry in entries:
        for kind in _GRANTED_BY:
            # An unknown kind of grant grants nothing.
            if kind in entry:
                yield AccessEntry(kind, entry[kind])


def _variables(values: dict[str, Any]) -> Iterator[str]:
    bound = values.get("metadata", {}).get("bindings", {}).get("env", ())
    yield from (bound,) if isinstance(bound, str) else bound
    for exposure in values.get("exposures", ()):
        if exposure["kind"] == "env" and isinstance(exposure.get("name"), str):
            yield exposure["name"]


def _find_values(document: ManifestDocument) -> Iterator[Problem]:
    for path, key, value in _walk(document.value, ()):
        if key in FORBIDDEN:
            yield document.problem(
                (*path, key),
                f"an inventory lists secrets and never holds one: {key} is not allowed",
                "keep the secret in a vault or in the environment, and list only its slug",
            )
        elif isinstance(value, str) and is_secret_value(value):
            yield document.problem(
                (*path, key),
                "this looks like a secret",
                "remove it from the file, and replace it: it may have been seen",
            )


def _walk(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str | int, Any]]:
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, inner in pairs:
        yield path, key, inner
        yield from _walk(inner, (*path, key))
