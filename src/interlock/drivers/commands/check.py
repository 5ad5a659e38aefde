"""`interlock drivers check`: check manifests, their bindings, and with --live the servers."""

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


# -- Paths of `drivers check`: one manifest, a driver's folder, or a whole workspace.

SingleManifest = tuple[Path, Any]
"""A manifest that is checked alone, and the result of reading it."""
_READERS = {CONTRACT_FILE: load_contract, INVENTORY_FILE: load_inventory}


def find_projects(
    paths: list[Path], config_path: Path | None
) -> Iterator[tuple[DriverProject | None, list[SingleManifest]]]:
    """Yield the projects and single manifests to check. Raises ConfigError."""
    if not paths:
        yield open_project(config_path), []
        return
    config = Config()
    if config_path is not None:
        config = load_config(config_path)
    for path in paths:
        yield _find_project(path, config)


def _find_project(path: Path, config: Config) -> tuple[DriverProject | None, list[SingleManifest]]:
    if not path.exists():
        raise ConfigError.of("there is no such file or folder", "check the path", file=str(path))
    reader = _READERS.get(path.name)
    if path.is_file() and reader is not None:
        return None, [(path, reader(path))]
    if path.is_file() and path.name != MANIFEST_FILE:
        raise ConfigError.of(
            "this is not a manifest",
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
    """Return the workspace of a driver: the parent of the drivers folder that contains it."""
    names = {Path(name).name for name in config.section(DriversConfig).folders}
    for parent in (folder, *folder.parents):
        if parent.name in names:
            return parent.parent
        if (parent / DEFAULT_NAME).is_file():
            return parent
    return folder


def _with_config(root: Path, config: Config) -> Config:
    local_config = root / DEFAULT_NAME
    return load_config(local_config) if local_config.is_file() else config


_MAX_CONCURRENT_SERVERS: Final = 4
_CODE_CAUTIONS: Final = ("context_unused", "refresh_without_hook")
"""Cautions that are valid only for drivers without a driver.py."""

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        help="A DRIVER.md, TOOL.md or SECRETS.md, a driver's folder, or a workspace. "
        "Default: all drivers of the config.",
        show_default=False,
    ),
]


class ManifestReport(Struct):
    """The problems and warnings of a check."""

    problems: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    drivers: int = 0
    contracts: int = 0
    unreachable: int = 0
    """Number of problems that are unreachable servers."""

    printed: int = 0
    """Number of problems that were printed already."""

    def add_problem(
        self,
        file: str,
        line: int,
        message: str,
        hint: str = "",
        *,
        driver: str = "",
        printed: bool = False,
    ) -> None:
        problem = {"file": file, "line": line, "message": message, "hint": hint, "driver": driver}
        # Printed problems come first and are not printed again.
        self.problems.insert(self.printed if printed else len(self.problems), problem)
        self.printed += printed

    def add_warning(self, file: str, line: int, message: str, code: str = "") -> None:
        self.warnings.append({"file": file, "line": line, "message": message, "code": code})


