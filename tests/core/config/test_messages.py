"""The exact messages for mistakes in a config file."""

from __future__ import annotations

import pytest

from interlock.core.config import ConfigError, parse_config
from interlock.core.config.feature_sections import section_definitions

KEYS_OF_CORE = (
    "allowed_hosts", "allowed_origins", "approvals", "breaker", "budgets", "busy_poll", "identity",
    "input_timeout", "journal", "latency_in_results", "limits", "listen", "names", "page_size",
    "path", "pins", "policy", "root_segment", "servers", "state_dir", "timeout", "tls", "tokens",
    "unannotated",
)  # fmt: skip
KEYS_OF_FEATURES = [definition.struct.KEY for definition in section_definitions()]
KEYS_OF_A_NODE = f"the keys here are {', '.join(sorted([*KEYS_OF_CORE, *KEYS_OF_FEATURES]))}"
DURATION = "write it as 250ms, 30s, 5m, 1h or 7d, or as a plain number of seconds"
SIZE = "write it as 512KiB or 4MiB, or as a plain number of bytes"
LISTEN = "write host:port, such as 127.0.0.1:8420 or [::1]:8420, or a port"
REFERENCE = "write ${env:NAME}, ${env:NAME:-default} or ${file:path}, and $${ for a literal ${"
NEEDED = "a server needs url or command; add url: http://host/path, or command: PROGRAM"
NOT_A_URL = "this is not a URL of an MCP server; write http://host:port/path or https://host/path"

