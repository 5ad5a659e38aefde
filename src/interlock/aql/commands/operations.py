"""`interlock operations`: list operations, search them, and estimate the tokens of views."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from msgspec import Raw
from msgspec.structs import replace

from interlock.aql.config import AqlConfig
from interlock.aql.operations import OperationCatalogBuilder, OperationSnapshot
from interlock.core.catalog.offering import Offering, read_offering
from interlock.core.catalog.snapshot import Snapshot
from interlock.core.config import Config, ServerConfig
from interlock.core.paths import state_dir
from interlock.errors import InterlockError
from interlock.protocol.jsonrpc import decode_members, encode_members
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_client import connect_to_node
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.tool_table import describe_unready, read_listing

if TYPE_CHECKING:
    from interlock.aql.operations import Operation
    from interlock.aql.search.searcher import Searcher
    from interlock.protocol.aql_terms import OperationView
    from interlock.terminal.node_discovery import UpstreamSummary


# The operations behind the tools that a node lists.
#
# They are built here from the listed tools, by the same rules as in the node. Built-in operations
# are missing, because no tool list contains them.


class OperationListing(NamedTuple):
    """The operations of a node or a config, and the servers that are not ready."""

    config: Config
    operations: OperationCatalogBuilder
    operation_catalog: OperationSnapshot
    offerings: dict[str, Offering]
    not_ready_servers: list[UpstreamSummary]
    plain: list[Raw]
    """The tools as the node lists them."""
    folder: Path | None = None
    """The state folder of a node with this config."""


async def fetch_listing(
    config: Path | None, node: str | None, server: str | None = None
) -> OperationListing:
    """Fetch the operations of the running node, or of a temporary node."""

    def narrow(full_config: Config) -> Config:
        if server not in full_config.servers:
            return full_config
        return replace(full_config, servers={server: full_config.servers[server]})

    async with connect_to_node(
        config, node=node, narrow=narrow, wait_for_all=server is not None
    ) as node_client:
        tools = await node_client.list_tools()
        not_ready_servers = node_client.list_unready_upstreams()
        try:
            names = await node_client.operation_names()
        except (InterlockError, TimeoutError):
            # Without names, the names of the listed tools are used.
            names = []
    target = node_discovery.find_node(config, node)
    folder = state_dir(target.config, os.environ, target.base_dir)
    return build_listing(tools, node_client.config, not_ready_servers, names)._replace(
        folder=folder
    )


def build_listing(
    tools: list[Raw],
    config: Config,
    not_ready_servers: list[UpstreamSummary],
    names: Iterable[str] = (),
) -> OperationListing:
    """Build the operations of a list of tools.

    Args:
        names: the node's names of the operations. The list has lost the capitals of tool names.
    """
    names_by_letters = {name.replace("_", ""): name for name in names}
    by_server: dict[str, list[bytes]] = {}
    prefixes: dict[str, str] = {}
    for raw, tool in zip(tools, read_listing(tools, config), strict=True):
        members = decode_members(raw)
        prefix, _, tool_name = tool.name.replace("__", ".").rpartition(".")
        if tool.server in config.servers and prefix:
            # A configured segment may be followed by dots that belong to the tool's name.
            segment = config.servers[tool.server].segment or tool.server
            full_prefix = f"{config.root_segment}.{segment}" if config.root_segment else segment
            if tool.name.replace("__", ".").startswith(f"{full_prefix}."):
                prefix, tool_name = full_prefix, tool.name[len(full_prefix) :].lstrip("._")
        prefixes.setdefault(tool.server, prefix)
        tool_name = _with_capitals(prefix, tool_name, names_by_letters)
        members["name"] = Raw(msgspec.json.encode(tool_name))
        by_server.setdefault(tool.server, []).append(encode_members(members))
    offerings = {}
    for key, definitions in by_server.items():
        root, _, segment = prefixes[key].rpartition(".")
        server_config = config.servers.get(key, ServerConfig())
        settings = ServerConfig(
            command="listed",
            segment=segment or key,
            effects=server_config.effects,
            trust_annotations=server_config.trust_annotations,
        )
        offerings[key] = read_offering(key, settings, definitions, root_segment=root or None)
    operations = OperationCatalogBuilder(config.section(AqlConfig))
    snapshot = Snapshot(1, offerings.values(), page_size=0, server_info=b"{}", key=b"\0" * 32)
    return OperationListing(
        config, operations, operations.build(snapshot), offerings, not_ready_servers, tools
    )


def _with_capitals(prefix: str, tool_name: str, names_by_letters: dict[str, str]) -> str:
    """Restore the capitals of a tool's name from its operation's name.

    `readfile` with the operation `files_read_file` becomes `readFile`. A name without a matching
    operation is returned unchanged.
    """
    operation = names_by_letters.get(_letters(f"{prefix}.{tool_name}"))
    if operation is None:
        return tool_name
    words = operation.split("_")
    for start in range(len(words)):
        first_word, *remaining_words = words[start:]
        if _letters(tool_name) == first_word + "".join(remaining_words):
            name = first_word + "".join(word.capitalize() for word in remaining_words)
            return name if name.lower() == tool_name else tool_name
    return tool_name


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


operations = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
View = Annotated[
    str, typer.Option("--view", metavar="VIEW", help="aql, semantic, or a custom profile.")
]


@operations.callback()
def _operations() -> None:
    """List operations, search them, and estimate the tokens of views.

    A client with the view `aql` sees a few endpoints. Every tool is an operation of one of them.
    Uses the running node. Without one, starts the servers temporarily.
    """


@operations.command("list")
def list_operations(
    config: config_source.ConfigOption = None,
    server: Annotated[
        str | None, typer.Option("--server", "-s", metavar="KEY", help="Only this server.")
    ] = None,
    view: View = "aql",
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """List all operations, by endpoint and by category.

    \b
    Examples:
      interlock operations list
      interlock operations list --view semantic --server github
    """
    listing = _load_listing(config, node, server)
    operations_shown = [
        operation
        for operation in listing.operation_catalog.all()
        if server is None or operation.server == server
    ]
    operation_view = _find_view(listing, view)
    if json:
        output.print_json(
            {"operations": [_line(operation, operation_view) for operation in operations_shown]}
        )
        return
    console = output.create_console()
    for title, key in (
        (
            "by endpoint",
            lambda operation: operation_view.find_family(operation.name, operation.category).tool,
        ),
        ("by category", lambda operation: operation.category.value),
    ):
        _print_grouped(console, title, operations_shown, key, brief=title == "by category")


def _print_grouped(
    console: Any,
    title: str,
    operations_shown: Sequence[Operation],
    key: Callable[[Operation], str],
    *,
    brief: bool,
) -> None:
    from rich.text import Text
    from rich.tree import Tree

    groups: dict[str, list[Operation]] = {}
    for operation in operations_shown:
        groups.setdefault(key(operation), []).append(operation)
    tree = Tree(
        Text(f"{len(operations_shown)} operations {title}", style="bold"), guide_style="dim"
    )
    for name, members in sorted(groups.items()):
        branch = tree.add(Text.assemble((name, "cyan"), f"  {len(members)}"))
        for operation in () if brief else sorted(members, key=lambda member: member.name):
            branch.add(
                Text.assemble(
                    f"{operation.name}  ",
                    (f"{operation.danger.label}  ", "dim"),
                    output.sanitize(operation.description),
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
    console.print(tree)


@operations.command("search")
def search_operations(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A description of the task.")],
    config: config_source.ConfigOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100, help="Maximum number of results.")
    ] = 5,
    words: Annotated[
        bool, typer.Option("--words", help="Use the lexical search only, no embeddings.")
    ] = False,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Search operations by a description of the task.

    \b
    Example:
      interlock operations search "tell the team that the site is back"
    """
    listing = _load_listing(config, node, None)
    hits = _make_searcher(listing, words=words).search(text, None, limit)
    if json:
        operation_view = _find_view(listing, "aql")
        results = [
            {
                **_line(hit.operation, operation_view),
                "score": hit.score,
                "why": list(hit.matched_words),
            }
            for hit in hits
        ]
        output.print_json({"found": results})
        return
    if not hits:
        list_command = node_discovery.NodeSelector(config, node).format_command("operations list")
        output.print_problem(f"No operation matches. Try other words, or `{list_command}`.")
        raise typer.Exit(1)
    console = output.create_console()
    for hit in hits:
        console.print(
            f"{hit.score:.2f}  {hit.operation.name}  {output.sanitize(hit.operation.description)}",
            markup=False,
            highlight=False,
        )


