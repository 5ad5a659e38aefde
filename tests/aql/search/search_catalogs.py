"""Small catalogs for search tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from interlock.aql.config import AqlConfig
from interlock.aql.operations import OperationCatalogBuilder, OperationSnapshot
from interlock.aql.search.searcher import SearchHit
from tests.support.offerings import merged, offer

Described = tuple[str, str] | tuple[str, str, Mapping[str, Any]]


def tool(name: str, description: str, parameters: Mapping[str, Any] | None = None) -> bytes:
    schema = {"type": "object", "properties": parameters or {}}
    return json.dumps({"name": name, "description": description, "inputSchema": schema}).encode()


def operation_catalog(
    servers: Mapping[str, Sequence[Described]], config: AqlConfig | None = None
) -> OperationSnapshot:
    offerings = [offer(key, [tool(*one) for one in tools]) for key, tools in servers.items()]
    return OperationCatalogBuilder(config or AqlConfig()).build(merged(*offerings))


SMALL: dict[str, Sequence[Described]] = {
    "github": [
        ("create_issue", "Create a new issue in a GitHub repository", {"title": {}, "body": {}}),
        ("list_commits", "Get list of commits of a branch in a repository", {"branch": {}}),
        ("merge_pull_request", "Merge a pull request"),
        ("delete_branch", "Delete a branch of a repository"),
        ("search_code", "Search for code across repositories", {"q": {}}),
    ],
    "mail": [
        ("send_email", "Send an email to recipients", {"to": {}, "subject": {}, "body": {}}),
        ("list_messages", "List the messages in the inbox", {"label": {}}),
        ("delete_message", "Permanently delete a message", {"id": {}}),
    ],
    "files": [
        ("read_file", "Read the contents of a file", {"path": {}}),
        ("write_file", "Write text to a file, overwriting it", {"path": {}, "content": {}}),
        ("create_directory", "Create a new directory", {"path": {}}),
        ("move_file", "Move or rename files", {"source": {}, "destination": {}}),
    ],
    "browser": [
        ("screenshot", "Take a screenshot of the current page"),
        ("navigate", "Navigate to a URL", {"url": {}}),
        ("click", "Click an element on the page", {"selector": {}}),
    ],
    "calendar": [
        ("create_event", "Create a calendar event", {"start": {}, "end": {}}),
        ("list_events", "List events of a calendar", {"from": {}, "until": {}}),
    ],
    "stripe": [
        ("create_refund", "Refund a payment intent", {"payment_intent": {}}),
        ("list_invoices", "List invoices of a customer", {"customer": {}}),
    ],
}


def names(hits: Sequence[SearchHit]) -> list[str]:
    return [hit.operation.canonical for hit in hits]
