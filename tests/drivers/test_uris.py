"""URIs in inputs must stay inside the folders that a driver declares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock import errors
from interlock.drivers.resource_uris import check_uris
from interlock.errors import InterlockError
from interlock.manifests.model import ToolContract
from tests.drivers.driver_decisions import contract, inputs

URI = {"type": "string", "format": "uri-reference"}
OPEN = contract("fs-open", inputs=inputs("uri", uri="string", note="string"))
REFERENCE = contract("fs-open", inputs=inputs("uri", uri=URI, all={"type": "array", "items": URI}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """workspace/a, workspace/in → a, workspace/out → ../secret, secret"""
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "a").write_text("a")
    (root / "b c?").write_text("odd")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    (tmp_path / "workspace2").mkdir()
    (root / "in").symlink_to(root / "a")
    (root / "out").symlink_to(tmp_path / "secret")
    return root


def problem(of: ToolContract, given: dict[str, Any], *roots: Path) -> str:
    """Why the inputs are refused. Empty: they are not."""
    try:
        check_uris(of, given, [str(root) for root in roots], resolve=os.path.realpath)
    except InterlockError as error:
        if error.failure is not errors.POLICY_VIOLATION:
            raise
        return error.message
    return ""


@pytest.mark.spec("DR-32.security-3")
def test_accepts_files_inside_folder_only(folder: Path) -> None:
    outside = folder.parent
    for good in ("a", "in", "new/file", "b%20c%3F", ""):
        assert problem(OPEN, {"uri": f"file://{folder}/{good}"}, folder) == "", good
        assert problem(OPEN, {"uri": f"file://localhost{folder}/{good}"}, folder) == "", good
    for bad, words in (
        (f"file://{folder}/../secret/key", "contains `..`"),
        (f"file://{folder}/%2e%2e/secret/key", "contains `..`"),
        (f"file://{folder}/%2E./secret/key", "contains `..`"),
        (f"file://{folder}/a/../a", "contains `..`"),
        (f"file://{folder}/%252e%252e/secret/key", "encoded twice"),
        (f"file://{folder}/..%5csecret", "not allowed in paths"),
        (f"file://{folder}/a%00.txt", "not allowed in paths"),
        (f"file://{folder}/out/key", "leads outside of the folders"),
        (f"file://{outside}/secret/key", "leads outside of the folders"),
        (f"file://{outside}/workspace2", "leads outside of the folders"),
        ("file:///etc/passwd", "leads outside of the folders"),
        ("FILE:///etc/passwd", "leads outside of the folders"),
        (f"file://server{folder}/a", "names another host"),
        (f"file://{folder}/a?/../../secret", "contains `..`"),
        (f"file://{folder}/a?x", "query"),
        (f" file://{folder}/a", "blanks"),
        (f"file://{folder}/a\n", "blanks"),
        ("file://[bad", "is not a valid URI"),
        ("mcp_filesystem:file:///etc/passwd", "leads outside of the folders"),
    ):
        assert words in problem(OPEN, {"uri": bad}, folder), bad


@pytest.mark.spec("DR-32.security-3")
def test_uri_is_found_at_any_depth(folder: Path) -> None:
    bad = "file:///etc/passwd"
    for given_ in ({"note": bad}, {"x": {"y": [1, {"z": bad}]}}, {"uri": [bad]}):
        assert "leads out" in problem(OPEN, given_, folder)
    with pytest.raises(InterlockError) as error:
        check_uris(OPEN, {"x": {"y": [bad]}}, [str(folder)], resolve=os.path.realpath)
    assert error.value.data == {"contract": "fs-open", "field": "x.y.0"}


def test_reference_stays_inside_folders(folder: Path) -> None:
    for good in ("a", "sub/b", "a#part", "https://example.com/../x", "urn:a:b"):
        assert problem(REFERENCE, {"uri": good, "all": [good]}, folder) == "", good
    for bad in ("../secret/key", "out/key", "/etc/passwd", "//server/share", "%2e%2e/secret/key"):
        assert problem(REFERENCE, {"uri": bad}, folder), bad
        assert problem(REFERENCE, {"all": ["a", bad]}, folder), bad
        # Where the contract does not say that it is one, it is a text.
        assert problem(OPEN, {"uri": bad}, folder) == ""


def test_file_uri_requires_declared_folder(folder: Path) -> None:
    given_ = {"uri": f"file://{folder}/a"}
    assert "declares no folder" in problem(OPEN, given_)
    check_uris(OPEN, given_, None, resolve=os.path.realpath)
    assert problem(OPEN, {"uri": "text"}) == ""


def test_accepts_files_in_several_folders(folder: Path) -> None:
    other = folder.parent / "workspace2"
    assert problem(OPEN, {"uri": f"file://{other}/x"}, folder, other) == ""
    # A folder that is itself a link counts as what it leads to.
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert problem(OPEN, {"uri": f"file://{link}/a"}, link) == ""
    assert problem(OPEN, {"uri": f"file://{folder}/a"}, link) == ""


pieces = st.sampled_from(
    ["a", "in", "out", "key", "..", ".", "%2e%2e", "%252e", "%2f", "/", "//", "\\", "%5c", "?", "#",
     "secret", "..%2f", " ", "é", "%", "%00", ":"]
)  # fmt: skip


@pytest.mark.spec("DR-32.security-3")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(pieces, max_size=6),
    below=st.booleans(),
    start=st.sampled_from(["file://", "file:", "FILE://localhost", ""]),
)
def test_accepted_uri_is_inside_under_any_decoding(
    folder: Path, parts: list[str], below: bool, start: str
) -> None:
    path = (quote(str(folder)) if below else "") + "/" + "/".join(parts)
    uri = start + (path if start else path.lstrip("/"))
    if problem(REFERENCE, {"uri": uri}, folder):
        return
    split = urlsplit(uri)
    for read in (split.path, unquote(split.path), unquote(unquote(split.path))):
        reached = os.path.realpath(os.path.join(folder, read.split("\0")[0]))
        assert (reached + "/").startswith(f"{folder}/"), uri
