"""Renamed keys: the error names the new key."""

from __future__ import annotations

import pytest

from interlock.core.config import ConfigError, parse_config

CASES = {
    "approvals: {most: 5}": ("approvals.most", "max_pending"),
    "approvals: {most_per_caller: 5}": ("approvals.most_per_caller", "max_pending_per_caller"),
    "automation: {most: 5}": ("automation.most", "max_stored"),
    "drivers: {most_processes: 5}": ("drivers.most_processes", "max_processes"),
    "subservers: {most: 5}": ("subservers.most", "max_registrations"),
    "wakeful: true": ("wakeful", "busy_poll"),
    "aql: {limits: {most_page: 3}}": ("aql.limits.most_page", "max_page"),
    "aql: {executions: {most: 3}}": ("aql.executions.most", "max_stored"),
    "topics: {most: 5}": ("topics.most", "max_connections"),
    "topics: {rooms: {ops: {seats: []}}}": ("topics.rooms.ops.seats", "participants"),
    "topics: {rooms: {ops: {most: 5}}}": ("topics.rooms.ops.most", "max_participants"),
    "topics: {rooms: {ops: {guests: 5}}}": ("topics.rooms.ops.guests", "max_guests"),
}


@pytest.mark.feature("aql", "topics", "automation", "drivers", "tree")
@pytest.mark.parametrize("text", CASES)
def test_names_successor_of_renamed_key(text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse_config(text)
    (problem,) = failure.value.problems
    key, successor = CASES[text]
    assert problem.path == key
    assert problem.hint == f"use {successor}"
