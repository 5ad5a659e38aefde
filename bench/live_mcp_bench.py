"""LiveMCPBench: 95 tasks over 527 tools of 70 servers that nobody of this project has written.

The data set is public (icip-cas/LiveMCPBench, Apache-2.0) and not part of this repository. It is
read from a folder that holds its `tools.json` and `all_annotations.json`, or a clone of it.
Its steps and tools are numbered lists; steps count where a task has as many of them as tools.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.real_servers import Listed
from interlock.aql.operations import Operation

ENVIRONMENT: Final = "LIVEMCPBENCH"
"""Names the folder, where no option does."""
PLACES: Final = {
    "tools.json": ("tools.json", "tools/LiveMCPTool/tools.json"),
    "all_annotations.json": ("all_annotations.json", "annotated_data/all_annotations.json"),
}
STEP_AT: Final = (1, 3, 5, 10)
QUESTION_AT: Final = (5, 10, 20)
UNION_AT: Final = 5

_NUMBER: Final = re.compile(r"^\s*\d+[.)]\s*")
_NEXT: Final = re.compile(r"\n\s*(?=\d+[.)])")
_NOT_IN_SEGMENTS: Final = re.compile(r"[^a-z0-9_-]+")

Find = Callable[[str, int], Sequence[Operation]]


class Task(msgspec.Struct, frozen=True):
    """One task: its question, and what its annotators did."""

    question: str
    tools: tuple[str, ...]
    """The names of the right tools, in the order of the steps."""
    steps: tuple[str, ...] = ()

    @property
    def aligned(self) -> Sequence[tuple[str, str]]:
        """Each step with its tool. Empty: the annotators wrote more steps than tools, or fewer."""
        if len(self.steps) != len(self.tools):
            return ()
        return tuple(zip(self.steps, self.tools, strict=True))


class DataSet(msgspec.Struct, frozen=True):
    """Servers with their tools, and tasks."""

    servers: list[Listed]
    tasks: list[Task]


class MissingDataSet(Exception):
    """The data set is not there; the message says what is missing."""


def read_data_set(folder: Path | None) -> DataSet:
    """The data set in a folder. Raises MissingDataSet."""
    if folder is None:
        raise MissingDataSet(f"neither --livemcpbench nor {ENVIRONMENT} names its folder")
    offers = _read(folder, "tools.json")
    notes = _read(folder, "all_annotations.json")
    try:
        return DataSet(_servers(offers), [_task(one) for one in notes])
    except (KeyError, TypeError, AttributeError) as problem:
        raise MissingDataSet(f"{folder} holds something else: {problem!r}") from None


def folder(chosen: Path | None) -> Path | None:
    """The folder that an option or the environment names."""
    named = os.environ.get(ENVIRONMENT)
    return chosen or (Path(named) if named else None)


def read_servers(folder: Path | None) -> list[Listed]:
    """The servers of the data set alone. Raises MissingDataSet."""
    if folder is None:
        raise MissingDataSet(f"neither --livemcpbench nor {ENVIRONMENT} names its folder")
    try:
        return _servers(_read(folder, "tools.json"))
    except (KeyError, TypeError, AttributeError) as problem:
        raise MissingDataSet(f"{folder} holds something else: {problem!r}") from None


def _read(folder: Path, name: str) -> Any:
    for place in PLACES[name]:
        try:
            return msgspec.json.decode((folder / place).read_bytes())
        except OSError:
            continue
        except msgspec.DecodeError as problem:
            raise MissingDataSet(f"{folder / place}: {problem}") from None
    raise MissingDataSet(f"there is no {name} in {folder}")


def _servers(offers: Iterable[Any]) -> list[Listed]:
    found: dict[str, Listed] = {}
    for offer in offers:
        for key, server in offer["tools"].items():
            segment = _NOT_IN_SEGMENTS.sub("-", key.lower()).strip("-_") or "server"
            while segment in found:
                segment += "-2"
            found[segment] = Listed(segment, offer["name"], server["tools"])
    return list(found.values())


def _task(note: Any) -> Task:
    said = note["Annotator Metadata"]
    tools = tuple(_NUMBER.sub("", line).strip() for line in said["Tools"].splitlines() if line)
    steps = tuple(
        _NUMBER.sub("", step).strip() for step in _NEXT.split(said["Steps"]) if step.strip()
    )
    return Task(note["Question"], tools, steps)


def judge(find: Find, tasks: Sequence[Task]) -> dict[str, float]:
    """How often a way of searching finds the right tools, in percent."""
    most = max(STEP_AT)
    # Where the right tool of each step stands; beyond the last place: nowhere.
    places = [_place(find(step, most), tool, most) for task in tasks for step, tool in task.aligned]
    figures = {f"step_at_{at}": _percent(place < at for place in places) for at in STEP_AT}
    wanted = [(task, frozenset(task.tools)) for task in tasks]
    for at in QUESTION_AT:
        hits = [
            name in found
            for task, names in wanted
            for found in (_names(find(task.question, at)),)
            for name in names
        ]
        figures[f"question_at_{at}"] = _percent(hits)
    covered, tools = [], []
    for task, names in wanted:
        union: set[str] = set()
        for text in task.steps or (task.question,):
            union |= _names(find(text, UNION_AT))
        tools += [name in union for name in names]
        covered.append(names <= union)
    figures["union_recall"] = _percent(tools)
    figures["tasks_covered"] = _percent(covered)
    return figures


def _names(found: Iterable[Operation]) -> set[str]:
    return {one.tool.upstream_name for one in found}


def _place(found: Sequence[Operation], tool: str, otherwise: int) -> int:
    places = (at for at, one in enumerate(found) if one.tool.upstream_name == tool)
    return next(places, otherwise)


def _percent(hits: Iterable[bool]) -> float:
    some = list(hits)
    return round(100 * sum(some) / len(some), 1) if some else 0.0
