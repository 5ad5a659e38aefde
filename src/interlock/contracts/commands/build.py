"""`interlock contracts build`: generate files from a folder of schemas, check them for drift, and
publish them.

The folder contains `proto/`, `json/` and `openapi/`. `--check` writes nothing and fails if a build
would change anything, for CI.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.contracts.commands.options import (
    AuthorOption,
    JsonOption,
    author_or_user,
    format_contract_count,
)
from interlock.primitives.timestamps import format_utc
from interlock.terminal import output

if TYPE_CHECKING:
    from interlock.contracts.schemas.build import BuildResult
    from interlock.contracts.schemas.reader import SchemaProblem


def build(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="The folder with proto/, json/ and openapi/."),
    ] = Path("schemas"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; fail if a build would change anything."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write the generated files into this folder instead.",
            show_default=False,
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry",
            metavar="DIR",
            help="Publish all schemas in this contract registry.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[
        str,
        typer.Option("--reason", "-m", metavar="TEXT", help="The reason, for the commit message."),
    ] = "Build of the schemas",
    author: AuthorOption = None,
    json: JsonOption = False,
) -> None:
    """Generate JSON Schema, OpenAPI 3.1 and a typed client from the schemas of a folder.

    Each type has one source: a file that names no source is canonical, and all other files are
    generated from a source. A generated file that was edited, and a type that two sources describe
    differently, is drift. Then nothing is written, and the exit code is 1.

    \b
    Examples:
      interlock contracts build
      interlock contracts build schemas --check
      interlock contracts build api/schemas --registry contracts -m "orders have a currency"
    """
    if check and registry is not None:
        raise typer.BadParameter("--check does not publish. Remove --registry.")
    from interlock.contracts.schemas.build import build_all
    from interlock.contracts.schemas.reader import SchemaError

    try:
        result = build_all(folder, out)
    except SchemaError as error:
        _print_problems(list(error.problems))
        if json:
            output.print_json({"folder": str(folder), "problems": _to_builtins(error.problems)})
        raise typer.Exit(output.FAILED) from None
    for name in result.ignored:
        output.print_note(f"{name}: ignored, because no schema is expected in a file of this name.")
    problems = [*result.problems, *(result.find_outdated() if check else [])]
    _print_problems(problems)
    if not problems and not check:
        _write_files(out or folder, result)
    published = None
    if not problems and registry is not None:
        published = _publish(result, registry.expanduser(), author_or_user(author), reason)
    if json:
        output.print_json(_make_report(folder, result, problems, published, check=check))
    else:
        _print_result(result, published, check=check, failed=bool(problems))
    if problems:
        raise typer.Exit(output.FAILED)


# -- the disk


def _write_files(folder: Path, result: BuildResult) -> None:
    changed_paths = set(result.changed)
    for artefact in result.artefacts:
        if artefact.path in changed_paths:
            path = folder / artefact.path
            path.parent.mkdir(parents=True, exist_ok=True)
            # Replace the file atomically for concurrent readers.
            temporary = path.with_name(f".{path.name}.new")
            temporary.write_text(artefact.text, encoding="utf-8")
            os.replace(temporary, path)
    for name in result.obsolete:
        (folder / name).unlink(missing_ok=True)


# -- the registry


def _publish(result: BuildResult, folder: Path, author: str, reason: str) -> dict[str, Any]:
    """Publish all schemas: one commit for schemas with a version, one for schemas that get their
    version here, and a new version of the registry. Raises InterlockError.
    """
    from interlock.contracts.registry.changes import ContractSnapshot
    from interlock.contracts.registry.records import (
        Contract,
        PipelineRun,
        Provenance,
        StoredContract,
    )
    from interlock.contracts.registry.registry import ContractRegistry
    from interlock.contracts.schemas.artefacts import GENERATOR
    from interlock.contracts.schemas.publication import list_publications

    now_text = format_utc(time.time())
    schemas = list_publications(result)
    provenances = {
        schema.source: Provenance(schema.source, GENERATOR, now_text) for schema in schemas
    }
    versioned = [
        Contract(
            schema.name,
            schema.version,
            schema.domain,
            schema.protocol,
            schema.document,
            provenances[schema.source],
        )
        for schema in schemas
        if schema.version
    ]
    unversioned = [
        ContractSnapshot(
            schema.name,
            schema.domain,
            schema.protocol,
            schema.document,
            provenances[schema.source],
        )
        for schema in schemas
        if not schema.version
    ]
    registry = ContractRegistry(folder)
    try:
        old_versions: dict[tuple[str, str, str], list[str]] = {}
        for old in registry.search():
            old_versions.setdefault((old.name, old.protocol, old.domain), []).append(old.version)
        stored = registry.publish_all(versioned, author=author, reason=reason) if versioned else []
        snapshots = (
            registry.snapshot(unversioned, author=author, reason=lambda _: reason)
            if unversioned
            else []
        )
        run = PipelineRun(result.schema_count, result.drift_violations, result.generation_duration)
        release = registry.record_run(run, author=author, reason=reason)
    finally:
        registry.close()
    published: list[Contract | StoredContract] = [
        *stored,
        *(snapshot.contract for snapshot in snapshots),
    ]
    rows = []
    for contract in published:
        versions = old_versions.get((contract.name, contract.protocol, contract.domain), [])
        row = {
            "name": contract.name,
            "version": contract.version,
            "protocol": contract.protocol,
            "domain": contract.domain,
        }
        majors = {_major(version) for version in versions}
        is_new_major = bool(majors) and _major(contract.version) > max(majors)
        is_new = contract.version not in versions
        rows.append({**row, "new": is_new, "new_major": is_new_major})
    return {"tag": release.tag, "commit": release.commit, "contracts": rows}


def _major(version: str) -> int:
    from interlock.contracts.diff.compatibility import read_version

    return int(read_version(version).major)


# -- output


def _print_problems(problems: list[SchemaProblem]) -> None:
    for problem in problems:
        output.print_note(output.sanitize(str(problem)))


def _print_result(
    result: BuildResult, published: dict[str, Any] | None, *, check: bool, failed: bool
) -> None:
    counts: dict[str, int] = {}
    for row in result.files:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    print(" · ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "nothing")
    if failed:
        print("nothing was written")
    elif check:
        print("all generated files are up to date")
    else:
        print(f"written {len(result.changed)} · removed {len(result.obsolete)}")
    print(
        f"schema_count {result.schema_count} · drift_violations {result.drift_violations} · "
        f"generation_duration {result.generation_duration:.3f} s"
    )
    if published is not None:
        rows = published["contracts"]
        new = sum(row["new"] for row in rows)
        print(
            f"published {format_contract_count(len(rows))} as {published['tag']}: {new or 'none'} "
            "new or changed"
        )
        for row in rows:
            if row["new_major"]:
                line = f"  {row['name']} ({row['protocol']}) has a breaking change: "
                print(output.sanitize(f"{line}its new version is {row['version']}"))


def _make_report(
    folder: Path,
    result: BuildResult,
    problems: list[SchemaProblem],
    published: dict[str, Any] | None,
    *,
    check: bool,
) -> dict[str, Any]:
    import msgspec

    from interlock.contracts.schemas.artefacts import GENERATOR

    is_written = not check and not problems
    now_text = format_utc(time.time())
    return {
        "folder": str(folder),
        "files": msgspec.to_builtins(result.files),
        "artefacts": [
            {
                "path": artefact.path,
                "type": artefact.type,
                "version": artefact.version,
                "provenance": {
                    "source": artefact.source,
                    "generator_version": GENERATOR,
                    "timestamp": now_text,
                },
            }
            for artefact in result.artefacts
        ],
        "written": result.changed if is_written else [],
        "removed": result.obsolete if is_written else [],
        "ignored": result.ignored,
        "problems": _to_builtins(problems),
        "metrics": {
            "schema_count": result.schema_count,
            "drift_violations": result.drift_violations,
            "generation_duration": result.generation_duration,
        },
        "registry": published,
    }


def _to_builtins(problems: Any) -> Any:
    import msgspec

    return [msgspec.to_builtins(problem) for problem in problems]
