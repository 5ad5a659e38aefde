"""`interlock contracts publish|validate|deprecate`: what changes the registry by hand, and what
asks it about a payload."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from interlock.cli import options, say, where
from interlock.cli.contracts_options import (
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
)


def publish(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The schema; - is stdin.")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What it is called.")],
    version: Annotated[
        str, typer.Option("--version", metavar="X.Y.Z", help="Its version, which is new.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", "-m", metavar="TEXT", help="Why, for the history.")
    ],
    domain: Annotated[
        str, typer.Option("--domain", metavar="NAME", help="To what it belongs.")
    ] = "common",
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            metavar="[json-schema|protobuf|openapi|mcp-tool]",
            parser=options.one_of("json-schema", "protobuf", "openapi", "mcp-tool"),
            help="In which language it is written.",
        ),
    ] = "json-schema",
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TEXT", help="Where it came from. Default: FILE."),
    ] = None,
    author: AuthorOption = None,
    registry: RegistryOption = None,
    config: where.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Publish one version of a contract, with one commit.

    What is published never changes: another document under the same version is refused, and so is a
    change that breaks without a new major. The same document again changes nothing.

    \b
    Example:
      interlock contracts publish order.schema.json --name Order --version 2.4.0 \\
          --domain shop -m "orders have a currency"
    """
    from interlock import __version__
    from interlock.node.contracts_asked import summary
    from interlock.stores.contract_records import Contract, Provenance, written_moment

    provenance = Provenance(
        source or ("stdin" if file == "-" else file),
        f"interlock {__version__}",
        written_moment(time.time()),
    )
    kind: Any = protocol
    contract = Contract(name, version, domain, kind, read_file(file), provenance)
    with registry_of(registry, config) as one:
        before = one.metrics().head
        stored = one.publish(contract, author=author_of(author), reason=reason)
        is_new = one.metrics().head != before
    if json:
        say.as_json({**summary(stored), "new": is_new})
    elif is_new:
        print(f"{stored.name} {stored.version} is published: {stored.path}")
    else:
        print(f"{stored.name} {stored.version} is there already, exactly so.")


def validate(
    name: NameArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The payload; - is stdin.")],
    version: RangeOption = "*",
    part: Annotated[
        str,
        typer.Option(
            "--part",
            metavar="[input|output]",
            parser=options.one_of("input", "output"),
            help="Of a tool: its arguments, or its structured result.",
        ),
    ] = "input",
    domain: DomainOption = None,
    protocol: ProtocolOption = None,
    registry: RegistryOption = None,
    config: where.ConfigOption = None,
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
        say.as_json(told)
    elif told.valid:
        print(f"✓ it is a {told.name} {told.version}")
    else:
        for wrong in told.errors:
            print(say.printable(f"✗ {wrong.path or '/'}: {wrong.message}"))
    if told.deprecation is not None:
        say.note(f"{told.name} {told.version} is supported until {told.deprecation.sunset_at}.")
    if not told.valid:
        raise typer.Exit(say.FAILED)


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
    domain: DomainOption = None,
    author: AuthorOption = None,
    registry: RegistryOption = None,
    config: where.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Say that a major of a contract ends, and when.

    Until then it is served with a notice, afterwards whoever asks for it is told
    `deprecated_version` and where to go on.

    \b
    Example:
      interlock contracts deprecate Order 1 --migration https://docs.example.com/order-2
    """
    with registry_of(registry, config) as one:
        ends = one.deprecate(
            name,
            major,
            author=author_of(author),
            migration_uri=migration,
            deprecated_at=since,
            sunset_at=sunset,
            domain=domain,
        )
    if json:
        say.as_json(ends)
    else:
        print(f"{ends.name} {ends.major}.x is supported until {ends.sunset_at}.")
