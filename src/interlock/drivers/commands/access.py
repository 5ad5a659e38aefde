"""`interlock drivers install`, `login` and `logout`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.drivers.commands.options import DriverArgument
from interlock.drivers.config import DriversConfig
from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.drivers.commands.workspace import DriverProject
    from interlock.manifests.model import DriverManifest


def install(
    driver: DriverArgument,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install without a confirmation.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--again", help="Install again if it is installed already.")
    ] = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Install a driver into a private folder. Asks before it installs.

    The packages come from the sources that npm, pip and docker of this machine use. Nothing that is
    installed runs during the installation. A node starts servers from that folder, without network.

    \b
    Examples:
      interlock drivers install filesystem-mcp
      interlock drivers install filesystem-mcp --yes
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.drivers.standalone import prepare_driver
    from interlock.terminal.event_loop import run

    project = open_project(config)
    manifest = project.manifest(driver)
    if not manifest.install:
        output.print_note(f"{manifest.id} has no `install` steps: nothing to do.")
        return
    require_consent(manifest, yes=yes or project.settings.allow_install)
    with show_progress(manifest.id) as progress:
        result = run(
            prepare_driver(
                manifest,
                project,
                may_install=True,
                force=force,
                progress=progress,
                warn=output.print_note,
            )
        )
    version = f" {result.version}" if result.version else ""
    where_to = f" ({result.program})" if result.program is not None else ""
    status = "is installed"
    if not result.installed_now:
        status = "was installed already" if result.program else "is on this machine already"
    print(f"{manifest.id}{version} {status}{where_to}.")


def require_consent(manifest: DriverManifest, *, yes: bool) -> None:
    """Show what would be installed and ask for consent. Raises typer.Exit or BadParameter without
    consent."""
    for step in manifest.install:
        sources = [str(step.settings[key]) for key in ("package", "image", "url", "path")
                 if key in step.settings]  # fmt: skip
        output.print_note(f"{step.method}: {output.sanitize(' '.join(sources))}")
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "Cannot ask for consent: stdin is not a terminal. "
            "Check the steps above, then add --yes."
        )
    if not output.confirm(f"Install this for {manifest.id}?"):
        output.print_note("Nothing was installed.")
        raise typer.Exit(output.FAILED)


@contextmanager
def show_progress(id: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on a terminal, or lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda step, total, text: output.print_note(
            f"[{step}/{total}] {id}: {output.sanitize(text)}"
        )
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.text import Text

    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=output.create_console(stderr=True), transient=True) as bar:
        task = bar.add_task(id, total=None)
        yield lambda step, total, text: bar.update(
            task,
            completed=step,
            total=total,
            description=str(Text(output.sanitize(f"{id}: {text}"))),
        )


def login(
    driver: DriverArgument,
    config: config_source.ConfigOption = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address of the page to open.")
    ] = False,
) -> None:
    """Sign in with a driver, by its command or its page in the browser.

    A running node uses the sign-in at the next call. Exit code 1 if the driver needs a secret
    instead of a sign-in and the secret has no value. The message says where to set it.

    \b
    Example:
      interlock drivers login github-mcp
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.terminal.event_loop import run

    project = open_project(config)
    manifest = project.manifest(driver)
    if manifest.auth is None or manifest.auth.login is None:
        from interlock.drivers.commands.offline_status import condition_of

        problem = run(condition_of(manifest, project)).auth_problem
        if problem:
            output.print_note(problem)
            raise typer.Exit(output.FAILED)
        _note_no_login(manifest)
        return
    run(_sign_in(project, manifest, no_browser))
    print(f"Signed in with {manifest.id}.")


def logout(driver: DriverArgument, config: config_source.ConfigOption = None) -> None:
    """Sign out of a driver. The driver is not used until an operator signs in again.

    Files that its login command has stored are removed only by its own logout.

    \b
    Example:
      interlock drivers logout github-mcp
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.terminal.event_loop import run

    project = open_project(config)
    manifest = project.manifest(driver)
    if manifest.auth is None or manifest.auth.login is None:
        _note_no_login(manifest)
        return
    run(_sign_out(project, manifest))
    print(f"Signed out of {manifest.id}.")


def _note_no_login(manifest: DriverManifest) -> None:
    names = () if manifest.auth is None else manifest.auth.state_env
    if names:
        output.print_note(f"{manifest.id} needs no sign-in, but these secrets: {', '.join(names)}.")
    else:
        output.print_note(f"{manifest.id} needs no sign-in.")


async def _sign_in(project: DriverProject, manifest: DriverManifest, no_browser: bool) -> None:
    from interlock.drivers.health import declared_probe_client
    from interlock.drivers.sign_in import sign_in
    from interlock.drivers.standalone import sign_in_of

    async def show(url: str) -> None:
        printable_url = output.sanitize(url)
        if no_browser or not await asyncio.to_thread(_open_page, url):
            output.print_note(
                f"Open this page to sign in with {manifest.id}:\n\n  {printable_url}\n"
            )
        else:
            output.print_note(
                f"A page opens in your browser. If it does not, open:\n\n  {printable_url}\n"
            )

    settings = project.config.section(DriversConfig)
    probe_client = declared_probe_client(
        manifest,
        any_egress=settings.any_egress,
        local_egress=settings.local_egress,
        never=[(project.config.host, project.config.port)],
    )
    await sign_in_of(manifest, project).sign_in(
        lambda: sign_in(manifest, open_url=show, probe_client=probe_client)
    )


async def _sign_out(project: DriverProject, manifest: DriverManifest) -> None:
    from interlock.drivers.standalone import sign_in_of

    await sign_in_of(manifest, project).sign_out()


def _open_page(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False
