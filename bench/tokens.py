"""What tools cost a model, in tokens: every tool in its list, five endpoints, or one.

Catalogs are made of the lists of public servers, put behind a real node, and asked for in each
view. A task is what a client does to get one thing done: read the list, look for the operation,
read its details, call it, read the answer; in the plain view only the first and the last two.
Every message is counted once, by the o200k ranks of ``gpt-tokenizer``. A list is counted as it is
sent, and as clients show it to models: names, descriptions and input schemas. Tasks are made of the
latter.

The break-even is the size of plain tools from which on a task costs less in the view: what
``view: auto`` goes by.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, tool_names, until
from bench.bars import Bar
from bench.processes import ROOT, TargetFailure, free_port, module_command
from bench.real_servers import Listed, list_real_servers
from bench.report import console, note, show_bars, show_table
from bench.targets import Bench, TargetMissing, endpoint
from bench.tokenizer import count_tokens
from tools.aql_conformance.evidence import value_for
from tools.aql_conformance.live import Client, Mode, NoNode

SIZES = (42, 100, 500, 2_000)
TASKS = 10
CACHE = ROOT / "bench-results" / "real-servers"
LIMITS: dict[str, float] = {"five": 1_500, "one": 400}
MODES: dict[str, Mode | None] = {"plain": None, "five": "crude", "one": "single"}
CONVERSATIONS = (1, 3, 10)
"""How many tasks a conversation may have that pays for its list once."""


class TokenSettings(msgspec.Struct, frozen=True):
    quick: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return SIZES[:3] if self.quick else SIZES


class Task(msgspec.Struct, frozen=True):
    """One thing to get done: the tool that does it, and what is said to find it."""

    tool: str
    said: str
    arguments: dict[str, Any]


class Catalog(msgspec.Struct, frozen=True):
    servers: dict[str, list[dict[str, Any]]]
    real: int
    """How many of the tools are there once; the others stand again under another server."""

    @property
    def size(self) -> int:
        return sum(map(len, self.servers.values()))


def catalog_of(listed: Sequence[Listed], size: int) -> Catalog:
    """So many tools, in the order of the servers. Too few: the same servers under other names."""
    servers: dict[str, list[dict[str, Any]]] = {}
    had = sum(len(one.tools) for one in listed)
    left, turn = size, 1
    while left and listed:
        for one in listed:
            tools = one.tools[:left]
            if not tools:
                break
            servers[one.server if turn == 1 else f"{one.server}-{turn}"] = tools
            left -= len(tools)
        turn += 1
    return Catalog(servers, min(had, size))


def tasks_of(catalog: Catalog) -> list[Task]:
    """A few tasks, spread over the catalog: the first words of what a tool says of itself, and
    arguments as its schema wants them."""
    every = [(name, tool) for name, tools in catalog.servers.items() for tool in tools]
    step = max(1, len(every) // TASKS)
    found = []
    for name, tool in every[step // 2 :: step][:TASKS]:
        words = str(tool.get("description") or tool["name"]).split()
        schema = tool.get("inputSchema", {})
        properties = schema.get("properties", {})
        arguments = {
            key: value_for({"type": "string", **plain_schema(properties.get(key, {}))})
            for key in schema.get("required", [])
        }
        found.append(Task(f"{name}.{tool['name']}", " ".join(words[:12]), arguments))
    return found


def plain_schema(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):
        return {}
    kind = schema.get("type", "string")
    return {**schema, "type": kind[0] if isinstance(kind, list) else kind}


class Said(msgspec.Struct):
    """Everything that goes into a model's context, by what it is for; counted at the end."""

    texts: list[str] = []
    labels: list[tuple[str, ...]] = []
    bytes: dict[str, int] = {}

    def hear(self, text: str, *label: str) -> None:
        self.texts.append(text)
        self.labels.append(label)

    def counted(self) -> dict[tuple[str, ...], list[int]]:
        found: dict[tuple[str, ...], list[int]] = {}
        for label, tokens in zip(self.labels, count_tokens(self.texts), strict=True):
            found.setdefault(label, []).append(tokens)
        return found


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def listen(said: Said, url: str, tasks: Sequence[Task]) -> dict[str, int]:
    """Read the lists and do the tasks in every view. How often the first search was right."""
    right: dict[str, int] = {}
    for view, mode in MODES.items():
        client = Client(url, mode, "session")
        tools = client.request("tools/list", {})["tools"]
        said.hear(compact(tools), view, "list")
        said.bytes[view] = len(compact(tools).encode())
        shown = [{k: t.get(k) for k in ("name", "description", "inputSchema")} for t in tools]
        said.hear(compact(shown), view, "shown")
        if mode is None:
            for task in tasks:
                params = {"name": task.tool, "arguments": task.arguments}
                answer = client.request("tools/call", params)
                said.hear(compact([task.tool, task.arguments]), view, "call")
                said.hear(text_of(answer), view, "call")
            continue
        right[view] = sum(do_by_operations(said, client, view, task) for task in tasks)
    return right


