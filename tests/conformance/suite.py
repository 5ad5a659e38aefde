"""The official MCP conformance suite, run against an endpoint, and what it found, check by check.

A scenario of the suite is a handful of checks, and passes when none of them fails: also when they
were skipped, or when there were none. So what is compared here is the checks that succeeded.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.conformance import external_packages

REVISIONS = ("2025-11-25", "2026-07-28")
RUN_SECONDS = 900
SCENARIO_MS = 600_000
"""How long a scenario may take. Most take a second, and machines are busy."""

_STAMPED = re.compile(r"(?:server-)?(.+)-\d{4}-\d\d-\d\dT[\dZ-]+")


class Check(NamedTuple):
    """One thing that the suite looked at. Ids repeat inside a scenario: `nth` tells them apart."""

    scenario: str
    id: str
    name: str
    nth: int = 0

    def __str__(self) -> str:
        again = f" (no. {self.nth + 1})" if self.nth else ""
        return f"{self.scenario}/{self.id} {self.name}{again}"


class Findings:
    """What one run of the suite found."""

    def __init__(self) -> None:
        self.status: dict[Check, str] = {}
        self.told: dict[Check, str] = {}
        """What the suite had to say about a check."""

    def add(self, scenario: str, checks: Iterable[dict[str, Any]]) -> None:
        counted: Counter[tuple[str, str]] = Counter()
        for item in checks:
            key = item["id"], item["name"]
            check = Check(scenario, *key, counted[key])
            counted[key] += 1
            self.status[check] = item["status"]
            self.told[check] = str(item.get("errorMessage") or item.get("description") or "")

    def replace(self, other: Findings) -> None:
        """Replace the findings of the scenarios of another run."""
        replaced = {check.scenario for check in other.status}
        for mine, new in ((self.status, other.status), (self.told, other.told)):
            for check in [check for check in mine if check.scenario in replaced]:
                del mine[check]
            mine.update(new)

    @property
    def passed(self) -> set[Check]:
        return {check for check, status in self.status.items() if status == "SUCCESS"}

    @property
    def good(self) -> set[str]:
        """The scenarios in which something passed and nothing failed."""
        failed = {check.scenario for check, status in self.status.items() if status == "FAILURE"}
        return {check.scenario for check in self.passed} - failed

    def line(self, scored: set[str]) -> str:
        """The figures, as the suite counts them: of the scored scenarios."""
        counted = [
            (check, status) for check, status in self.status.items() if check.scenario in scored
        ]
        passed = sum(status == "SUCCESS" for _, status in counted)
        failed = sum(status == "FAILURE" for _, status in counted)
        scenarios = f"{len(self.good & scored)} of {len(scored)} scenarios"
        return f"{scenarios}, {passed} of {passed + failed} checks"

    def said(self, check: Check) -> str:
        """A check and how it went, for the message of a failing test."""
        status = self.status.get(check, "not reached")
        return f"{check}: {status} {self.told.get(check, '')[:300]}".rstrip()


class Requirements(NamedTuple):
    """What the suite demands for a revision."""

    scored: list[str]
    unscored: list[str]


@cache
def requirements(revision: str, leg: str) -> Requirements:
    """The scenarios for a `server` or a `client`."""
    file = external_packages.suite().parent.parent / "requirements" / f"{revision}.yaml"
    read = yaml.safe_load(file.read_text(encoding="utf-8"))
    others = [item["scenario"] for item in read["not_scored"] if item["leg"] == leg]
    return Requirements(read[leg], others)


def _suite(arguments: list[str], folder: Path, environ: dict[str, str] | None) -> tuple[int, str]:
    home = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    command = [
        external_packages.node(),
        str(external_packages.suite()),
        *arguments,
        "-o",
        str(folder),
    ]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            env={**home, **(environ or {})},
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the suite did not end within {RUN_SECONDS} s") from None
    return result.returncode, result.stdout + result.stderr


def _findings(folder: Path, log: str, named: Callable[[str], str]) -> Findings:
    result = Findings()
    for file in sorted(folder.rglob("checks.json")):
        stamped = _STAMPED.fullmatch(str(file.parent.relative_to(folder)))
        assert stamped is not None, file
        result.add(named(stamped[1]), json.loads(file.read_text(encoding="utf-8")))
    assert result.status, log[-3000:]
    return result


TIMED_SCENARIOS: Final = frozenset({"server-stateless"})
"""Scenarios in which the suite measures time: parts of a stream must come in separate reads, which
they do not on a busy machine. They fail only if they fail several times."""
TIMED_ATTEMPTS: Final = 5


def run_server(url: str, revision: str, folder: Path) -> Findings:
    """Run everything that the suite demands of a server of this revision, scored or not."""
    arguments = ["server", "--url", url, "--requirements", revision]
    _, log = _suite([*arguments, "--timeout", str(SCENARIO_MS)], folder, None)
    result = _findings(folder, log, lambda name: name)
    reached = {check.scenario for check in result.status}
    for attempt in range(TIMED_ATTEMPTS):
        failed = (TIMED_SCENARIOS & reached) - result.good
        if not failed:
            break
        result.replace(run_scenarios(url, revision, failed, folder / f"attempt{attempt}"))
    return result


def run_scenarios(url: str, revision: str, scenarios: Iterable[str], folder: Path) -> Findings:
    """Some scenarios for a server, several at once: for those that wait more than they work."""

    def run_one(scenario: str) -> str:
        arguments = ["server", "--url", url, "--scenario", scenario, "--force"]
        more = ["--spec-version", revision, "--timeout", str(SCENARIO_MS)]
        return _suite([*arguments, *more], folder, None)[1]

    with ThreadPoolExecutor(4) as pool:
        logs = list(pool.map(run_one, scenarios))
    return _findings(folder, "".join(logs), lambda name: name)


class Seat(NamedTuple):
    """How a client fared in one scenario."""

    passes: bool
    """By the suite's own judgement: nothing failed or warned, and the client ended well."""
    findings: Findings
    log: str


def run_client(
    command: list[str], scenario: str, revision: str, folder: Path, **environ: str
) -> Seat:
    """One scenario for a client; `command` gets the address of the suite's server at its end."""
    assert not any(" " in word for word in command), "the suite splits the command at blanks"
    arguments = ["client", "--command", " ".join(command), "--scenario", scenario]
    more = ["--spec-version", revision, "--force", "--timeout", str(SCENARIO_MS)]
    code, log = _suite([*arguments, *more], folder, environ)
    return Seat(code == 0, _findings(folder, log, lambda _: scenario), log)
