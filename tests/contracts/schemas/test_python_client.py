"""Tests of the generated client with a real server on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from interlock.contracts.schemas.artefacts import commented_text
from interlock.contracts.schemas.python_client import (
    format_docstring,
    make_module,
    module_name,
    quote_text,
)
from interlock.contracts.schemas.reader import read_yaml
from tests.support.timeouts import HANG_TIMEOUT

GARDEN = r"""
    openapi: 3.1.0
    info: {title: Garden, version: 1.2.0, description: 'Everything that "grows". A \ too'}
    paths:
      /beds/{bed-id}:
        parameters:
          - {name: bed-id, in: path, required: true, schema: {type: string}}
        get:
          operationId: getBed
          summary: One bed
          parameters:
            - {name: tag, in: query, schema: {type: array, items: {type: string}}}
            - {name: deep, in: query, schema: {type: boolean}}
            - {name: from, in: query, required: true, schema: {type: integer}}
          responses:
            '200':
              description: It.
              content: {application/json: {schema: {$ref: '#/components/schemas/Bed'}}}
        put:
          operationId: putBed
          requestBody:
            required: true
            content: {application/json: {schema: {$ref: '#/components/schemas/Bed'}}}
          responses:
            '200':
              description: It.
              content: {application/json: {schema: {$ref: '#/components/schemas/Found'}}}
        delete:
          parameters:
            - {name: If-Match, in: header, required: true, schema: {type: string}}
            - {name: X-Count, in: header, schema: {type: integer}}
          responses: {'204': {description: Gone.}}
      /beds/{bed-id}/picture:
        parameters:
          - {name: bed-id, in: path, required: true, schema: {type: string}}
        get:
          operationId: getPicture
          responses:
            '200': {description: It., content: {image/png: {}}}
        put:
          operationId: putPicture
          requestBody: {content: {image/png: {}}}
          responses: {'204': {description: Done.}}
      /beds/events:
        get:
          operationId: followBeds
          responses:
            '200':
              description: Them.
              content:
                text/event-stream:
                  schema: {type: string}
                  x-event: {$ref: '#/components/schemas/Bed'}
      /beds:
        post:
          operationId: searchBeds
          requestBody:
            content:
              application/json:
                schema:
                  type: object
                  properties:
                    words: {type: array, items: {type: string}}
                    within: {type: object, properties: {metres: {type: number}}}
          responses:
            '200':
              description: Them.
              content:
                application/json:
                  schema: {type: array, items: {$ref: '#/components/schemas/Bed'}}
    components:
      schemas:
        Bed:
          type: object
          description: A bed.
          properties:
            bedId: {type: string, description: By what it is known.}
            class: {type: [string, 'null']}
            kind: {$ref: '#/components/schemas/Kind'}
            size: {anyOf: [{type: integer}, {type: 'null'}]}
            by: {type: object, additionalProperties: {type: integer}}
            anything: {}
            inside: {allOf: [{$ref: '#/components/schemas/Bed'}]}
            list: {type: array, items: {$ref: '#/components/schemas/Rose'}}
            secret: {type: string, format: password}
          required: [bedId, class, kind]
        Kind: {type: string, enum: [flowers, "it's \"green\""]}
        Rose:
          allOf:
            - {type: object, properties: {thorns: {type: integer}}, required: [thorns]}
            - {type: object, properties: {colour: {const: red}}}
        Missing:
          type: object
          properties: {missing: {type: string}}
          required: [missing]
        Found: {anyOf: [{$ref: '#/components/schemas/Bed'}, {$ref: '#/components/schemas/Missing'}]}
        List: {type: array, items: {$ref: '#/components/schemas/Bed'}}
        Client: {type: object, properties: {a: {type: string}}}