def do_by_operations(said: Said, client: Client, view: str, task: Task) -> bool:
    """One task in an AQL view: search, details, call. Whether the search showed the operation."""

    def ask(step: str, tool: str, arguments: dict[str, Any]) -> Any:
        said.hear(compact([tool, arguments]), view, step)
        text = text_of(client.request("tools/call", {"name": tool, "arguments": arguments}))
        said.hear(text, view, step)
        return json.loads(text)

    reader = client.endpoint("introspect")
    search = {"query": "operations", "search": task.said}
    found = ask("search", reader, {"operation": "introspect", "params": search})
    names = [one["name"] for one in found["data"]["operations"]]
    own = operation_name(task.tool)
    several = {"operation": "introspect", "params": {**search, "include": ["parameters"]}}
    ask("search with parameters", reader, several)
    about = {"operation": "introspect", "params": {"query": "operations", "name": own}}
    detail = ask("details", reader, about)["data"]["operation"]
    if detail is None:
        raise TargetMissing(f"the node has no operation {own} for {task.tool}")
    call = {"operation": own, "params": shaped(task.arguments, detail)}
    answer = ask("call", detail["mcpTool"], call)
    error = answer.get("error", {})
    if not answer["success"] and error.get("code") != "CONFIRMATION_REQUIRED":
        note(f"{own} in the view {view}: {error.get('code')} {error.get('message')}")
    return own in names


def operation_name(tool: str) -> str:
    from interlock.aql.operations import to_snake_case

    return "_".join(to_snake_case(part) for part in tool.split("."))


def shaped(arguments: dict[str, Any], detail: dict[str, Any]) -> dict[str, Any]:
    """The same arguments in AQL's shape: an update takes what it changes in `input`."""
    from interlock.aql.operations import to_snake_case

    known = {one["name"] for one in detail["parameters"]}
    flat = {to_snake_case(key): value for key, value in arguments.items()}
    if "input" not in known:
        return flat
    outside = {key: value for key, value in flat.items() if key in known}
    return {**outside, "input": {key: flat[key] for key in flat if key not in known}}


def text_of(result: Any) -> str:
    return "".join(one.get("text", "") for one in result["content"])


def measure_size(size: int, listed: Sequence[Listed]) -> dict[str, Any]:
    catalog = catalog_of(listed, size)
    tasks = tasks_of(catalog)
    said = Said()
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        console.status(f"tokens: {size} tools of {len(catalog.servers)} servers"),
    ):
        upstream_port = free_port()
        path = Path(folder) / "catalog.json"
        path.write_bytes(msgspec.json.encode(catalog.servers))
        command = module_command("bench.catalog_upstream", "--port", str(upstream_port))
        upstream = bench.start("catalog", [*command, "--catalog", str(path)])
        upstream.wait_for_port(upstream_port)
        lines = [
            "listen: 127.0.0.1:PORT",
            "policy: {rules: [{name: all, tools: ['*'], then: allow}]}",
        ]
        lines.append("servers:")
        for name in catalog.servers:
            lines.append(f"  {name}:")
            lines.append(f"    url: http://127.0.0.1:{upstream_port}/mcp/{name}")
            lines.append("    expose: prefixed")
        node, port = bench.interlock("node", "\n".join(lines) + "\n")
        until(
            f"{catalog.size} tools in the node's list",
            node,
            lambda: ask_tools_list(port),
            lambda answer: len(tool_names(answer)) >= catalog.size,
            pause=0.1,
        )
        try:
            right = listen(said, endpoint(port), tasks)
        except NoNode as cause:
            raise TargetFailure(str(cause)) from cause
    counted = said.counted()
    views = {view: summed(view, counted, len(tasks)) for view in MODES}
    return {
        "tools": catalog.size,
        "real_tools": catalog.real,
        "servers": len(catalog.servers),
        "tasks": len(tasks),
        "views": views,
        "bytes_per_token": round(said.bytes["plain"] / views["plain"]["list"], 2),
        "found_by_first_search": right,
    }


