"""`interlock drivers install`, `login` and `logout`: what a driver needs before it can work."""

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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also when it is installed already.")
    ] = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Install what a driver says under install, into a folder of its own. Asks first.

    Packages come from where npm, pip and docker of this machine get them; nothing of what is
    installed is run. A node starts servers from that folder, without the network.

    \b
    Examples:
      interlock drivers install filesystem-mcp
      interlock drivers install filesystem-mcp --yes
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.drivers.standalone import prepared
    from interlock.terminal.event_loop import run

    project = open_project(config)
    manifest = project.manifest(driver)
    if not manifest.install:
        output.print_note(f"{manifest.id} says nothing under install: there is nothing to do.")
        return
    require_consent(manifest, yes=yes or project.settings.allow_install)
    with progress_shown(manifest.id) as progress:
        done = run(
            prepared(
                manifest, project, may_install=True, force=again, progress=progress, warn=say.note
            )
        )
    version = f" {done.version}" if done.version else ""
    where_to = f" ({done.program})" if done.program is not None else ""
    what = "is installed"
    if not done.installed_now:
        what = "was installed already" if done.program else "is on this machine already"
    print(f"{manifest.id}{version} {what}{where_to}.")


def require_consent(manifest: DriverManifest, *, yes: bool) -> None:
    """Show what would be installed, and ask. Raises typer.Exit or BadParameter without a yes."""
    for step in manifest.install:
        named = [str(step.settings[key]) for key in ("package", "image", "url", "path")
                 if key in step.settings]  # fmt: skip
        output.print_note(f"{step.method}: {output.sanitize(' '.join(named))}")
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "nobody can be asked here: look at what it installs, then say --yes"
        )
    if not output.confirm(f"Install this for {manifest.id}?"):
        output.print_note("nothing was installed.")
        raise typer.Exit(output.FAILED)


@contextmanager
def progress_shown(id: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda step, of, text: output.print_note(
            f"[{step}/{of}] {id}: {output.sanitize(text)}"
        )
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.text import Text

    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=output.create_console(stderr=True), transient=True) as bar:
        task = bar.add_task(id, total=None)
        yield lambda step, of, text: bar.update(
            task,
            completed=step,
            total=of,
            description=str(Text(output.sanitize(f"{id}: {text}"))),
        )


def login(
    driver: DriverArgument,
    config: config_source.ConfigOption = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address of the page to open.")
    ] = False,
) -> None:
    """Sign in with a driver: by its command, or by its page in the browser.

    A running node takes it up with the next call. Exit code 1 when the driver needs no sign-in but
    a secret that has no value here: it is said where to put it.

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

        lacking = run(condition_of(manifest, project)).auth_problem
        if lacking:
            output.print_note(lacking)
            raise typer.Exit(output.FAILED)
        _needs_no_login(manifest)
        return
    run(_sign_in(project, manifest, no_browser))
    print(f"Signed in with {manifest.id}.")


def logout(driver: DriverArgument, config: config_source.ConfigOption = None) -> None:
    """Sign out of a driver: it is not used until somebody signs in again.

    What its own login command has kept on this machine is for its own logout to remove.

    \b
    Example:
      interlock drivers logout github-mcp
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.terminal.event_loop import run

    project = open_project(config)
    manifest = project.manifest(driver)
    if manifest.auth is None or manifest.auth.login is None:
        _needs_no_login(manifest)
        return
    run(_sign_out(project, manifest))
    print(f"Signed out of {manifest.id}.")


def _needs_no_login(manifest: DriverManifest) -> None:
    names = () if manifest.auth is None else manifest.auth.state_env
    if names:
        output.print_note(
            f"{manifest.id} needs nobody to sign in, but these secrets: {', '.join(names)}."
        )
    else:
        output.print_note(f"{manifest.id} needs nobody to sign in.")


async def _sign_in(project: DriverProject, manifest: DriverManifest, no_browser: bool) -> None:
    from interlock.drivers.health import declared_probe_client
    from interlock.drivers.sign_in import sign_in
    from interlock.drivers.standalone import sign_in_of

    async def show(url: str) -> None:
        shown = output.sanitize(url)
        if no_browser or not await asyncio.to_thread(_open_page, url):
            output.print_note(f"Open this page to sign in with {manifest.id}:\n\n  {shown}\n")
        else:
            output.print_note(f"A page opens in your browser. If it does not:\n\n  {shown}\n")

    settings = project.config.section(DriversConfig)
    ask = declared_probe_client(
        manifest,
        any_egress=settings.any_egress,
        local_egress=settings.local_egress,
        never=[(project.config.host, project.config.port)],
    )
    await sign_in_of(manifest, project).sign_in(lambda: sign_in(manifest, open_url=show, ask=ask))


async def _sign_out(project: DriverProject, manifest: DriverManifest) -> None:
    from interlock.drivers.standalone import sign_in_of

    await sign_in_of(manifest, project).sign_out()


def _open_page(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False
