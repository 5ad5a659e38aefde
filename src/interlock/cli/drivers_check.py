"""`interlock drivers check`: are the manifests right, do they fit together, and does the server
really have what its driver says?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct, field

from interlock.cli import say, where
from interlock.cli.driver_options import Json

if TYPE_CHECKING:
    from interlock.cli.driver_workspace import Desk
    from interlock.manifests.driver import DriverManifest

_AT_ONCE: Final = 4
_WITHOUT_CODE: Final = ("context_unused", "refresh_without_hook")
"""What the linter can say only where it is known that there is no driver.py."""

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        help="A DRIVER.md, TOOL.md or SECRETS.md, a driver's folder, or a workspace. "
        "Default: everything of the config.",
        show_default=False,
    ),
]


class Report(Struct):
    """What was found out."""

    problems: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    drivers: int = 0
    contracts: int = 0
    unreachable: int = 0
    """How many of the problems are servers that could not be reached."""

    shown: int = 0
    """How many of them were told already."""

    def wrong(
        self,
        file: str,
        line: int,
        message: str,
        hint: str = "",
        *,
        driver: str = "",
        shown: bool = False,
    ) -> None:
        one = {"file": file, "line": line, "message": message, "hint": hint, "driver": driver}
        # Those that were told already come first, and are not told again.
        self.problems.insert(self.shown if shown else len(self.problems), one)
        self.shown += shown

    def doubtful(self, file: str, line: int, message: str, code: str = "") -> None:
        self.warnings.append({"file": file, "line": line, "message": message, "code": code})


def check(
    paths: Paths = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Also start or reach each server, and hold it against its driver."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as problems.")] = False,
    json: Json = False,
    config: where.ConfigOption = None,
) -> None:
    """Check drivers and contracts: every problem with its place. Nothing is started unless --live.

    Exit code 1 when something is wrong, 4 when with --live a server cannot be reached and nothing
    else is wrong.

    \b
    Examples:
      interlock drivers check
      interlock drivers check .drivers/filesystem-mcp --strict
      interlock drivers check --live
    """
    from interlock.cli.driver_places import desks_at

    report = Report()
    for desk, singles in desks_at(paths or [], config):
        for file, reading in singles:
            _single(report, file, reading)
        if desk is not None:
            _files(report, desk)
            _bindings(report, desk)
            _refusals(report, desk, whole=not paths)
            if live:
                from interlock.cli.event_loop import run

                run(_servers(report, desk, quiet=json))
    _tell(report, json=json, strict=strict)
    if report.problems or (strict and report.warnings):
        only_unreachable = report.unreachable == len(report.problems) and report.unreachable
        raise typer.Exit(say.UNREACHABLE if only_unreachable else say.FAILED)


# -- what the files say


def _single(report: Report, file: Path, reading: Any) -> None:
    for problem in reading.problems:
        report.wrong(problem.file, problem.line, problem.message, problem.hint)
    for one in reading.cautions:
        report.doubtful(one.file, one.line, one.sentence, one.code)
    report.contracts += reading.value is not None and file.name == "TOOL.md"


def _files(report: Report, desk: Desk) -> None:
    workspace = desk.workspace
    report.drivers += len(workspace.drivers)
    report.contracts += len(workspace.contracts)
    for problems in workspace.problems.values():
        for one in problems:
            report.wrong(
                one.file,
                one.line,
                f"{one.path}: {one.message}" if one.path else one.message,
                one.hint,
            )
    for cautions in workspace.cautions.values():
        for caution in cautions:
            report.doubtful(caution.file, caution.line, caution.sentence, caution.code)


def _bindings(report: Report, desk: Desk) -> None:
    """Entries beside their contracts, without a server."""
    from interlock.catalog.drivers.binding import check_entry
    from interlock.catalog.drivers.limits import override_warnings
    from interlock.manifests.lint import lint_bindings

    for key, bindings in desk.workspace.bindings.items():
        manifest = desk.workspace.drivers[key]
        code = manifest.folder / "driver.py"
        if not code.is_file():
            for one in lint_bindings(manifest, bindings, hooks=()):
                if one.code in _WITHOUT_CODE:
                    report.doubtful(one.file, one.line, one.sentence, one.code)
        for bound in bindings:
            # What a driver.py brings is known only to whoever runs it: then nothing is missing.
            transforms = _transforms(bound.entry) if code.is_file() else ()
            wrong = check_entry(
                bound.contract, bound.entry, transforms=transforms, has_hook=code.is_file()
            )
            for sentence in wrong:
                report.wrong(str(manifest.file), bound.entry.line, sentence, driver=manifest.id)
            for sentence in override_warnings(bound.contract, manifest, bound.entry):
                report.doubtful(str(manifest.file), bound.entry.line, sentence, "override")


def _refusals(report: Report, desk: Desk, *, whole: bool) -> None:
    """What a node would not take, or never use. `whole`: all that the config names is here."""
    from interlock.cli.driver_refusals import refused, unknown_names, without_manifest
    from interlock.config.problems import format_path

    for file, message, hint, driver in refused(desk):
        report.wrong(file, 0, message, hint, driver=driver)
    if whole:
        for place, message, hint in unknown_names(desk):
            report.wrong(format_path(place), 0, message, hint)
        for file, message in without_manifest(desk):
            report.doubtful(file, 0, message, "no_manifest")


def _transforms(entry: Any) -> set[str]:
    return {
        value.transform
        for value in entry.mapping.values()
        if not isinstance(value, str) and value.transform
    }


# -- what the servers say


async def _servers(report: Report, desk: Desk, *, quiet: bool) -> None:
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(manifest: DriverManifest) -> None:
        async with places:
            await _one_server(report, desk, manifest, quiet=quiet)

    servers = [one for one in desk.workspace.drivers.values() if one.server is not None]
    await asyncio.gather(*(look(one) for one in servers))


async def _one_server(report: Report, desk: Desk, manifest: DriverManifest, *, quiet: bool) -> None:
    from interlock.catalog.drivers.binding import check_listed
    from interlock.cli.driver_reach import told_of, visit
    from interlock.errors import InterlockError

    file = str(manifest.file)
    has_code = (manifest.folder / "driver.py").is_file()
    try:
        async with visit(manifest, desk) as there:
            tools = there.tools()
            about = there.server
    except InterlockError as error:
        report.unreachable += 1
        why = told_of(manifest.id, error)
        report.wrong(file, 0, why, driver=manifest.id, shown=not quiet)
        if not quiet:
            _mark(False, f"{manifest.id}: {why}")
        return
    good = True
    for one in desk.workspace.bindings.get(manifest.key, ()):
        found = check_listed(one.contract, one.entry, tools, has_hook=has_code)
        for sentence in found.errors:
            good = False
            report.wrong(file, one.entry.line, say.printable(sentence), driver=manifest.id)
        for sentence in found.warnings:
            report.doubtful(file, one.entry.line, say.printable(sentence), "server")
    for sentence in (*_undeclared(manifest, there.offer), *there.in_vain()):
        report.doubtful(file, 0, sentence, "server")
    if not quiet:
        for sentence in there.given():
            say.note(sentence)
        count = len(manifest.implements)
        told = f"{count} of {count} contracts fit" if good else "its tools do not fit its contracts"
        _mark(good, f"{manifest.id}: {told}, {say.printable(about) or 'a server without a name'}")


def _undeclared(manifest: DriverManifest, offer: Any) -> Iterable[str]:
    """Prompts that a driver declares and its server does not have."""
    from interlock.cli.driver_reach import named

    offered = {one["name"] for one in named(offer.prompts)}
    for prompt in manifest.prompts:
        if prompt.name not in offered:
            yield f"the server offers no prompt {prompt.name}"


# -- telling


def _tell(report: Report, *, json: bool, strict: bool) -> None:
    ok = not report.problems and not (strict and report.warnings)
    if json:
        say.as_json(
            {
                "ok": ok,
                "drivers": report.drivers,
                "contracts": report.contracts,
                "problems": report.problems,
                "warnings": report.warnings,
            }
        )
        return
    for one in report.problems[report.shown :]:
        hint = f"; {one['hint']}" if one["hint"] else ""
        say.note(f"{_place(one)}: {one['message']}{hint}")
    for one in report.warnings:
        say.note(f"Warning: {_place(one)}: {one['message']}")
    counts = [_counted(report.drivers, "driver"), _counted(report.contracts, "contract")]
    found = [_counted(len(report.problems), "problem")] if report.problems else []
    found += [_counted(len(report.warnings), "warning")] if report.warnings else []
    print(f"{', '.join(counts)}: {', '.join(found) or 'all is well'}.")


def _place(one: dict[str, Any]) -> str:
    import os

    file = one["file"]
    if os.path.isabs(file) and Path(file).is_relative_to(Path.cwd()):
        file = os.path.relpath(file)
    return f"{file}:{one['line']}" if one["line"] else file


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _mark(good: bool, text: str) -> None:
    from rich.text import Text

    mark = ("✓", "green") if good else ("✗", "red")
    say.console().print(Text.assemble(mark, f" {text}"), soft_wrap=True)