def summed(view: str, counted: dict[tuple[str, ...], list[int]], tasks: int) -> dict[str, float]:
    """The parts of a task in one view, each the mean over the tasks."""

    def mean(step: str) -> float:
        return round(sum(counted.get((view, step), [])) / tasks, 1)

    (whole,) = counted[(view, "list")]
    (shown,) = counted[(view, "shown")]
    parts = {"list": float(whole), "shown": float(shown), "call": mean("call")}
    if view != "plain":
        parts |= {step: mean(step) for step in ("search", "search with parameters", "details")}
        parts["task"] = shown + parts["search"] + parts["details"] + parts["call"]
        parts["task, one search"] = shown + parts["search with parameters"] + parts["call"]
    else:
        parts["task"] = parts["task, one search"] = shown + parts["call"]
    return parts


def break_even(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """From how many tokens of plain tools, as a model is shown them, a view costs less: by how
    many tasks a conversation has."""
    found: dict[str, dict[str, float]] = {}
    for view in ("five", "one"):
        lists = [each["views"][view]["shown"] for each in results]
        extra = [
            each["views"][view]["task"]
            - each["views"][view]["shown"]
            - each["views"]["plain"]["call"]
            for each in results
        ]
        found[view] = {
            str(tasks): round(statistics.median(lists) + tasks * statistics.median(extra))
            for tasks in CONVERSATIONS
        }
    return found


def measure(settings: TokenSettings) -> dict[str, Any]:
    with console.status("tokens: listing public servers (some minutes, the first time)"):
        listed = list_real_servers(max(settings.sizes), CACHE)
    if not listed:
        raise TargetMissing("no public server could be listed here")
    results = [measure_size(size, listed) for size in settings.sizes]
    each = [one["views"]["plain"]["shown"] / one["tools"] for one in results]
    more = [one["views"]["plain"]["list"] / one["views"]["plain"]["shown"] for one in results]
    even = break_even(results)
    return {
        "servers": {
            one.server: {"package": one.package, "tools": len(one.tools)} for one in listed
        },
        "sizes": results,
        "tokens_of_a_tool": [round(one, 1) for one in each],
        "break_even_tokens": even,
        "auto_tokens": round(even["five"]["1"] * statistics.median(more), -2),
        "break_even_tools": {
            view: {tasks: round(tokens / statistics.median(each)) for tasks, tokens in row.items()}
            for view, row in even.items()
        },
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    bars = []
    for view, limit in LIMITS.items():
        largest = max(each["views"][view]["list"] for each in result["sizes"])
        bars.append(
            Bar(f"tools/list, {view} endpoint{'s' * (view == 'five')}, every size", largest, "<=",
                limit, "tokens")
        )  # fmt: skip
    return bars


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    for each in result["sizes"]:
        again = each["tools"] - each["real_tools"]
        title = f"{each['tools']:,} tools of {each['servers']} servers" + (
            f" ({again:,} of them are there again, under another server's name)" if again else ""
        )
        plain = each["views"]["plain"]
        rows = [
            [
                view,
                parts["list"],
                parts["shown"],
                parts.get("search", 0.0),
                parts.get("details", 0.0),
                parts["call"],
                parts["task"],
                parts["task, one search"],
                f"{100 * (1 - parts['task'] / plain['task']):.1f} %",
            ]
            for view, parts in each["views"].items()
        ]
        columns = ["view", "list", "shown", "search", "details", "call", "task", "1 search"]
        show_table(title, [*columns, "saved"], rows)
    even, sizes = result["break_even_tokens"], result["break_even_tools"]
    rows = [
        [view, *(f"{even[view][n]:,.0f} ({sizes[view][n]} tools)" for n in map(str, CONVERSATIONS))]
        for view in even
    ]
    heads = [f"{tasks} task{'s' * (tasks > 1)}" for tasks in CONVERSATIONS]
    show_table("plain is cheaper below, tokens of its tools as shown", ["view", *heads], rows)
    note(
        f"in tokens of whole lists that is {result['auto_tokens']:,.0f} for five endpoints and one "
        "task: what aql.auto_tokens should be"
    )
    show_bars(bars)


def run(settings: TokenSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
