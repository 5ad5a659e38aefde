"""Options and helpers that the commands about contracts share."""

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
        help="The folder of the registry. Default: contracts.registry of the config.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _parse_range(text: str) -> str:
    """Parse a version range. Raises BadParameter."""
    from interlock.core.config.problems import InvalidValueError
    from interlock.manifests.ranges import in_range

    try:
        in_range("0.0.0", text)
    except InvalidValueError as error:
        raise typer.BadParameter(f"{error.message}: {error.hint}.") from None
    return text


def parse_version(text: str) -> str:
    """Parse a version. Raises BadParameter."""
    from interlock.contracts.diff.compatibility import read_version
    from interlock.errors import InterlockError

    try:
        read_version(text)
    except InterlockError as error:
        raise typer.BadParameter(error.message) from None
    return text


NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The name of a contract, such as ToolInvocationRequest."),
]
RangeOption = Annotated[
    str,
    typer.Option(
        "--version", metavar="RANGE", parser=_parse_range, help="An npm range: 2.3.x, ^1.2, >=2 <3."
    ),
]
DomainOption = Annotated[
    str | None, typer.Option("--domain", metavar="NAME", help="The domain of the contract.")
]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="[json-schema|protobuf|openapi|mcp-tool]",
        parser=options.choice_reader("json-schema", "protobuf", "openapi", "mcp-tool"),
        help="The protocol of the contract.",
        show_default=False,
    ),
]
AuthorOption = Annotated[
    str | None,
    typer.Option(
        "--author", metavar="NAME", help="The author. Default: your user.", show_default=False
    ),
]


@contextmanager
def open_registry(
    registry: Path | None, config: Path | None, *, publishes: bool = False
) -> Iterator[ContractRegistry]:
    """Open the registry of an option or of the config. Raises ConfigError, InterlockError.

    Args:
        publishes: the command publishes, so the registry may be created. Otherwise a folder
            that the option names must contain a registry.
    """
    from interlock.contracts.registry.registry import ContractRegistry

    contract_registry = ContractRegistry(registry_folder(registry, config))
    try:
        if registry is not None and not publishes:
            check_not_empty(contract_registry)
        yield contract_registry
    finally:
        contract_registry.close()


def registry_folder(registry: Path | None, config: Path | None) -> Path:
    """Return the folder of the registry of an option or of the config. Raises ConfigError,
    BadParameter."""
    if registry is not None:
        return registry.expanduser()
    from interlock.contracts.paths import registry_path

    source = config_source.find_source_or_none(config)
    loaded, base_dir = config_source.load_or_default(source)
    folder = registry_path(loaded, base_dir)
    if folder is None:
        raise typer.BadParameter(
            "No registry is configured. Use --registry DIR, or add contracts: {registry: DIR} to "
            "the config."
        )
    return folder


def check_not_empty(registry: ContractRegistry) -> None:
    """Raise InterlockError if nothing was ever published. A named folder without a registry is
    probably a typo."""
    from interlock.contracts.registry.records import registry_error

    if registry.head() is None:
        raise registry_error(
            f"There is no contract registry in {registry.folder}. Check --registry, or publish "
            "a contract there first.",
            registry=str(registry.folder),
        )


def format_contract_count(number: int, noun: str = "contract") -> str:
    return format_count(number, noun)


def author_or_user(author: str | None) -> str:
    return author or getpass.getuser()


def read_file(path: str) -> bytes:
    """Read a file, or stdin for `-`. Raises BadParameter."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {path}: {error.strerror or error}.") from None


def read_json(path: str) -> Any:
    """Read a JSON file, or stdin for `-`. Raises BadParameter."""
    import msgspec

    try:
        return msgspec.json.decode(read_file(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}.") from None


def columns(rows: list[list[str]]) -> None:
    """Print rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        print(output.sanitize(line.replace("\n", " ")).rstrip())
