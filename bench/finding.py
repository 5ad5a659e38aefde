"""Finding the right tool: how often it is among the first five for what somebody asks, how soon.

The catalog is real: public servers, installed and listed live, and kept under `bench-results/`.
The sentences are our own and in nobody's words. Plain BM25 over names, descriptions and parameters
is what the search is compared with; with the extra `embeddings` installed, so is the model alone.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from math import log
from pathlib import Path
from typing import Any

import msgspec

from bench import live_mcp_bench
from bench.bars import Bar
from bench.live_mcp_bench import DataSet, MissingDataSet
from bench.processes import ROOT
from bench.real_servers import Listed, list_real_servers
from bench.report import console, note, show_bars, show_table
from bench.task_sentences import TASKS, TaskSentence
from interlock.aql.config import AqlConfig
from interlock.aql.operations import Operation, OperationCatalogBuilder, OperationSnapshot
from interlock.aql.search.embeddings import EmbeddingSearcher, find_model_loader, texts_of
from interlock.aql.search.searcher import LexicalSearcher, Searcher
from interlock.core.catalog.offering import read_offering
from interlock.core.catalog.snapshot import Snapshot
from interlock.core.config import ServerConfig
from interlock.protocol.aql_terms import matches_glob

TOOLS = 600
FIRST = 5
CACHE = ROOT / "bench-results" / "real-servers"
_WORD = re.compile(r"[a-z0-9]+")

Find = Callable[[str, int], Sequence[Operation]]


class FindingSettings(msgspec.Struct, frozen=True):
    quick: bool = False
    live_mcp_bench: Path | None = None
    """The folder of LiveMCPBench. None: the environment names it, or it is left out."""


class Found(msgspec.Struct, frozen=True):
    """At which place the right tool was, from 0; None: not among those that were looked at."""

    task: TaskSentence
    place: int | None

    @property
    def hit(self) -> bool:
        return self.place is not None and self.place < FIRST


def run(settings: FindingSettings) -> tuple[dict[str, Any], list[Bar]]:
    """Judge every way of searching, print it, and give it back."""
    servers = list_real_servers(200 if settings.quick else TOOLS, CACHE)
    report = judge(servers, TASKS)
    bars = bars_of(report)
    try:
        data_set = live_mcp_bench.read_data_set(live_mcp_bench.folder(settings.live_mcp_bench))
    except MissingDataSet as why:
        note(f"LiveMCPBench is left out: {why}.")
        report["live_mcp_bench"] = {"skipped": str(why)}
        return report, bars
    report["live_mcp_bench"] = judge_live(data_set)
    return report, bars


def judge_live(data_set: DataSet) -> dict[str, Any]:
    """Every way of searching on tools and tasks that others wrote."""
    book = book_of(data_set.servers)
    note(f"LiveMCPBench: {len(book.all())} tools, {len(data_set.tasks)} tasks.")
    ways = ways_of(book)
    report = {name: live_mcp_bench.judge(find, data_set.tasks) for name, find in ways.items()}
    columns = next(iter(report.values()), {})
    show_table(
        "LiveMCPBench: right tools found, %",
        ("way", *(name.replace("_", " ") for name in columns)),
        [(name, *figures.values()) for name, figures in report.items()],
    )
    return {"tools": len(book.all()), "tasks": len(data_set.tasks), "ways": report}


def judge(servers: Sequence[Listed], tasks: Sequence[TaskSentence]) -> dict[str, Any]:
    book = book_of(servers)
    asked = [task for task in tasks if any(right(one, task) for one in book.all())]
    note(f"{len(book.all())} tools of {len(servers)} servers, {len(asked)} sentences.")
    ways = ways_of(book)
    found = {name: judged(find, book.all(), asked) for name, find in ways.items()}
    report = {name: shares(each) for name, each in found.items()}
    took = cost(book, asked)
    columns = ("way", "all", "person", "agent", "dev", "held out", "first", "without one server")
    show_table("The right tool among the first five, %", columns, [
        (name, *(figures[key] for key in ("all", "person", "agent", "dev", "held_out", "first")),
         "{}-{}".format(*figures["without_one_server"]))
        for name, figures in report.items()
    ])  # fmt: skip
    bars = bars_of({"ways": report, "cost": took})
    show_bars(bars)
    console.print(f"One search by words: {took}", highlight=False)
    return {
        "tools": len(book.all()),
        "sentences": len(asked),
        "ways": report,
        "cost": took,
        "bars": [bar.shown() for bar in bars],
    }


def ways_of(book: OperationSnapshot) -> dict[str, Find]:
    """Every way of searching that there is here."""
    lexical = LexicalSearcher(lambda: book)
    ways: dict[str, Find] = {"plain BM25": PlainBm25(book.all()).find, "words": found_by(lexical)}
    load = find_model_loader()
    if load is None:
        note("The extra `embeddings` is not installed: words only.")
        return ways
    meaning = EmbeddingSearcher(lexical, load)
    began = time.perf_counter()
    if meaning.wait():
        note(f"Vectors were made in {time.perf_counter() - began:.0f} s.")
        model = load()
        ways["model alone"] = ByVector(book.all(), model.vectors).find
        ways["words and meaning"] = found_by(meaning)
    else:
        note(f"No vectors: {meaning.problem}")
    return ways


def bars_of(told: dict[str, Any]) -> list[Bar]:
    ways = told["ways"]
    words = ways["words"]
    bars = [
        Bar("words: among the first five", words["all"], ">=", 60, "%"),
        Bar("words: held out", words["held_out"], ">=", 60, "%"),
        Bar("words: one search, new sentence", told["cost"]["new_median_ms"], "<=", 1.0, "ms"),
    ]
    if "words and meaning" in ways:
        both = ways["words and meaning"]["all"]
        bars.append(Bar("words and meaning: among the first five", both, ">=", 80, "%"))
    return bars


def book_of(servers: Iterable[Listed]) -> OperationSnapshot:
    """The operations of servers, as a node makes them."""
    offerings = [
        read_offering(
            one.server,
            ServerConfig(command="listed", segment=one.server),
            [msgspec.json.encode(tool) for tool in one.tools],
        )
        for one in servers
    ]
    snapshot = Snapshot(1, offerings, page_size=0, server_info=b"{}", key=b"\0" * 32)
    return OperationCatalogBuilder(AqlConfig()).build(snapshot)


def right(operation: Operation, task: TaskSentence) -> bool:
    """Whether an operation does what is asked for."""
    name = f"{operation.server}.{operation.tool.upstream_name}"
    return any(matches_glob(glob, name) for glob in task.right)


def judged(
    find: Find, operations: Sequence[Operation], tasks: Iterable[TaskSentence]
) -> list[Found]:
    judged = []
    for task in tasks:
        hits = find(task.text, 10)
        places = (place for place, one in enumerate(hits) if right(one, task))
        judged.append(Found(task, next(places, None)))
    return judged


def shares(found: Sequence[Found]) -> dict[str, Any]:
    """How many of a hundred were found, altogether and by kind."""
    servers = {glob.partition(".")[0] for one in found for glob in one.task.right} - {"*"}
    without = [
        percent([one for one in found if not is_about(one.task, server)]) for server in servers
    ]
    return {
        "all": percent(found),
        "person": percent([one for one in found if one.task.kind == "person"]),
        "agent": percent([one for one in found if one.task.kind == "agent"]),
        "dev": percent([one for one in found if not one.task.held_out]),
        "held_out": percent([one for one in found if one.task.held_out]),
        "first": round(100 * sum(one.place == 0 for one in found) / max(1, len(found)), 1),
        "without_one_server": (min(without, default=0.0), max(without, default=0.0)),
    }


def is_about(task: TaskSentence, server: str) -> bool:
    return any(glob.startswith(f"{server}.") for glob in task.right)


def percent(found: Sequence[Found]) -> float:
    return round(100 * sum(one.hit for one in found) / len(found), 1) if found else 0.0


def cost(book: OperationSnapshot, tasks: Sequence[TaskSentence]) -> dict[str, float]:
    """What one search by words takes: of a sentence that is new to it, and of one asked before."""
    searcher = LexicalSearcher(lambda: book)
    searcher.prepare()
    told = {}
    for name in ("new", "again"):
        took = []
        for task in tasks:
            began = time.perf_counter()
            searcher.search(task.text, None, 10)
            took.append(1_000 * (time.perf_counter() - began))
        took.sort()
        told[f"{name}_median_ms"] = round(statistics.median(took), 3) if took else 0.0
        told[f"{name}_p95_ms"] = round(took[int(len(took) * 0.95)], 3) if took else 0.0
    return told


def found_by(searcher: Searcher) -> Find:
    return lambda text, most: [hit.operation for hit in searcher.search(text, None, most)]


class PlainBm25:
    """What one gets without knowing anything: the words of a tool, each as it is written."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._texts = [words_said(one) for one in operations]
        self._usual = sum(map(len, self._texts)) / max(1, len(self._texts))
        self._have: dict[str, int] = {}
        for text in self._texts:
            for word in set(text):
                self._have[word] = self._have.get(word, 0) + 1

    def find(self, text: str, most: int) -> list[Operation]:
        many = len(self._texts)
        scores = []
        for said in self._texts:
            score = 0.0
            for word in set(_WORD.findall(text.lower())):
                times = said.count(word)
                if times:
                    have = self._have[word]
                    long = 0.25 + 0.75 * len(said) / self._usual
                    telling = log(1 + (many - have + 0.5) / (have + 0.5))
                    score += telling * times * 2.2 / (times + 1.2 * long)
            scores.append(score)
        order = sorted(range(many), key=scores.__getitem__, reverse=True)
        return [self._operations[at] for at in order[:most]]


def words_said(operation: Operation) -> list[str]:
    schema = operation.tool.input_schema()
    names = schema.get("properties", {}) if isinstance(schema, dict) else {}
    parameters = " ".join(names) if isinstance(names, dict) else ""
    text = f"{operation.tool.upstream_name} {operation.tool.description} {parameters}"
    return _WORD.findall(re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ").lower())


class ByVector:
    """What a model alone finds: the tool whose description is nearest."""

    def __init__(
        self, operations: Sequence[Operation], vectors: Callable[[Sequence[str]], Any]
    ) -> None:
        self._operations = operations
        self._vectors = vectors
        self._made = vectors([texts_of(one)[0] for one in operations])

    def find(self, text: str, most: int) -> list[Operation]:
        near = self._made @ self._vectors([text])[0]
        return [self._operations[int(at)] for at in (-near).argsort()[:most]]


if __name__ == "__main__":
    run(FindingSettings())
