"""Which parameters of an UPDATE name the resource, and which change it."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.protocol.aql_terms import Category
from tests.aql.shelf import NEEDED, STRING, only, operation_catalog, tool
from tests.support.offerings import offer

WHOLE = {"type": "integer", "required": True}


def split(name: str, properties: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The parameters beside `input`, and those in it."""
    found = only(tool(name, properties))
    assert found.category is Category.UPDATE
    taken = found.signature.parameters
    return [one.name for one in taken if not one.in_input], [
        one.name for one in taken if one.in_input
    ]


@pytest.mark.spec("AQ-4.5-2")
def test_identifiers_are_known_by_their_names() -> None:
    found = only(
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


def test_what_is_optional_is_no_identifier() -> None:
    assert split("update_user", {"user_id": NEEDED, "name": STRING}) == (["user_id"], ["name"])


@pytest.mark.spec("AQ-4.5-2")
def test_if_nothing_would_be_left_to_change_the_first_names_it() -> None:
    assert split("rename_file", {"old_path": NEEDED, "new_path": NEEDED}) == (
        ["old_path"], ["new_path"],
    )  # fmt: skip
    assert split("move_it", {"source": NEEDED, "destination": NEEDED}) == (
        ["source"], ["destination"],
    )  # fmt: skip


def test_without_anything_required_everything_is_changed() -> None:
    assert split("update_settings", {"theme": STRING, "font": STRING}) == ([], ["theme", "font"])


@pytest.mark.spec("AQ-4.5-2")
def test_the_config_knows_identifiers() -> None:
    listed = [tool("set_topic", {"channel": NEEDED, "topicText": NEEDED, "why": STRING})]
    found = operation_catalog(
        offer("s", listed), operations={"s.set_topic": {"identifiers": ["channel", "why"]}}
    ).all()[0]
    assert found.signature.names == {"channel", "why", "input"}
    assert found.signature.required == {"channel", "input"}
    assert found.signature.aliases == {"topicText": "topic_text"}


def test_a_parameter_that_is_called_input_is_not_beside_input() -> None:
    beside, inside = split("update_x", {"input": NEEDED, "id": NEEDED})
    assert (beside, inside) == (["id"], ["input"])
    assert split("update_x", {"input": NEEDED, "other": STRING}) == ([], ["input", "other"])
