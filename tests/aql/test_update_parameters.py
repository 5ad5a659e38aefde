"""Tests of the parameters of an UPDATE: identifiers and changes."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.protocol.aql_terms import Category
from tests.aql.operation_catalogs import NEEDED, STRING, operation_catalog, single_operation, tool
from tests.support.offerings import offer

WHOLE = {"type": "integer", "required": True}


def split_parameters(name: str, properties: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the parameters beside `input`, and the parameters in `input`."""
    found = single_operation(tool(name, properties))
    assert found.category is Category.UPDATE
    taken = found.signature.parameters
    return [one.name for one in taken if not one.in_input], [
        one.name for one in taken if one.in_input
    ]


@pytest.mark.spec("AQ-4.5-2")
def test_recognizes_identifiers_by_name() -> None:
    found = single_operation(
        tool(
            "update_issue",
            {
                "owner": NEEDED,
                "repo": NEEDED,
                "issue_number": WHOLE,
                "title": STRING,
                "state": STRING,
            },
        ),
        key="github",
    )
    signature = found.signature
    assert [one.name for one in signature.parameters if one.in_input] == ["title", "state"]
    assert signature.names == {"owner", "repo", "issue_number", "input"}
    assert signature.required == {"owner", "repo", "issue_number", "input"}
    assert not signature.is_unchanged


def test_optional_parameters_are_no_identifiers() -> None:
    assert split_parameters("update_user", {"user_id": NEEDED, "name": STRING}) == (
        ["user_id"],
        ["name"],
    )


@pytest.mark.spec("AQ-4.5-2")
def test_first_parameter_is_identifier_if_all_are_required() -> None:
    assert split_parameters("rename_file", {"old_path": NEEDED, "new_path": NEEDED}) == (
        ["old_path"], ["new_path"],
    )  # fmt: skip
    assert split_parameters("move_it", {"source": NEEDED, "destination": NEEDED}) == (
        ["source"], ["destination"],
    )  # fmt: skip


def test_all_optional_parameters_are_changes() -> None:
    assert split_parameters("update_settings", {"theme": STRING, "font": STRING}) == (
        [],
        ["theme", "font"],
    )


@pytest.mark.spec("AQ-4.5-2")
def test_config_names_identifiers() -> None:
    listed = [tool("set_topic", {"channel": NEEDED, "topicText": NEEDED, "why": STRING})]
    found = operation_catalog(
        offer("s", listed), operations={"s.set_topic": {"identifiers": ["channel", "why"]}}
    ).all()[0]
    assert found.signature.names == {"channel", "why", "input"}
    assert found.signature.required == {"channel", "input"}
    assert found.signature.aliases == {"topicText": "topic_text"}


def test_parameter_named_input_stays_in_input() -> None:
    beside, inside = split_parameters("update_x", {"input": NEEDED, "id": NEEDED})
    assert (beside, inside) == (["id"], ["input"])
    assert split_parameters("update_x", {"input": NEEDED, "other": STRING}) == (
        [],
        ["input", "other"],
    )