def check(
    paths: Paths = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Also start or connect to each server and check it against its driver."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as problems.")] = False,
    json: Json = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Check drivers and contracts, and list every problem with its place. Starts servers only with
    --live.

    Exit code 1 if there are problems, 4 if with --live the only problems are unreachable servers.

    \b
    Examples:
      interlock drivers check
      interlock drivers check .drivers/filesystem-mcp --strict
      interlock drivers check --live
    """

    report = ManifestReport()
    for project, manifests in find_projects(paths or [], config):
        for file, result in manifests:
            _check_manifest(report, file, result)
        if project is not None:
            _check_files(report, project)
            _check_bindings(report, project)
            _check_rejections(report, project, is_complete=not paths)
            if live:
                from interlock.terminal.event_loop import run

                run(_check_servers(report, project, quiet=json))
    _print_report(report, json=json, strict=strict)
    if report.problems or (strict and report.warnings):
        only_unreachable = report.unreachable == len(report.problems) and report.unreachable
        raise typer.Exit(output.UNREACHABLE if only_unreachable else output.FAILED)


# -- files


def _check_manifest(report: ManifestReport, file: Path, result: Any) -> None:
    for problem in result.problems:
        report.add_problem(problem.file, problem.line, problem.message, problem.hint)
    for caution in result.cautions:
        report.add_warning(caution.file, caution.line, caution.sentence, caution.code)
    report.contracts += result.value is not None and file.name == "TOOL.md"


def _check_files(report: ManifestReport, project: DriverProject) -> None:
    workspace = project.workspace
    report.drivers += len(workspace.drivers)
    report.contracts += len(workspace.contracts)
    for problems in workspace.problems.values():
        for problem in problems:
            report.add_problem(
                problem.file,
                problem.line,
                f"{problem.path}: {problem.message}" if problem.path else problem.message,
                problem.hint,
            )
    for cautions in workspace.cautions.values():
        for caution in cautions:
            report.add_warning(caution.file, caution.line, caution.sentence, caution.code)


def _check_bindings(report: ManifestReport, project: DriverProject) -> None:
    """Check the entries of drivers against their contracts, without servers."""
    from interlock.drivers.binding import check_entry
    from interlock.drivers.limits import override_warnings
    from interlock.manifests.lint import lint_bindings

    for key, bindings in project.workspace.bindings.items():
        manifest = project.workspace.drivers[key]
        code = manifest.folder / "driver.py"
        if not code.is_file():
            for caution in lint_bindings(manifest, bindings, hooks=()):
                if caution.code in _CODE_CAUTIONS:
                    report.add_warning(caution.file, caution.line, caution.sentence, caution.code)
        for binding in bindings:
            # The transformers of a driver.py are known only when it runs, so none counts as
            # missing.
            transforms = _transforms(binding.entry) if code.is_file() else ()
            problems = check_entry(
                binding.contract, binding.entry, transforms=transforms, has_hook=code.is_file()
            )
            for sentence in problems:
                report.add_problem(
                    str(manifest.file), binding.entry.line, sentence, driver=manifest.id
                )
            for sentence in override_warnings(binding.contract, manifest, binding.entry):
                report.add_warning(str(manifest.file), binding.entry.line, sentence, "override")


def _check_rejections(report: ManifestReport, project: DriverProject, *, is_complete: bool) -> None:
    """Report what a node would reject or never use.

    Args:
        whole: the check covers the whole config.
    """
    from interlock.core.config.problems import format_path
    from interlock.drivers.commands.rejections import (
        find_missing_manifests,
        find_rejections,
        find_unknown_names,
    )

    for file, message, hint, driver in find_rejections(project):
        report.add_problem(file, 0, message, hint, driver=driver)
    if is_complete:
        for place, message, hint in find_unknown_names(project):
            report.add_problem(format_path(place), 0, message, hint)
        for file, message in find_missing_manifests(project):
            report.add_warning(file, 0, message, "no_manifest")


def _transforms(entry: Any) -> set[str]:
    return {
        value.transform
        for value in entry.mapping.values()
        if not isinstance(value, str) and value.transform
    }


# -- servers


async def _check_servers(report: ManifestReport, project: DriverProject, *, quiet: bool) -> None:
    slots = asyncio.Semaphore(_MAX_CONCURRENT_SERVERS)

    async def check_one(manifest: DriverManifest) -> None:
        async with slots:
            await _check_server(report, project, manifest, quiet=quiet)

    servers = [
        manifest for manifest in project.workspace.drivers.values() if manifest.server is not None
    ]
    await asyncio.gather(*(check_one(manifest) for manifest in servers))


async def _check_server(
    report: ManifestReport, project: DriverProject, manifest: DriverManifest, *, quiet: bool
) -> None:
    from interlock.drivers.binding import check_listed
    from interlock.drivers.commands.standalone_server import connection_error_text, open_server
    from interlock.errors import InterlockError

    file = str(manifest.file)
    has_code = (manifest.folder / "driver.py").is_file()
    try:
        async with open_server(manifest, project) as server:
            tools = server.tools()
            server_name = server.server
    except InterlockError as error:
        report.unreachable += 1
        reason = connection_error_text(manifest.id, error)
        report.add_problem(file, 0, reason, driver=manifest.id, printed=not quiet)
        if not quiet:
            _print_result(False, f"{manifest.id}: {reason}")
        return
    is_good = True
    for binding in project.workspace.bindings.get(manifest.key, ()):
        findings = check_listed(binding.contract, binding.entry, tools, has_hook=has_code)
        for sentence in findings.errors:
            is_good = False
            report.add_problem(
                file, binding.entry.line, output.sanitize(sentence), driver=manifest.id
            )
        for sentence in findings.warnings:
            report.add_warning(file, binding.entry.line, output.sanitize(sentence), "server")
    for sentence in (*_missing_prompts(manifest, server.offer), *server.egress_notes()):
        report.add_warning(file, 0, sentence, "server")
    if not quiet:
        for sentence in server.secret_notes():
            output.print_note(sentence)
        count = len(manifest.implements)
        summary = (
            f"{count} of {count} contracts fit"
            if is_good
            else "the server's tools do not fit the contracts"
        )
        _print_result(
            is_good, f"{manifest.id}: {summary}, {output.sanitize(server_name) or 'unnamed server'}"
        )


def _missing_prompts(manifest: DriverManifest, offer: Any) -> Iterable[str]:
    """Yield a message for each declared prompt that the server lacks."""
    from interlock.drivers.standalone import named_definitions

    offered = {prompt["name"] for prompt in named_definitions(offer.prompts)}
    for prompt in manifest.prompts:
        if prompt.name not in offered:
            yield f"the server offers no prompt {prompt.name}"


# -- output


def _print_report(report: ManifestReport, *, json: bool, strict: bool) -> None:
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
    for problem in report.problems[report.printed :]:
        hint = f"; {problem['hint']}" if problem["hint"] else ""
        output.print_note(f"{_place(problem)}: {problem['message']}{hint}")
    for warning in report.warnings:
        output.print_note(f"Warning: {_place(warning)}: {warning['message']}")
    counts = [format_count(report.drivers, "driver"), format_count(report.contracts, "contract")]
    totals = [format_count(len(report.problems), "problem")] if report.problems else []
    totals += [format_count(len(report.warnings), "warning")] if report.warnings else []
    print(f"{', '.join(counts)}: {', '.join(totals) or 'no problems'}.")


def _place(entry: dict[str, Any]) -> str:
    import os

    file = entry["file"]
    if os.path.isabs(file) and Path(file).is_relative_to(Path.cwd()):
        file = os.path.relpath(file)
    return f"{file}:{entry['line']}" if entry["line"] else file


def _print_result(is_good: bool, text: str) -> None:
    from rich.text import Text

    mark = ("✓", "green") if is_good else ("✗", "red")
    output.create_console().print(Text.assemble(mark, f" {text}"), soft_wrap=True)