MISTAKES = {
    # Keys.
    "listn: x": '1:1: listn: unknown key; did you mean "listen"?',
    "zebra: 1": f"1:1: zebra: unknown key; {KEYS_OF_A_NODE}",
    "mcpServers: {}": (
        "1:1: mcpServers: unknown key; read a config of an MCP client: `interlock import FILE`"
    ),
    "servers:\n  a:\n    comand: run": (
        '3:5: servers.a.comand: unknown key; did you mean "command"?'
    ),
    "servers:\n  a: {url: http://x, type: sse}": (
        '2:22: servers.a.type: unknown key; did you mean "transport"?'
    ),
    "limits:\n  body: 1": '2:3: limits.body: unknown key; did you mean "body_bytes"?',
    "page_size: 1\npage_size: 2": (
        "2:1: page_size: this key is already set on line 1; keep one of the two"
    ),
    "? [a]\n: 1": "1:3: this key is not text; write a key and a colon",
    # Types.
    "[1, 2]": "1:1: expected keys and values, found a list; write lines such as servers:",
    "just text": "1:1: expected keys and values, found text; write lines such as servers:",
    "breaker: 5": "1:1: breaker: expected keys and values, found a number; write its keys below it",
    "servers: [a]": (
        "1:1: servers: expected keys and values, found a list; write key: value lines"
    ),
    "allowed_hosts: a": (
        "1:1: allowed_hosts: expected a list, found text; "
        "write [a, b], or one line with a dash for each"
    ),
    "listen: 84.2": "1:1: listen: expected text, found a number; put it in quotes",
    "listen: 99999": '1:1: listen: "99999" is not a port; use a number from 0 to 65535',
    "listen: [a]": "1:1: listen: expected text, found a list; write one value",
    "listen:": "1:1: listen: there is no value here; write a value, or remove the key",
    "page_size: many": "1:1: page_size: expected a whole number, found text; write digits only",
    "page_size: 1_000": "1:1: page_size: expected a whole number, found text; write 1000",
    "page_size: 1.5": "1:1: page_size: expected a whole number, found a number; write digits only",
    "page_size: -1": "1:1: page_size: this must be at least 0; write 0 or more",
    "page_size: 123456789012345678901234567890": (
        "1:1: page_size: this number is too long; write a smaller one"
    ),
    "page_size: .inf": "1:1: page_size: a finite number is needed here; write a smaller one",
    "journal: {enabled: yes}": (
        "1:11: journal.enabled: expected true or false, found text; write true or false"
    ),
    "names: snake": '1:1: names: "snake" is not one of the choices; write auto, dotted or safe',
    "names: [safe]": "1:1: names: a list is not one of the choices; write auto, dotted or safe",
    'servers: {a: {url: http://x, deny: [""]}}': (
        "1:37: servers.a.deny[0]: the text is empty; write a text, or remove the key"
    ),
    # Durations and sizes.
    "timeout: 5 minutes": f'1:1: timeout: "5 minutes" is not a duration; {DURATION}',
    "timeout: 0": f"1:1: timeout: a duration must be more than zero here; {DURATION}",
    "timeout: -1": f"1:1: timeout: a duration must be more than zero here; {DURATION}",
    "timeout: true": (
        "1:1: timeout: expected a number with a unit, found true or false; write one such as 30s"
    ),
    "servers: {a: {url: http://x, grace: -1}}": (
        f"1:30: servers.a.grace: a duration must be zero or more here; {DURATION}"
    ),
    "limits: {body_bytes: 4 megs}": (
        f'1:10: limits.body_bytes: "4 megs" is not a size; {SIZE}'
    ),
    "limits: {body_bytes: 0}": (
        f"1:10: limits.body_bytes: a size must be a whole number of bytes, at least 1; {SIZE}"
    ),
    # Addresses and names.
    "listen: localhost": f'1:1: listen: "localhost" is not an address to listen on; {LISTEN}',
    'listen: "::1:8420"': f'1:1: listen: "::1:8420" is not an address to listen on; {LISTEN}',
    "listen: localhost:99999": (
        '1:1: listen: "99999" is not a port; use a number from 0 to 65535'
    ),
    "listen: 0.0.0.0:8420": (
        "1:1: listen: 0.0.0.0:8420 is reachable from other machines, and there is no token; "
        'add this line: tokens: [{name: me, token: "${env:INTERLOCK_TOKEN}"}]'
    ),
    "path: mcp": (
        '1:1: path: "mcp" is not a path; write it with a slash in front, such as /mcp'
    ),
    "root_segment: A B": (
        '1:1: root_segment: "A B" is not a segment; use 1 to 63 of a-z, 0-9, _ and -'
    ),
    "allowed_origins: [app.example.com]": (
        '1:19: allowed_origins[0]: "app.example.com" is not an origin; '
        "write scheme://host, such as https://app.example.com"
    ),
    'allowed_hosts: ["http://a"]': (
        '1:17: allowed_hosts[0]: "http://a" is not a host; '
        "write a host name or address, and :port if needed"
    ),
    # Servers.
    "servers:\n  a:": (
        "2:3: servers.a: the section is empty; write a URL, a command line or its keys"
    ),
    "servers:\n  a: 5": (
        "2:3: servers.a: expected a URL, a command line or keys, found a number; "
        "put a command line in quotes"
    ),
    "servers:\n  a: {}": f"2:3: servers.a: {NEEDED}",
    "servers:\n  a: {enabled: false}": f"2:3: servers.a: {NEEDED}",
    "servers:\n  a:\n    url: http://x\n    command: run": (
        "4:5: servers.a.command: a server has either url or command, not both; remove one"
    ),
    "servers:\n  a: {url: http://x, env: {A: b}}": (
        "2:22: servers.a.env: env is for a server with command; remove it"
    ),
    "servers:\n  a: {command: run, headers: {A: b}}": (
        "2:21: servers.a.headers: headers is for a server with url; remove it"
    ),
    "servers:\n  a: {url: http://x, transport: stdio}": (
        "2:22: servers.a.transport: stdio needs command; write auto, http or sse"
    ),
    "servers:\n  a: {command: run, transport: sse}": (
        "2:21: servers.a.transport: sse needs url; write auto, stdio or ax"
    ),
    'servers:\n  "a\\nb": http://x': (
        '2:3: servers."a\\nb": "a\\nb" cannot be the name of a server; '
        "use up to 100 printable characters"
    ),
    "servers:\n  a: ws://x": (
        "2:3: servers.a: only http:// and https:// URLs can be used; "
        "write a http(s) URL or a command line"
    ),
    "servers:\n  a: http://": f"2:3: servers.a: {NOT_A_URL}",
    "servers:\n  a: http://x:port/": f"2:3: servers.a: {NOT_A_URL}",
    "servers:\n  a: {url: ftp://x}": f"2:7: servers.a.url: {NOT_A_URL}",
    "servers:\n  a: KEY=abc run": (
        "2:3: servers.a: a command line cannot set variables: it is not run by a shell; "
        "use the long form, with command and env"
    ),
    "servers:\n  a: run 'x": (
        "2:3: servers.a: a quote in this command line is not closed; "
        "close it, or use command and args"
    ),
    'servers:\n  a: " "': (
        "2:3: servers.a: there is no command here; write a URL or a command line"
    ),
    "servers:\n  a: {url: http://x, segment: A}": (
        '2:22: servers.a.segment: "A" is not a segment; use 1 to 63 of a-z, 0-9, _ and -'
    ),
    "servers:\n  My Server: http://x\n  my-server: http://y": (
        '3:3: servers.my-server: the server "My Server" already has the segment '
        '"my-server"; add segment: with another name'
    ),
    "servers:\n  a: http://x\n  b: {url: http://y, segment: a}": (
        '3:22: servers.b.segment: the server "a" already has the segment "a"; '
        "add segment: with another name"
    ),
    "servers:\n  日本: http://x": (
        '2:3: servers."\\u65e5\\u672c": this key cannot be converted to a segment; '
        "add segment: NAME, of a-z, 0-9, _ and -"
    ),
    "servers:\n  a: {url: http://x, expose: transparent}\n  b: http://y": (
        "2:22: servers.a.expose: transparent is for a single server, and 1 more is enabled; "
        "write expose: prefixed, or enabled: false for the others"
    ),
    "servers:\n  a: {url: http://x, rename: {b: c d}}": (
        '2:31: servers.a.rename.b: "c d" is not a tool name; '
        "use 1 to 128 of letters, digits, _, - and ."
    ),
    "servers:\n  a: {url: http://x, effects: {b: harmless}}": (
        '2:32: servers.a.effects.b: "harmless" is not one of the choices; '
        "write additive, irreversible, mutating or read_only"
    ),
    "servers:\n  a: {url: http://x, headers: {A b: c}}": (
        '2:32: servers.a.headers."A b": "A b" is not the name of a header; '
        "use letters, digits and -"
    ),
    "servers:\n  a: {command: run, env: {A=B: c}}": (
        '2:27: servers.a.env."A=B": "A=B" is not the name of a variable; use A-Z, 0-9 and _'
    ),
    "servers:\n  a: {command: run, env: {A: [1]}}": (
        "2:27: servers.a.env.A: expected text, found a list; write one value"
    ),
    # References and tokens.
    "servers:\n  a: run ${TOKEN}": (
        "2:3: servers.a: ${TOKEN} is not a reference; write ${env:TOKEN}"
    ),
    "servers:\n  a: {command: run, args: ['${env:X']}": (
        f"2:28: servers.a.args[0]: a reference is not closed with }}; {REFERENCE}"
    ),
    "servers:\n  a: {command: run, args: ['${env:X:-${env:Y}}']}": (
        f"2:28: servers.a.args[0]: a reference cannot contain another reference; {REFERENCE}"
    ),
    "servers:\n  a: {command: run, cwd: '${vault:x}'}": (
        f"2:21: servers.a.cwd: ${{…}} contains no reference; {REFERENCE}"
    ),
    "tokens: [{name: a}]": "1:10: tokens[0]: token is missing; add token",
    "tokens: [{name: a, token: hunter2}]": (
        "1:20: tokens[0].token: the secret itself is not allowed here; "
        "refer to it with ${env:NAME}"
    ),
    "tokens: [{name: a, token: '${env:A:-hunter2}'}]": (
        "1:20: tokens[0].token: the secret itself is not allowed here, nor a default for it; "
        "write ${env:A}, and set A before the node starts"
    ),
    "tokens: [{name: a, token: '${env:A'}]": (
        "1:20: tokens[0].token: a reference is not closed with }; write ${env:NAME} or ${file:path}"
    ),
    "tokens: [{name: a, token: '${A}'}]": (
        "1:20: tokens[0].token: ${A} is not a reference; write ${env:A}"
    ),
    "tokens: [~]": "1:10: tokens[0]: the section is empty; write its keys",
    'tokens: [{name: a, token: "${env:A}"}, {name: a, token: "${env:B}"}]': (
        '1:41: tokens[1].name: another token has the name "a"; use unique names'
    ),
    # YAML itself.
    "servers:\n\ta: b": "2:1: a tab stands where YAML needs spaces; use spaces",
    "allowed_hosts: [*.example.com]": (
        "1:17: * at the start of a value means an alias in YAML, and there is none; "
        "put the value in quotes"
    ),
    "path: &": "1:7: & at the start of a value means an anchor in YAML; put the value in quotes",
    "path: !x y": (
        "1:1: path: ! at the start of a value means a tag in YAML; put the value in quotes"
    ),
    "journal: {enabled: !!bool maybe}": (
        "1:11: journal.enabled: ! at the start of a value means a tag in YAML; "
        "put the value in quotes"
    ),
    "servers: !!null {a: http://x}": (
        "1:1: servers: ! at the start of a value means a tag in YAML; put the value in quotes"
    ),
    "!x {path: /a}": (
        "1:1: ! at the start of a value means a tag in YAML; put the value in quotes"
    ),
    "path: !x!y z": (
        "1:7: ! at the start of a value means a tag in YAML; put the value in quotes"
    ),
    "path: @x": "1:7: text cannot start with this character; put the value in quotes",
    'path: "/x': "1:7: a quote is opened and not closed; close it where the value ends",
    'path: "\\q"': r"1:9: this is not an escape that YAML knows; write a backslash as \\",
    "path: a: b": (
        "1:8: there is one colon too many here, or the line above is not finished; "
        "put a value that contains a colon and a space in quotes, and line keys up"
    ),
    "path: /a\nlisten\nnames: safe": (
        '2:1: this line is not of the form "key: value"; add the colon and a space after the key'
    ),
    "servers:\n    a: http://x\n  b: http://y": (
        "3:3: this line does not line up with the ones above; "
        "indent all keys of one block by the same number of spaces"
    ),
    "servers: {a: b": "1:10: a { or [ is opened and not closed; close it with } or ]",
    "path: /a\n---\npath: /b": "2:1: the file holds more than one document; remove the line ---",
    "{path: /a} }": (
        "1:12: this does not belong to what stands above; "
        "check the brackets and the indentation above"
    ),
    "%YAML nope\n": "1:7: a line that starts with % is a YAML directive; remove it",
    "path: /\x07": (
        "1:8: the character U+0007 is not allowed in YAML text; "
        "remove it, or write it as an escape"
    ),
    'path: "\\ud800"': "1:1: path: this text has half a surrogate pair; check its escapes",
    "a: " + "[" * 50: "1:35: this is nested too deeply; use fewer levels",
    'path: "\\UFFFFFFFF"': "the file contains an invalid escape or number; remove it",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"), MISTAKES.items(), ids=[repr(text) for text in MISTAKES]
)
def test_reports_exact_message_for_each_mistake(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "interlock.yaml")
    separator = ":" if message[0].isdigit() else ": "
    assert str(caught.value) == f"interlock.yaml{separator}{message}"
    assert all(problem.hint for problem in caught.value.problems)


