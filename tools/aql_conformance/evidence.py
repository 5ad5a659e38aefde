"""Gather the evidence of conformance from a live node. The bundle contains its responses, in the
format of the public runner.

Requests with missing or unknown parameters never reach an upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from interlock import __version__
from interlock.protocol.aql_terms import SPEC_VERSION
from tools.aql_conformance.live import Client, NoNode

Bundle = dict[str, Any]
Detail = dict[str, Any]

STRANGE: Final = "zz_no_such_parameter"
COMMON: Final = (
    "fields", "preset", "filter", "sort", "query", "aggregate", "include_items", "first", "after",
    "last", "before", "limit", "offset", "page", "page_size", "dry_run", "confirmation_token",
    "input", "if_match", "include", "search", "name", "id",
)  # fmt: skip
"""Common parameter names. An operation that accepts one of them must document it."""


def gather(clients: Sequence[Client]) -> Bundle:
    """Return the bundle of all clients. All clients send the same requests."""
    first = clients[0]
    for client in clients:
        client.learn(_data(client.ask("introspect", {"query": "operations"}))["operations"])
    told = first.ask("introspect", {"query": "operations"})
    details = [detail_of(first, one["name"]) for one in told["data"]["operations"]]
    protocol = told["data"].get("_protocol", {})
    able = protocol.get("capabilities", {})
    return {
        "implementation": "interlock",
        "version": __version__,
        "spec_version": SPEC_VERSION,
        "expected_level": 2,
        "expected_exit_code": 0,
        "endpoint_modes": list(dict.fromkeys(c.mode for c in clients if works(c))),
        "capabilities": {
            "field_selection": able.get("field_selection") is True,
            "batch_operations": able.get("batch") is True,
        },
        "introspection": {
            "operations_list": told,
            "types_list": first.ask("introspect", {"query": "types"}),
            "operation_details": details,
        },
        "accepted_parameters": {d["name"]: accepted(first, d) for d in details},
        "parameter_tests": {
            "missing_required": [case for d in details for case in without_each(first, d)],
            "unknown_parameter": [
                {
                    "operation": d["name"],
                    "parameter": STRANGE,
                    "response": first.ask(d["name"], {**required(d), STRANGE: 1}),
                }
                for d in details
            ],
            "optional_defaults": [case for client in clients for case in defaults(client)],
        },
        "error_tests": [case for client in clients for case in errors(client)],
        "round_trip_tests": [note_read_back(client) for client in clients],
        "update_preservation_tests": [note_updated(client) for client in clients],
        "batch_example": batch(first),
        "constraint_tests": [case for client in clients for case in constraints(client)],
        "semantic_tests": [case for client in clients for case in understood(client)],
    }


def works(client: Client) -> bool:
    """Return whether this mode offers exactly the expected tools."""
    families = ("create", "read", "update", "delete", "execute")
    expected = {"mcp_aql"} if client.mode == "single" else {f"mcp_aql_{one}" for one in families}
    return set(client.tools()) == expected


def detail_of(client: Client, operation: str) -> Detail:
    found = client.ask("introspect", {"query": "operations", "name": operation})
    detail: Detail = _data(found)["operation"]
    return detail


def _data(answer: Any) -> Any:
    if answer.get("success") is not True:
        raise NoNode(f"a success was expected, not {answer}")
    return answer["data"]


# -- parameters


def value_for(parameter: dict[str, Any]) -> Any:
    """Return a value that matches the documentation of a parameter."""
    if parameter.get("enum"):
        return parameter["enum"][0]
    if "default" in parameter and parameter["default"] is not None:
        return parameter["default"]
    kind = parameter["type"]
    if kind in ("integer", "number"):
        return parameter.get("minimum", 1)
    if kind == "boolean":
        return False
    if kind == "array" or kind.endswith("[]"):
        return []
    if kind == "object":
        return {}
    return "x" * max(1, parameter.get("minLength") or 1)


def required(detail: Detail) -> dict[str, Any]:
    return {one["name"]: value_for(one) for one in detail["parameters"] if one["required"]}


def without_each(client: Client, detail: Detail) -> list[dict[str, Any]]:
    whole = required(detail)
    return [
        {
            "operation": detail["name"],
            "parameter": left_out,
            "response": client.ask(
                detail["name"], {name: value for name, value in whole.items() if name != left_out}
            ),
        }
        for left_out in whole
    ]


def accepted(client: Client, detail: Detail) -> list[str]:
    """Return the accepted parameters. Each is sent together with an unknown one."""
    documented = {one["name"]: value_for(one) for one in detail["parameters"]}
    whole = required(detail)
    taken = []
    for name in dict.fromkeys((*documented, *COMMON)):
        tried = {**whole, name: documented.get(name, "x"), STRANGE: 1}
        answer = client.ask(detail["name"], tried)
        if answer["success"]:
            raise NoNode(f"{detail['name']} accepted {STRANGE} without an error")
        refused = answer["error"].get("details", {}).get("unknown_params")
        if refused is None or name not in refused:
            taken.append(name)
    return taken


def defaults(client: Client) -> list[dict[str, Any]]:
    cases = [("demo_time_now", "timezone", "data.timezone")]
    found = []
    for operation, parameter, path in cases:
        documented = {one["name"]: one for one in detail_of(client, operation)["parameters"]}
        found.append(
            {
                "operation": operation,
                "parameter": parameter,
                "expected_value_path": path,
                "expected_value": documented[parameter]["default"],
                "response": client.ask(operation),
            }
        )
    return found


# -- failures


def errors(client: Client) -> list[dict[str, Any]]:
    """Return failures of all kinds, and the names that their messages must contain."""
    ask = client.ask
    cases: list[tuple[str, Callable[[], Any], list[str]]] = [
        ("no operation", lambda: client.call(_any(client), {}), ["operation"]),
        ("operation is a number", lambda: client.call(_any(client), {"operation": 7}),
         ["operation"]),
        ("unknown operation", lambda: ask("demo_time_no"), ["demo_time_no", "introspect"]),
        ("dotted name", lambda: ask("demo.time_now"), ["demo.time_now"]),
        ("missing parameter", lambda: ask("demo_text_stats", {}), ["text", "string"]),
        ("unknown parameter", lambda: ask("demo_text_stats", {"text": "a", "txet": 1}),
         ["txet", "text"]),
        ("wrong type", lambda: ask("demo_text_stats", {"text": 5}), ["text", "string"]),
        ("below the minimum", lambda: ask("demo_roll_dice", {"sides": 1}), ["sides"]),
        ("too long", lambda: ask("demo_notes_add", {"title": "x" * 101}), ["title"]),
        ("params is no object", lambda: client.call(
            _any(client), {"operation": "demo_time_now", "params": "x"}), ["params"]),
        ("unknown query", lambda: ask("introspect", {"query": "everything"}), ["operations"]),
        ("NUL", lambda: ask("demo_text_stats", {"text": "a\0b"}), []),
        ("too deep", lambda: ask("demo_text_stats", {"text": _deep(40)}), []),
        ("a failing upstream", lambda: ask("demo_fail", {"reason": "for the record"}), []),
        ("no such resource", lambda: ask("get_note", {"id": "note_none"}), []),
        ("empty batch", lambda: client.call(_any(client), {"operations": []}), ["operations"]),
        ("bad token", lambda: ask("demo_notes_delete", {"id": 1},
                                  _confirmation={"token": "conf_none"}), []),
        ("requires approval", lambda: ask("demo_notes_delete", {"id": 1}), []),
    ]  # fmt: skip
    if client.mode == "crude":
        cases.append(
            (
                "wrong endpoint",
                lambda: client.call("mcp_aql_delete", {"operation": "demo_time_now"}),
                ["mcp_aql_read"],
            )
        )
    return [
        {"name": f"{name} ({client.way})", "response": _failed(name, make()), "must_mention": say}
        for name, make, say in cases
    ]


def _failed(name: str, answer: Any) -> Any:
    if answer.get("success") is not False:
        raise NoNode(f"{name}: a failure was expected, not {answer}")
    return answer


def _any(client: Client) -> str:
    return client.endpoint("introspect")


def _deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


# -- round trips, batches, constraints

NOTE: Final = {
    "title": "Evidence",
    "body": "Kept as it was sent: ünï©ode, \"quotes\" and\na line.",
    "tags": ["draft", "conformance"],
    "metadata": {"priority": "low", "author": "runner", "nested": {"kept": True, "count": 3}},
}  # fmt: skip


def _new_note(client: Client) -> str:
    made = _data(client.ask("create_note", NOTE))
    return str(made["id"])


def _read(client: Client, note: str) -> Any:
    return client.ask("get_note", {"id": note})


def note_read_back(client: Client) -> dict[str, Any]:
    note = _new_note(client)
    return {
        "name": f"a note ({client.way})",
        "expected_fields": {f"data.{field}": value for field, value in NOTE.items()},
        "read_response": _read(client, note),
    }


def note_updated(client: Client) -> dict[str, Any]:
    note = _new_note(client)
    changed = {"title": "Changed", "metadata": {"priority": "high"}}
    _data(client.ask("update_note", {"id": note, "input": changed}))
    return {
        "name": f"an updated note ({client.way})",
        "preserved_fields": {
            "data.title": "Changed",
            "data.body": NOTE["body"],
            "data.tags": NOTE["tags"],
            "data.metadata.priority": "high",
            "data.metadata.author": "runner",
            "data.metadata.nested": {"kept": True, "count": 3},
        },
        "read_response": _read(client, note),
    }


def batch(client: Client) -> Any:
    items = [
        {"operation": "demo_time_now"},
        {"operation": "demo_text_stats", "params": {"text": "two words"}},
        {"operation": "demo_text_stats", "params": {}},
    ]
    return client.call(_any(client), {"operations": items})


def constraints(client: Client) -> list[dict[str, Any]]:
    """Return enforced limits, and whether introspection documents each."""
    note = _new_note(client)
    dice = {one["name"]: one for one in detail_of(client, "demo_roll_dice")["parameters"]}
    change = {one["name"]: one for one in detail_of(client, "update_note")["parameters"]}
    changeable = change["input"]["description"]
    update = {"id": note, "input": {"created_at": "2020-01-01T00:00:00Z"}}
    return [
        {
            "name": f"when a note was made cannot be changed ({client.way})",
            "documented": "title" in changeable and "created_at" not in changeable,
            "response": client.ask("update_note", update),
        },
        {
            "name": f"a die has two sides or more ({client.way})",
            "documented": dice["sides"].get("minimum") == 2,
            "response": client.ask("demo_roll_dice", {"sides": 1}),
        },
    ]


# -- a scripted reader


def understood(client: Client) -> list[dict[str, Any]]:
    """Return the transcript of a scripted reader that uses only introspection: it searches for an
    operation by a description, reads its details, calls it, and describes the result."""
    wanted = "count how many words are in a piece of writing"
    calls: list[dict[str, Any]] = []

    def ask(operation: str, params: dict[str, Any]) -> Any:
        calls.append({"operation": operation, "params": params})
        return _data(client.ask(operation, params))

    found = ask("introspect", {"query": "operations", "search": wanted})["operations"][0]
    detail = ask("introspect", {"query": "operations", "name": found["name"]})["operation"]
    names = [one["name"] for one in detail["parameters"] if one["required"]]
    counted = ask(found["name"], dict.fromkeys(names, "one two three"))
    said = (
        f"{found['name']} does it: {found['description']} It takes the parameter "
        f"{', '.join(names)} and is called on {detail['mcpTool']}. The answer was {counted}."
    )
    return [
        {
            "name": f"an operation is found, understood and called ({client.way})",
            "response_text": said,
            "tool_calls": calls,
            "structural": {"required_patterns": ["demo_text_stats", "parameter text"]},
            "semantic": {
                "phrase_groups": [["words 3"], ["counts", "measure"], [detail["mcpTool"]]],
                "expected_operations": ["introspect", "demo_text_stats"],
                "expected_parameters": ["text"],
            },
        }
    ]
