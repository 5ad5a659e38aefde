"""Tests of the recorder of a topic."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Credentials
from interlock.core.ports import JournalEntry
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.topics import recorder
from interlock.topics.config import RECORDER, TopicConfig
from interlock.topics.member import Batch
from interlock.topics.recorder import (
    BURST_SECONDS,
    MAX_RECORDED_CHARACTERS,
    MAX_STRING_CHARACTERS,
    OMISSION_INTERVAL_SECONDS,
    OMITTED,
    ROOM_RATE_FACTOR,
    TopicRecorder,
    _PayloadExcerpt,
    add_recorder,
)
from interlock.topics.wire.envelope import EnvelopeHeader
from tests.support.line_count import count_lines_run
from tests.support.pipeline import MemoryJournal
from tests.topics.node.node_topic import TOPIC, NodeTopic

SECRET = "sk-ant-api03-" + "a1B2" * 12


class RecordedTopic:
    """A room with the recorder."""

    def __init__(self, folder: Path, *, whole: bool) -> None:
        self.table = NodeTopic(folder, settings=TopicConfig(access="private", record="heads"))
        self.journal = MemoryJournal()
        self.seat = add_recorder(
            self.table.gateway, self.table.room, self.journal, lambda: 17, with_payloads=whole
        )

    async def rows(self) -> list[dict[str, Any]]:
        await self.table.run_until_idle()
        return [row for row in self.journal.entries if row["verb"] != "system/presence"]


async def test_records_heads_without_text(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=False)
    ada = recorded.table.add_participant("ada")
    recorded.table.add_participant("bob")
    ada.say("chat", {"text": "unheard"}, ("bob", "eve"), id="a-1", correlation_id="c-1")
    [row] = await recorded.rows()
    assert row == {
        "time_ns": 17,
        "caller": "ada",
        "face": "topic",
        "verb": "chat",
        "name": TOPIC,
        "upstream": "",
        "effect": "",
        "outcome": "sent",
        "duration_us": 0,
        "detail": "id=a-1 to=bob,eve correlation=c-1",
    }
    recorded.table.close()


async def test_records_joins_and_leaves(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=False)
    ada = recorded.table.add_participant("ada")
    await recorded.table.run_until_idle()
    recorded.table.gateway.leave(ada.member)
    await recorded.table.run_until_idle()
    details = [row["detail"].split(" id=")[0] for row in recorded.journal.entries]
    assert details[-2:] == ["join ada", "leave ada"]
    recorded.table.close()


async def test_records_payload_without_secrets(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=True)
    ada = recorded.table.add_participant("ada")
    ada.say("chat", {"text": f"use {SECRET}", "password": "hunter2hunter2"})
    ada.say("chat", {"text": "a\nfake line"})
    first, second = await recorded.rows()
    assert SECRET not in first["detail"]
    assert "hunter2" not in first["detail"]
    assert '"password":"***' in first["detail"]
    assert second["detail"].endswith('payload={"text":"a\\nfake line"}')
    recorded.table.close()


@pytest.mark.parametrize(
    "payload",
    [
        json.dumps({"text": "x" * (MAX_RECORDED_CHARACTERS + 1)}).encode(),
        json.dumps({"text": "x" * 200_000}).encode(),
        b'{"text":"a","text":"b"}',
        b'{"number":1e999}',
        b'{"deep":' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
async def test_limits_length_of_entry(payload: bytes, tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=True)
    ada = recorded.table.add_participant("ada")
    ada.say("chat", payload)
    [row] = await recorded.rows()
    assert "payload=" in row["detail"]
    assert len(row["detail"]) <= MAX_RECORDED_CHARACTERS + 600
    row["detail"].encode()
    recorded.table.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_masks_secrets_in_heads(whole: bool, tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=whole)
    ada = recorded.table.add_participant("ada", ("*",))
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": SECRET}}
    kind = f"mcp/request:tools/call:{SECRET}"
    ada.say(kind, message, (SECRET, "bob"), id=SECRET, correlation_id=SECRET)
    [row] = await recorded.rows()
    assert SECRET not in str(row)
    assert row["verb"].startswith("mcp/request:tools/call:")
    assert "bob" in row["detail"]
    recorded.table.close()


async def test_masks_passwords(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=True)
    ada = recorded.table.add_participant("ada")
    ada.say("chat", {"text": "log in with password=hunter2hunter2, then deploy"})
    [row] = await recorded.rows()
    assert "hunter2" not in row["detail"]
    assert "log in with password=***" in row["detail"]
    assert "then deploy" in row["detail"]
    recorded.table.close()


async def test_masks_bearer_tokens(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=True)
    ada = recorded.table.add_participant("ada")
    ada.say("chat", {"text": "try -H 'authorization: bearer  token-of-bob' and\tBearer x.y"})
    [row] = await recorded.rows()
    assert "token-of-bob" not in row["detail"]
    assert "x.y" not in row["detail"]
    assert "try -H" in row["detail"]
    recorded.table.close()


@pytest.mark.parametrize(
    "payload",
    [
        b'{"text":"the plan",%b"pad":"%b"}' % (b" " * 70_000, b"x" * 200_000),
        b'{"text":"the plan","pad":[%b0]}' % (b"0," * 100_000),
        b'{"text":"the plan",%b}' % b",".join(b'"%d":1' % one for one in range(50_000)),
        b'{"text":"the plan","text":"another"}',
        b'{"text":"the plan","number":1e999}',
        b'{"text":"the plan","number":%b}' % (b"9" * 10_000),
        b'{"pad":"%b","text":"the plan"}' % (b"x" * 200_000),
        b'{"text":"the plan","pad":%b%b}' % (b"[" * 900, b"]" * 900),
        b'{"text":"the plan","pad":[%b{}]}' % (b"{}," * 300_000),
    ],
)
async def test_padding_does_not_hide_message(payload: bytes, tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=True)
    ada = recorded.table.add_participant("ada")
    ada.say("chat", payload)
    [row] = await recorded.rows()
    assert '"text":"the plan"' in row["detail"]
    assert len(row["detail"]) <= MAX_RECORDED_CHARACTERS + 600
    row["detail"].encode()
    recorded.table.close()


def test_invalid_timestamp_does_not_prevent_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        recorded = RecordedTopic(tmp_path, whole=True)
        ada = recorded.table.add_participant("ada")
        ada.say("chat", {"text": "the plan"}, ts="yesterday")
        [row] = await recorded.rows()
        assert row["detail"].endswith('payload={"text":"the plan"}')
        recorded.table.close()

    asyncio.run(run())
    assert caplog.text == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_keeps_short_payloads(value: Any, indent: int | None, ascii: bool) -> None:
    source = json.dumps(value, indent=indent, ensure_ascii=ascii)
    beginning = _PayloadExcerpt(source, MAX_RECORDED_CHARACTERS)
    assert beginning.read() == value
    assert not beginning.is_cut


@pytest.mark.parametrize("one", ["{}", "[]", "0", '"x"', '{"a":[{}]}', "null", " " * 50 + "0"])
def test_reads_only_recorded_part(one: str) -> None:
    source = (
        '{"text":"the plan","pad":['
        + (one + ",") * MAX_RECORDED_CHARACTERS
        + "and this is no JSON at all"
    )
    beginning = _PayloadExcerpt(source, MAX_STRING_CHARACTERS)
    assert beginning.read()["text"] == "the plan"
    assert beginning.is_cut


@pytest.mark.parametrize(
    "cut", [MAX_STRING_CHARACTERS, 2 * MAX_STRING_CHARACTERS, MAX_RECORDED_CHARACTERS]
)
async def test_masks_secret_at_end_of_excerpt(cut: int, tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=True)
    ada = recorded.table.add_participant("ada")
    for before in range(cut - 80, cut + 10, 5):
        ada.say("chat", {"text": "x " * (before // 2) + SECRET + " y" * 50_000})
    rows = await recorded.rows()
    assert len(rows) == 18
    assert not any(SECRET[:20] in row["detail"] for row in rows)
    recorded.table.close()


async def test_escapes_names_in_entry(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=False)
    ada = recorded.table.add_participant("ada")
    ada.say("chat", {"text": ""}, ("x correlation=y",), id="1 to=bob")
    [row] = await recorded.rows()
    assert row["detail"] == 'id="1 to=bob" to="x correlation=y"'
    many = tuple(f"participant-number-{number}" for number in range(1_000))
    ada.say("chat", {"text": ""}, many)
    [_, row] = await recorded.rows()
    assert len(row["detail"]) <= 500
    recorded.table.close()


async def test_recorder_is_visible_and_cannot_send(tmp_path: Path) -> None:
    recorded = RecordedTopic(tmp_path, whole=False)
    ada = recorded.table.add_participant("ada")
    await recorded.table.run_until_idle()
    [welcome] = ada.list_messages("system/welcome")
    assert {"id": RECORDER, "capabilities": []} in welcome["payload"]["participants"]
    member = recorded.table.gateway.find_member(TOPIC, RECORDER)
    assert member is not None
    with pytest.raises(InterlockError) as refused:
        recorded.table.gated.pipeline.admission.authenticate(member.credentials)
    assert refused.value.failure is UNAUTHENTICATED
    assert isinstance(member.credentials, Credentials)
    recorded.table.close()


def test_journal_failure_does_not_stop_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full:
        def record(self, entry: JournalEntry) -> None:
            raise OSError("full")

        def record_durably(self, entry: JournalEntry, then: Any) -> None:
            raise OSError("full")

    seat = TopicRecorder(Full(), lambda: 0, topic=TOPIC, with_payloads=False, rate=10)
    seat.deliver(
        Batch(
            b"",
            (b"{}", b"{}"),
            (EnvelopeHeader("1", "chat", "ada"), EnvelopeHeader("2", "chat", "ada")),
        )
    )
    assert caplog.text.count("failed to record") == 2


def test_keeps_duplicate_members() -> None:
    raw = '{"a":1,"a (again, 2)":"shown","a":3,"a":4}'
    read = _PayloadExcerpt(raw, MAX_STRING_CHARACTERS).read()
    assert sorted(map(str, read.values())) == ["1", "3", "4", "shown"]
    assert [*read] == ["a", "a (again, 2)", "a (again, 3)", "a (again, 4)"]


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps({"t": [""] * 1_400}),
        json.dumps({str(number): "" for number in range(1_400)}),
        json.dumps({"t": [1] * 4_000}),
    ],
    ids=["texts", "names", "numbers"],
)
def test_many_short_strings_cost_little_work(raw: str) -> None:
    few = json.dumps({"t": ["x" * 60] * 70})
    assert len(raw) >= 4_000
    long = count_lines_run(lambda: _PayloadExcerpt(few, MAX_STRING_CHARACTERS).read())
    assert count_lines_run(lambda: _PayloadExcerpt(raw, MAX_STRING_CHARACTERS).read()) < 6 * long


# -- how much is written


class RecorderBench:
    """A recorder with a manual clock and scripted senders."""

    def __init__(self, rate: int = 10) -> None:
        self.journal = MemoryJournal()
        self.time = 0.0
        self.seat = TopicRecorder(
            self.journal,
            lambda: 17,
            topic=TOPIC,
            with_payloads=False,
            rate=rate,
            clock=lambda: self.time,
        )

    def say(self, sender: str, times: int, kind: str = "chat") -> None:
        for number in range(times):
            head = EnvelopeHeader(f"{sender}-{number}", kind, sender)
            self.seat.deliver(Batch(b"", (b"{}",), (head,)))

    def written(self, sender: str) -> int:
        rows = [row for row in self.journal.entries if row["caller"] == sender]
        return sum(row["outcome"] == "sent" for row in rows)

    @property
    def left_out(self) -> list[tuple[str, str]]:
        return [
            (row["caller"], row["detail"].partition(" ")[0])
            for row in self.journal.entries
            if row["outcome"] == OMITTED
        ]


def test_limits_entries_per_participant() -> None:
    talk = RecorderBench()
    talk.say("eve", 10 * BURST_SECONDS + 5_000)
    assert talk.written("eve") == 10 * BURST_SECONDS
    # Others are written down as they were.
    talk.say("ada", 5)
    assert talk.written("ada") == 5
    # What is left out is counted, and that is told now and then.
    assert talk.left_out == []
    talk.time = OMISSION_INTERVAL_SECONDS
    talk.say("eve", 200)
    assert talk.written("eve") == 10 * BURST_SECONDS + 100
    assert talk.left_out == [("eve", "5000")]
    talk.seat.close(1001, "The node stops.")
    assert talk.left_out == [("eve", "5000"), ("eve", "100")]


def test_limits_entries_per_room() -> None:
    talk = RecorderBench()
    for number in range(50):
        talk.say(f"guest-{number}", 10 * BURST_SECONDS)
    assert len(talk.journal.entries) == 10 * BURST_SECONDS * ROOM_RATE_FACTOR
    talk.time = 1.0
    for number in range(50):
        talk.say(f"guest-{number}", 10)
    assert (
        len(talk.journal.entries) == 10 * BURST_SECONDS * ROOM_RATE_FACTOR + 10 * ROOM_RATE_FACTOR
    )


def test_limits_remembered_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MAX_PARTICIPANTS", 3)
    talk = RecorderBench(rate=1)
    for number in range(10):
        talk.say(f"guest-{number}", BURST_SECONDS + 1)
    assert len(talk.seat._participant_limits) == len(talk.seat._omitted) == 3
    # Those who are forgotten were told of.
    assert [who for who, _ in talk.left_out] == [f"guest-{number}" for number in range(7)]
