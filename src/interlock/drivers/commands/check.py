"""`interlock drivers check`: are the manifests right, do they fit together, and does the server
really have what its driver says?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import Struct, field

from interlock.core.config import DEFAULT_NAME, Config, ConfigError, load_config
from interlock.drivers.commands.workspace import DriverProject, open_project, project_of
from interlock.drivers.config import DriversConfig
from interlock.manifests.driver_reader import MANIFEST_FILE
from interlock.manifests.secrets_reader import INVENTORY_FILE, load_inventory
from interlock.manifests.tool_reader import CONTRACT_FILE, load_contract
from interlock.manifests.workspace import load_workspace
from interlock.primitives.text import format_count
from interlock.terminal import config_source, output
from interlock.terminal.options import Json

if TYPE_CHECKING:
    from interlock.drivers.commands.workspace import DriverProject
    from interlock.manifests.model import DriverManifest


# -- What a path means to `drivers check`: one manifest, a driver's folder, or a whole workspace.

SingleManifest = tuple[Path, Any]
"""A manifest that stands for itself, and what came of reading it."""
_READERS = {CONTRACT_FILE: load_contract, INVENTORY_FILE: load_inventory}


def find_projects(
    paths: list[Path], given: Path | None
) -> Iterator[tuple[DriverProject | None, list[SingleManifest]]]:
    """Everything that is to be looked at. Raises ConfigError."""
    if not paths:
        yield open_project(given), []
        return
    config = Config()
    if given is not None:
        config = load_config(given)
    for path in paths:
        yield _at(path, config)


def _at(path: Path, config: Config) -> tuple[DriverProject | None, list[SingleManifest]]:
    if not path.exists():
        raise ConfigError.of("there is no such file or folder", "check the path", file=str(path))
    reader = _READERS.get(path.name)
    if path.is_file() and reader is not None:
        return None, [(path, reader(path))]
    if path.is_file() and path.name != MANIFEST_FILE:
        raise ConfigError.of(
            "this is no manifest",
            f"name a {MANIFEST_FILE}, a {CONTRACT_FILE}, a {INVENTORY_FILE} or a folder",
            file=str(path),
        )
    folder = (path.parent if path.is_file() else path).absolute()
    if (folder / DEFAULT_NAME).is_file():
        return project_of(load_config(folder / DEFAULT_NAME), folder), []
    if any((folder / name).is_dir() for name in config.section(DriversConfig).folders):
        return project_of(config, folder), []
    root = _root_of(folder, config)
    contracts = [*config.section(DriversConfig).contracts]
    if not (folder / MANIFEST_FILE).is_file():
        contracts.append(str(folder))
    workspace = load_workspace(root, folders=[folder], contract_folders=contracts)
    return DriverProject(_with_config(root, config), root, workspace), []


def _root_of(folder: Path, config: Config) -> Path:
    """The workspace of a driver: where the folder of drivers stands that it is in."""
    names = {Path(name).name for name in config.section(DriversConfig).folders}
    for parent in (folder, *folder.parents):
        if parent.name in names:
            return parent.parent
        if (parent / DEFAULT_NAME).is_file():
            return parent
    return folder


def _with_config(root: Path, config: Config) -> Config:
    own = root / DEFAULT_NAME
    return load_config(own) if own.is_file() else config


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


class ManifestReport(Struct):
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
    config: config_source.ConfigOption = None,
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

    report = ManifestReport()
    for project, singles in find_projects(paths or [], config):
        for file, reading in singles:
            _single(report, file, reading)
        if project is not None:
            _files(report, project)
            _bindings(report, project)
            _refusals(report, project, whole=not paths)
            if live:
                from interlock.terminal.event_loop import run

                run(_servers(report, project, quiet=json))
    _tell(report, json=json, strict=strict)
    if report.problems or (strict and report.warnings):
        only_unreachable = report.unreachable == len(report.problems) and report.unreachable
        raise typer.Exit(output.UNREACHABLE if only_unreachable else output.FAILED)


# -- what the files say


def _single(report: ManifestReport, file: Path, reading: Any) -> None:
    for problem in reading.problems:
        report.wrong(problem.file, problem.line, problem.message, problem.hint)
    for caution in reading.cautions:
        report.doubtful(caution.file, caution.line, caution.sentence, caution.code)
    report.contracts += reading.value is not None and file.name == "TOOL.md"


def _files(report: ManifestReport, project: DriverProject) -> None:
    workspace = project.workspace
    report.drivers += len(workspace.drivers)
    report.contracts += len(workspace.contracts)
    for problems in workspace.problems.values():
        for problem in problems:
            report.wrong(
                problem.file,
                problem.line,
                f"{problem.path}: {problem.message}" if problem.path else problem.message,
                problem.hint,
            )
    for cautions in workspace.cautions.values():
        for caution in cautions:
            report.doubtful(caution.file, caution.line, caution.sentence, caution.code)


def _bindings(report: ManifestReport, project: DriverProject) -> None:
    """Entries beside their contracts, without a server."""
    from interlock.drivers.binding import check_entry
    from interlock.drivers.limits import override_warnings
    from interlock.manifests.lint import lint_bindings

    for key, bindings in project.workspace.bindings.items():
        manifest = project.workspace.drivers[key]
        code = manifest.folder / "driver.py"
        if not code.is_file():
            for caution in lint_bindings(manifest, bindings, hooks=()):
                if caution.code in _WITHOUT_CODE:
                    report.doubtful(caution.file, caution.line, caution.sentence, caution.code)
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


def _refusals(report: ManifestReport, project: DriverProject, *, whole: bool) -> None:
    """What a node would not take, or never use. `whole`: all that the config names is here."""
    from interlock.core.config.problems import format_path
    from interlock.drivers.commands.rejections import refused, unknown_names, without_manifest

    for file, message, hint, driver in refused(project):
        report.wrong(file, 0, message, hint, driver=driver)
    if whole:
        for place, message, hint in unknown_names(project):
            report.wrong(format_path(place), 0, message, hint)
        for file, message in without_manifest(project):
            report.doubtful(file, 0, message, "no_manifest")


def _transforms(entry: Any) -> set[str]:
    return {
        value.transform
        for value in entry.mapping.values()
        if not isinstance(value, str) and value.transform
    }


# -- what the servers say


async def _servers(report: ManifestReport, project: DriverProject, *, quiet: bool) -> None:
    places = asyncio.Semaphore(_AT_ONCE)

    async def look(manifest: DriverManifest) -> None:
        async with places:
            await _one_server(report, project, manifest, quiet=quiet)

    servers = [
        manifest for manifest in project.workspace.drivers.values() if manifest.server is not None
    ]
    await asyncio.gather(*(look(manifest) for manifest in servers))


async def _one_server(
    report: ManifestReport, project: DriverProject, manifest: DriverManifest, *, quiet: bool
) -> None:
    from interlock.drivers.binding import check_listed
    from interlock.drivers.commands.standalone_server import connection_error_text, open_server
    from interlock.errors import InterlockError

    file = str(manifest.file)
    has_code = (manifest.folder / "driver.py").is_file()
    try:
        async with open_server(manifest, project) as there:
            tools = there.tools()
            about = there.server
    except InterlockError as error:
        report.unreachable += 1
        why = connection_error_text(manifest.id, error)
        report.wrong(file, 0, why, driver=manifest.id, shown=not quiet)
        if not quiet:
            _mark(False, f"{manifest.id}: {why}")
        return
    good = True
    for binding in project.workspace.bindings.get(manifest.key, ()):
        found = check_listed(binding.contract, binding.entry, tools, has_hook=has_code)
        for sentence in found.errors:
            good = False
            report.wrong(file, binding.entry.line, say.printable(sentence), driver=manifest.id)
        for sentence in found.warnings:
            report.doubtful(file, binding.entry.line, say.printable(sentence), "server")
    for sentence in (*_undeclared(manifest, there.offer), *there.egress_notes()):
        report.doubtful(file, 0, sentence, "server")
    if not quiet:
        for sentence in there.secret_notes():
            say.note(sentence)
        count = len(manifest.implements)
        told = f"{count} of {count} contracts fit" if good else "its tools do not fit its contracts"
        _mark(
            good,
            f"{manifest.id}: {told}, {output.sanitize(about) or 'a server without a name'}",
        )


def _undeclared(manifest: DriverManifest, offer: Any) -> Iterable[str]:
    """Prompts that a driver declares and its server does not have."""
    from interlock.drivers.standalone import named

    offered = {prompt["name"] for prompt in named(offer.prompts)}
    for prompt in manifest.prompts:
        if prompt.name not in offered:
            yield f"the server offers no prompt {prompt.name}"


# -- telling


def _tell(report: ManifestReport, *, json: bool, strict: bool) -> None:
    ok = not report.problems and not (strict and report.warnings)
    if json:
        output.print_json(
            {
                "ok": ok,
                "drivers": report.drivers,
                "contracts": report.contracts,
                "problems": report.problems,
                "warnings": report.warnings,
            }
        )
        return
    for problem in report.problems[report.shown :]:
        hint = f"; {problem['hint']}" if problem["hint"] else ""
        say.note(f"{_place(problem)}: {problem['message']}{hint}")
    for warning in report.warnings:
        say.note(f"Warning: {_place(warning)}: {warning['message']}")
    counts = [format_count(report.drivers, "driver"), format_count(report.contracts, "contract")]
    found = [format_count(len(report.problems), "problem")] if report.problems else []
    found += [format_count(len(report.warnings), "warning")] if report.warnings else []
    print(f"{', '.join(counts)}: {', '.join(found) or 'all is well'}.")


def _place(entry: dict[str, Any]) -> str:
    import os

    file = entry["file"]
    if os.path.isabs(file) and Path(file).is_relative_to(Path.cwd()):
        file = os.path.relpath(file)
    return f"{file}:{entry['line']}" if entry["line"] else file


def _mark(good: bool, text: str) -> None:
    from rich.text import Text

    mark = ("✓", "green") if good else ("✗", "red")
    output.create_console().print(Text.assemble(mark, f" {text}"), soft_wrap=True)
