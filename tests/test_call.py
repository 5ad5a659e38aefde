"""What a call and its parts show of themselves, in a log or a traceback."""

from __future__ import annotations

import io

from msgspec import Raw
from rich.console import Console
from rich.pretty import Pretty

from interlock.core.call import Call, Caller, Credentials
from interlock.trust.hop_tokens import _CachedToken
from tests.support.calls import SESSION

SECRET = "s3cret-of-somebody"


def shown(value: object) -> str:
    """In every way that somebody may write it down."""
    console = Console(file=io.StringIO(), width=200)
    console.print(Pretty(value))
    assert isinstance(console.file, io.StringIO)
    return f"{value} {value!r} {[value]} {console.file.getvalue()}"


def test_no_token_is_shown() -> None:
    credentials = Credentials(
        "192.0.2.7", SECRET, certificate_names=("a.example",), hop_token=SECRET
    )
    text = shown(credentials)
    assert SECRET not in text
    assert "192.0.2.7" in text
    assert "a.example" in text
    assert "bearer=None" in repr(Credentials("local"))


def test_nothing_that_a_caller_sent_is_shown() -> None:
    raw = Raw(f'"{SECRET}"'.encode())
    call = Call(
        "tools/call", "http", Credentials("local", SECRET), SESSION, "vault.open",
        arguments=bytes(raw), meta={"x-mcpax-authorization": raw}, extra_params={"proof": raw},
    )  # fmt: skip
    call.caller = Caller("ci")
    call.decoded_arguments = {"password": SECRET}
    text = shown(call)
    assert SECRET not in text
    for said in ("tools/call", "vault.open", "ci"):
        assert said in text


def test_a_token_for_the_next_hop_is_not_shown() -> None:
    assert SECRET not in shown(_CachedToken(SECRET.encode(), 1.0, 2.0, Caller("ci")))