@operations.command("explain")
def explain_operation(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Example: github_create_issue.")],
    config: config_source.ConfigOption = None,
    view: View = "aql",
    node: NodeOption = None,
) -> None:
    """Show all details of an operation, and how they were inferred.

    \b
    Example:
      interlock operations explain github_create_issue
    """
    from interlock.aql.introspection import OperationDescriber

    listing = _load_listing(config, node, None)
    operation = listing.operation_catalog.find(name)
    if operation is None:
        list_command = node_discovery.NodeSelector(config, node).format_command("operations list")
        suggestions = ", ".join(listing.operation_catalog.find_similar(name)) or f"`{list_command}`"
        raise typer.BadParameter(f"unknown operation {name!r}. Did you mean: {suggestions}")
    describer = OperationDescriber(
        listing.operations,
        listing.operation_catalog,
        _find_view(listing, view),
        lambda _: "validated",
    )
    include = ("danger", "source", "input_schema")
    output.print_json(
        {**describer.describe_fully(operation, include), "origins": operation.origins}
    )


@operations.command("bundle")
def bundle_server(
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="The server's key in the config.")
    ],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Print the discovery bundle of a server as JSON: its tools and the derived operations.

    No tool is called. Names and descriptions from your config replace those of the server.

    \b
    Example:
      interlock operations bundle github > github.bundle.json
    """
    from interlock.aql.bundle import export

    listing = _load_listing(config, node, server)
    offering = listing.offerings.get(server)
    if offering is None:
        raise typer.BadParameter(
            f"unknown server {server!r}. Servers: {', '.join(listing.offerings) or 'none'}"
        )
    output.print_json(export(offering, listing.operation_catalog))


@operations.command("tokens")
def count_tokens(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Estimate the tokens that each view costs a model.

    Counts one token for every four characters of names, descriptions and input schemas, like
    `interlock tools`. `make bench` counts with a real tokenizer.
    """
    from interlock.aql.view import token_costs as cost_of
    from interlock.core.catalog.token_costs import count_definition_tokens

    listing = _load_listing(config, node, None)
    costs = {"plain": sum(count_definition_tokens(raw) for raw in listing.plain)}
    for view in ("aql", "semantic", "aql-single"):
        costs[view] = cost_of(_find_view(listing, view), listing.operation_catalog, None)["view"]
    if json:
        output.print_json({"tools": len(listing.plain), "tokens": costs})
        return
    for view, cost in costs.items():
        output.create_console().print(f"{view:<12} ≈{cost} tokens", highlight=False)


