"""The official conformance suite, through a node in front of the SDK's own server for it.

The lists are what passes today. They may only grow: what passes and is not in them is to be added.
Tools, and whatever needs no more than a question and an answer, are complete. What is missing, all
of the session wire: logging, resource subscriptions, sampling and elicitation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.config import ServerConfig
from tests.conformance import suite
from tests.faces.running import Running

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        os.environ.get("INTERLOCK_CONFORMANCE") == "0", reason="INTERLOCK_CONFORMANCE is 0"
    ),
]

_QUESTIONS = {
    "completion-complete",
    "dns-rebinding-protection",
    "json-schema-2020-12",
    "prompts-get-embedded-resource",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-with-image",
    "prompts-list",
    "resources-list",
    "resources-read-binary",
    "resources-read-text",
    "resources-templates-read",
    "server-sse-multiple-streams",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-error",
    "tools-call-image",
    "tools-call-mixed-content",
    "tools-call-simple-text",
    "tools-call-with-progress",
    "tools-list",
}

PASSES = {
    "2025-11-25": _QUESTIONS | {"ping", "server-initialize", "server-session-lifecycle"},
    "2026-07-28": _QUESTIONS
    | {
        "caching",
        "http-custom-header-server-validation",
        "http-header-validation",
        "input-required-result-basic-elicitation",
        "input-required-result-basic-list-roots",
        "input-required-result-basic-sampling",
        "input-required-result-capability-check",
        "input-required-result-ignore-extra-params",
        "input-required-result-missing-input-response",
        "input-required-result-multi-round",
        "input-required-result-multiple-input-requests",
        "input-required-result-non-tool-request",
        "input-required-result-request-state",
        "input-required-result-result-type",
        "input-required-result-tampered-state",
        "input-required-result-unsupported-methods",
        "input-required-result-validate-input",
        "sep-2164-resource-not-found",
        "server-stateless",
    },
}
CHECKS = {"2025-11-25": 56, "2026-07-28": 151}
"""How many checks these scenarios pass together: a scenario that checks less passes too easily."""


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The server itself, and a node in front of it."""
    try:
        suite.node()
        suite.suite()
        suite.everything_folder()
    except suite.CannotRun as reason:
        pytest.skip(str(reason))
    with suite.everything() as url:
        upstream = ServerConfig(url=url, expose="transparent")
        node = Running(
            tmp_path_factory.mktemp("node"), workshops={}, servers={"everything": upstream}
        )
        try:
            yield {"direct": url, "node": node.url}
        finally:
            node.stop()


@pytest.mark.parametrize("revision", PASSES)
def test_what_passes_through_a_node(
    endpoints: dict[str, str],
    revision: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scores = suite.run(endpoints["node"], revision, tmp_path)
    good = {name: score for name, score in scores.items() if score.good}
    with capsys.disabled():
        print(_line("a node", revision, scores))
        if os.environ.get("CONF_DIRECT"):
            direct = suite.run(endpoints["direct"], revision, tmp_path / "direct")
            print(_line("direct", revision, direct))
    lost = {name: scores.get(name) for name in PASSES[revision] - set(good)}
    assert not lost, f"no longer pass: {lost}"
    assert set(good) == PASSES[revision], "more passes than is listed: add it to the list"
    checks = sum(score.passed for score in good.values())
    assert checks >= CHECKS[revision]


def _line(who: str, revision: str, scores: dict[str, suite.Score]) -> str:
    good = sum(score.good for score in scores.values())
    checks = sum(score.passed for score in scores.values())
    failing = sorted(name for name, score in scores.items() if not score.good)
    total = f"{good} of {len(scores)} scenarios, {checks} checks"
    return f"\n  conformance {revision}, {who}: {total}; not: {', '.join(failing) or 'none'}"
