"""`interlock operations`: the catalog as AQL sees it: what there is, finding it, what it costs."""

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


# -- The operations behind what a node lists, for commands that look at them.
#
# Made here from the tools that the node shows, by the rules by which the node makes its own: the
# node's own operations are not among them, since they are in no list.


class OperationListing(NamedTuple):
    """The operations of a node or a config, and the servers that are not ready."""

    config: Config
    operations: OperationCatalogBuilder
    operation_catalog: OperationSnapshot
    offerings: dict[str, Offering]
    trouble: list[UpstreamSummary]
    plain: list[Raw]
    """The tools as the node lists them."""
    folder: Path | None = None
    """Where a node of this config keeps what it remembers."""


async def fetch_listing(
    config: Path | None, node: str | None, server: str | None = None
) -> OperationListing:
    """The operations of the running node, or of one that is started for the moment."""

    def narrow(whole: Config) -> Config:
        if server not in whole.servers:
            return whole
        return replace(whole, servers={server: whole.servers[server]})

    async with connect_to_node(
        config, node=node, narrow=narrow, wait_for_all=server is not None
    ) as reached:
        listed = await reached.list_tools()
        trouble = reached.list_unready_upstreams()
        try:
            names = await reached.operation_names()
        except (InterlockError, TimeoutError):
            # Names are then made from what tools are called in the list.
            names = []
    meant = node_discovery.find_node(config, node)
    folder = state_dir(meant.config, os.environ, meant.base_dir)
    return build_listing(listed, reached.config, trouble, names)._replace(folder=folder)


def build_listing(
    listed: list[Raw], config: Config, trouble: list[UpstreamSummary], names: Iterable[str] = ()
) -> OperationListing:
    """The operations behind a list of tools.

    Args:
        names: what the node calls its operations. The list has lost the capitals of tool names.
    """
    spelled = {name.replace("_", ""): name for name in names}
    by_server: dict[str, list[bytes]] = {}
    prefixes: dict[str, str] = {}
    for raw, tool in zip(listed, read_listing(listed, config), strict=True):
        members = decode_members(raw)
        prefix, _, own = tool.name.replace("__", ".").rpartition(".")
        if tool.server in config.servers and prefix:
            # A segment of its own may have dots behind it that are the tool's.
            segment = config.servers[tool.server].segment or tool.server
            whole = f"{config.root_segment}.{segment}" if config.root_segment else segment
            if tool.name.replace("__", ".").startswith(f"{whole}."):
                prefix, own = whole, tool.name[len(whole) :].lstrip("._")
        prefixes.setdefault(tool.server, prefix)
        own = _with_capitals(prefix, own, spelled)
        members["name"] = Raw(msgspec.json.encode(own))
        by_server.setdefault(tool.server, []).append(encode_members(members))
    offerings = {}
    for key, tools in by_server.items():
        root, _, segment = prefixes[key].rpartition(".")
        known = config.servers.get(key, ServerConfig())
        settings = ServerConfig(
            command="listed",
            segment=segment or key,
            effects=known.effects,
            trust_annotations=known.trust_annotations,
        )
        offerings[key] = read_offering(key, settings, tools, root_segment=root or None)
    operations = OperationCatalogBuilder(config.section(AqlConfig))
    snapshot = Snapshot(1, offerings.values(), page_size=0, server_info=b"{}", key=b"\0" * 32)
    return OperationListing(config, operations, operations.at(snapshot), offerings, trouble, listed)


def _with_capitals(prefix: str, own: str, spelled: dict[str, str]) -> str:
    """A tool's name with the capitals that make its operation's name: `readfile` of the operation
    `files_read_file` → `readFile`. As it is, if the node calls the operation something else."""
    operation = spelled.get(_letters(f"{prefix}.{own}"))
    if operation is None:
        return own
    words = operation.split("_")
    for start in range(len(words)):
        first, *others = words[start:]
        if _letters(own) == first + "".join(others):
            name = first + "".join(word.capitalize() for word in others)
            return name if name.lower() == own else own
    return own


