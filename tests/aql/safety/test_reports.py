"""Tests of the match of step reports and calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.safety.patterns import normalize_hint
from interlock.aql.safety.reports import (
    CallTarget,
    StepReport,
    StepReports,
    announces,
    digest_arguments,
)

WHO = ("ada", "token", "")


def call_target(local: str, server: str = "github", **arguments: Any) -> CallTarget:
    names = (f"{server}_{local}", f"{server}.{local}", f"{server}__{local}")
    return CallTarget(names, local, server, lambda: arguments)


def step_report(hint: str, operation: str = "", params: Any = None) -> StepReport:
    return StepReport(
        "e",
        normalize_hint(hint),
        0.0,
        0,
        operation,
        None if params is None else digest_arguments(params),
    )


@pytest.mark.parametrize(
    ("hint", "local"),
    [
        ("list issues of docs", "list_issues"),
        ("I will show the open issues", "list_issues"),
        ("listing all issues", "list_issues"),
        ("call github_create_issue with a title", "create_issue"),
        ("github.create_issue", "create_issue"),
        ("make a new issue about tests", "create_issue"),
        ("remove the repo docs", "delete_repo"),
        ("create_issue: tests are slow", "create_issue"),
        ("reading files of the project", "get_file"),
        ("look up the entries", "search_entries"),
        ("open github", "open"),
    ],
)
def test_hint_announces_call(hint: str, local: str) -> None:
    assert announces(step_report(hint), call_target(local))


@pytest.mark.parametrize(
    ("hint", "local"),
    [
        ("list issues of docs", "delete_repo"),
        ("list the repo", "delete_repo"),
        ("delete the issue", "delete_repo"),
        ("doing something", "list_issues"),
        ("open the readme", "open"),
        ("get", "get"),
        ("issues", "list_issues"),
        ("", "list_issues"),
    ],
)
def test_hint_does_not_announce_other_call(hint: str, local: str) -> None:
    assert not announces(step_report(hint), call_target(local))


def test_named_operation_announces_only_that_call() -> None:
    report = step_report("delete the repo docs", "github_delete_repo", {"repoName": "docs"})
    assert announces(report, call_target("delete_repo", repo_name="docs"))
    assert announces(report, call_target("delete_repo", repoName="docs"))
    assert not announces(report, call_target("delete_repo", repo_name="main"))
    assert not announces(report, call_target("delete_issue", repo_name="docs"))
    assert digest_arguments({"id": 1, "input": {"a": 2}}) == digest_arguments({"id": 1, "a": 2})
    assert digest_arguments({"a": 1, "_meta": 2}) == digest_arguments({"a": 1})


@given(
    st.lists(
        st.tuples(st.sampled_from(["list_issues", "get_file", "delete_repo"]), st.integers(0, 100)),
        max_size=30,
    ),
    st.lists(st.sampled_from(["list_issues", "get_file", "delete_repo"]), max_size=40),
)
def test_allows_one_call_per_report(reported: list[tuple[str, int]], wanted: list[str]) -> None:
    now = 100.0
    reports = StepReports(lambda: now, 60.0)
    for local, at in sorted(reported, key=lambda one: one[1]):
        reports.add(WHO, StepReport("e", normalize_hint(f"{local} x"), float(at), 0))
    for name in set(wanted):
        fresh = [one for one in reported if one == (name, one[1]) and one[1] >= 40]
        passed = 0
        while reports.take_report(WHO, call_target(name)) is not None:
            passed += 1
        assert passed == len(fresh)
    assert reports.take_report(("deputy", "token", ""), call_target("list_issues")) is None


def test_limits_stored_reports() -> None:
    reports = StepReports(lambda: 0.0, 60.0)
    for _ in range(1_000):
        reports.add(WHO, step_report("list_issues x"))
    assert reports.count(WHO) == 100
    reports.remove(WHO, "e")
    assert reports.count(WHO) == 0
