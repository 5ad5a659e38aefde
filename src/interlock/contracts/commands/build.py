"""`interlock contracts build`: everything that a folder of schemas gives, generated, held against
each other, and published.

Works on any folder with `proto/`, `json/` and `openapi/` in it. With `--check` nothing is written:
it fails when a build would change anything, for CI.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.contracts.commands.options import AuthorOption, JsonOption, author_of, counted
from interlock.primitives.timestamps import format_utc
from interlock.terminal import output

if TYPE_CHECKING:
    from interlock.contracts.schemas.build import BuildResult
    from interlock.contracts.schemas.reader import SchemaProblem


def build(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where proto/, json/ and openapi/ are.")
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
            help="Write what is generated into this folder instead.",
            show_default=False,
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry",
            metavar="DIR",
            help="Publish everything into this contract registry.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[
        str,
        typer.Option("--reason", "-m", metavar="TEXT", help="Why, for the registry's history."),
    ] = "Build of the schemas",
    author: AuthorOption = None,
    json: JsonOption = False,
) -> None:
    """Generate JSON Schema, OpenAPI 3.1 and a typed client from the schemas of a folder.

    One source per type: a file that names no source is canonical, all others are generated from
    one. A generated file that was edited, and a type that two sources describe differently, is
    drift: nothing is written then, and the exit code is 1.

    \b
    Examples:
      interlock contracts build
      interlock contracts build schemas --check
      interlock contracts build api/schemas --registry contracts -m "orders have a currency"
    """
    if check and registry is not None:
        raise typer.BadParameter("--check publishes nothing: leave --registry away.")
    from interlock.contracts.schemas.build import build_all
    from interlock.contracts.schemas.reader import SchemaError

    try:
        built = build_all(folder, out)
    except SchemaError as wrong:
        _tell_problems(list(wrong.problems))
        if json:
            output.print_json({"folder": str(folder), "problems": _plain(wrong.problems)})
        raise typer.Exit(output.FAILED) from None
    for name in built.passed_over:
        output.print_note(
            f"{name}: nobody looks for a schema here by this name, so it is passed over."
        )
    problems = [*built.problems, *(built.differing() if check else [])]
    _tell_problems(problems)
    if not problems and not check:
        _write(out or folder, built)
    published = None
    if not problems and registry is not None:
        published = _publish(built, registry.expanduser(), author_of(author), reason)
    if json:
        output.print_json(_report(folder, built, problems, published, check=check))
    else:
        _tell(built, published, check=check, failed=bool(problems))
    if problems:
        raise typer.Exit(output.FAILED)


# -- the disk


def _write(folder: Path, built: BuildResult) -> None:
    wanted = set(built.written)
    for one in built.artefacts:
        if one.path in wanted:
            path = folder / one.path
            path.parent.mkdir(parents=True, exist_ok=True)
            # Whoever reads it meanwhile has it whole.
            beside = path.with_name(f".{path.name}.new")
            beside.write_text(one.text, encoding="utf-8")
            os.replace(beside, path)
    for name in built.left_over:
        (folder / name).unlink(missing_ok=True)


# -- the registry


def _publish(built: BuildResult, folder: Path, author: str, reason: str) -> dict[str, Any]:
    """Everything with one commit for what has a version and one for what gets its own, and a new
    version of the registry as a whole. Raises InterlockError."""
    from interlock.contracts.registry.changes import ContractSnapshot
    from interlock.contracts.registry.records import Contract, PipelineRun, Provenance
    from interlock.contracts.registry.registry import ContractRegistry
    from interlock.contracts.schemas.artefacts import GENERATOR
    from interlock.contracts.schemas.publication import publications

    moment = format_utc(time.time())
    every = publications(built)
    provenances = {one.source: Provenance(one.source, GENERATOR, moment) for one in every}
    versioned = [
        Contract(
            one.name, one.version, one.domain, one.protocol, one.document, provenances[one.source]
        )
        for one in every
        if one.version
    ]
    others = [
        ContractSnapshot(one.name, one.domain, one.protocol, one.document, provenances[one.source])
        for one in every
        if not one.version
    ]
    registry = ContractRegistry(folder)
    try:
        before: dict[tuple[str, str, str], list[str]] = {}
        for was in registry.search():
            before.setdefault((was.name, was.protocol, was.domain), []).append(was.version)
        stored = registry.publish_all(versioned, author=author, reason=reason) if versioned else []
        taken = registry.snapshot(others, author=author, reason=lambda _: reason) if others else []
        run = PipelineRun(built.schema_count, built.drift_violations, built.generation_duration)
        release = registry.record_run(run, author=author, reason=reason)
    finally:
        registry.close()
    named = [(one.name, one.version, one.protocol, one.domain) for one in stored]
    named += [
        (one.name, one.version, one.protocol, one.domain)
        for one in (each.contract for each in taken)
    ]
    rows = []
    for name, version, protocol, domain in named:
        known = before.get((name, protocol, domain), [])
        row = {"name": name, "version": version, "protocol": protocol, "domain": domain}
        majors = {_major(one) for one in known}
        breaks = bool(majors) and _major(version) > max(majors)
        rows.append({**row, "new": version not in known, "new_major": breaks})
    return {"tag": release.tag, "commit": release.commit, "contracts": rows}


def _major(version: str) -> int:
    from interlock.contracts.diff.compatibility import read_version

    return int(read_version(version).major)


# -- what is said


def _tell_problems(problems: list[SchemaProblem]) -> None:
    for one in problems:
        output.print_note(output.sanitize(str(one)))


def _tell(
    built: BuildResult, published: dict[str, Any] | None, *, check: bool, failed: bool
) -> None:
    counts: dict[str, int] = {}
    for row in built.files:
        counts[row.kind] = counts.get(row.kind, 0) + 1
    print(" · ".join(f"{kind} {count}" for kind, count in sorted(counts.items())) or "nothing")
    if failed:
        print("nothing was written")
    elif check:
        print("everything is as a build would leave it")
    else:
        print(f"written {len(built.written)} · removed {len(built.left_over)}")
    print(
        f"schema_count {built.schema_count} · drift_violations {built.drift_violations} · "
        f"generation_duration {built.generation_duration:.3f} s"
    )
    if published is not None:
        rows = published["contracts"]
        new = sum(row["new"] for row in rows)
        print(
            f"published {counted(len(rows))} as {published['tag']}: {new or 'none'} new or changed"
        )
        for row in rows:
            if row["new_major"]:
                told = f"  {row['name']} ({row['protocol']}) breaks whoever relied on it: "
                print(output.sanitize(f"{told}it is {row['version']} now"))


def _report(
    folder: Path,
    built: BuildResult,
    problems: list[SchemaProblem],
    published: dict[str, Any] | None,
    *,
    check: bool,
) -> dict[str, Any]:
    import msgspec

    from interlock.contracts.schemas.artefacts import GENERATOR

    wrote = not check and not problems
    moment = format_utc(time.time())
    return {
        "folder": str(folder),
        "files": msgspec.to_builtins(built.files),
        "artefacts": [
            {
                "path": one.path,
                "type": one.type,
                "version": one.version,
                "provenance": {
                    "source": one.source,
                    "generator_version": GENERATOR,
                    "timestamp": moment,
                },
            }
            for one in built.artefacts
        ],
        "written": built.written if wrote else [],
        "removed": built.left_over if wrote else [],
        "passed_over": built.passed_over,
        "problems": _plain(problems),
        "metrics": {
            "schema_count": built.schema_count,
            "drift_violations": built.drift_violations,
            "generation_duration": built.generation_duration,
        },
        "registry": published,
    }


def _plain(problems: Any) -> Any:
    import msgspec

    return [msgspec.to_builtins(one) for one in problems]
