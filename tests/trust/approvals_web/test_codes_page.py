"""Verification codes on the approval page in a real browser: shown after a passkey only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.aql.component import Aql
from interlock.aql.config import AqlConfig, SafetyConfig
from interlock.aql.safety.evaluation import StepVerdict
from interlock.core.call import Caller
from tests.support.programs import requires_browser
from tests.trust.approvals_web.browser import Browser
from tests.trust.approvals_web.office import Office
from tests.trust.approvals_web.test_page import browser, chromium, enrol, passkeys

pytestmark = requires_browser
__all__ = ["browser", "chromium", "passkeys"]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    one = Office(tmp_path, aql=AqlConfig(safety=SafetyConfig(mode="enforcing")))
    try:
        yield one
    finally:
        one.stop()


@pytest.mark.spec("AQ-8.8.6-1", "AQ-8.8.2-5")
def test_operator_reads_verification_code(office: Office, browser: Browser, passkeys: str) -> None:
    safety = office.node.component(Aql).safety

    def block() -> str:
        run = safety.runs.start(Caller("local"), "agent", None, "")
        verdict = StepVerdict("stop", 3, ["deny"], "Denied by pattern 'drop_*'", denied=True)
        return safety.block(run, "drop_table <b>users</b>", verdict).challenge

    id = office.do(block)
    code = office.do(lambda: office.node.component(Aql).codes.reveal(id))
    assert code is not None
    enrol(office, browser, "passkey")
    browser.open(office.page)
    assert code not in browser.text("main")
    browser.click("#look")
    card = f"#code-{id}"
    browser.until_text(card, code)
    assert "local is blocked after" in browser.text(card)
    # What an agent wrote is text, and no markup.
    assert "drop_table <b>users</b>" in browser.text(card)
    browser.click(f"{card} button")
    office.until(lambda: safety.challenges.get(id) is None, "it was renewed")
    [other] = office.do(lambda: list(safety.challenges))
    renewed = office.do(lambda: office.node.component(Aql).codes.reveal(other.id))
    assert renewed is not None
    browser.until_text(f"#code-{other.id}", renewed)
    # Who has the passkey need not tell anybody a code.
    browser.click(f"#code-{other.id} a")
    browser.until_text("#tool", "aql.unblock")
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert office.do(lambda: len(safety.blocks)) == 0
    assert browser.complaints() == []
