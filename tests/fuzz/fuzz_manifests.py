"""Front matter and manifests: any text is a manifest or has problems, and both ways of reading YAML
say the same."""

from __future__ import annotations

from pathlib import Path

from interlock.core.config.problems import ConfigError
from interlock.manifests import document
from interlock.manifests.driver_reader import parse_driver
from interlock.manifests.secrets_reader import parse_inventory
from interlock.manifests.tool_reader import parse_contract

_DRIVER = b"""---
name: Files
id: files-mcp
description: Reads files.
version: 1.0.0
kind: mcp
server: {kind: npm, package: "@scope/name", args: ["."]}
transport: stdio
implements:
  - tool: fs-read
    version: "^1.0.0"
    metadata: {mcp: {tool_name: read_file, argument_mapping: {path: path}}}
---
"""
_TOOL = b"""---
name: Read
id: fs.read
description: |
  Reads a file.
version: 1.0.0
inputs: {type: object, properties: {path: {$ref: "#/$defs/path"}}, $defs: {path: {type: string}}}
outputs: {type: object}
mutates: []
---
body
"""
_SECRETS = b"""---
secrets:
  - slug: acme-api-key
    name: Key
    description: >-
      Of Acme.
    audit: {retention: 7y, pii: false}
---
"""
SEEDS = [
    _DRIVER,
    _TOOL,
    _SECRETS,
    b"---\na: [1, 2.5, -3, 0x1F, 0o17, .5, 1e3, true, null, ~, yes, 12:30]\nb: 'x''y'\n---\n",
    b"---\na: &x {b: 1}\nc: *x\n? d\n: e\n---\n",
    b"---\n- a\n- - b\n  - c\n---\n",
    b'---\na: "\\u0041\\n"\nb: !!str 5\nc: ! 6\n---\n',
    b"\xef\xbb\xbf---\r\na: b # c\r\n---\r\n",
    b'---\na: {b: c, d: [e, f: g]}\nh: "i\n  j"\nk: l\n  m\n---\n',
    b"---\nn: |+\n  o\n\n\np: >\n q\n r\n\"s\": 't'\n---\n",
    b"---\na: b\na: c\n---\n",
    b"---\na:\tb\n---\n",
    b"---\n%YAML 1.1\n...\n---\n",
    b"---\n" + b"[" * 40 + b"]" * 40 + b"\n---\n",
]


def TestOneInput(data: bytes) -> None:
    """Nothing but a reading or a ConfigError, and the quick way agrees with the slow one."""
    text = data.decode("utf-8", "surrogateescape")
    file = Path("x/DRIVER.md")
    for parse in (parse_driver, parse_contract, parse_inventory):
        reading = parse(text, file)
        assert (reading.value is None) == bool(reading.problems)
        assert all(problem.message and problem.file for problem in reading.problems)
    quick, slow = _read(text), _read(text, slowly=True)
    assert quick == slow, (quick, slow)


def _read(text: str, *, slowly: bool = False) -> object:
    """The values and the places of some of them, or that there are problems."""
    quick = document._compose_fast
    if slowly:
        document._compose_fast = None
    try:
        found = document.read_document(text, "x")
    except ConfigError:
        return "problems"
    finally:
        document._compose_fast = quick
    return repr(found.value), [found.position((key,)) for key in found.value]
