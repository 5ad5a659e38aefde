"""Key sets of issuers: discovery, refresh and expiry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config.trust import IssuerConfig
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import FetchResponse, fetch
from interlock.errors import CONFIG, InterlockError
from interlock.trust.identity.key_sets import (
    MAX_AGE_SECONDS,
    MAX_DOCUMENT_BYTES,
    OVERLAP_SECONDS,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    UNKNOWN_KEY_PAUSE_SECONDS,
    KeySet,
)
from tests.core.upstreams.oauth.authority import Authority, ReceivedRequest, Reply
from tests.trust.identity.issuers import Signer


class KeySetHarness:
    """An issuer on a real socket, and a node that wants its keys."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.authority = authority
        self.folder = folder
        self.signer = Signer()
        self.now = 1000.0
        self.lost = 0
        authority.metadata["jwks_uri"] = f"{authority.issuer}/jwks"
        authority.overrides[f"{authority.path}/jwks"] = self._jwks

    def _jwks(self, _: ReceivedRequest) -> Reply:
        return Reply(200, self.signer.jwks())

    def key_set(self, **settings: Any) -> KeySet:
        settings.setdefault("issuer", self.authority.issuer)
        return KeySet(
            IssuerConfig(**settings), self.folder, clock=lambda: self.now, on_removed=self._lost
        )

    def _lost(self) -> None:
        self.lost += 1

    def asked(self) -> int:
        return len(self.authority.requests_to("/jwks"))


@asynccontextmanager
async def open_authority(folder: Path, path: str = "") -> AsyncIterator[KeySetHarness]:
    async with Authority(path) as authority:
        yield KeySetHarness(authority, folder)


@pytest.mark.spec("ST-4.8.3-1")
@pytest.mark.parametrize("path", ["", "/realms/one"])
async def test_finds_keys_through_issuer_metadata(tmp_path: Path, path: str) -> None:
    async with open_authority(tmp_path, path) as harness:
        keys = harness.key_set()
        assert keys.is_due
        assert keys.find("k1", "ES256") == []
        unsettled = keys.request_refresh()
        assert unsettled is not None
        await unsettled.resolve()
        assert [item.kid for item in keys.find("k1", "ES256")] == ["k1"]
        assert keys.problem is None
        assert not keys.is_due
        # They were just read: who asks for another learns at once that there is none.
        assert keys.find("k2", "ES256") == []
        assert keys.request_refresh() is None
        harness.now += UNKNOWN_KEY_PAUSE_SECONDS
        assert keys.request_refresh() is not None
        assert harness.asked() == 1


