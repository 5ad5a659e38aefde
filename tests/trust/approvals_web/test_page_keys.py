"""Signing keys of the approval page, and its prompt while an authenticator is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.programs import requires_browser
from tests.trust.approvals_web.browser import Browser
from tests.trust.approvals_web.office import Office
from tests.trust.approvals_web.test_page import address, browser, chromium, enrol, passkeys

pytestmark = requires_browser
__all__ = ["browser", "chromium", "passkeys"]


@pytest.fixture
def unattended_authenticator(browser: Browser) -> Iterator[str]:
    """A security key that nobody touches: whoever asks it waits."""
    authenticator = browser.authenticator(touched=False)
    yield authenticator
    browser.do_delete(f"/webauthn/authenticator/{authenticator}")


def open_approval(office: Office, browser: Browser) -> dict[str, Any]:
    pending = office.held()
    browser.open(address(office, pending))
    browser.until("document.querySelector('#approve')?.disabled === false")
    return pending


def default_key(browser: Browser) -> Any:
    return browser.script("return localStorage.getItem('interlock-signs-with')")


def test_page_reports_missing_browser_key(office: Office, browser: Browser) -> None:
    open_approval(office, browser)
    assert "No key in this browser yet" in browser.text("#no-key")
    assert "interlock keys enrol" in browser.text("#no-key")
    enrol(office, browser, "key")
    open_approval(office, browser)
    assert browser.script("return document.querySelector('#no-key')") is None


def test_passkey_prompt_is_shown_and_can_be_cancelled(
    office: Office, browser: Browser, unattended_authenticator: str
) -> None:
    response = open_approval(office, browser)
    browser.click("#approve")
    browser.until_text("#waits", "Waiting for your passkey")
    assert browser.script("return document.querySelector('#approve')") is None
    # It is asked for, and has not worked yet.
    assert default_key(browser) is None
    browser.click("#cancel")
    browser.until_text("#said", "Cancelled.")
    assert default_key(browser) is None
    assert browser.script("return document.querySelector('#approve').disabled") is False
    assert office.approving.approvals.find(response["confirmation_id"]).state == "pending"  # type: ignore[union-attr]


def test_decision_of_other_operator_cancels_passkey_prompt(
    office: Office, browser: Browser, unattended_authenticator: str
) -> None:
    response = open_approval(office, browser)
    browser.script(
        """
        const get = navigator.credentials.get.bind(navigator.credentials);
        window.ended = [];
        navigator.credentials.get = (options) => {
          const answer = get(options);
          answer.catch((error) => window.ended.push(error.name));
          return answer;
        };
        """
    )
    browser.click("#approve")
    browser.find("#cancel")
    office.decide(response, office.proof(response))
    browser.until_text("#state", "by chief")
    browser.until("window.ended.length === 1")
    assert browser.script("return window.ended") == ["AbortError"]
    assert browser.script("return document.querySelector('#cancel')") is None
    assert browser.text("#said") == ""


def test_only_successful_passkey_becomes_default(
    office: Office, browser: Browser, passkeys: str
) -> None:
    enrol(office, browser, "passkey")
    browser.script("localStorage.clear()")
    browser.owner_is_there(passkeys, False)
    open_approval(office, browser)
    browser.click("#approve")
    browser.until_text("#said", "No passkey was used.")
    assert default_key(browser) is None
    browser.owner_is_there(passkeys, True)
    # A proof that the node does not accept is no success either.
    office.remove("bea")
    browser.click("#approve")
    browser.until_text("#said", "not enrolled")
    assert default_key(browser) is None
    browser.do_delete(f"/webauthn/authenticator/{passkeys}/credentials")
    enrol(office, browser, "passkey", "cleo")
    browser.script("localStorage.clear()")
    open_approval(office, browser)
    browser.click("#approve")
    browser.until_text("#state", "Approved and done")
    assert default_key(browser) == "passkey"


def test_new_key_becomes_default(office: Office, browser: Browser, passkeys: str) -> None:
    enrol(office, browser, "passkey")
    assert default_key(browser) == "passkey"
    enrol(office, browser, "key", "dora")
    open_approval(office, browser)
    chosen = "return document.querySelector('#with').selectedOptions[0].textContent"
    assert browser.script(chosen) == "dora (key in this browser)"
    browser.click("#approve")
    browser.until_text("#state", "by dora")
