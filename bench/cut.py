"""The cut: a tree of nodes in network namespaces, a cable pulled out and put back, under load.

        root ── a ── c          each node with a leaf of its own
          └──── b

Nobody is told of a cut: heartbeats stop coming, that is all. Measured are the time until the node
above notices (three missed intervals), the time from there until the root's list shows the right
tools as degraded, and after healing the time until all of them are back. Calls to every leaf keep
coming all the while; each answer must be from the leaf that was called.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.bars import Bar
from bench.certificates import Authority
from bench.namespaces import Namespaces, NoNamespaces
from bench.processes import ROOT, TargetFailure, TargetProcess, python_environment
from bench.report import console, note, show_bars, show_table
from bench.steady import Client, Steady
from bench.targets import Bench, interlock_command

INTERVAL = 0.5
"""Seconds between heartbeats."""
MOST_INTERVALS = 3
PORT = 8420
CAPABILITY = "x-mcpax-capability"
LOOK = 0.01
LEAVES = {
    "leaf.echo": "root",
    "a.leaf.echo": "a",
    "a.c.leaf.echo": "c",
    "b.leaf.echo": "b",
}
"""The echo tool of every leaf as the root lists it, and the node that it stands beside."""


class CutSettings(msgspec.Struct, frozen=True):
    quick: bool = False

    @property
    def cycles(self) -> int:
        return 1 if self.quick else 3


class Cable(msgspec.Struct, frozen=True):
    """A cable, and the tools that are behind it."""

    upper: str
    lower: str
    behind: frozenset[str]


CABLES = (
    Cable("root", "a", frozenset({"a.leaf.echo", "a.c.leaf.echo"})),
    Cable("a", "c", frozenset({"a.c.leaf.echo"})),
)


class CutTimes(msgspec.Struct):
    """Seconds of one cut: until it was noticed, until the root's list was right, until healed."""

    cable: str
    noticed: float
    converged: float
    back: float


class CutTree:
    """The four nodes, each in a namespace of its own."""

    def __init__(self, bench: Bench, spaces: Namespaces) -> None:
        self._bench = bench
        self._spaces = spaces
        self._authority = Authority(bench.folder)
        self._token = secrets.token_urlsafe(32)
        self.nodes: dict[str, TargetProcess] = {}

    def start(self) -> None:
        above = {
            "root": None,
            "a": self._spaces.join("root", "a"),
            "b": self._spaces.join("root", "b"),
            "c": self._spaces.join("a", "c"),
        }
        addresses = {"root": [above["a"], above["b"]], "a": [above["c"]]}
        for name, parent in above.items():
            self._start(name, parent, [one for one in addresses.get(name, []) if one])

    def _start(self, name: str, parent: str | None, addresses: list[str]) -> None:
        home = self._bench.folder / name
        home.mkdir()
        path = home / "interlock.yaml"
        path.write_text(self._config(name, parent, addresses))
        environment = python_environment() | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "s"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "TREE_TOKEN": self._token,
        }
        command = [*interlock_command(), "up", "--config", str(path)]
        inside = self._spaces.command(name, command)
        self.nodes[name] = self._bench.start(name, inside, environment, cwd=home)

    def _config(self, name: str, parent: str | None, addresses: list[str]) -> str:
        document: dict[str, Any] = {
            "listen": f"0.0.0.0:{PORT}" if addresses else f"127.0.0.1:{PORT}",
            # What is sent into a cut must not be waited for long after everybody knows of it.
            "timeout": "5s",
            "state_dir": "state",
            "servers": {
                "leaf": {
                    "command": sys.executable,
                    "args": ["-m", "bench.raw_upstream", "--stdio", "--name", name],
                    "env": {"PYTHONPATH": str(ROOT)},
                    "expose": "prefixed",
                }
            },
            "subservers": {"proof": "never"},
        }
        if addresses:
            certificate, key = self._authority.certificate(name, [*addresses, "127.0.0.1"])
            document["tls"] = {"certificate": str(certificate), "key": str(key)}
            tokens = {"name": "below", "token": "${env:TREE_TOKEN}", "may": ["call", "register"]}
            document["tokens"] = [tokens]
        if parent is not None:
            document["parent"] = {
                "url": f"wss://{parent}:{PORT}/ax",
                "segment": name,
                "token": "${env:TREE_TOKEN}",
                "heartbeat": f"{INTERVAL * 1000:.0f}ms",
                "ca": str(self._authority.file),
            }
        # JSON is YAML too.
        return msgspec.json.encode(document).decode()

    def socket(self, name: str) -> Path:
        return self._bench.folder / name / "state" / "node.sock"

    def trouble(self) -> str:
        return "\n".join(f"--- {name}\n{one.log_tail(600)}" for name, one in self.nodes.items())


async def status(socket: Path) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(socket.with_name("status.sock")))
    body = await reader.read()
    writer.close()
    told: dict[str, Any] = msgspec.json.decode(body)
    return told


