"""`interlock contracts`: the commands for the contract registry and for changed tools."""

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
    open_registry,
)
from interlock.contracts.commands.publish import deprecate, publish, validate
from interlock.contracts.commands.serve import serve
from interlock.terminal import config_source, options, output

contracts = typer.Typer(no_args_is_help=True)


@contracts.callback()
def _contracts() -> None:
    """Manage the contract registry, compare contracts, and accept changed tools.

    The registry is a Git repository with one commit for each publication. A node publishes the
    contracts of its upstreams' tools (contracts: {registry: DIR}), and reports breaking changes.
    """


@contracts.command("list")
def list_contracts(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A glob for names.")] = "*",
    version: RangeOption = "*",
    domain: DomainOption = None,
    protocol: ProtocolOption = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="GLOB", help="Filter by the source."),
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option("--generator", metavar="VERSION", help="Filter by the generator."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Published at this time or later (ISO 8601)."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Published before this time (ISO 8601)."),
    ] = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the contracts of the registry with their versions.

    \b
    Examples:
      interlock contracts list
      interlock contracts list 'files.*' --protocol mcp-tool
      interlock contracts list --domain agent --version '>=2' --since 2027-01-01
    """
    from msgspec.structs import replace

    from interlock.contracts.registry_service import summarize_contract

    with open_registry(registry, config) as contract_registry:
        matches = contract_registry.search(
            name=name,
            range=None if version == "*" else version,
            domain=domain,
            protocol=protocol,  # type: ignore[arg-type]
            source=source,
            generator_version=generator,
            since=since,
            until=until,
        )
        deprecations = {
            (end.name, end.domain, end.major): end for end in contract_registry.deprecations()
        }
    matches = [
        replace(stored, deprecation=deprecations.get((stored.name, stored.domain, stored.major)))
        for stored in matches
    ]
    if json:
        output.print_json([summarize_contract(stored) for stored in matches])
        return
    columns(
        [
            [
                stored.name,
                stored.version,
                stored.protocol,
                stored.domain,
                stored.provenance.source,
                _format_deprecation(stored.deprecation),
            ]
            for stored in matches
        ]
    )
    if not matches:
        output.print_note("No matching contract.")


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
    """Show one contract: the newest version in a range, with its provenance.

    The document is written to stdout, everything else to stderr. With --json both are one object.
    Exit code 1 if there is no such contract.

    \b
    Examples:
      interlock contracts show ToolInvocationRequest --version 2.3.x
      interlock contracts show files.read_file > read_file.tool.json
    """
    from interlock.contracts.registry_service import describe_contract

    with open_registry(registry, config) as contract_registry:
        contract = contract_registry.find(
            name,
            version,
            domain=domain,
            protocol=protocol,  # type: ignore[arg-type]
            include_sunset=True,
        )
    if json:
        output.print_json(describe_contract(contract))
        return
    origin = contract.provenance
    output.print_note(f"{contract.name} {contract.version}  {contract.protocol}  {contract.domain}")
    output.print_note(
        output.sanitize(f"from {origin.source}, by {origin.generator_version}, {origin.timestamp}")
    )
    deprecation = contract.deprecation
    if deprecation is not None:
        output.print_note(
            output.sanitize(
                f"deprecated since {deprecation.deprecated_at}, supported until "
                f"{deprecation.sunset_at}: see "
                f"{deprecation.migration_uri}"
            )
        )
    print(contract.document.decode(errors="replace"), end="")


@contracts.command()
def log(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show only this contract.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", metavar="N", parser=options.read_count, help="The number of entries."
        ),
    ] = 20,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show who published what, when and why, newest first. Same data as `git log` in the registry.

    \b
    Examples:
      interlock contracts log
      interlock contracts log files.read_file -n 5
    """
    with open_registry(registry, config) as contract_registry:
        commits = contract_registry.history(name, count)
    if json:
        output.print_json(commits)
        return
    columns([_format_commit(entry) for entry in commits])
    if not commits:
        output.print_note("Nothing is published yet.")


def _format_commit(entry: Any) -> list[str]:
    time_text = entry.time.replace("T", " ").removesuffix("Z")
    names = [contract.partition(" (")[0] for contract in entry.contracts]
    remainder = f" and {len(names) - 1} more" if len(names) > 1 else ""
    published = f"{names[0]}{remainder}" if names else "–"
    return [entry.commit[:12], time_text, entry.author, published, entry.reason]


def _format_deprecation(deprecation: Any) -> str:
    if deprecation is None:
        return ""
    day = deprecation.sunset_at[:10]
    return f"ended {day}" if deprecation.is_over(time.time()) else f"supported until {day}"


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
