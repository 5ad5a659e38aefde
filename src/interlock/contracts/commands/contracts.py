"""`interlock contracts`: the registry of every schema, what changed in it, and tools whose contract
broke."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from interlock.contracts.commands.build import build
from interlock.contracts.commands.diff import check, diff
from interlock.contracts.commands.live import accept, status, watch
from interlock.contracts.commands.options import (
    DomainOption,
    JsonOption,
    NameArgument,
    ProtocolOption,
    RangeOption,
    RegistryOption,
    columns,
    registry_of,
)
from interlock.contracts.commands.publish import deprecate, publish, validate
from interlock.contracts.commands.serve import serve
from interlock.terminal import config_source, options, output

contracts = typer.Typer(no_args_is_help=True)


@contracts.callback()
def _contracts() -> None:
    """Keep every schema with its history, find what breaks, and accept what broke.

    The registry is a Git repository with one commit for each publication. A node publishes what
    its upstreams' tools are (contracts: {registry: DIR}), and tells when one breaks its callers.
    """


@contracts.command("list")
def list_contracts(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A glob over names.")] = "*",
    version: RangeOption = "*",
    domain: DomainOption = None,
    protocol: ProtocolOption = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="GLOB", help="Only what came from there."),
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option("--generator", metavar="VERSION", help="Only what this made."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Not older (ISO 8601).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Older (ISO 8601).")
    ] = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show which contracts there are, at which versions.

    \b
    Examples:
      interlock contracts list
      interlock contracts list 'files.*' --protocol mcp-tool
      interlock contracts list --domain agent --version '>=2' --since 2027-01-01
    """
    from msgspec.structs import replace

    from interlock.contracts.registry_service import summary

    with registry_of(registry, config) as one:
        found = one.search(
            name=name,
            range=None if version == "*" else version,
            domain=domain,
            protocol=protocol,  # type: ignore[arg-type]
            source=source,
            generator_version=generator,
            since=since,
            until=until,
        )
        ends = {(end.name, end.domain, end.major): end for end in one.deprecations()}
    found = [
        replace(stored, deprecation=ends.get((stored.name, stored.domain, stored.major)))
        for stored in found
    ]
    if json:
        output.print_json([summary(stored) for stored in found])
        return
    columns(
        [
            [
                stored.name,
                stored.version,
                stored.protocol,
                stored.domain,
                stored.provenance.source,
                _ending(stored.deprecation),
            ]
            for stored in found
        ]
    )
    if not found:
        output.print_note("no contract fits.")


@contracts.command()
def show(
    name: NameArgument,
    version: RangeOption = "*",
    domain: DomainOption = None,
    protocol: ProtocolOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one contract: the newest version in a range, and where it came from.

    The document goes to stdout, everything about it to stderr; with --json both are one object.
    Exit code 1 when there is none.

    \b
    Examples:
      interlock contracts show ToolInvocationRequest --version 2.3.x
      interlock contracts show files.read_file > read_file.tool.json
    """
    from interlock.contracts.registry_service import described

    with registry_of(registry, config) as one:
        found = one.find(
            name,
            version,
            domain=domain,
            protocol=protocol,  # type: ignore[arg-type]
            sunset=True,
        )
    if json:
        output.print_json(described(found))
        return
    origin = found.provenance
    output.print_note(f"{found.name} {found.version}  {found.protocol}  {found.domain}")
    output.print_note(
        output.sanitize(f"from {origin.source}, by {origin.generator_version}, {origin.timestamp}")
    )
    ends = found.deprecation
    if ends is not None:
        output.print_note(
            output.sanitize(
                f"deprecated since {ends.deprecated_at}, supported until {ends.sunset_at}: see "
                f"{ends.migration_uri}"
            )
        )
    print(found.document.decode(errors="replace"), end="")


@contracts.command()
def log(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only of this contract.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", metavar="N", parser=options.read_count, help="How many entries."
        ),
    ] = 20,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show who published what, when and why, newest first. `git log` in the registry says the same.

    \b
    Examples:
      interlock contracts log
      interlock contracts log files.read_file -n 5
    """
    with registry_of(registry, config) as one:
        found = one.history(name, count)
    if json:
        output.print_json(found)
        return
    columns([_line(entry) for entry in found])
    if not found:
        output.print_note("nothing was published yet.")


def _line(entry: Any) -> list[str]:
    moment = entry.time.replace("T", " ").removesuffix("Z")
    named = [one.partition(" (")[0] for one in entry.contracts]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    what = f"{named[0]}{more}" if named else "–"
    return [entry.commit[:12], moment, entry.author, what, entry.reason]


def _ending(ends: Any) -> str:
    if ends is None:
        return ""
    day = ends.sunset_at[:10]
    return f"ended {day}" if ends.is_over(time.time()) else f"supported until {day}"


contracts.command()(diff)
contracts.command()(check)
contracts.command()(build)
contracts.command()(publish)
contracts.command()(validate)
contracts.command()(deprecate)
contracts.command()(status)
contracts.command()(watch)
contracts.command()(accept)
contracts.command()(serve)
