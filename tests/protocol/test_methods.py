"""The table of methods, and the tables that are derived from it."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.pipeline import local_methods, resolution
from interlock.core.server.mcp import requests, responses
from interlock.protocol import headers, kinds, mcp
from interlock.protocol.mcp import METHODS, Era, declares_capability
from interlock.trust import scopes
from interlock.trust.policy import policy

LISTS = {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "skills/list"}
TASKS = {"tasks/get", "tasks/update", "tasks/cancel"}
RESOURCES = {
    "resources/read", "resources/subscribe", "resources/unsubscribe", "skills/get",
    "resources/directory/read",
}  # fmt: skip


def test_lists_list_methods() -> None:
    assert set(mcp.LIST_METHODS) == LISTS
    assert {METHODS[name].lists for name in mcp.LIST_METHODS} == {
        "tools", "prompts", "resources", "resourceTemplates", "skills",
    }  # fmt: skip


def test_lists_methods_by_target() -> None:
    assert {"prompts/get"} == mcp.PROMPT_METHODS
    assert mcp.RESOURCE_METHODS == RESOURCES
    assert mcp.TASK_METHODS == TASKS


@pytest.mark.parametrize("name", METHODS)
def test_method_with_target_has_name_field(name: str) -> None:
    method = METHODS[name]
    assert bool(method.name_field) == (method.target not in ("", "reference"))
    assert not method.name_header or method.name_field


def test_maps_methods_to_name_fields() -> None:
    assert {
        "tools/call": "name",
        "prompts/get": "name",
        **dict.fromkeys(RESOURCES, "uri"),
        **dict.fromkeys(TASKS, "taskId"),
    } == mcp.NAME_FIELDS
    assert {
        name: member for name, member in mcp.NAME_FIELDS.items() if name not in TASKS
    } == kinds.CONTEXT_MEMBER
    assert set(headers.NAME_FIELDS) == {"tools/call", "prompts/get", "resources/read"} | TASKS


def test_lists_known_params_of_methods() -> None:
    members = {name: requests._known_members(METHODS[name]) for name in requests._KNOWN}
    assert members == {
        **{name: (member,) for name, member in mcp.NAME_FIELDS.items()},
        **dict.fromkeys(LISTS, ("cursor",)),
        "resources/directory/read": ("uri", "cursor"),
        "tools/call": ("name", "arguments", "task", "taskId"),
        "prompts/get": ("name", "arguments"),
        "completion/complete": ("ref", "argument", "context"),
        "logging/setLevel": ("level",),
        "mcpax/confirm": ("confirmation_id", "proof"),
    }


def test_lists_required_capabilities() -> None:
    skills = ("", mcp.SKILLS_EXTENSION)
    assert {
        **dict.fromkeys(("prompts/list", "prompts/get"), ("prompts", "")),
        "resources/list": ("resources", ""),
        "resources/templates/list": ("resources", ""),
        **dict.fromkeys(RESOURCES, ("resources", "")),
        "completion/complete": ("completions", ""),
        "logging/setLevel": ("logging", ""),
        **dict.fromkeys(("skills/list", "skills/get", "resources/directory/read"), skills),
    } == local_methods._REQUIREMENTS


def test_extension_must_be_object() -> None:
    assert declares_capability({"prompts": {}}, "prompts")
    assert not declares_capability({"prompts": {}}, "resources")
    assert declares_capability({"extensions": {"a/b": {}}}, extension="a/b")
    declared: Any
    for declared in ({}, {"extensions": {}}, {"extensions": {"a/b": True}}, {"extensions": 1}):
        assert not declares_capability(declared, extension="a/b")


def test_lists_read_methods() -> None:
    reads = RESOURCES | TASKS | {"prompts/get", "completion/complete"}
    assert reads == resolution._READ_METHODS
    assert RESOURCES | {"completion/complete"} == scopes._RESOURCE_METHODS


def test_lists_retryable_methods() -> None:
    assert RESOURCES | {"prompts/get", "completion/complete", "tasks/get"} == mcp.RETRYABLE_METHODS


def test_lists_methods_free_of_policy() -> None:
    assert LISTS | TASKS | {
        "initialize", "server/discover", "ping", "logging/setLevel", "subscriptions/listen",
        "resources/unsubscribe", "mcpax/confirm",
    } == policy.FREE_METHODS  # fmt: skip


def test_lists_methods_of_one_generation() -> None:
    assert {
        "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
        "tasks/result", "tasks/list",
    } == mcp.REMOVED_FROM_STATELESS  # fmt: skip
    stateless_only = {n for n, method in METHODS.items() if Era.SESSION not in method.generations}
    assert stateless_only == {"server/discover", "subscriptions/listen"}


def test_lists_input_and_cacheable_methods() -> None:
    assert {"tools/call", "prompts/get", "resources/read"} == mcp.INPUT_METHODS
    assert (LISTS - {"skills/list"}) | {"resources/read"} == responses._KEEPABLE


def test_lists_client_requests() -> None:
    assert mcp.CLIENT_REQUESTS == {
        "sampling/createMessage": "sampling",
        "elicitation/create": "elicitation",
        "roots/list": "roots",
    }
