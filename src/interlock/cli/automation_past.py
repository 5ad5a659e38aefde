"""What `interlock automation` looks at: the decisions that are remembered, the rules in force, what
they suggest, and what somebody does not want to see suggested."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from interlock.cli import running, say

if TYPE_CHECKING:
    from interlock.config import Config
    from interlock.config.automation import LearnedRule
    from interlock.pipeline.automation.decision import Decided
    from interlock.pipeline.automation.dismissal import Dismissed
    from interlock.pipeline.automation.suggestion import Suggestion
    from interlock.stores.decisions import DecisionStore


def line(text: str) -> str:
    """What others wrote, on one line."""
    return " ".join(say.printable(text).split())


class Found:
    """A suggestion, or a rule that is in force."""

    def __init__(self, rule: LearnedRule, suggestion: Suggestion | None = None) -> None:
        self.rule = rule
        self.id = rule.name if suggestion is None else suggestion.id
        self.words = rule.reason if suggestion is None else suggestion.words
        self.evidence = None if suggestion is None else suggestion.evidence
        self.dismissed = None if suggestion is None else suggestion.dismissed


def is_called(one: Suggestion | Dismissed, id: str) -> bool:
    """By its id, or as its rule would be called."""
    return id in (one.id, one.rule.name)


class Past:
    """Everything that humans decided at the node that is meant. Raises ConfigError,
    InterlockError."""

    def __init__(self, config: Path | None, node: str | None) -> None:
        self.meant = running.with_files(config, node)
        self.config: Config = self.meant.config
        with self.store() as store:
            self.history: list[Decided] = store.history()
            self.dismissed: list[Dismissed] = store.dismissed()

    @contextmanager
    def store(self) -> Iterator[DecisionStore]:
        """Where all of this is kept."""
        from interlock.node.places import decisions_path
        from interlock.stores.decisions import DecisionStore

        store = DecisionStore(
            decisions_path(self.config, os.environ, self.meant.base_dir),
            deliver=lambda what: what(),
            settings=self.config.automation,
            wall_clock=time.time,
        )
        try:
            yield store
        finally:
            store.close()

    def dismiss(self, id: str, rule: LearnedRule, agreed: int, *, reverted: bool = False) -> None:
        """Remember that it is not wanted. `agreed`: how many decisions bear it."""
        from interlock.pipeline.automation.dismissal import Dismissed

        with self.store() as store:
            store.dismiss(
                Dismissed(
                    id=id,
                    rule=rule,
                    by=getpass.getuser(),
                    time=time.time(),
                    agreed=agreed,
                    reverted=reverted,
                )
            )

    def config_path(self) -> Path:
        return config_path(self.meant)

    @property
    def rules(self) -> list[LearnedRule]:
        return self.config.policy.learned

    def suggestions(self, *, irreversible: bool) -> list[Suggestion]:
        """Those that were dismissed, too."""
        from interlock.pipeline.automation.suggestion import suggest

        return suggest(
            self.history,
            self.config.automation,
            standing=self.rules,
            irreversible=irreversible,
            dismissed=self.dismissed,
        )

    def covered(self) -> int:
        """How many of the decisions the rules in force would make."""
        from interlock.pipeline.automation.rule import CompiledRule, read_case

        rules = [CompiledRule(rule) for rule in self.rules]
        cases = map(read_case, self.history) if rules else ()
        return sum(any(rule.covers(case) for rule in rules) for case in cases)

    def find(self, id: str, *, irreversible: bool) -> Found:
        """What is called so; says what is wrong, and ends, where nothing is."""
        for rule in self.rules:
            if rule.name == id:
                return Found(rule)
        found = [one for one in self.suggestions(irreversible=irreversible) if is_called(one, id)]
        if found:
            return Found(found[0].rule, found[0])
        if not irreversible and any(
            is_called(one, id) for one in self.suggestions(irreversible=True)
        ):
            say.problem(
                f"{line(id)} would also answer for what cannot be undone. If that is what you "
                "want, say --irreversible."
            )
        else:
            say.problem(
                f"nothing is called {line(id)} here. Suggestions change with every decision: "
                "`interlock automation` has those of now."
            )
        raise typer.Exit(say.FAILED)


def config_path(meant: running.Meant) -> Path:
    if meant.source is None or meant.source.path is None:
        from interlock.config import ConfigError

        raise ConfigError.of(
            "the rules of a node stand in its config, and none was found", "name it with --config"
        )
    return meant.source.path
