"""A tracker with one initial issue."""

from __future__ import annotations

import msgspec

from interlock.tree.subserver import Subserver, ToolError

jira = Subserver("jira")


class Issue(msgspec.Struct):
    key: str
    summary: str
    done: bool = False


ISSUES = {"TREE-1": Issue("TREE-1", "Let nodes register with nodes")}


@jira.tool(latency_class="fast", mutable=False)
def get_issue(key: str) -> Issue:
    """Return an issue by its key."""
    if key not in ISSUES:
        raise ToolError(f"There is no issue {key!r}.")
    return ISSUES[key]


@jira.tool(latency_class="fast", mutable=True, reversible=True)
def create_issue(summary: str) -> Issue:
    """Create an issue."""
    key = f"TREE-{len(ISSUES) + 1}"
    ISSUES[key] = Issue(key, summary)
    return ISSUES[key]


if __name__ == "__main__":
    jira.run()
