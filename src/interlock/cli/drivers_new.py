"""`interlock drivers new`: connect to a server once, and write the files of a driver for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.cli import say, where

if TYPE_CHECKING:
    from interlock.cli.driver_declaring import Wish
    from interlock.cli.driver_making import Made
    from interlock.cli.driver_workspace import Desk

_FIRST_CONFIG: Final = """\
# `interlock up` runs the drivers of this folder (.drivers). Servers can be added beside them.
drivers: {}
"""
_KINDS: Final = ("npm", "binary", "docker", "remote")
_TRANSPORTS: Final = {
    "npm": ("stdio",),
    "binary": ("stdio",),
    "docker": ("stdio",),
    "remote": ("http", "sse"),
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(r"[A-Z][A-Z0-9_]*")


def new(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="npm, binary, docker or remote.", show_default=False),
    ],
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="The package, program, image or URL.", show_default=False
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARG]...", help="What the server is started with.", show_default=False
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Default: by REF, such as files-mcp.")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport", metavar="T", help="For a remote server: http (default) or sse."
        ),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools",
            metavar="TOOL[:CONTRACT],...",
            help="Only these tools, under these ids: read_file:fs-read,write_file. Default: all.",
        ),
    ] = None,
    egress: Annotated[
        list[str] | None,
        typer.Option("--egress", metavar="HOST", help="A host that it may reach. May be repeated."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable, which is no secret."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="A secret, by the name of the variable that has it now. A started server gets it "
            "under that name, a remote one as a bearer token.",
        ),
    ] = None,
    pip: Annotated[
        str | None,
        typer.Option(
            "--pip", metavar="PACKAGE", help="Where a binary's program is installed from."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="The folder of drivers. Default: that of the config, else .drivers.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install the package without asking.")
    ] = False,
    config: where.ConfigOption = None,
) -> None:
    """Make a driver for an MCP server: connect to it once, and write what it offers as files.

    Writes DRIVER.md (and SECRETS.md) into .drivers/ID, and a contract TOOL.md for every tool into
    tools/. The server is confined to the hosts of --egress, also for this one time. What it says
    of itself is a draft: read the contracts before you rely on them.

    \b
    Examples:
      interlock drivers new npm @modelcontextprotocol/server-filesystem -- .
      interlock drivers new npm @modelcontextprotocol/server-filesystem \\
          --tools read_text_file:fs-read,write_file:fs-write -- .
      interlock drivers new binary mcp-server-time --pip mcp-server-time
      interlock drivers new remote https://mcp.example.com/mcp --secret EXAMPLE_TOKEN
    """
    from interlock.cli.driver_making import make, write
    from interlock.cli.driver_workspace import desk_of
    from interlock.cli.drivers_access import require_consent
    from interlock.cli.event_loop import run

    wish = _wish(kind, ref, args, id, transport, egress, env, secret, pip)
    chosen = _chosen(tools)
    source = where.source_if_any(config)
    loaded, base_dir = where.load_or_default(source)
    folders = out if out is not None else base_dir / loaded.drivers.folders[0]
    folder = folders.absolute() / wish.id
    if out is not None:
        base_dir = folders.absolute().parent
    desk = desk_of(loaded, base_dir)
    _must_be_new(folder, desk, force)
    manifest = wish.manifest(folder)
    if manifest.install and not desk.settings.allow_install:
        require_consent(manifest, yes=yes)
    with _shown() as tell:
        made = run(make(wish, desk, folder, chosen, tell=tell))
    if source is None and out is None:
        # Without a config `interlock up` would not know that there is something to run.
        from interlock.config import DEFAULT_NAME

        made.files.setdefault(base_dir / DEFAULT_NAME, _FIRST_CONFIG)
    write(made, force)
    _told(made, desk)
    # Everything was read before it was written; what only shows beside other files, shows now.
    desk_of(loaded, base_dir).manifest(wish.id)


# -- what is wished for


def _wish(
    kind: str,
    ref: str,
    args: list[str] | None,
    id: str | None,
    transport: str | None,
    egress: list[str] | None,
    env: list[str] | None,
    secret: list[str] | None,
    pip: str | None,
) -> Wish:
    from urllib.parse import urlsplit

    from interlock.cli.driver_declaring import Wish
    from interlock.cli.driver_drafting import driver_id
    from interlock.manifests.schema_parts import DRIVER_ID

    if kind not in _KINDS:
        raise typer.BadParameter(f"{kind!r} is no kind of server; write {', '.join(_KINDS)}.")
    given = transport or _TRANSPORTS[kind][0]
    if given not in _TRANSPORTS[kind]:
        known = " or ".join(_TRANSPORTS[kind])
        raise typer.BadParameter(f"a {kind} server is spoken to over {known}, not {given}.")
    if kind == "remote" and (args or env):
        raise typer.BadParameter(
            "a remote server is not started: it takes no arguments and no --env."
        )
    if pip and kind != "binary":
        raise typer.BadParameter("--pip is for a binary: the others come from elsewhere.")
    hosts = list(egress or ())
    if kind == "remote" and not hosts:
        # Without its own host it could not be reached at all.
        hosts = [urlsplit(ref).netloc.rpartition("@")[2]]
    variables = dict(_variable(one) for one in env or ())
    for name in secret or ():
        if not _SECRET.fullmatch(name):
            raise typer.BadParameter(
                f"--secret wants a name in capital letters, and {name!r} is none."
            )
    chosen = id or driver_id(kind, ref)
    if not re.fullmatch(DRIVER_ID["pattern"], chosen):
        raise typer.BadParameter(f"{chosen!r} is no id of a driver; {DRIVER_ID['description']}.")
    return Wish(
        id=chosen,
        kind=kind,  # type: ignore[arg-type]
        ref=ref,
        transport=given,  # type: ignore[arg-type]
        args=tuple(args or ()),
        egress=tuple(hosts),
        env=variables,
        secrets=tuple(dict.fromkeys(secret or ())),
        pip=pip or "",
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise typer.BadParameter(f"--env wants NAME=VALUE, and {name!r} is not that.")
    return name, value


def _chosen(tools: str | None) -> dict[str, str] | None:
    """`read_file:fs-read,write_file` → tool → contract."""
    from interlock.manifests.schema_parts import TOOL_ID

    if tools is None:
        return None
    found: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in tools.split(","))):
        name, _, contract = part.partition(":")
        if not name:
            raise typer.BadParameter(
                f"--tools wants TOOL or TOOL:CONTRACT, and {part!r} is neither."
            )
        if contract and not re.fullmatch(TOOL_ID["pattern"], contract):
            raise typer.BadParameter(
                f"{contract!r} is no id of a contract; {TOOL_ID['description']}."
            )
        found[name] = contract
    return found


def _must_be_new(folder: Path, desk: Desk, force: bool) -> None:
    from interlock.errors import CONFIG, InterlockError

    path = folder / "DRIVER.md"
    if path.exists() and not force:
        raise InterlockError(
            CONFIG, f"{desk.shown(path)} is there already; choose another --id, or say --force."
        )


def _told(made: Made, desk: Desk) -> None:
    for path in sorted(made.files):
        print(desk.shown(path))
    for sentence in made.remarks:
        say.note(sentence)
    for id, misfits in made.taken.items():
        say.note(f"{id} is a contract that was there already; the driver serves it.")
        for sentence in misfits:
            say.note(f"Warning: it does not fit yet: {say.printable(sentence)}")
    for tool, why in made.left_out.items():
        say.note(f"Warning: {say.printable(tool)} has no contract: {say.printable(why)}")
    for id, notes in made.notes.items():
        if notes:
            say.note(f"{id}: {say.printable('; '.join(notes))}")
    say.note(f"Look at them, then: interlock drivers check --live && interlock drivers explain "
             f"{next(iter(made.notes), '') or next(iter(made.taken))}")  # fmt: skip


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """What goes on, on a terminal in one line that changes, elsewhere a line each."""
    if not sys.stderr.isatty():
        yield lambda text: say.note(say.printable(text))
        return
    from rich.text import Text

    with say.console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(say.printable(text)))