def test_reports_all_problems_in_file_order() -> None:
    text = """
tokns: []
servers:
  b: {url: http://x, timeout: soon}
  a:
    comand: run
  b: http://y
names: none
listen: 0.0.0.0:1
"""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml")
    assert str(caught.value).splitlines() == [
        'f.yaml:2:1: tokns: unknown key; did you mean "tokens"?',
        f'f.yaml:4:22: servers.b.timeout: "soon" is not a duration; {DURATION}',
        'f.yaml:6:5: servers.a.comand: unknown key; did you mean "command"?',
        "f.yaml:7:3: servers.b: this key is already set on line 4; keep one of the two",
        'f.yaml:8:1: names: "none" is not one of the choices; write auto, dotted or safe',
        "f.yaml:9:1: listen: 0.0.0.0:1 is reachable from other machines, and there is no token; "
        'add this line: tokens: [{name: me, token: "${env:INTERLOCK_TOKEN}"}]',
    ]


@pytest.mark.parametrize(
    "text",
    [
        "tokens: [{name: a, token: hunter2}]",
        "tokens: [{name: a, token: *hunter2}]",
        "tokens: [{name: a, token: !hunter2 x}]",
        "tokens: [{name: a, token: !hunter2!x y}]",
        "tokens: [{name: a, token: @hunter2}]",
        "tokens: [{name: a, token: &hunter2}]",
        "tokens: [{name: a, token: hunter2: x}]",
        'tokens: [{name: a, token: "hunter2}]',
        "tokens: [{name: a, token: 'ab${hunter2}'}]",
        "servers: {a: {command: run, env: {PASSWORD: [hunter2]}}}",
        "servers: {a: {command: run, env: {PASSWORD: 'x${hunter2'}}}",
        "servers: {a: {url: http://me:hunter2@x:y/}}",
        "servers: {a: {url: 'ftp://x/?key=hunter2'}}",
        "servers: {a: TOKEN=hunter2 run}",
        "servers: {a: run --token 'hunter2}",
    ],
)
def test_messages_contain_no_secrets(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.data)


def test_rejects_alias_expansion_bomb() -> None:
    items = ", ".join(f"k{n}: v" for n in range(500))
    aliases = "\n".join(f"  s{n}: {{command: run, env: *big}}" for n in range(500))
    text = f"servers:\n  a: {{command: run, env: &big {{{items}}}}}\n{aliases}\n"
    with pytest.raises(ConfigError, match="more than 200000 values"):
        parse_config(text)
