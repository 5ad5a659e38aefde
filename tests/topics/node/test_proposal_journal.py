"""Tests of the journal entries about proposals."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.core.call import Caller, ProposedCall
from interlock.core.journal.audit import MAX_UNKNOWN_CALLER_ENTRIES, Audit
from interlock.protocol.mcpx_terms import GUEST
from interlock.topics.proposals import (
    MAX_ID_LENGTH,
    MAX_PARTICIPANTS,
    MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE,
    ProposalJournal,
)
from tests.support.pipeline import MemoryJournal
from tests.topics.node.node_topic import PROPOSES, TOPIC, NodeTopic

FILE = {"path": "a.txt", "text": "hello"}
SECRET = "ghp_" + "a1B2" * 9


async def test_entries_name_proposal_and_topic(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada-here", PROPOSES, name="ada")
    await ada.chat(ada.propose("s.write_file", FILE))
    [approval] = table.gated.approvals.pending()
    await table.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    await ada.chat(ada.propose("s.no_such"))
    rows = table.list_entries("proposal")
    assert [row["outcome"] for row in rows] == ["proposed", "fulfilled", "done", "rejected"]
    assert {(row["face"], row["caller"]) for row in rows} == {("topic", "ada")}
    assert all(row["detail"].startswith("of ada-here: ") for row in rows)
    table.close()


async def test_guest_cannot_fill_journal(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    guest = table.add_participant("guest-abcd", PROPOSES, bearer=None)
    guest.member.caller = Caller("guest-abcd", can_call=False, can_register=False, kind=GUEST)
    for number in range(200):
        guest.propose("s.write_file", {"number": number})
    await guest.until(lambda: len(guest.list_messages("chat")) == 200)
    assert table.list_entries("proposal") == []
    # A second may begin meanwhile.
    assert len(table.journal.entries) <= 2 * MAX_UNKNOWN_CALLER_ENTRIES
    table.close()


@pytest.mark.parametrize("how", ["unknown", "doubled", "refused"])
async def test_limits_entries_of_unsuccessful_proposals(how: str, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob", PROPOSES)
    for number in range(200):
        if how == "unknown":
            ada.propose(f"s.no_such_{number}")
        elif how == "doubled":
            ada.propose("s.write_file", FILE)
        else:
            ada.propose("s.write_file", params={"name": "s.write_file", "more": number})
    await ada.until(lambda: len(ada.list_messages("chat")) == 200)
    real = 1 if how == "doubled" else 0
    assert len(table.list_entries("proposal")) == MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE + real
    # What others propose is written down all the same, and so is what it proposes in earnest.
    await bob.chat(bob.propose("s.no_such"))
    await ada.chat(ada.propose("s.write_file", {"path": "b.txt"}))
    last = table.list_entries("proposal")[-2:]
    assert [(row["caller"], row["outcome"]) for row in last] == [
        ("bob", "rejected"),
        ("ada", "proposed"),
    ]
    table.close()


def test_next_entry_counts_omitted_entries() -> None:
    journal, now = MemoryJournal(), [0.0]
    noting = ProposalJournal(Audit(journal), lambda: now[0])
    ada = Caller("ada")
    for number in range(MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE + 7):
        noting.note_unsuccessful(
            ProposedCall(TOPIC, str(number), "ada"), ada, "rejected", "x" * 1_000
        )
    assert len(journal.entries) == MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE
    now[0] = 60.0
    noting.note_unsuccessful(ProposedCall(TOPIC, "last", "ada"), ada, "rejected", "x" * 1_000)
    assert journal.entries[-1]["detail"].endswith("(and 7 more unsuccessful before it)")
    assert len(journal.entries[-1]["detail"]) <= 500


def test_limits_counted_participants() -> None:
    noting = ProposalJournal(Audit(MemoryJournal()), lambda: 0.0)
    for number in range(MAX_PARTICIPANTS + 10):
        noting.note_unsuccessful(
            ProposedCall(TOPIC, "p", f"p{number}"), Caller("x"), "rejected", ""
        )
    assert len(noting._samplers) == MAX_PARTICIPANTS


def test_shortens_ids_and_masks_secrets() -> None:
    journal = MemoryJournal()
    noting = ProposalJournal(Audit(journal))
    noting.note(
        ProposedCall(TOPIC, "i" * 256, "ada"), Caller("ada"), "proposed", f"no tool {SECRET!r}"
    )
    noting.note(ProposedCall(TOPIC, SECRET, "ada"), Caller("ada"), "proposed", "")
    first, second = journal.entries
    assert first["name"] == f"{TOPIC}/" + "i" * MAX_ID_LENGTH
    assert SECRET not in str(first) + str(second)


def test_writes_nothing_without_journal() -> None:
    noting = ProposalJournal(None)
    noting.note(ProposedCall(TOPIC, "p", "ada"), Caller("ada"), "proposed", "")
    noting.note_unsuccessful(ProposedCall(TOPIC, "p", "ada"), Caller("ada"), "rejected", "")
