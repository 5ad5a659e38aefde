"""URI templates: any text is a template or none, and any URI matches it or does not."""

from __future__ import annotations

from interlock.protocol.uri_templates import normalize_uri, read_template

SEEDS = [
    b"file:///{path}\nfile:///a",
    b"test://{id}/data\ntest://1/data",
    b"{+a}x{b}\nx/x",
    b"a{/x*}{?y,z}{#h}\na/1/2?y=1#h",
    b"{;x:3,y*}{.z}{&q}\n;x=abc;y=1.z&q=2",
    b"{\n}",
    b"{}{,}{=a}\n",
    b"caf\xc3\xa9://{x}\ncaf%C3%A9:// %",
    b"{a}x" * 100 + b"\n" + b"x" * 400,
]


def TestOneInput(data: bytes) -> None:
    """The first line is a template, the rest a URI."""
    text, _, uri = data.decode("utf-8", "surrogateescape").partition("\n")
    template = read_template(text)
    if template is None:
        return
    asked = normalize_uri(uri)
    assert normalize_uri(asked) == asked
    matched = template.matches(asked)
    if "{" not in text:
        assert matched == (normalize_uri(text) == asked)
    if matched:
        # A catch-all around it can only match more.
        wider = read_template("{+before}" + text + "{+after}")
        assert wider is None or wider.matches(asked)
