"""How long a decision of the policy takes: 10,000 rules, 10,000 tools, in one process.

*Cold* is the first decision for a caller and a tool. *Warm* is any later one. *Conditional* is one
where an expression over the arguments has to be evaluated, which happens every time. The rules are
of every sort that the config has, and half of them name more than one thing.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.bars import Bar
from bench.report import note, show_bars, show_table
from bench.synthetic_tools import synthetic_tool
from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import Tool, read_offering
from interlock.core.config import ServerConfig
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.protocol.mcp import LATEST_STATELESS, TOOLS_CALL, Era
from interlock.trust.policy import Policy

RULES = TOOLS = 10_000
SERVERS = 100
CALLERS = 500
SIZE = 20_000
"""Decisions of one round."""
LIMIT_US = 20.0
ACTIONS = ("allow", "confirm", "verify", "deny")
_CLIENT = Client(Era.STATELESS, LATEST_STATELESS, "bench")
_LOCAL = Credentials("local")


class DecisionSettings(msgspec.Struct):
    rounds: int = 5
    quick: bool = False


def many_tools() -> list[Tool]:
    tools: list[Tool] = []
    for number in range(SERVERS):
        key = f"server{number}"
        definitions = [
            msgspec.json.encode(synthetic_tool(each)) for each in range(TOOLS // SERVERS)
        ]
        settings = ServerConfig(url="http://127.0.0.1:1/", segment=key)
        tools += read_offering(key, settings, definitions).tools
    return tools


def many_rules(tools: Sequence[Tool], choose: random.Random) -> list[RuleConfig]:
    """Ten sorts of rules, as many of each."""
    names = [tool.canonical for tool in tools]

    def some(make: Callable[[int], str], most: int) -> list[str]:
        return [make(choose.randrange(most)) for _ in range(choose.choice((1, 1, 3)))]

    def role(number: int) -> str:
        return f"role{number}"

    sorts: list[Callable[[], dict[str, Any]]] = [
        lambda: {"tools": [choose.choice(names)]},
        lambda: {"tools": [choose.choice(names), choose.choice(names)], "roles": some(role, 300)},
        lambda: {"tools": [f"server{choose.randrange(SERVERS)}.*"],
                 "callers": some(lambda n: f"user{n}", CALLERS)},
        lambda: {"tools": [f"*.delete_*_{choose.randrange(1_000)}"]},
        lambda: {"tools": [f"server{choose.randrange(SERVERS)}.*_{choose.randrange(1_000)}?"]},
        lambda: {"callers": [f"team{choose.randrange(1_000)}-*"], "effects": ["irreversible"]},
        lambda: {"roles": some(role, 3_000), "annotations": {"destructiveHint": True}},
        lambda: {"scopes": [f"write:server{choose.randrange(SERVERS)}.x{choose.randrange(99)}"]},
        lambda: {"kinds": [f"mcp/request:tools/call:{choose.choice(names)}"],
                 "roles": some(role, 300)},
        lambda: {"tools": [choose.choice(names)],
                 "when": f"args.limit > {choose.randrange(100)} && args.project != 'x'"},
    ]  # fmt: skip
    return [
        RuleConfig(
            name=f"rule{number}",
            then=choose.choice(ACTIONS),  # type: ignore[arg-type]
            **sorts[number % len(sorts)](),
        )
        for number in range(RULES)
    ]


def many_callers(choose: random.Random) -> list[Caller]:
    return [
        Caller(
            f"user{number}" if number % 2 else f"team{number}-bot",
            roles=(f"role{choose.randrange(300)}", f"role{choose.randrange(3_000)}"),
            scopes=("read", f"write:server{choose.randrange(SERVERS)}.*"),
        )
        for number in range(CALLERS)
    ]


def call_of(tool: Tool, caller: Caller, arguments: bytes) -> Call:
    """A call that has come as far as the policy."""
    call = Call(TOOLS_CALL, "bench", _LOCAL, _CLIENT, name=tool.canonical, arguments=arguments)
    call.route, call.upstream, call.effect = tool, tool.upstream, tool.effect_name
    call.caller = caller
    call.decoded_arguments = msgspec.json.decode(arguments)
    return call


def measure(policy: Policy, calls: Sequence[Call]) -> list[float]:
    """Microseconds of each decision; the clock's own time is taken off."""
    clock = time.perf_counter_ns
    empty = statistics.median([clock() * -1 + clock() for _ in range(1_000)])
    took: list[float] = []
    judge = policy.judge
    gc.collect()
    for call in calls:
        began = clock()
        judge(call)
        took.append(max(0.0, (clock() - began - empty) / 1_000))
    return took


def run(settings: DecisionSettings) -> tuple[dict[str, Any], list[Bar]]:
    choose = random.Random(5)
    tools = many_tools()
    rules = many_rules(tools, choose)
    callers = many_callers(choose)
    began = time.perf_counter()
    policy = Policy(PolicyConfig(rules=rules))
    compiled = time.perf_counter() - began
    note(f"{len(policy.rules):,} rules compiled in {compiled:.2f} s; {len(tools):,} tools")
    arguments = b'{"project":"p","limit":50,"state":"open"}'
    under_condition = {name for rule in rules if rule.when is not None for name in rule.tools}
    lanes: dict[str, list[float]] = {"cold": [], "warm": [], "conditional": [], "no rules": []}
    plain = [tool for tool in tools if tool.canonical not in under_condition]
    conditional = [tool for tool in tools if tool.canonical in under_condition]
    bare = Policy(PolicyConfig())
    for _ in range(settings.rounds):
        fresh = Policy(PolicyConfig(rules=rules))
        pairs = [(choose.choice(plain), choose.choice(callers)) for _ in range(SIZE)]
        calls = [call_of(tool, caller, arguments) for tool, caller in dict.fromkeys(pairs)]
        lanes["cold"] += measure(fresh, calls)
        lanes["warm"] += measure(fresh, calls)
        several = [choose.choice(conditional) for _ in range(SIZE // 4)]
        calls = [call_of(tool, callers[0], arguments) for tool in several]
        measure(fresh, calls)
        lanes["conditional"] += measure(fresh, calls)
        lanes["no rules"] += measure(bare, calls)
    figures = {name: spread(took) for name, took in lanes.items()}
    show_table(
        "A decision, in microseconds",
        ("", "p50", "p95", "p99", "longest", "decisions"),
        [(name, *row.values(), f"{len(lanes[name]):,}") for name, row in figures.items()],
    )
    bars = [
        Bar(f"10,000 rules, 10,000 tools: {name}", figures[name]["p50"], "<=", LIMIT_US, "µs")
        for name in ("cold", "warm", "conditional")
    ]
    show_bars(bars)
    decided = sorted({policy.judge(call).action.label for call in calls})
    result = {
        "rules": len(rules),
        "tools": len(tools),
        "effects": [level.label for level in EffectLevel],
        "compile_s": compiled,
        "us": figures,
        "decided": decided,
        "bars": [bar.shown() for bar in bars],
    }
    return result, bars


def spread(took: Sequence[float]) -> dict[str, float]:
    ordered = sorted(took)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "longest": at(1.0)}
