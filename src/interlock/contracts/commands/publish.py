"""The commands `interlock contracts publish`, `validate` and `deprecate`."""

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
    author_or_user,
    open_registry,
    parse_version,
    read_file,
    read_json,
)
from interlock.primitives.timestamps import format_utc
from interlock.terminal import config_source, options, output

_PROTOCOL_OF_ENDING: Final = (
    (".proto", "protobuf"),
    (".md", "mcp-tool"),
    (".tool.json", "mcp-tool"),
    (".openapi.json", "openapi"),
)


def publish(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The schema; - reads stdin.")],
    reason: Annotated[
        str,
        typer.Option("--reason", "-m", metavar="TEXT", help="The reason, for the commit message."),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="The name of the contract. Default: from a TOOL.md."
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="X.Y.Z",
            parser=parse_version,
            help="The new version. Default: from a TOOL.md.",
        ),
    ] = None,
    domain: Annotated[
        str, typer.Option("--domain", metavar="NAME", help="The domain of the contract.")
    ] = "common",
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            metavar="[json-schema|protobuf|openapi|mcp-tool]",
            parser=options.choice_reader("json-schema", "protobuf", "openapi", "mcp-tool"),
            help="The language of FILE. Default: by the ending of FILE (.proto, .md, "
            ".tool.json, .openapi.json), else json-schema.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="TEXT", help="The origin. Default: FILE."),
    ] = None,
    author: AuthorOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Publish one version of a contract, in one commit.

    Published versions never change. Publishing another document under the same version is an error,
    and so is a breaking change without a new major version. Publishing the same document again
    changes nothing.

    \b
    Examples:
      interlock contracts publish tools/fs-read/TOOL.md -m "it reads the tail of a file, too"
      interlock contracts publish order.schema.json --name Order --version 2.4.0 \\
          --domain shop -m "orders have a currency"
    """
    from interlock import __version__
    from interlock.contracts.registry.records import Contract, Provenance
    from interlock.contracts.registry_service import summarize_contract

    provenance = Provenance(
        source or ("stdin" if file == "-" else file),
        f"interlock {__version__}",
        format_utc(time.time()),
    )
    kind: Any = protocol or _detect_protocol(file)
    if kind == "mcp-tool" and file.endswith(".md"):
        document, own_name, own_version = _read_tool_file(Path(file))
        name, version = name or own_name, version or own_version
    else:
        document = read_file(file)
    for option, value in (("--name", name), ("--version", version)):
        if not value:
            raise typer.BadParameter(f"{file} does not contain this value. Add {option}.")
    contract = Contract(name or "", version or "", domain, kind, document, provenance)
    with open_registry(registry, config, publishes=True) as contract_registry:
        before = contract_registry.metrics().head
        stored = contract_registry.publish(contract, author=author_or_user(author), reason=reason)
        is_new = contract_registry.metrics().head != before
    if json:
        output.print_json({**summarize_contract(stored), "new": is_new})
    elif is_new:
        print(f"Published {stored.name} {stored.version}: {stored.path}")
    else:
        print(f"{stored.name} {stored.version} is already published with the same document.")


def _detect_protocol(file: str) -> str:
    return next(
        (kind for suffix, kind in _PROTOCOL_OF_ENDING if file.endswith(suffix)), "json-schema"
    )


def _read_tool_file(path: Path) -> tuple[bytes, str, str | None]:
    """Return the tool that a TOOL.md declares, with its name and version. Raises ConfigError."""
    import msgspec

    from interlock.contracts.commands.diff import read_contract_file

    file = read_contract_file(path)
    return msgspec.json.encode(file.content), str(file.content["name"]), file.version


def validate(
    name: NameArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The payload; - reads stdin.")],
    version: RangeOption = "*",
    part: Annotated[
        str,
        typer.Option(
            "--part",
            metavar="[input|output]",
            parser=options.choice_reader("input", "output"),
            help="For a tool: validate its arguments (input) or its structured result (output).",
        ),
    ] = "input",
    domain: DomainOption = None,
    protocol: ProtocolOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Validate a payload against a contract. Exit code 1 if it is invalid.

    \b
    Examples:
      interlock contracts validate Order order.json --version 2.x
      jq .arguments call.json | interlock contracts validate files.read_file -
    """
    payload = read_json(file)
    kind: Any = protocol
    with open_registry(registry, config) as contract_registry:
        result = contract_registry.validate(
            name, version, payload, domain=domain, protocol=kind, part=part
        )
    if json:
        output.print_json(result)
    elif result.valid:
        print(f"✓ valid: {result.name} {result.version}")
    else:
        for error in result.errors:
            print(output.sanitize(f"✗ {error.path or '/'}: {error.message}"))
    if result.deprecation is not None:
        output.print_note(
            f"{result.name} {result.version} is supported until {result.deprecation.sunset_at}."
        )
    if not result.valid:
        raise typer.Exit(output.FAILED)


def deprecate(
    name: NameArgument,
    major: Annotated[
        int, typer.Argument(metavar="MAJOR", help="The major to deprecate, such as 1.", min=0)
    ],
    migration: Annotated[
        str,
        typer.Option("--migration", metavar="URI", help="The migration guide for callers."),
    ],
    sunset: Annotated[
        str | None,
        typer.Option(
            "--sunset",
            metavar="TIME",
            help="The end of support (ISO 8601). Default: 180 days after --since.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="The start of the deprecation (ISO 8601). Default: now.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept an early end without a prompt.")
    ] = False,
    domain: DomainOption = None,
    author: AuthorOption = None,
    registry: RegistryOption = None,
    config: config_source.ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Deprecate a major of a contract and set the end of its support.

    Until the end, responses carry a notice. Afterwards a request for the major fails with
    `deprecated_version` and the URI of the migration guide. An end in the past, or less than 90
    days after --since, needs a confirmation.

    \b
    Example:
      interlock contracts deprecate Order 1 --migration https://docs.example.com/order-2
    """
    if not yes:
        _confirm_early_end(f"{name} {major}.x", since, sunset)
    with open_registry(registry, config) as contract_registry:
        deprecation = contract_registry.deprecate(
            name,
            major,
            author=author_or_user(author),
            migration_uri=migration,
            deprecated_at=since,
            sunset_at=sunset,
            domain=domain,
            allow_early=True,
        )
    if json:
        output.print_json(deprecation)
    else:
        print(
            f"{deprecation.name} {deprecation.major}.x is supported until {deprecation.sunset_at}."
        )


def _confirm_early_end(label: str, since: str | None, sunset: str | None) -> None:
    """Ask for confirmation if a major ends in the past or within 90 days. Raises BadParameter,
    Exit, InterlockError."""
    from interlock.contracts.registry.queries import parse_request_time
    from interlock.contracts.registry.registry import SUPPORT_SECONDS, ends_early

    now = time.time()
    deprecated_at = parse_request_time(since) if since else now
    sunset_at = parse_request_time(sunset) if sunset else deprecated_at + SUPPORT_SECONDS
    if not ends_early(deprecated_at, sunset_at, now):
        return
    message = f"{output.sanitize(label)} would end at {format_utc(sunset_at)}, "
    message += "which is in the past" if sunset_at <= now else "less than 90 days after --since"
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{message}. Name a later --sunset, or add --yes.")
    if not output.confirm(f"{message}. Deprecate it?"):
        output.print_note("Nothing was changed.")
        raise typer.Exit(output.FAILED)