def _letters(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


operations = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
View = Annotated[
    str, typer.Option("--view", metavar="VIEW", help="aql, semantic, or a profile of yours.")
]


@operations.callback()
def _operations() -> None:
    """Show operations, find one, and count what views cost.

    A client that asks for the view `aql` sees a few endpoints; every tool is an operation behind
    one of them. Asks the running node; without one, starts the servers for the moment.
    """


@operations.command("list")
def list_operations(
    config: config_source.ConfigOption = None,
    server: Annotated[
        str | None, typer.Option("--server", "-s", metavar="KEY", help="Only this server's.")
    ] = None,
    view: View = "aql",
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Show every operation, by endpoint and by category.

    \b
    Examples:
      interlock operations list
      interlock operations list --view semantic --server github
    """
    found = _listing(config, node, server)
    some = [one for one in found.operation_catalog.all() if server is None or one.server == server]
    face = _face(found, view)
    if json:
        output.print_json({"operations": [_line(one, face) for one in some]})
        return
    console = output.create_console()
    for title, key in (
        ("by endpoint", lambda one: face.find_family(one.name, one.category).tool),
        ("by category", lambda one: one.category.value),
    ):
        _print_grouped(console, title, some, key, brief=title == "by category")


def _print_grouped(
    console: Any,
    title: str,
    some: Sequence[Operation],
    key: Callable[[Operation], str],
    *,
    brief: bool,
) -> None:
    from rich.text import Text
    from rich.tree import Tree

    groups: dict[str, list[Operation]] = {}
    for one in some:
        groups.setdefault(key(one), []).append(one)
    tree = Tree(Text(f"{len(some)} operations {title}", style="bold"), guide_style="dim")
    for name, members in sorted(groups.items()):
        branch = tree.add(Text.assemble((name, "cyan"), f"  {len(members)}"))
        for one in () if brief else sorted(members, key=lambda each: each.name):
            branch.add(
                Text.assemble(
                    f"{one.name}  ",
                    (f"{one.danger.label}  ", "dim"),
                    output.sanitize(one.description),
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
    console.print(tree)


@operations.command("search")
def search_operations(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What you want, in your words.")],
    config: config_source.ConfigOption = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, max=100, help="So many.")] = 5,
    words: Annotated[bool, typer.Option("--words", help="By words only, without a model.")] = False,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Find operations by what you want to do.

    \b
    Example:
      interlock operations search "tell the team that the site is back"
    """
    found = _listing(config, node, None)
    hits = _searcher(found, words=words).search(text, None, most)
    if json:
        face = _face(found, "aql")
        told = [
            {**_line(hit.operation, face), "score": hit.score, "why": list(hit.why)} for hit in hits
        ]
        output.print_json({"found": told})
        return
    if not hits:
        listed = node_discovery.NodeSelector(config, node).format_command("operations list")
        output.print_problem(f"Nothing fits. Try other words, or `{listed}`.")
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as github_create_issue.")],
    config: config_source.ConfigOption = None,
    view: View = "aql",
    node: NodeOption = None,
) -> None:
    """Show everything about an operation, and why it is what it is.

    \b
    Example:
      interlock operations explain github_create_issue
    """
    from interlock.aql.introspection import OperationDescriber

    found = _listing(config, node, None)
    one = found.operation_catalog.find(name)
    if one is None:
        listed = node_discovery.NodeSelector(config, node).format_command("operations list")
        near = ", ".join(found.operation_catalog.near(name)) or listed
        raise typer.BadParameter(f"there is no operation {name!r}; see {near}")
    details = OperationDescriber(
        found.operations, found.operation_catalog, _face(found, view), lambda _: "validated"
    )
    include = ("danger", "source", "input_schema")
    output.print_json({**details.whole(one, include), "origins": one.origins})


@operations.command("bundle")
def bundle_server(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its key in the config.")],
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Write the discovery bundle of a server as JSON: its list, and what was made of it.

    No tool is called for it. Where your config renames or describes a tool, that is what it says.

    \b
    Example:
      interlock operations bundle github > github.bundle.json
    """
    from interlock.aql.bundle import export

    found = _listing(config, node, server)
    offering = found.offerings.get(server)
    if offering is None:
        raise typer.BadParameter(
            f"there is no server {server!r}; there are {', '.join(found.offerings) or 'none'}"
        )
    output.print_json(export(offering, found.operation_catalog))


@operations.command("tokens")
def count_tokens(
    config: config_source.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Estimate what each view costs a model before it has done anything.

    One token for every four characters of the names, descriptions and input schemas that a model
    is shown, as `interlock tools` counts; `make bench` counts with a real tokenizer.
    """
    from interlock.aql.view import cost as cost_of
    from interlock.core.catalog.token_costs import count_definition_tokens

    found = _listing(config, node, None)
    costs = {"plain": sum(count_definition_tokens(raw) for raw in found.plain)}
    for view in ("aql", "semantic", "aql-single"):
        costs[view] = cost_of(_face(found, view), found.operation_catalog, None)["view"]
    if json:
        output.print_json({"tools": len(found.plain), "tokens": costs})
        return
    for view, cost in costs.items():
        output.create_console().print(f"{view:<12} ≈{cost} tokens", highlight=False)


def _listing(config: Any, node: str | None, server: str | None) -> OperationListing:
    from interlock.terminal.event_loop import run

    found = run(fetch_listing(config, node, server))
    for one in found.trouble:
        if server is None or one.key == server:
            output.print_problem(describe_unready(one))
    return found


def _face(found: OperationListing, view: str) -> OperationView:
    from interlock.core.server.mcp.views import Views

    views = Views(found.config)
    face = views.named(f"view={view}".encode()) if view in views.names else None
    if face is None or not face.families:
        known = ", ".join(name for name in views.names if name != "plain")
        raise typer.BadParameter(f"there is no view {view!r} with endpoints; there are {known}")
    return face


def _line(one: Operation, face: OperationView) -> dict[str, Any]:
    return {
        "name": one.name,
        "server": one.server,
        "tool": one.canonical,
        "category": one.category.value,
        "endpoint": face.find_family(one.name, one.category).tool,
        "danger": one.danger.label,
        "description": one.description,
    }


def _searcher(found: OperationListing, *, words: bool) -> Searcher:
    from interlock.aql.search.embeddings import EmbeddingSearcher, searcher_for
    from interlock.aql.search.store import SearchStore
    from interlock.aql.search.usage import NO_USAGE

    asked = "off" if words else found.config.section(AqlConfig).search.embeddings
    # With a model: the vectors that a node has made, and what is made now for the next time.
    kept = None if asked == "off" or found.folder is None else found.folder / "aql-search.db"
    memory = None if kept is None else SearchStore.at(kept)
    searcher = searcher_for(lambda: found.operation_catalog, NO_USAGE, asked, memory)
    if isinstance(searcher, EmbeddingSearcher) and not searcher.wait():
        output.print_note(f"Note: found by words only: {searcher.problem}")
    return searcher