"""
BED = {"bedId": "b", "class": None, "kind": "flowers"}


class _GardenHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(length)) if length else None
        server: Any = self.server
        server.asked.append((self.command, self.path, sent, dict(self.headers)))
        if self.path.endswith("/beds/events"):
            text = "".join(
                f"event: bed\ndata: {json.dumps({**BED, 'size': size})}\n\n: ping\n\n"
                for size in (1, 2)
            )
            self._answer(200, text.encode(), "text/event-stream")
        elif self.path.endswith("/picture"):
            self._answer(200, b"\x89PNG", "image/png")
        elif "gone" in self.path:
            self._answer(404, b'{"why": "gone"}')
        elif self.command == "DELETE":
            self._answer(204, b"")
        elif self.command == "POST":
            self._answer(200, json.dumps([BED]).encode())
        elif sent is not None and sent["bedId"] == "?":
            self._answer(200, b'{"missing": "?"}')
        else:
            self._answer(200, json.dumps(sent or {**BED, "size": 3, "new": 1}).encode())

    do_GET = do_PUT = do_POST = do_DELETE = _any

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _GardenHandler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client_text(document: str = GARDEN) -> str:
    head, body = make_module(read_yaml("g.yaml", textwrap.dedent(document).lstrip()))
    return commented_text(head, body, "openapi/g.yaml", "#")


def load_client(text: str) -> ModuleType:
    made = ModuleType("garden_client")
    sys.modules["garden_client"] = made
    exec(compile(text, "garden_client.py", "exec"), made.__dict__)
    return made


@pytest.fixture
def garden() -> Iterator[Any]:
    yield load_client(client_text())
    del sys.modules["garden_client"]


def test_every_operation_is_method(garden: Any, server: Any) -> None:
    client = garden.Client(
        f"http://127.0.0.1:{server.server_port}/base/", token="t", headers={"X-More": "1"}
    )
    bed = client.get_bed("a/b ü", 5, tag=["x", "y z"], deep=True)
    assert isinstance(bed, garden.Bed)
    assert (bed.bed_id, bed.class_, bed.size, bed.by) == ("b", None, 3, None)
    method, path, _, headers = server.asked[-1]
    assert (method, path) == (
        "GET",
        "/base/beds/a%2Fb%20%C3%BC?tag=x&tag=y+z&deep=true&from=5",
    )
    assert (headers["Authorization"], headers["X-More"]) == ("Bearer t", "1")
    put = client.put_bed("b", garden.Bed(bed_id="b", class_=None, kind="flowers", by={"a": 1}))
    assert isinstance(put, garden.Bed)
    # What is not set is not sent; what is null is.
    assert server.asked[-1][2] == {**BED, "by": {"a": 1}}
    other = client.put_bed("b", garden.Bed(bed_id="?", class_=None, kind="flowers"))
    assert other == garden.Missing(missing="?")
    roses = [garden.Rose(thorns=3, colour="red")]
    rosy = garden.Bed(bed_id="b", class_=None, kind="flowers", list_=roses)
    assert client.put_bed("b", rosy).list_ == roses
    assert client.delete_beds_bed_id("b", '"x"', x_count=5) is None
    assert server.asked[-1][3]["If-Match"] == '"x"'
    assert server.asked[-1][3]["X-Count"] == "5"
    assert client.get_picture("b") == b"\x89PNG"
    assert not hasattr(client, "put_picture")
    (found,) = client.search_beds(search_beds_body=garden.SearchBedsBody(words=["a"]))
    assert isinstance(found, garden.Bed)
    assert server.asked[-1][2] == {"words": ["a"]}
    assert [one.size for one in client.follow_beds()] == [1, 2]


def test_error_response_raises_with_data(garden: Any, server: Any) -> None:
    client = garden.Client(f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(garden.ResponseError) as refused:
        client.get_bed("gone", 1)
    assert refused.value.status == 404
    assert refused.value.data == {"why": "gone"}
    assert garden.ResponseError(500, b"\xff").data is None


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "http://"])
def test_rejects_invalid_url(garden: Any, url: str) -> None:
    with pytest.raises(ValueError, match="not an http or https URL"):
        garden.Client(url)


def test_repr_hides_secrets(garden: Any) -> None:
    bed = garden.Bed(bed_id="b", class_=None, kind="flowers", secret="s3cret")
    assert repr(bed) == "Bed(…)"
    assert "t0ken" not in repr(garden.Client("http://127.0.0.1:1", token="t0ken"))


def test_renames_conflicting_names(garden: Any) -> None:
    assert garden.ClientType.__struct_fields__ == ("a",)
    assert garden.Kind.__args__ == ("flowers", 'it\'s "green"')
    assert module_name("openapi/shop.v1.yaml") == "shop_v1_client"


@pytest.mark.parametrize(
    "document",
    [
        GARDEN,
        "openapi: 3.1.0\ninfo: {title: Empty, version: '1'}\npaths: {}\n",
    ],
)
def test_passes_linter(tmp_path: Path, document: str) -> None:
    file = tmp_path / "client.py"
    file.write_text(client_text(document), encoding="utf-8")
    config = tmp_path / "ruff.toml"
    config.write_text('line-length = 100\ntarget-version = "py311"\n')
    for command in (["format", "--check"], ["check", "--select", "E,F,I,UP"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--no-cache",
                "--config",
                str(config),
                str(file),
            ],
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_recursive_anonymous_type_ends() -> None:
    deep: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"$ref": "#/components/schemas/A"}},
    }
    more = {"type": "object", "properties": {"b": {"type": "string"}}}
    deep["properties"]["again"] = {"allOf": [{"$ref": "#/components/schemas/A"}, more]}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Deep", "version": "1"},
        "paths": {},
        "components": {"schemas": {"A": deep}},
    }
    text = "".join(make_module(document))
    assert text.count("class A") < 20
    compile(text, "deep.py", "exec")


def test_quotes_python_text() -> None:
    for text in ('a "b" \\ \n', "it's", 'it\'s "green"', "", "'", '"', "é\x00"):
        assert eval(quote_text(text)) == text
    assert quote_text("it's") == '"it\'s"'
    for text in ('ends with "', 'a """ b', "back\\slash", "x" * 300, "a " * 150):
        shown = format_docstring(text, "    ")
        assert eval(shown.strip()) is not None
        if " " in text.strip():
            assert all(len(line) <= 100 for line in shown.splitlines())
