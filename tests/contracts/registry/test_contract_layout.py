"""Tests of the places of contracts in their repository."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.registry import layout
from interlock.contracts.registry.records import PROTOCOLS

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=255)
TRICKY = st.sampled_from(["..", ".", ".git", "a/b", "%2E", "~", "a" * 200, "-x", "ä", "con"])
KINDS = st.sampled_from(PROTOCOLS)


@given(NAMES | TRICKY, NAMES | TRICKY, KINDS)
def test_finds_contract_by_each_file(domain: str, name: str, protocol: str) -> None:
    path = layout.document_path(domain, name, "1.2.3", protocol)  # type: ignore[arg-type]
    assert layout.find_unit(path) == path
    assert layout.find_unit(layout.note_path(path)) == path
    assert layout.note_path(path) != path
    steps = path.split("/")
    assert len(steps) == 3
    for step in steps:
        assert step.isascii()
        assert not step.startswith((".", "-"))
        assert len(step) < 200
    deprecations = layout.deprecations_path(domain, name)
    assert layout.find_unit(deprecations) == deprecations
    assert layout.is_deprecations(deprecations)


@given(NAMES | TRICKY, NAMES | TRICKY)
def test_names_never_share_folder(one: str, other: str) -> None:
    assert (layout.contract_folder("d", one) == layout.contract_folder("d", other)) is (
        one == other
    )


@given(st.text(), st.lists(st.text(st.characters(codec="ascii", min_codepoint=33)), max_size=5))
def test_message_round_trip(reason: str, contracts: list[str]) -> None:
    written = layout.format_message(reason, contracts)
    read, told = layout.read_message(written)
    assert told == contracts
    assert "\n" not in read
    assert "\0" not in written


def test_ignores_other_files() -> None:
    for path in ("README.md", "a/b.schema.json", "a/b/c/1.0.0.schema.json", "a/b/notes.txt", ""):
        assert layout.find_unit(path) is None
