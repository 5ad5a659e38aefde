"""Tests of every labelled change of a Protobuf file: its name and whether it breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.diff import protobuf as proto_reading
from interlock.contracts.diff.protobuf import diff_descriptors
from interlock.errors import CONFIG, INVALID_ARGUMENTS, InterlockError
from tests.contracts.diff import proto_table as table
from tests.contracts.diff.proto_table import ProtoRow
from tests.contracts.diff.test_schema_table import label

ROWS = [*table.FIELDS, *table.REST]
Compile = Callable[[str], bytes]


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    """Return a function that compiles a .proto text to descriptors."""

    def make(text: str) -> bytes:
        out = tmp_path / "descriptors"
        (tmp_path / "x.proto").write_text(text, encoding="utf-8")
        include = Path(protoc.__file__).parent / "_proto"
        done = protoc.main(
            ["protoc", f"-I{tmp_path}", f"-I{include}", "--include_imports",
             "--include_source_info", f"--descriptor_set_out={out}", "x.proto"]
        )  # fmt: skip
        assert done == 0, text
        return out.read_bytes()

    return make


@pytest.mark.spec("ST-4.5.3-2")
@pytest.mark.parametrize("row", table.CLASSES, ids=[row[0] for row in table.CLASSES])
def test_change_classes_of_specification(row: ProtoRow, compiled: Compile) -> None:
    _, old, new, expected = row
    changes = diff_descriptors(compiled(old), compiled(new))
    assert [label(change) for change in changes] == list(expected)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_names_each_change(row: ProtoRow, compiled: Compile) -> None:
    _, old, new, expected = row
    before = compiled(old)
    changes = diff_descriptors(before, compiled(new))
    assert sorted(label(change) for change in changes) == sorted(expected)
    assert diff_descriptors(before, before) == []


def test_table_is_large_enough() -> None:
    assert len(table.CLASSES) + len(ROWS) >= 55


def test_removed_field_reports_free_number(compiled: Compile) -> None:
    free = diff_descriptors(compiled(table.message("string a = 1;")), compiled(table.message("")))
    kept = diff_descriptors(
        compiled(table.message("string a = 1;")), compiled(table.message("reserved 1;"))
    )
    assert "so that it is not reused by mistake" in free[0].message
    assert "by mistake" not in kept[0].message


@pytest.mark.parametrize("data", [b"", b"{}", b"\n\xff\xff\xff\xff", b"\x00" * 20])
def test_rejects_invalid_descriptor_set(data: bytes) -> None:
    with pytest.raises(InterlockError) as raised:
        diff_descriptors(data, data)
    assert raised.value.failure is INVALID_ARGUMENTS


def test_limits_descriptor_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto_reading, "MAX_DESCRIPTOR_BYTES", 10)
    with pytest.raises(InterlockError, match="limit is 10 bytes"):
        diff_descriptors(b"\n" * 11, b"")


def test_names_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pb2", None)
    with pytest.raises(InterlockError, match=r"pip install 'interlock\[contracts\]'") as raised:
        diff_descriptors(b"", b"")
    assert raised.value.failure is CONFIG


@given(st.binary(max_size=200))
def test_accepts_or_rejects_any_bytes(data: bytes) -> None:
    try:
        found = diff_descriptors(data, data)
    except InterlockError as error:
        found = [] if error.failure is INVALID_ARGUMENTS else None  # type: ignore[assignment]
    assert found == []
