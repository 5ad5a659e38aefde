"""`interlock operations`: the catalog as AQL sees it: what there is, finding it, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli import say, where
from interlock.cli.running import NodeOption
from interlock.cli.tools import not_ready

if TYPE_CHECKING:
    from interlock.catalog.aql.operation import Operation
    from interlock.catalog.aql.search.searcher import Searcher
    from interlock.cli.operation_book import Shelf
    from interlock.protocol.aql.words import Face

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
    config: where.ConfigOption = None,
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
    found = _shelf(config, node, server)
    some = [one for one in found.book.all() if server is None or one.server == server]
    face = _face(found, view)
    if json:
        say.as_json({"operations": [_line(one, face) for one in some]})
        return
    console = say.console()
    for title, key in (
        ("by endpoint", lambda one: face.family_of(one.name, one.category).tool),
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
                    (f"{one.danger.word}  ", "dim"),
                    say.printable(one.description),
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
    console.print(tree)


@operations.command("search")
def search_operations(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What you want, in your words.")],
    config: where.ConfigOption = None,
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
    found = _shelf(config, node, None)
    hits = _searcher(found, words=words).search(text, None, most)
    if json:
        face = _face(found, "aql")
        told = [
            {**_line(hit.operation, face), "score": hit.score, "why": list(hit.why)} for hit in hits
        ]
        say.as_json({"found": told})
        return
    if not hits:
        say.problem("Nothing fits. Try other words, or `interlock operations list`.")
        raise typer.Exit(1)
    console = say.console()
    for hit in hits:
        console.print(
            f"{hit.score:.2f}  {hit.operation.name}  {say.printable(hit.operation.description)}",
            markup=False,
            highlight=False,
        )


@operations.command("explain")
def explain_operation(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as github_create_issue.")],
    config: where.ConfigOption = None,
    view: View = "aql",
    node: NodeOption = None,
) -> None:
    """Show everything about an operation, and why it is what it is.

    \b
    Example:
      interlock operations explain github_create_issue
    """
    from interlock.catalog.aql.details import Details

    found = _shelf(config, node, None)
    one = found.book.find(name)
    if one is None:
        near = ", ".join(found.book.near(name)) or "interlock operations list"
        raise typer.BadParameter(f"there is no operation {name!r}; see {near}")
    details = Details(found.operations, found.book, _face(found, view), lambda _: "validated")
    include = ("danger", "source", "input_schema")
    say.as_json({**details.whole(one, include), "origins": one.origins})


@operations.command("bundle")
def bundle_server(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its key in the config.")],
    config: where.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Write the discovery bundle of a server as JSON: its list, and what was made of it.

    No tool is called for it. Where your config renames or describes a tool, that is what it says.

    \b
    Example:
      interlock operations bundle github > github.bundle.json
    """
    from interlock.catalog.aql.bundle import export

    found = _shelf(config, node, server)
    offering = found.offerings.get(server)
    if offering is None:
        raise typer.BadParameter(
            f"there is no server {server!r}; there are {', '.join(found.offerings) or 'none'}"
        )
    say.as_json(export(offering, found.book))


@operations.command("tokens")
def count_tokens(
    config: where.ConfigOption = None, json: Json = False, node: NodeOption = None
) -> None:
    """Estimate what each view costs a model before it has done anything.

    One token for every four characters of the names, descriptions and input schemas that a model
    is shown, as `interlock tools` counts; `make bench` counts with a real tokenizer.
    """
    from interlock.catalog.aql.costs import definition_tokens
    from interlock.catalog.aql.surface import cost as cost_of

    found = _shelf(config, node, None)
    costs = {"plain": sum(definition_tokens(raw) for raw in found.plain)}
    for view in ("aql", "semantic", "aql-single"):
        costs[view] = cost_of(_face(found, view), found.book, None)["view"]
    if json:
        say.as_json({"tools": len(found.plain), "tokens": costs})
        return
    for view, cost in costs.items():
        say.console().print(f"{view:<12} ≈{cost} tokens", highlight=False)


def _shelf(config: Any, node: str | None, server: str | None) -> Shelf:
    from interlock.cli.event_loop import run
    from interlock.cli.operation_book import shelf

    found = run(shelf(config, node, server))
    for one in found.trouble:
        if server is None or one.key == server:
            say.problem(not_ready(one))
    return found


def _face(found: Shelf, view: str) -> Face:
    from interlock.faces.mcp.views import Views

    views = Views(found.config.aql)
    face = views.named(f"view={view}".encode()) if view in views.names else None
    if face is None or not face.families:
        known = ", ".join(name for name in views.names if name != "plain")
        raise typer.BadParameter(f"there is no view {view!r} with endpoints; there are {known}")
    return face


def _line(one: Operation, face: Face) -> dict[str, Any]:
    return {
        "name": one.name,
        "server": one.server,
        "tool": one.canonical,
        "category": one.category.value,
        "endpoint": face.family_of(one.name, one.category).tool,
        "danger": one.danger.word,
        "description": one.description,
    }


def _searcher(found: Shelf, *, words: bool) -> Searcher:
    from interlock.catalog.aql.search.embeddings import EmbeddingSearcher, searcher_for
    from interlock.catalog.aql.search.usage import NO_USAGE
    from interlock.stores.aql_usage import SearchMemory

    asked = "off" if words else found.config.aql.search.embeddings
    # With a model: the vectors that a node has made, and what is made now for the next time.
    kept = None if asked == "off" or found.folder is None else found.folder / "aql-search.db"
    memory = None if kept is None else SearchMemory.at(kept)
    searcher = searcher_for(lambda: found.book, NO_USAGE, asked, memory)
    if isinstance(searcher, EmbeddingSearcher) and not searcher.wait():
        say.note(f"Note: found by words only: {searcher.problem}")
    return searcher
