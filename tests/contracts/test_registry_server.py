"""Tests of the contract registry over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from interlock.contracts.registry.registry import ContractRegistry
from interlock.contracts.registry_server import RegistryServer
from interlock.core.config import Config, Limits, TokenConfig
from interlock.core.config.feature_sections import make_config
from interlock.errors import InterlockError
from tests.contracts.registry.registry_contracts import RegistryBench, contract, schema

Ask = Callable[..., Awaitable[httpx2.Response]]


@pytest.fixture
def shelf(tmp_path: Path) -> RegistryBench:
    one = RegistryBench(tmp_path / "registry")
    more: dict[str, str] = {}
    for version, name in (("2.3.0", "id"), ("2.3.4", "note"), ("2.4.0", "more")):
        more[name] = "string"
        one.put(contract("Order", version, schema(("id",), **more)), f"Order {version}")
    one.put(contract("mail/send", "1.0.0", {"name": "send"}, domain="m", protocol="mcp-tool"))
    proto = b'syntax = "proto3";\nmessage Order { string id = 1; }\n'
    one.put(contract("Order", "2.0.0", proto, protocol="protobuf"))
    return one


def run_scene(
    shelf: RegistryBench, scene: Callable[[Ask, RegistryServer], Awaitable[None]], **settings: Any
) -> None:
    async def run() -> None:
        async with serve_contracts(shelf, **settings) as (ask, server):
            await scene(ask, server)

    asyncio.run(run())


@asynccontextmanager
async def serve_contracts(
    shelf: RegistryBench, **settings: Any
) -> AsyncIterator[tuple[Ask, RegistryServer]]:
    config = make_config({"listen": "127.0.0.1:0", **settings})

    def open() -> ContractRegistry:
        return ContractRegistry(shelf.folder, clock=lambda: shelf.now)

    server = RegistryServer(
        config, open, base_dir=shelf.folder.parent, environ={"SECRET": "a-long-enough-secret"}
    )
    await server.start()
    base = server.url.removesuffix("/contracts")

    async def ask(path: str, body: Any = None, **more: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(trust_env=False) as client:
            method = more.pop("method", "GET" if body is None else "POST")
            if body is not None:
                more.setdefault("headers", {}).setdefault("Content-Type", "application/json")
                more["content"] = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.request(method, base + path, **more)

    try:
        yield ask, server
    finally:
        await server.stop()


@pytest.mark.spec("ST-4.6.4-1", "ST-4.6.4-2")
async def test_lists_and_reads_contracts(shelf: RegistryBench) -> None:
    async with serve_contracts(shelf) as (ask, _server):
        everything = (await ask("/contracts")).json()
        assert [(one["name"], one["version"]) for one in everything["contracts"]] == [
            ("Order", "2.0.0"),
            ("Order", "2.3.0"),
            ("Order", "2.3.4"),
            ("Order", "2.4.0"),
            ("mail/send", "1.0.0"),
        ]
        assert everything["registry"]["schema_count"] == 5
        assert everything["registry"]["drift_violations"] == 0
        assert everything["registry"]["head"]
        some = (await ask("/contracts?name=Ord*&protocol=json-schema&version=2.3.x")).json()
        assert [one["version"] for one in some["contracts"]] == ["2.3.0", "2.3.4"]
        for query in ("domain=m", "source=*.json&name=mail*", "since=2026-01-01&name=mail*"):
            found = (await ask(f"/contracts?{query}")).json()["contracts"]
            assert [one["name"] for one in found] == ["mail/send"]

        one = await ask("/contracts/Order?version=2.3.x")
        assert one.status_code == 200
        assert one.headers["cache-control"] == "no-store"
        told = one.json()
        assert (told["version"], told["protocol"], told["domain"]) == (
            "2.3.4", "json-schema", "shop",
        )  # fmt: skip
        assert told["schema"]["required"] == ["id"]
        assert told["provenance"] == {
            "source": "order.schema.json",
            "generator_version": "interlock 1",
            "timestamp": "2027-01-01T00:00:00Z",
        }
        assert "deprecation" not in told
        text = (await ask("/contracts/Order?protocol=protobuf")).json()
        assert text["schema"].startswith("syntax")
        # Any name has a path.
        assert (await ask("/contracts/mail%2Fsend")).json()["name"] == "mail/send"
        missing = await ask("/contracts/Order?version=9.x")
        assert missing.status_code == 404
        assert missing.json()["error"] == "unknown_contract"
        assert missing.json()["data"]["versions"] == ["2.0.0", "2.3.0", "2.3.4", "2.4.0"]

        log = (await ask("/contracts/Order/log?count=2")).json()
        assert [entry["reason"] for entry in log["log"]] == ["because", "Order 2.4.0"]
        assert (await ask("/contracts/Nobody/log")).status_code == 404


@pytest.mark.spec("ST-4.6.4-3")
async def test_validates_payloads(shelf: RegistryBench) -> None:
    async with serve_contracts(shelf, limits=Limits(body_bytes=2000)) as (ask, _server):
        good = await ask("/contracts/Order/validate?version=2.x", {"id": "a"})
        assert good.json() == {
            "valid": True, "name": "Order", "version": "2.4.0", "protocol": "json-schema",
            "errors": [], "deprecation": None,
        }  # fmt: skip
        bad = await ask("/contracts/Order/validate?version=2.3.x", {"id": 7, "note": ["x"]})
        assert bad.status_code == 200
        assert bad.json()["valid"] is False
        assert [one["path"] for one in bad.json()["errors"]] == ["/id", "/note"]
        assert "string" in bad.json()["errors"][0]["message"]
        for body, headers, status, word in (
            (b"{", {}, 400, "invalid_request"),
            (b"{}", {"Content-Type": "text/plain"}, 400, "invalid_request"),
            (b'"' + b"x" * 3000 + b'"', {}, 413, "payload_too_large"),
        ):
            answer = await ask("/contracts/Order/validate", body, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (status, word)
        none = await ask("/contracts/mail%2Fsend/validate", {})
        assert none.status_code == 400
        part = await ask("/contracts/Order/validate?part=middle", {})
        assert "`input` or `output`" in part.json()["message"]


@pytest.mark.spec("ST-4.5.4-2")
async def test_deprecated_major_is_gone_after_sunset(shelf: RegistryBench) -> None:
    shelf.put(contract("Order", "3.0.0"))
    shelf.registry.deprecate("Order", 2, author="x", migration_uri="https://example.org/3")

    async with serve_contracts(shelf) as (ask, _server):
        answer = await ask("/contracts/Order?version=2.x")
        assert answer.json()["deprecation"]["sunset_at"] == "2027-07-14T08:00:00Z"
        assert answer.headers["deprecation"] == "@1800000000"
        assert answer.headers["sunset"] == "Wed, 14 Jul 2027 08:00:00 GMT"
        assert answer.headers["link"] == '<https://example.org/3>; rel="deprecation"'
        shelf.now += 200 * 86_400
        over = await ask("/contracts/Order?version=2.x")
        assert over.status_code == 410
        assert over.json()["error"] == "deprecated_version"
        assert over.json()["data"]["migration_uri"] == "https://example.org/3"
        validated = await ask("/contracts/Order/validate?version=2.x", {"id": "a"})
        assert validated.status_code == 410
        assert (await ask("/contracts/Order")).json()["version"] == "3.0.0"


async def test_rejects_invalid_requests(shelf: RegistryBench) -> None:
    async with serve_contracts(shelf) as (ask, _server):
        for path, word in (
            ("/contracts?colour=red", "Allowed: domain, generator_version, name"),
            ("/contracts?name=a&name=b", "occurs twice"),
            ("/contracts?name=%FF", "query of the URL is invalid"),
            ("/contracts?protocol=xml", "json-schema, protobuf"),
            ("/contracts?since=soon", "ISO 8601"),
            ("/contracts/Order?version=2..x", "is not a version range"),
            ("/contracts/Order/log?count=0", "from 1 to 1000"),
            ("/contracts/Order/log?count=99999999999999999999", "from 1 to 1000"),
        ):
            answer = await ask(path)
            assert answer.status_code == 400, path
            assert word in answer.json()["message"]
        for path, method in (
            ("/contracts", "POST"),
            ("/contracts/Order", "DELETE"),
            ("/contracts/Order/validate", "GET"),
        ):
            answer = await ask(path, method=method)
            assert (answer.status_code, answer.json()["error"]) == (405, "method_not_allowed")
        for path in ("/", "/contractsx", "/status"):
            answer = await ask(path)
            assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
        secret = await ask("/contracts?token=very-secret-indeed")
        assert "very-secret" not in secret.text


def test_checks_tokens_and_origins(shelf: RegistryBench) -> None:
    tokens = [
        TokenConfig(name="reader", token="${env:SECRET}"),
        TokenConfig(name="registrar", token="another-secret-of-theirs", may=["register"]),
    ]

    async def scene(ask: Ask, server: RegistryServer) -> None:
        assert (await ask("/contracts")).status_code == 401
        wrong = await ask("/contracts", headers={"Authorization": "Bearer wrong"})
        assert (wrong.status_code, wrong.json()["error"]) == (401, "unauthenticated")
        right = await ask("/contracts", headers={"Authorization": "Bearer a-long-enough-secret"})
        assert right.status_code == 200
        other = {"Authorization": "Bearer another-secret-of-theirs"}
        assert (await ask("/contracts", headers=other)).json()["error"] == "forbidden"

    run_scene(shelf, scene, tokens=tokens)

    async def strangers(ask: Ask, server: RegistryServer) -> None:
        foreign = await ask("/contracts", headers={"Origin": "https://evil.example"})
        assert (foreign.status_code, foreign.json()["error"]) == (403, "foreign_origin")
        rebound = await ask("/contracts", headers={"Host": "evil.example"})
        assert rebound.status_code == 403

    run_scene(shelf, strangers)


async def test_reports_damaged_registry(shelf: RegistryBench) -> None:
    (shelf.folder / ".git" / "HEAD").write_text("nonsense")

    async with serve_contracts(shelf) as (ask, _server):
        answer = await ask("/contracts")
        assert answer.status_code == 500
        assert answer.json()["error"] == "config_error"
        assert "Traceback" not in answer.text


async def test_rejects_used_address(shelf: RegistryBench) -> None:
    async with serve_contracts(shelf) as (_ask, server):
        address = server.url.split("/")[2]
        with pytest.raises(InterlockError, match="Cannot listen on"):
            RegistryServer(
                Config(listen=address),
                lambda: ContractRegistry(shelf.folder),
                base_dir=shelf.folder,
                environ={},
            )
