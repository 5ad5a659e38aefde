"""`interlock contracts publish|validate|deprecate`: what changes the registry by hand, and what
asks it about a payload."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from interlock.contracts.commands.options import (
    AuthorOption,
    DomainOption,
    JsonOption,
    NameArgument,
    ProtocolOption,
    RangeOption,
    RegistryOption,
    author_of,
    read_file,
    read_json,
    registry_of,
    version_of,
)
from interlock.primitives.timestamps import format_utc
from interlock.terminal import config_source, options, output

_BY_ENDING: Final = (
    (".proto", "protobuf"),
    (".md", "mcp-tool"),
    (".tool.json", "mcp-tool"),
    (".openapi.json", "openapi"),
)


def publish(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The schema; - is stdin.")],
    reason: Annotated[
        str, typer.Option("--reason", "-m", metavar="TEXT", help="Why, for the history.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What it is called. A TOOL.md says it itself."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="X.Y.Z",
            parser=version_of,
            help="Its version, which is new. A TOOL.md says it itself.",
        ),
    ] = None,
    domain: Annotated[
        str, typer.Option("--domain", metavar="NAME", help="To what it belongs.")
    ] = "common",
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            metavar="[json-schema|protobuf|openapi|mcp-tool]",
            parser=options.choice_reader("json-schema", "protobuf", "openapi", "mcp-tool"),
            help="In which language it is written. Default: by the ending of FILE (.proto, .md, "
            ".tool.json, .openapi.json), else json-schema.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TEXT", help="Where it came from. Default: FILE."),
    ] = None,
    author: AuthorOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Publish one version of a contract, with one commit.

    What is published never changes: another document under the same version is refused, and so is a
    change that breaks without a new major. The same document again changes nothing.

    \b
    Examples:
      interlock contracts publish tools/fs-read/TOOL.md -m "it reads the tail of a file, too"
      interlock contracts publish order.schema.json --name Order --version 2.4.0 \\
          --domain shop -m "orders have a currency"
    """
    from interlock import __version__
    from interlock.contracts.registry.records import Contract, Provenance
    from interlock.contracts.registry_service import summary

    provenance = Provenance(
        source or ("stdin" if file == "-" else file),
        f"interlock {__version__}",
        format_utc(time.time()),
    )
    kind: Any = protocol or _by_ending(file)
    if kind == "mcp-tool" and file.endswith(".md"):
        document, own_name, own_version = _declared(Path(file))
        name, version = name or own_name, version or own_version
    else:
        document = read_file(file)
    for option, given in (("--name", name), ("--version", version)):
        if not given:
            raise typer.BadParameter(f"{file} does not say it itself: write {option}.")
    contract = Contract(name or "", version or "", domain, kind, document, provenance)
    with registry_of(registry, config, publishes=True) as one:
        before = one.metrics().head
        stored = one.publish(contract, author=author_of(author), reason=reason)
        is_new = one.metrics().head != before
    if json:
        output.print_json({**summary(stored), "new": is_new})
    elif is_new:
        print(f"{stored.name} {stored.version} is published: {stored.path}")
    else:
        print(f"{stored.name} {stored.version} is there already, exactly so.")


def _by_ending(file: str) -> str:
    return next((kind for ending, kind in _BY_ENDING if file.endswith(ending)), "json-schema")


def _declared(path: Path) -> tuple[bytes, str, str | None]:
    """A TOOL.md as the tool that it declares, with its name and version. Raises ConfigError."""
    import msgspec

    from interlock.contracts.commands.diff import read_contract_file

    found = read_contract_file(path)
    return msgspec.json.encode(found.content), str(found.content["name"]), found.version


def validate(
    name: NameArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The payload; - is stdin.")],
    version: RangeOption = "*",
    part: Annotated[
        str,
        typer.Option(
            "--part",
            metavar="[input|output]",
            parser=options.choice_reader("input", "output"),
            help="Of a tool: its arguments, or its structured result.",
        ),
    ] = "input",
    domain: DomainOption = None,
    protocol: ProtocolOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Ask whether a payload is what a contract asks for. Exit code 1 when it is not.

    \b
    Examples:
      interlock contracts validate Order order.json --version 2.x
      jq .arguments call.json | interlock contracts validate files.read_file -
    """
    payload = read_json(file)
    kind: Any = protocol
    with registry_of(registry, config) as one:
        told = one.validate(name, version, payload, domain=domain, protocol=kind, part=part)
    if json:
        output.print_json(told)
    elif told.valid:
        print(f"✓ it fits {told.name} {told.version}")
    else:
        for wrong in told.errors:
            print(output.sanitize(f"✗ {wrong.path or '/'}: {wrong.message}"))
    if told.deprecation is not None:
        output.print_note(
            f"{told.name} {told.version} is supported until {told.deprecation.sunset_at}."
        )
    if not told.valid:
        raise typer.Exit(output.FAILED)


def deprecate(
    name: NameArgument,
    major: Annotated[
        int, typer.Argument(metavar="MAJOR", help="Which major ends, such as 1.", min=0)
    ],
    migration: Annotated[
        str,
        typer.Option("--migration", metavar="URI", help="Where it is said how to go on."),
    ],
    sunset: Annotated[
        str | None,
        typer.Option(
            "--sunset",
            metavar="TIME",
            help="Until when it is supported (ISO 8601). Default: 180 days after --since.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Since when it is deprecated (ISO 8601). Default: now.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask about an early end.")
    ] = False,
    domain: DomainOption = None,
    author: AuthorOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Say that a major of a contract ends, and when.

    Until then it is served with a notice, afterwards whoever asks for it is told
    `deprecated_version` and where to go on. An end that is over already, or less than 90 days after
    --since, needs a yes.

    \b
    Example:
      interlock contracts deprecate Order 1 --migration https://docs.example.com/order-2
    """
    if not yes:
        _confirm_early_end(f"{name} {major}.x", since, sunset)
    with registry_of(registry, config) as one:
        ends = one.deprecate(
            name,
            major,
            author=author_of(author),
            migration_uri=migration,
            deprecated_at=since,
            sunset_at=sunset,
            domain=domain,
            early=True,
        )
    if json:
        output.print_json(ends)
    else:
        print(f"{ends.name} {ends.major}.x is supported until {ends.sunset_at}.")


def _confirm_early_end(what: str, since: str | None, sunset: str | None) -> None:
    """Ask before callers of a major are cut off at once or within 90 days. Raises BadParameter,
    Exit, InterlockError."""
    from interlock.contracts.registry.queries import moment
    from interlock.contracts.registry.registry import SUPPORTED_FOR, ends_early

    now = time.time()
    began = moment(since) if since else now
    ends = moment(sunset) if sunset else began + SUPPORTED_FOR
    if not ends_early(began, ends, now):
        return
    told = f"{output.sanitize(what)} would end at {format_utc(ends)}, "
    told += "which is over" if ends <= now else "less than 90 days after it is deprecated"
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{told}. Name a later --sunset, or say --yes.")
    if not output.confirm(f"{told}. End it?"):
        output.print_note("nothing was changed.")
        raise typer.Exit(output.FAILED)
