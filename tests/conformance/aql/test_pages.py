"""What the front page of AQL says is what a node does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import tokens
from interlock.core.server.mcp.views import Views
from tools.aql_conformance.live import Client, started_node

pytestmark = pytest.mark.feature("aql")

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "aql.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with started_node() as url:
        yield Client(url, "single", "session")


def blocks() -> list[Any]:
    """The JSON of the conversation, in its order."""
    return [json.loads(raw) for raw in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def within(small: Any, large: Any) -> bool:
    """Whether everything that the page shows is there; what it shortens with … may be longer."""
    if isinstance(small, dict):
        return isinstance(large, dict) and all(
            key in large and within(value, large[key]) for key, value in small.items()
        )
    if isinstance(small, list):
        return len(small) <= len(large) and all(map(within, small, large))
    if isinstance(small, str) and "…" in small:
        start = small.partition("…")[0].partition("http://")[0]
        return isinstance(large, str) and large.startswith(start)
    return bool(small == large)


@pytest.mark.spec("AQ-7.1-1")
def test_documented_conversation_matches_node(client: Client) -> None:
    search, found, call, counted, mistake, pending, again = blocks()
    for sent, answer in (
        (search, found),
        (call, counted),
        ({"operation": "demo_text_stats", "params": {"txt": "x"}}, mistake),
        ({"operation": "demo_notes_delete", "params": {"id": 1}}, pending),
    ):
        response = client.call("mcp_aql", sent)
        assert within(answer, response), response
    token = response["error"]["details"]["confirmation_token"]
    assert token.startswith(again["params"]["confirmation_token"].removesuffix("…"))
    assert (
        client.call("mcp_aql", {**again, "params": {"id": 1, "confirmation_token": token}})
        == response
    )


def test_documented_views_exist() -> None:
    shown = set(re.findall(r"\?view=([a-z-]+)", PAGE))
    assert {"plain", "auto", "aql", "aql-single", "aql-all", "semantic"} <= shown
    assert shown <= set(Views().names)


@pytest.mark.spec("AQ-1.3-1", "AQ-2.2-1", "AQ-10.3-1")
def test_docs_name_every_own_operation(client: Client) -> None:
    """Each operation of the node's own, and each extension, is in the docs."""
    everything = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("aql*.md"))
    operations = client.ask("introspect", {"query": "operations"})["data"]["operations"]
    for item in operations:
        if not item["name"].startswith("demo_"):
            assert item["name"] in everything, item["name"]
    own = client.ask("introspect", {"query": "operations", "name": "introspect"})["data"]
    for parameter in own["operation"]["parameters"]:
        assert f"`{parameter['name']}`" in everything, parameter["name"]
    assert "the text of the draft decides" in PAGE
    assert "Level 2" in PAGE


def test_documentation_links_resolve() -> None:
    for page, anchor in re.findall(r"\]\(([a-z-]+\.md)(#[a-z-]+)?\)", PAGE):
        assert (DOCS / page).exists(), page
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.M)
            slugs = {
                re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
                for heading in headings
            }
            assert anchor[1:] in slugs, (page, anchor)


def test_documented_break_even_matches_auto_view() -> None:
    from interlock.aql.config import AUTO_TOKENS

    said = int(re.search(r"below about ([\d,]+) tokens", PAGE)[1].replace(",", ""))  # type: ignore[index]
    assert said <= AUTO_TOKENS <= 2.5 * said
    assert tokens.LIMITS == {"five": 1_500, "one": 400}
