"""Tests of learned rules in a node, and of their journal entries."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from interlock.app import Node
from interlock.automation.component import Automation
from interlock.automation.dismissal import Dismissal
from interlock.core.config import Config, LearnedRule, parse_config

RULE = "{name: counting is fine, then: allow, tools: [demo.text_stats]}"


def config(rule: str, more: str = "") -> Config:
    return parse_config(
        "listen: 127.0.0.1:0\nstate_dir: state\n"
        f"servers: {{demo: {{command: {sys.executable}, args: [-m, interlock.demo]}}}}\n"
        f"policy: {{learned: [{rule}]}}\n{more}"
    )


def test_journal_names_reverting_operator(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        node = Node(config(RULE), base_dir=tmp_path)
        try:
            store = node.component(Automation)._store
            assert store is not None
            for by, name in (("eve", "another"), ("ada", "counting is fine")):
                rule = LearnedRule(name=name, then="allow", tools=["demo.count"])
                store.dismiss(
                    Dismissal(id=name, rule=rule, by=by, time=1.0, agreed=6, reverted=True)
                )
            await node.apply(config(""))
            # Somebody wants it again, and then takes it out by hand.
            store.restore(["counting is fine"])
            await node.apply(config(RULE))
            await node.apply(config("", "automation: {enabled: false}\n"))
            assert node._journal is not None
            assert await node._journal.flush_async()
            rows = node._journal.tail(100)
        finally:
            await node.stop()
        return [row.detail for row in rows if (row.verb, row.outcome) == ("learned", "reverted")]

    assert asyncio.run(scene()) == ["by ada", "by a change of the config"]


def test_journal_records_rule_changes(tmp_path: Path) -> None:
    async def scene() -> list[tuple[str, str]]:
        node = Node(config(""), base_dir=tmp_path)
        try:
            assert not node.trust.authorizer.installed["learned"].when
            await node.apply(config(RULE))
            assert node.trust.authorizer.installed["learned"].when
            await node.apply(config(RULE, "page_size: 7\n"))
            await node.apply(config(RULE.replace("allow", "deny")))
            await node.apply(config("", "automation: {enabled: false}\n"))
            assert not node.trust.authorizer.installed["learned"].when
            await node.apply(config(""))
            assert node._journal is not None
            assert await node._journal.flush_async()
            rows = node._journal.tail(100)
        finally:
            await node.stop()
        return [(row.name, row.outcome) for row in rows if row.verb == "learned"]

    told = asyncio.run(scene())
    assert told == [
        ("counting is fine", "accepted"),
        ("counting is fine", "changed"),
        ("counting is fine", "reverted"),
    ]
