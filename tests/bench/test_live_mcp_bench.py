"""LiveMCPBench: reading of its files, and its calculations.

The data set itself is not here: these files have its form and none of its content.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import finding, live_mcp_bench
from bench.live_mcp_bench import MissingDataSet, Task, judge, read_data_set


def tool(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


def offer(key: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"name": key, "tools": {key: {"server_name": key, "tools": list(tools)}}}


def note(question: str, steps: str, tools: str) -> dict[str, Any]:
    return {"Question": question, "Annotator Metadata": {"Steps": steps, "Tools": tools}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    offers = [
        offer("Post Office", tool("sendMail", "Send mail"), tool("delete_mail", "Delete mail")),
        offer("Post/Office", tool("list_stamps", "List stamps")),
    ]
    notes = [
        note("Post it.", "1. Send the mail.\n2. List all\n stamps.", "1. sendMail\n2. list_stamps"),
        note("Tidy up.", "1. Look.\n2. Delete the mail.", "1. delete_mail"),
    ]
    (tmp_path / "tools.json").write_text(json.dumps(offers))
    clone = tmp_path / "annotated_data"
    clone.mkdir()
    (clone / "all_annotations.json").write_text(json.dumps(notes))
    return tmp_path


def test_reads_files_in_folder_and_clone(folder: Path) -> None:
    result = read_data_set(folder)
    assert [server.server for server in result.servers] == ["post-office", "post-office-2"]
    first, second = result.tasks
    assert first.tools == ("sendMail", "list_stamps")
    assert [tool for _, tool in first.aligned] == ["sendMail", "list_stamps"]
    assert first.steps[1].split() == ["List", "all", "stamps."]
    assert len(second.steps) == 2
    assert second.aligned == ()


def test_reports_missing_data_set(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataSet, match="LIVEMCPBENCH"):
        read_data_set(None)
    (folder / "tools.json").unlink()
    with pytest.raises(MissingDataSet, match=r"tools\.json"):
        read_data_set(folder)
    (folder / "tools.json").write_text('[{"name": "x"}]')
    with pytest.raises(MissingDataSet, match="something else"):
        read_data_set(folder)


def test_counts_places_recall_and_coverage(folder: Path) -> None:
    data = read_data_set(folder)
    book = finding.book_of(data.servers)
    by_name = {item.tool.upstream_name: item for item in book.all()}
    responses = {
        "Send the mail.": ["delete_mail", "sendMail"],
        "Post it.": ["sendMail"],
        "Delete the mail.": ["delete_mail"],
    }

    def find(text: str, most: int) -> Any:
        return [by_name[name] for name in responses.get(text, [])][:most]

    figures = judge(find, data.tasks)
    # Of two steps with a tool each one is found, in the second place.
    assert (figures["step_at_1"], figures["step_at_3"]) == (0.0, 50.0)
    # Of three tools that the questions need, one.
    assert figures["question_at_5"] == 33.3
    # Over all steps two of three, and one task of two whole.
    assert (figures["union_recall"], figures["tasks_covered"]) == (66.7, 50.0)
    assert judge(find, [Task("x", ())])["step_at_1"] == 0.0


def test_finding_skips_missing_data_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "find_model_loader", lambda: None)
    monkeypatch.setattr(finding, "list_real_servers", lambda *_: [])
    monkeypatch.delenv(live_mcp_bench.ENVIRONMENT, raising=False)
    report, _ = finding.run(finding.FindingSettings(quick=True))
    assert "--livemcpbench" in report["live_mcp_bench"]["skipped"]
    monkeypatch.setenv(live_mcp_bench.ENVIRONMENT, str(folder))
    report, _ = finding.run(finding.FindingSettings(quick=True))
    assert set(report["live_mcp_bench"]["ways"]) == {"plain BM25", "words"}
    assert report["live_mcp_bench"]["ways"]["words"]["step_at_3"] == 100.0
