"""The list of pending calls in a real browser: updated by the node, for operators only."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from interlock.trust.operators.store import Invitation
from tests.support.programs import requires_browser
from tests.trust.approvals_web.browser import Browser
from tests.trust.approvals_web.office import Office, b64
from tests.trust.approvals_web.test_page import browser, chromium, enrol

pytestmark = requires_browser
__all__ = ["browser", "chromium"]


def sign_in_page(office: Office, browser: Browser) -> None:
    enrol(office, browser, "key")
    browser.open(f"{office.page}/")
    browser.click("#look")
    browser.find("#count")


def icon(browser: Browser) -> Any:
    return browser.script("return document.querySelector('#icon').getAttribute('href')")


def test_list_updates_without_reload(office: Office, browser: Browser) -> None:
    sign_in_page(office, browser)
    browser.until_text("#count", "No pending calls")
    assert browser.title == "Pending calls · Interlock"
    browser.script("window.same = true")
    pending = office.held(table="orders")
    browser.until_text("#count", "1 pending call")
    assert browser.title == "(1) Pending calls · Interlock"
    assert icon(browser) == "page/mark-pending.svg"
    assert (
        browser.script("return document.querySelector('#count').getAttribute('role')") == "status"
    )
    browser.script("document.querySelector('a.item').focus()")
    office.held(table="customers")
    browser.until_text("#count", "2 pending calls")
    # The card is the same element: whoever is about to press it still has it.
    assert "orders" in browser.script("return document.activeElement.textContent")
    office.decide(pending, office.proof(pending))
    browser.until_text("#count", "1 pending call")
    assert "customers" in browser.text("a.item")
    assert browser.script("return window.same") is True
    assert browser.text("#live") == "Live"


@pytest.mark.feature("aql")
def test_card_shows_effect_and_arguments_of_call(office: Office, browser: Browser) -> None:
    office.held(table="orders", rows=9007199254740991, note="a\nb")
    sign_in_page(office, browser)
    card = browser.text("a.item")
    for words in ("Cannot be undone", "shop.drop_table", "local", "danger:verify", "left"):
        assert words in card
    # Short values first, and long ones by their size.
    brief = browser.script("return document.querySelector('a.item .brief').textContent")
    assert brief.index("9007199254740991") < brief.index("orders") < brief.index("(2 lines)")


def test_card_shows_short_values_of_long_call(office: Office, browser: Browser) -> None:
    office.held(path="src/report.py", content="line\n" * 400)
    sign_in_page(office, browser)
    brief = browser.script("return document.querySelector('a.item .brief').textContent")
    assert brief.startswith("pathsrc/report.py")
    assert "line line" in brief


def test_sign_in_lasts_for_browser_tab(office: Office, browser: Browser) -> None:
    pending = office.held()
    sign_in_page(office, browser)
    browser.click("a.item")
    browser.find("#approve")
    browser.click(".brand")
    browser.until_text("#count", "1 pending call")
    # Who is an operator no more sees nothing more.
    office.remove("bea")
    office.wait(office.approving.operators.refresh())
    office.decide(pending, office.proof(pending))
    browser.until_text("main", "Your session has ended.")
    assert browser.script("return sessionStorage.getItem('interlock-session')") is None


def test_list_recovers_after_connection_loss(office: Office, browser: Browser) -> None:
    sign_in_page(office, browser)
    browser.until_text("#live", "Live")
    # As when a proxy, or a laptop that sleeps, ends it.
    app = office.approving._app
    assert app is not None
    office.do(lambda: [stream.end() for stream in app._streams])  # type: ignore[func-returns-value]
    office.held(table="orders")
    browser.until_text("#count", "1 pending call")


def asks_to_enrol(office: Office, name: str) -> str:
    """Somebody's browser sends a new key with a code; the id under which that is pending."""
    code = office.approving.operators.store.invite(Invitation(name))
    public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    key = {"kty": "OKP", "crv": "Ed25519", "x": b64(public)}
    answer = office.ask("POST", "/approvals/enrol", {"code": code, "key": key})
    return str(answer.json["pending"])


@pytest.mark.feature("aql")
def test_operator_confirms_or_rejects_enrolment(office: Office, browser: Browser) -> None:
    sign_in_page(office, browser)
    browser.until_text("#live", "Live")
    cleo, mallory = asks_to_enrol(office, "cleo"), asks_to_enrol(office, "mallory")
    browser.click("#refresh")
    browser.until_text(f"#enrolment-{mallory}", "mallory")
    browser.click(f"#enrolment-{mallory} .refuse")
    browser.until(f"!document.querySelector('#enrolment-{mallory}')")
    browser.click(f"#enrolment-{cleo} .admit")
    browser.until("!document.querySelector('#enrolments')")
    names = {operator.name for operator in office.approving.operators.store.all()}
    assert "cleo" in names
    assert "mallory" not in names
    assert browser.complaints() == []
