"""References `<kind>:<body>` (AIP-27), and the kinds that drivers register."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import InvalidValueError
from interlock.manifests.references import Reference, ReferenceKinds
from tests.manifests.texts import driver

FILES = {
    "uri_template": "file:///{+path}",
    "integrate_as": "ref_kind",
    "ref_kind_id": "mcp_filesystem",
}


@pytest.mark.spec("DR-32.resources-2")
def test_registers_resource_kinds_of_driver() -> None:
    kinds = ReferenceKinds()
    text = "mcp_filesystem:file:///path/to/file"
    with pytest.raises(InvalidValueError, match="no kind of reference"):
        kinds.parse(text)
    kinds.register_driver(
        driver(resources=[FILES, {"uri_template": "x:{y}", "integrate_as": "raw"}])
    )
    result = kinds.parse(text)
    assert result == Reference("mcp_filesystem", "file:///path/to/file")
    assert str(result) == text
    with pytest.raises(InvalidValueError, match="not a valid body of mcp_filesystem"):
        kinds.parse("mcp_filesystem:https://elsewhere.example/")
    # The same driver may come again, another one must take another name.
    kinds.register_driver(driver(version="1.4.0", resources=[FILES]))
    with pytest.raises(InvalidValueError, match="already"):
        kinds.register_driver(driver(id="other-mcp", resources=[FILES]))


@pytest.mark.parametrize(
    ("template", "body", "fine"),
    [
        ("file:///{path}", "file:///path/to/file", True),
        ("file:///{path}", "file:///file", True),
        ("file:///{path}", "https://elsewhere.example/", False),
        ("shop://{kind}/{id}.json", "shop://orders/2026/17.json", True),
        ("shop://{kind}/{id}.json", "shop://orders/2026/17.xml", False),
        ("shop://{?q}", "shop://?q=a", True),
        ("shop://{?q}", "shop://a/b", False),
    ],
)
def test_simple_variable_matches_whole_path(template: str, body: str, fine: bool) -> None:
    kinds = ReferenceKinds()
    kinds.register_driver(driver(resources=[{**FILES, "uri_template": template}]))
    if fine:
        assert kinds.parse(f"mcp_filesystem:{body}").body == body
    else:
        with pytest.raises(InvalidValueError, match="not a valid body of mcp_filesystem"):
            kinds.parse(f"mcp_filesystem:{body}")


@pytest.mark.spec("DR-27.ref-1")
@pytest.mark.parametrize("kind", ["Linear", "a-b", "1a", "", "a b", "_a"])
def test_rejects_invalid_kind(kind: str) -> None:
    with pytest.raises(InvalidValueError, match="not a valid kind"):
        ReferenceKinds().register(kind)
    with pytest.raises(InvalidValueError, match="not a reference"):
        ReferenceKinds().parse(f"{kind}:x")


@pytest.mark.spec("DR-27.ref-1")
def test_rejects_unknown_kind_unless_allowed() -> None:
    kinds = ReferenceKinds()
    with pytest.raises(InvalidValueError) as caught:
        kinds.parse("githab:a/b")
    assert caught.value.hint == 'did you mean "github"?'
    assert kinds.parse("linear_issue:X-1", strict=False) == Reference("linear_issue", "X-1", False)
    kinds.register("linear_issue", lambda body: body.startswith("X-"))
    assert kinds.parse("linear_issue:X-1") == Reference("linear_issue", "X-1")
    with pytest.raises(InvalidValueError):
        kinds.parse("linear_issue:Y-1")
    with pytest.raises(InvalidValueError, match="already"):
        kinds.register("local", owner="somebody")


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("local:engagements/a.md", True),
        ("local:a/../b.md", True),
        ("local:../b.md", False),
        ("local:a/../../b.md", False),
        ("local:/etc/passwd", False),
        ("local:", False),
        ("url:https://a.example/x", True),
        ("url:file:///etc/passwd", False),
        ("github:a/b@main:c", True),
        ("eth_tx:1:0xabc", True),
        ("nothing", False),
        (":x", False),
    ],
)
def test_checks_builtin_kinds(text: str, fine: bool) -> None:
    if fine:
        assert str(ReferenceKinds().parse(text)) == text
    else:
        with pytest.raises(InvalidValueError):
            ReferenceKinds().parse(text)


@pytest.mark.spec("DR-27.ref-1")
@given(st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True), st.text(min_size=1, max_size=50))
def test_reference_survives_round_trip(kind: str, body: str) -> None:
    kinds = ReferenceKinds()
    if kind not in kinds.names:
        kinds.register(kind)
        result = kinds.parse(f"{kind}:{body}")
        assert (result.kind, result.body) == (kind, body)
        assert kinds.parse(str(result)) == result
