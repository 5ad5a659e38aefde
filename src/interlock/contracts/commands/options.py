"""What the commands about contracts have in common: which registry is meant, and how files and
authors are given."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source, options, output

if TYPE_CHECKING:
    from interlock.contracts.registry.registry import ContractRegistry

RegistryOption = Annotated[
    Path | None,
    typer.Option(
        "--registry",
        metavar="DIR",
        help="The registry. Default: contracts.registry of the config.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


def _range(text: str) -> str:
    """A range of versions. Raises BadParameter."""
    from interlock.core.config.problems import BadValue
    from interlock.manifests.ranges import in_range

    try:
        in_range("0.0.0", text)
    except BadValue as bad:
        raise typer.BadParameter(f"{bad.message}: {bad.hint}.") from None
    return text


def version_of(text: str) -> str:
    """One version. Raises BadParameter."""
    from interlock.contracts.diff.compatibility import read_version
    from interlock.errors import InterlockError

    try:
        read_version(text)
    except InterlockError as error:
        raise typer.BadParameter(error.message) from None
    return text


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Its name, such as ToolInvocationRequest.")
]
RangeOption = Annotated[
    str,
    typer.Option(
        "--version", metavar="RANGE", parser=_range, help="An npm range: 2.3.x, ^1.2, >=2 <3."
    ),
]
DomainOption = Annotated[
    str | None, typer.Option("--domain", metavar="NAME", help="Only of this domain.")
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="[json-schema|protobuf|openapi|mcp-tool]",
        parser=options.choice_reader("json-schema", "protobuf", "openapi", "mcp-tool"),
        help="Only of this protocol.",
        show_default=False,
    ),
]
AuthorOption = Annotated[
    str | None,
    typer.Option(
        "--author", metavar="NAME", help="Who publishes. Default: you.", show_default=False
    ),
]


@contextmanager
def registry_of(
    registry: Path | None, config: Path | None, *, publishes: bool = False
) -> Iterator[ContractRegistry]:
    """The registry that is meant. Raises ConfigError, InterlockError: also where somebody names a
    folder in which there is none, unless it `publishes`, which makes one."""
    from interlock.contracts.registry.registry import ContractRegistry

    one = ContractRegistry(registry_folder(registry, config))
    try:
        if registry is not None and not publishes:
            refuse_nothing(one)
        yield one
    finally:
        one.close()


def registry_folder(registry: Path | None, config: Path | None) -> Path:
    """The folder of the registry that is meant. Raises ConfigError, BadParameter."""
    if registry is not None:
        return registry.expanduser()
    from interlock.contracts.paths import registry_path

    source = config_source.find_source_or_none(config)
    loaded, base_dir = config_source.load_or_default(source)
    found = registry_path(loaded, base_dir)
    if found is None:
        raise typer.BadParameter(
            "no registry is named: use --registry DIR, or write contracts: {registry: DIR} into "
            "the config."
        )
    return found


def refuse_nothing(registry: ContractRegistry) -> None:
    """Raises InterlockError where nothing was ever published: a folder that somebody named and
    that is not there is a slip of the pen."""
    from interlock.contracts.registry.records import unusable

    if registry.head() is None:
        raise unusable(
            f"There is no contract registry in {registry.folder}: look at --registry, or publish "
            "something there first.",
            registry=str(registry.folder),
        )


def counted(number: int, what: str = "contract") -> str:
    return format_count(number, what)


def author_of(given: str | None) -> str:
    return given or getpass.getuser()


def read_file(path: str) -> bytes:
    """What stands in a file, or on stdin for `-`. Raises BadParameter."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror or error}.") from None


def read_json(path: str) -> Any:
    """The same as JSON. Raises BadParameter."""
    import msgspec

    try:
        return msgspec.json.decode(read_file(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}.") from None


def columns(rows: list[list[str]]) -> None:
    """Lines whose columns are as wide as they have to be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        print(output.sanitize(line.replace("\n", " ")).rstrip())