class CutRun:
    def __init__(self, tree: CutTree, spaces: Namespaces, client: Client, steady: Steady) -> None:
        self._tree = tree
        self._spaces = spaces
        self._client = client
        self._steady = steady

    async def listed(self) -> tuple[frozenset[str], frozenset[str]]:
        """The echo tools in the root's list, and those of them that it shows as degraded."""
        answer = await self._client.request("tools/list", {})
        echoes = {one["name"]: one for one in answer["result"]["tools"] if one["name"] in LEAVES}
        degraded = {
            name
            for name, one in echoes.items()
            if one.get("_meta", {}).get(CAPABILITY, {}).get("availability") == "degraded"
        }
        return frozenset(echoes), frozenset(degraded)

    async def until_list(self, right: Callable[[frozenset[str], frozenset[str]], bool]) -> float:
        """The moment in which the root's list is right."""
        return await self._until("the root's list", self._list_is(right))

    def _list_is(
        self, right: Callable[[frozenset[str], frozenset[str]], bool]
    ) -> Callable[[], Any]:
        async def look() -> float | None:
            return time.time() if right(*await self.listed()) else None

        return look

    async def noticed(self, cable: Cable) -> float:
        """The moment in which the node above the cable gave up the one below."""

        async def look() -> float | None:
            told = await status(self._tree.socket(cable.upper))
            one = next(one for one in told["upstreams"] if one["segment"] == cable.lower)
            return None if one["state"] == "ready" else float(one["since"])

        return await self._until(f"{cable.upper} noticing the cut", look)

    async def _until(self, what: str, look: Callable[[], Any], patience: float = 40.0) -> float:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            found = await look()
            if found is not None:
                return float(found)
            await asyncio.sleep(LOOK)
        raise TargetFailure(f"waited {patience:g} s in vain: {what}\n{self._tree.trouble()}")

    async def cycle(self, cable: Cable) -> CutTimes:
        everything = frozenset(LEAVES)
        # Calls are under way in both directions when the cable goes.
        cut_at = time.time()
        self._spaces.cut(cable.upper, cable.lower)
        noticed_at = await self.noticed(cable)
        right_at = await self.until_list(
            lambda listed, degraded: listed - degraded == everything - cable.behind
        )
        # Those who are not behind the cut are served as before.
        for tool in everything - cable.behind:
            if not await self._steady.one(tool):
                raise TargetFailure(f"{tool} failed though nothing before it was cut")
        healed_at = time.time()
        self._spaces.heal(cable.upper, cable.lower)
        back_at = await self.until_list(
            lambda listed, degraded: listed == everything and not degraded
        )
        for tool in everything:
            if not await self._steady.one(tool):
                raise TargetFailure(f"{tool} failed though it is listed again")
        return CutTimes(
            cable=f"{cable.upper}-{cable.lower}",
            noticed=round(noticed_at - cut_at, 3),
            converged=round(max(0.0, right_at - noticed_at), 3),
            back=round(back_at - healed_at, 3),
        )


async def measured(settings: CutSettings, tree: CutTree, spaces: Namespaces) -> dict[str, Any]:
    client = await connected(tree)
    steady = Steady(client, LEAVES, callers=2)
    run = CutRun(tree, spaces, client, steady)
    await run.until_list(lambda listed, degraded: listed == frozenset(LEAVES) and not degraded)
    steady.begin()
    times = []
    for number in range(settings.cycles):
        for cable in CABLES:
            with console.status(f"cut {number + 1}: {cable.upper}-{cable.lower}"):
                times.append(await run.cycle(cable))
    await steady.end()
    await client.close()
    return {
        "interval_s": INTERVAL,
        "cuts": [msgspec.to_builtins(one) for one in times],
        "answers": {
            "right": steady.right.total(),
            "reported as failed": steady.failed.total(),
            "wrong": len(steady.wrong),
            "lost": steady.lost,
        },
        "samples": steady.wrong[:5],
    }


async def connected(tree: CutTree, patience: float = 30.0) -> Client:
    """A client of the root, once it is there."""
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError):
            return await Client.connect(tree.socket("root"))
        if time.monotonic() > deadline:
            raise TargetFailure(f"the root does not listen:\n{tree.trouble()}")
        await asyncio.sleep(LOOK)


def measure(settings: CutSettings) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="il-cut-") as folder,
        Namespaces(("root", "a", "b", "c")) as spaces,
        Bench(Path(folder)) as bench,
    ):
        tree = CutTree(bench, spaces)
        tree.start()
        return asyncio.run(measured(settings, tree, spaces))


def judge(result: dict[str, Any]) -> list[Bar]:
    cuts, answers = result["cuts"], result["answers"]
    most = MOST_INTERVALS * result["interval_s"]
    bars = [
        Bar(
            f"slowest convergence after {cable} was noticed as cut",
            max(one["converged"] for one in cuts if one["cable"] == cable),
            "<=",
            most,
            "s",
            note=f"{MOST_INTERVALS} intervals of {result['interval_s'] * 1000:.0f} ms",
        )
        for cable in sorted({one["cable"] for one in cuts})
    ]
    bars += [
        Bar("calls answered by the wrong server", float(answers["wrong"]), "<=", 0.0),
        Bar("calls without an answer", float(answers["lost"]), "<=", 0.0),
    ]
    return bars


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    rows = []
    for cable in sorted({one["cable"] for one in result["cuts"]}):
        cuts = [one for one in result["cuts"] if one["cable"] == cable]
        figures = [[one[key] for one in cuts] for key in ("noticed", "converged", "back")]
        cells = [f"{statistics.median(one):.2f} (≤ {max(one):.2f})" for one in figures]
        rows.append([cable, f"{len(cuts)}", *cells])
    columns = ["cable", "cuts", "until noticed s", "then the list is right s", "healed: back s"]
    show_table("network cut and healed, under load", columns, rows)
    answers = ", ".join(f"{count:,} {kind}" for kind, count in result["answers"].items())
    note(f"calls all the while: {answers}")
    for sample in result["samples"]:
        note(sample)
    show_bars(bars)


def run(settings: CutSettings) -> tuple[dict[str, Any], list[Bar]]:
    try:
        result = measure(settings)
    except NoNamespaces as cause:
        # Nothing is wrong with the node: this machine cannot show it.
        note(f"the cut is left out: {cause}")
        return {"skipped": str(cause)}, []
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