async def test_reads_keys_from_configured_url(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as harness:
        keys = harness.key_set(issuer="not an address", jwks_url=f"{harness.authority.issuer}/jwks")
        await keys.refresh()
        assert keys.find(None, "ES256")
        (tmp_path / "keys.json").write_bytes(harness.signer.jwks())
        keys = harness.key_set(issuer="not an address", jwks_file="keys.json")
        assert keys.find("k1", "ES256")
        harness.signer.rotate("k2")
        (tmp_path / "keys.json").write_bytes(harness.signer.jwks())
        harness.now += UNKNOWN_KEY_PAUSE_SECONDS
        assert keys.request_refresh() is not None
        await keys.refresh()
        assert keys.find("k2", "ES256")


@pytest.mark.spec("ST-4.8.5-3")
async def test_removed_key_stays_valid_during_grace_period(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as harness:
        keys = harness.key_set()
        await keys.refresh()
        harness.signer.rotate("k2", overlap=False)
        harness.now += UNKNOWN_KEY_PAUSE_SECONDS
        await keys.refresh()
        assert keys.find("k2", "ES256")
        assert keys.find("k1", "ES256")
        harness.now += OVERLAP_SECONDS - 1
        assert keys.find("k1", "ES256")
        assert not harness.lost
        harness.now += 1
        keys.remove_expired()
        assert harness.lost == 1
        assert keys.find("k1", "ES256") == []
        assert keys.find("k2", "ES256")


async def test_concurrent_refreshes_share_one_request(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as harness:
        keys = harness.key_set()
        waiting = [asyncio.create_task(keys.refresh()) for _ in range(10)]
        impatient = waiting.pop()
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(*waiting)
        assert harness.asked() == 1
        assert keys.find("k1", "ES256")


async def test_keys_stay_valid_while_issuer_is_unavailable(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as harness:
        keys = harness.key_set()
        await keys.refresh()
        harness.now += REFRESH_SECONDS
        assert keys.is_due
        await harness.authority.stop()
        await keys.refresh()
        assert keys.problem is not None
        assert keys.find("k1", "ES256")
        assert not keys.is_due
        harness.now += RETRY_SECONDS
        assert keys.is_due
        harness.now += MAX_AGE_SECONDS
        assert keys.find("k1", "ES256") == []
        assert harness.lost == 1


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        (lambda _: Reply(500, {}), "HTTP 500"),
        (lambda _: Reply(302, b"", location="http://127.0.0.1:1/keys"), "HTTP 302"),
        (lambda _: Reply(200, b"<html>"), "not a set of keys"),
        (lambda _: Reply(200, {"keys": 7}), "not a set of keys"),
        (lambda _: Reply(200, {"keys": [{"kty": "oct"}] * 101}), "more than 100"),
        (lambda _: Reply(200, b" " * (MAX_DOCUMENT_BYTES + 1)), "longer than"),
    ],
)
async def test_rejects_unusable_key_response(tmp_path: Path, habit: Any, reason: str) -> None:
    async with open_authority(tmp_path) as harness:
        good = harness.authority.overrides[f"{harness.authority.path}/jwks"]
        harness.authority.overrides[f"{harness.authority.path}/jwks"] = habit
        keys = harness.key_set()
        await keys.refresh()
        assert reason in (keys.problem or "")
        assert keys.find("k1", "ES256") == []
        harness.authority.overrides[f"{harness.authority.path}/jwks"] = good
        await keys.refresh()
        assert keys.problem is None
        assert keys.find("k1", "ES256")


async def test_rejects_metadata_of_other_issuer(tmp_path: Path) -> None:
    async with open_authority(tmp_path) as harness:
        harness.authority.metadata["issuer"] = "https://other.example.com"
        keys = harness.key_set()
        await keys.refresh()
        assert "another issuer" in (keys.problem or "")
        harness.authority.metadata["issuer"] = harness.authority.issuer
        harness.authority.metadata["jwks_uri"] = "http://192.0.2.1/jwks"
        await keys.refresh()
        assert "not https" in (keys.problem or "")
        assert not harness.asked()


async def test_remote_issuer_cannot_redirect_to_loopback(tmp_path: Path) -> None:
    """Else whoever answers for it could make the node believe what listens here."""

    async with open_authority(tmp_path) as harness:

        async def ask(
            method: str, url: str, _: Mapping[str, str], body: bytes = b""
        ) -> FetchResponse:
            document = {
                "issuer": "https://a.example",
                "jwks_uri": f"{harness.authority.issuer}/jwks",
            }
            if url.startswith("https://a.example/"):
                return FetchResponse(200, {}, json.dumps(document).encode())
            return await fetch(method, url, _, body)

        config = IssuerConfig(issuer="https://a.example")
        keys = KeySet(config, tmp_path, clock=lambda: 0.0, fetch=ask)  # type: ignore[arg-type]
        await keys.refresh()
        assert "not https" in (keys.problem or "")
        assert not harness.asked()


async def test_unresponsive_issuer_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.trust.identity.key_sets.FETCH_TIMEOUT_SECONDS", 0.05)

    async with open_authority(tmp_path):

        async def ask(
            method: str, url: str, _: Mapping[str, str], body: bytes = b""
        ) -> FetchResponse:
            await asyncio.Event().wait()
            raise SignInProblem("never")

        keys = KeySet(
            IssuerConfig(issuer="https://a.example"),
            tmp_path,
            clock=lambda: 0.0,
            fetch=ask,  # type: ignore[arg-type]
        )
        await keys.refresh()
        assert keys.problem == "timeout"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"issuer": "somebody"}, "no https address for its keys"),
        ({"issuer": "http://login.example.com"}, "no https address"),
        ({"issuer": "x", "jwks_url": "http://login.example.com/jwks"}, "no https address"),
        ({"issuer": "x", "jwks_file": "missing.json"}, "No such file"),
        ({"issuer": "x", "jwks_file": "bad.json"}, "not a set of keys"),
        ({"issuer": "x", "jwks_file": "bad.json", "jwks_url": "https://a/b"}, "keep one"),
    ],
)
def test_rejects_bad_issuer_config(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(InterlockError, match=reason) as error:
        KeySet(IssuerConfig(**settings), tmp_path, clock=lambda: 0.0)
    assert error.value.failure is CONFIG
