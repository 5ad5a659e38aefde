"""What cannot be carried from one era to the other, and what forces it.

Each entry is a check that passes on the server's own era, and that no node can make pass across.
The tests hold the list to the letter: a check that is lost and not listed fails them, and so does
one that is listed and passes. See docs/conformance.md for the same in prose.
"""

from __future__ import annotations

from typing import NamedTuple

SPECIFICATION = "the specification"
FIXTURE = "the fixture"


class Forced(NamedTuple):
    """A scenario's checks that cannot pass, and why."""

    scenario: str
    checks: tuple[str, ...]
    """Their ids."""
    by: str
    why: str


_ONLY_THERE = (
    "The fixture answers with a result of the stateless wire. Its own SDK refuses to send that on "
    "the session wire (-32603), so no question ever leaves the server."
)
_SWALLOWS = (
    "On the stateless wire the fixture's tool finds no way back to the client, and returns that as "
    "its text instead of asking. So no question ever leaves the server."
)
_NO_RESUMING = (
    "Nothing of the stateless wire's is resumed: the server answers in one piece and never ends a "
    "stream early, so there is nothing to come back for. The suite notes it as not applicable."
)

_UNLISTED = (
    "The check calls a tool that the reference server does not list. Directly it passes because "
    "the server returns the text 'Unknown tool' as a result with isError. A node sends no server a "
    "tool name that is not listed. It returns -32602, the code of the specification. The check "
    "passes through a node when the server lists the tool (test_tasks.py)."
)

UNLISTED_TOOLS = [
    Forced(scenario, checks, FIXTURE, _UNLISTED)
    for scenario, checks in {
        "tasks-capability-negotiation": ("sep-2663-server-rejects-undeclared-client",),
        "tasks-dispatch-and-envelope": (
            "sep-2663-legacy-task-param-ignored",
            "tasks-immediate-result-shortcut",
            "tasks-result-type-complete-on-non-task-responses",
        ),
        "tasks-lifecycle": ("tasks-sync-tool-call",),
    }.items()
]
"""Checks of 2026-07-28 that are lost in front of the reference server. None of them is scored."""

STARTED_SERVER = {
    "2025-11-25": [
        Forced(
            "server-sse-polling",
            ("server-sse-disconnect-resume",),
            SPECIFICATION,
            "The tool closes the SSE stream of its call. A server on stdio has no such stream, so "
            "the call is answered without an interruption. The suite notes it as not applicable.",
        )
    ],
    "2026-07-28": UNLISTED_TOOLS,
}
"""Checks that are lost when the node starts the reference server itself, by revision."""

_STATELESS_TO_SESSION = [
    Forced(
        "input-required-result-ignore-extra-params",
        ("sep-2322-ignore-unexpected-params",),
        SPECIFICATION,
        "The answers come with the first request, before any question. A session server takes "
        "answers only to questions that it has asked, so it asks; the suite warns, and fails "
        "nothing.",
    ),
]

STATELESS_TO_SESSION = {
    "neutral": [
        *_STATELESS_TO_SESSION,
        Forced(
            "input-required-result-basic-elicitation",
            ("sep-2322-elicitation-incomplete", "sep-2322-elicitation-complete"),
            SPECIFICATION,
            "The suite wants the question under the key user_name. On the session wire a question "
            "has no key, only a request id, so the node must make one up.",
        ),
    ],
    "reference": [
        *(
            Forced(f"input-required-result-{scenario}", checks, FIXTURE, _ONLY_THERE)
            for scenario, checks in {
                "basic-elicitation": (
                    "sep-2322-elicitation-incomplete",
                    "sep-2322-elicitation-complete",
                ),
                "basic-sampling": ("sep-2322-sampling-incomplete", "sep-2322-sampling-complete"),
                "basic-list-roots": (
                    "sep-2322-list-roots-incomplete",
                    "sep-2322-list-roots-complete",
                ),
                "request-state": (
                    "sep-2322-request-state-incomplete",
                    "sep-2322-request-state-complete",
                ),
                "multiple-input-requests": (
                    "sep-2322-multiple-inputs-incomplete",
                    "sep-2322-multiple-inputs-complete",
                ),
                "multi-round": (
                    "sep-2322-multi-round-r1",
                    "sep-2322-multi-round-r2",
                    "sep-2322-multi-round-r3",
                ),
                "non-tool-request": (
                    "sep-2322-non-tool-incomplete",
                    "sep-2322-non-tool-complete",
                ),
                "result-type": ("sep-2322-result-type-included",),
                "tampered-state": ("sep-2322-reject-tampered-state",),
                "capability-check": ("sep-2322-respect-client-capabilities",),
                "missing-input-response": ("sep-2322-missing-response-rerequests",),
            }.items()
        ),
        Forced(
            "server-stateless",
            (
                "sep-2575-server-sends-tools-list-changed-on-subscription",
                "sep-2575-server-sends-prompts-list-changed-on-subscription",
            ),
            FIXTURE,
            "To its session clients the fixture says listChanged: false, and tells them nothing.",
        ),
    ],
}

_SESSION_TO_STATELESS = [
    Forced(
        "server-sse-polling",
        ("server-sse-disconnect-resume",),
        SPECIFICATION,
        _NO_RESUMING,
    ),
]

SESSION_TO_STATELESS = {
    "neutral": _SESSION_TO_STATELESS,
    "reference": [
        *_SESSION_TO_STATELESS,
        *(
            Forced(scenario, checks, FIXTURE, _SWALLOWS)
            for scenario, checks in {
                "tools-call-sampling": ("tools-call-sampling",),
                "tools-call-elicitation": ("tools-call-elicitation",),
                "elicitation-sep1034-defaults": tuple(
                    f"elicitation-sep1034-{kind}-default"
                    for kind in ("string", "integer", "number", "enum", "boolean")
                ),
                "elicitation-sep1330-enums": tuple(
                    f"elicitation-sep1330-{kind}"
                    for kind in (
                        "untitled-single",
                        "titled-single",
                        "untitled-multi",
                        "titled-multi",
                        "legacy-enumnames",
                    )
                ),
            }.items()
        ),
    ],
}
