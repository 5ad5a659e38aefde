"""Adding a server to a config file: the rest of the text does not change."""

from __future__ import annotations

import pytest

from interlock.core.config import ConfigError, ServerConfig, add_server, parse_config

URL = ServerConfig(url="http://new/mcp")
LONG = ServerConfig(command="run", args=["-x"], env={"A": "${env:A}"}, timeout=300.0)


def test_adds_server_below_last_and_keeps_comments() -> None:
    text = """\
# my node
listen: localhost:1   # here

servers:
  # the tracker
  jira: http://jira   # a URL
  files:
    command: run
    args: [a, b]   # two
  # old: http://old

# the end
names: safe
"""
    assert (
        add_server(text, "new", LONG)
        == """\
# my node
listen: localhost:1   # here

servers:
  # the tracker
  jira: http://jira   # a URL
  files:
    command: run
    args: [a, b]   # two
  # old: http://old
  new:
    command: run
    args: [-x]
    env:
      A: ${env:A}
    timeout: 5m

# the end
names: safe
"""
    )


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", "servers:\n  new: http://new/mcp\n"),
        ("# only a comment", "# only a comment\nservers:\n  new: http://new/mcp\n"),
        ("---\n", "---\nservers:\n  new: http://new/mcp\n"),
        ("names: safe\n", "names: safe\nservers:\n  new: http://new/mcp\n"),
        ("names: safe", "names: safe\nservers:\n  new: http://new/mcp\n"),
        ("servers:\n", "servers:\n  new: http://new/mcp\n"),
        ("servers: # none\npath: /\n", "servers: # none\n  new: http://new/mcp\npath: /\n"),
        ("servers: {} # none\npath: /\n", "servers: # none\n  new: http://new/mcp\npath: /\n"),
        ("servers: null\n", "servers:\n  new: http://new/mcp\n"),
        ("servers: ~", "servers:\n  new: http://new/mcp\n"),
        ("servers:\n    a: http://a\n", "servers:\n    a: http://a\n    new: http://new/mcp\n"),
        ("servers:\n  a: http://a", "servers:\n  a: http://a\n  new: http://new/mcp\n"),
        (
            "servers:\n  a: http://a\n\n\nnames: safe\n",
            "servers:\n  a: http://a\n  new: http://new/mcp\n\n\nnames: safe\n",
        ),
        (
            "servers:\r\n  a: http://a\r\nnames: safe\r\n",
            "servers:\r\n  a: http://a\r\n  new: http://new/mcp\r\nnames: safe\r\n",
        ),
        (
            "servers: {a: http://a}\nnames: safe\n",
            'servers: {a: http://a, "new": "http://new/mcp"}\nnames: safe\n',
        ),
        (
            "servers:\n  a:\n    command: run\n    args:\n    - x\n    - y # last\nnames: safe\n",
            "servers:\n  a:\n    command: run\n    args:\n    - x\n    - y # last\n"
            "  new: http://new/mcp\nnames: safe\n",
        ),
        (
            "servers:\n  a:\n    url: http://a\n    description: |\n      two\n      lines\n\n"
            "names: safe\n",
            "servers:\n  a:\n    url: http://a\n    description: |\n      two\n      lines\n\n"
            "  new: http://new/mcp\nnames: safe\n",
        ),
        (
            "servers:\n  a: &a {url: http://a}\n  b: {url: http://b, segment: c}\n",
            "servers:\n  a: &a {url: http://a}\n  b: {url: http://b, segment: c}\n"
            "  new: http://new/mcp\n",
        ),
        (
            "servers:\n  a: {command: x, env: &e {A: b}}\n  c:\n    command: y\n    env: *e # x\n",
            "servers:\n  a: {command: x, env: &e {A: b}}\n  c:\n    command: y\n    env: *e # x\n"
            "  new: http://new/mcp\n",
        ),
        ("{}", '{"servers": {"new": "http://new/mcp"}}'),
        ('{"servers": null}', '{"servers": {"new": "http://new/mcp"}}'),
        ('{"servers": {}}', '{"servers": {"new": "http://new/mcp"}}'),
        (
            '{\n  "servers": {\n    "a": "http://a"\n  }\n}\n',
            '{\n  "servers": {\n    "a": "http://a",\n    "new": "http://new/mcp"\n  }\n}\n',
        ),
        (
            '{\n  "names": "safe"\n}\n',
            '{\n  "names": "safe",\n  "servers": {"new": "http://new/mcp"}\n}\n',
        ),
    ],
)  # fmt: skip
def test_adds_server_in_every_layout(text: str, edited: str) -> None:
    assert add_server(text, "new", URL) == edited
    before, after = parse_config(text).servers, parse_config(edited).servers
    assert list(after) == [*before, "new"]


def test_rejects_duplicate_server_key() -> None:
    with pytest.raises(ConfigError) as caught:
        add_server("servers: {a: http://a}", "a", URL, "my.yaml")
    assert str(caught.value) == 'my.yaml: there is already a server "a"; choose another name'


def test_rejects_duplicate_segment_with_line() -> None:
    with pytest.raises(
        ConfigError, match=r'yaml:3:3: servers.A: the server "a" already has the segment "a"'
    ):
        add_server("servers:\n  a: http://a\n", "A", URL)


def test_rejects_edit_of_invalid_file() -> None:
    with pytest.raises(ConfigError, match="listn: unknown key"):
        add_server("listn: x\n", "a", URL)


def test_rejects_invalid_server() -> None:
    with pytest.raises(ConfigError, match="a server needs url or command"):
        add_server("", "a", ServerConfig())
    with pytest.raises(ConfigError, match="transparent is for a single server"):
        add_server(
            "servers: {a: http://a}", "b", ServerConfig(url="http://b", expose="transparent")
        )


def test_rejects_unusual_layout() -> None:
    with pytest.raises(ConfigError) as caught:
        add_server("names: safe\n...\n", "a", URL, "my.yaml")
    assert str(caught.value) == (
        "my.yaml: the layout of this file is too unusual to be edited safely; "
        'add the server "a" below servers: yourself'
    )