def _load_listing(config: Any, node: str | None, server: str | None) -> OperationListing:
    from interlock.terminal.event_loop import run

    listing = run(fetch_listing(config, node, server))
    for operation in listing.not_ready_servers:
        if server is None or operation.key == server:
            output.print_problem(describe_unready(operation))
    return listing


def _find_view(listing: OperationListing, view: str) -> OperationView:
    from interlock.core.server.mcp.views import Views

    views = Views(listing.config)
    operation_view = views.named(f"view={view}".encode()) if view in views.names else None
    if operation_view is None or not operation_view.families:
        view_names = ", ".join(name for name in views.names if name != "plain")
        raise typer.BadParameter(f"unknown view {view!r}. Views with endpoints: {view_names}")
    return operation_view


def _line(operation: Operation, operation_view: OperationView) -> dict[str, Any]:
    return {
        "name": operation.name,
        "server": operation.server,
        "tool": operation.canonical,
        "category": operation.category.value,
        "endpoint": operation_view.find_family(operation.name, operation.category).tool,
        "danger": operation.danger.label,
        "description": operation.description,
    }


def _make_searcher(listing: OperationListing, *, words: bool) -> Searcher:
    from interlock.aql.search.embeddings import EmbeddingSearcher, create_searcher
    from interlock.aql.search.store import SearchStore
    from interlock.aql.search.usage import NO_USAGE

    mode = "off" if words else listing.config.section(AqlConfig).search.embeddings
    # With embeddings: use the vectors of the node, and store new ones for the next time.
    path = None if mode == "off" or listing.folder is None else listing.folder / "aql-search.db"
    store = None if path is None else SearchStore.open(path)
    searcher = create_searcher(lambda: listing.operation_catalog, NO_USAGE, mode, store)
    if isinstance(searcher, EmbeddingSearcher) and not searcher.wait():
        output.print_note(f"Note: lexical search only, no embeddings: {searcher.problem}")
    return searcher
