"""URI templates: which URIs they match, in bounded time."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from interlock.protocol.uri_templates import MAX_TEMPLATE, normalize_uri, read_template

Value = str | list[str] | dict[str, str]

UNRESERVED = "-._~"
RESERVED = ":/?#[]@!$&'()*+,;="
# RFC 6570, appendix A: what an expression begins with, what separates, whether names are written,
# what stands behind a name whose value is empty, and what is not encoded.
OPERATORS = {
    "": ("", ",", False, "", UNRESERVED),
    "+": ("", ",", False, "", UNRESERVED + RESERVED),
    "#": ("#", ",", False, "", UNRESERVED + RESERVED),
    ".": (".", ".", False, "", UNRESERVED),
    "/": ("/", "/", False, "", UNRESERVED),
    ";": (";", ";", True, "", UNRESERVED),
    "?": ("?", "&", True, "=", UNRESERVED),
    "&": ("&", "&", True, "=", UNRESERVED),
}


def expand_expression(inside: str, values: Mapping[str, Value]) -> str:
    operator = inside[0] if inside[0] in OPERATORS else ""
    first, separator, named, if_empty, allowed = OPERATORS[operator]
    pieces: list[str] = []
    for spec in inside[len(operator) :].split(","):
        explode, spec = spec.endswith("*"), spec.removesuffix("*")
        name, _, length = spec.partition(":")
        value = values.get(name)
        if value is None or value == [] or value == {}:
            continue
        if isinstance(value, str):
            text = quote(value[: int(length)] if length else value, safe=allowed)
            pieces.append(_with_name(name, text, if_empty) if named else text)
        elif explode and isinstance(value, dict):
            pieces += [
                f"{quote(k, safe=allowed)}={quote(v, safe=allowed)}" for k, v in value.items()
            ]
        elif explode:
            texts = [quote(item, safe=allowed) for item in value]
            pieces += [_with_name(name, text, if_empty) if named else text for text in texts]
        else:
            members = (
                value if isinstance(value, list) else [x for pair in value.items() for x in pair]
            )
            text = ",".join(quote(member, safe=allowed) for member in members)
            pieces.append(_with_name(name, text, if_empty) if named else text)
    return first + separator.join(pieces) if pieces else ""


def _with_name(name: str, text: str, if_empty: str) -> str:
    return f"{name}={text}" if text else name + if_empty


def expand(parts: list[tuple[str, bool]], values: Mapping[str, Value]) -> str:
    """Expand the parts of a template: literals and expressions."""
    return "".join(
        expand_expression(text, values) if braces else normalize_uri(text) for text, braces in parts
    )


def matches(template: str, uri: str) -> bool:
    read = read_template(template)
    assert read is not None, template
    return read.matches(normalize_uri(uri))


# --- expand, then match ---

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.fixed_dictionaries(
    {},
    optional={
        name: texts | st.lists(texts, max_size=3) | st.dictionaries(texts, texts, max_size=3)
        for name in ("x", "y", "z")
    },
)
variables = st.sampled_from(["x", "y", "z", "x*", "y*", "x:3", "nobody"])
expressions = st.builds(
    lambda operator, names: operator + ",".join(names),
    st.sampled_from(list(OPERATORS)),
    st.lists(variables, min_size=1, max_size=3),
)
literals = st.text(
    st.sampled_from("abx/:?#&=.;%20-é ") | st.characters(exclude_categories=["Cs"]), max_size=6
).filter(lambda text: "{" not in text and "}" not in text)
parts = st.lists(
    st.tuples(literals, st.just(False)) | st.tuples(expressions, st.just(True)), max_size=6
)


def template_text(parts: list[tuple[str, bool]]) -> str:
    return "".join(f"{{{text}}}" if braces else text for text, braces in parts)


@given(parts, values)
def test_every_expansion_matches(parts: list[tuple[str, bool]], given: dict[str, Value]) -> None:
    assert matches(template_text(parts), expand(parts, given))


@given(parts, texts)
def test_other_prefix_or_suffix_does_not_match(parts: list[tuple[str, bool]], uri: str) -> None:
    template = [("begin:", False), *parts, (":end", False)]
    assume(not (normalize_uri(uri).startswith("begin:") and normalize_uri(uri).endswith(":end")))
    assert not matches(template_text(template), uri)


@given(literals, literals)
def test_template_without_variables_matches_equal_uri(one: str, other: str) -> None:
    assert matches(one, one)
    assert matches(one, other) == (normalize_uri(one) == normalize_uri(other))


# --- examples of RFC 6570, and what they are not ---

EXAMPLE: dict[str, Value] = {
    "count": ["one", "two", "three"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
}


@pytest.mark.parametrize(
    ("inside", "expansion"),
    [
        ("var", "value"),
        ("hello", "Hello%20World%21"),
        ("half", "50%25"),
        ("x,hello,y", "1024,Hello%20World%21,768"),
        ("var:3", "val"),
        ("list", "red,green,blue"),
        ("list*", "red,green,blue"),
        ("keys", "semi,%3B,dot,.,comma,%2C"),
        ("keys*", "semi=%3B,dot=.,comma=%2C"),
        ("+hello", "Hello%20World!"),
        ("+path", "/foo/bar"),
        ("+base", "http://example.com/home/"),
        ("#x,hello,y", "#1024,Hello%20World!,768"),
        ("#path:6", "#/foo/b"),
        ("#undef", ""),
        (".who,who", ".fred.fred"),
        (".list*", ".red.green.blue"),
        ("/var,x", "/value/1024"),
        ("/list*", "/red/green/blue"),
        ("/keys*", "/semi=%3B/dot=./comma=%2C"),
        ("/var,empty", "/value/"),
        (";v,empty,who", ";v=6;empty;who=fred"),
        (";list*", ";list=red;list=green;list=blue"),
        ("?x,y,empty", "?x=1024&y=768&empty="),
        ("?keys*", "?semi=%3B&dot=.&comma=%2C"),
        ("?undef,y", "?y=768"),
        ("&x,y,empty", "&x=1024&y=768&empty="),
    ],
)
def test_matches_rfc_examples(inside: str, expansion: str) -> None:
    assert expand_expression(inside, EXAMPLE) == expansion
    for before, after in (("", ""), ("a://", ""), ("", "/b"), ("a://", "/b")):
        assert matches(f"{before}{{{inside}}}{after}", before + expansion + after)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("file:///{name}", "file:///a/b"),
        ("file:///{name}", "file://a"),
        ("test://template/{id}/data", "test://template/1/2/data"),
        ("test://template/{id}/data", "test://template/1/date"),
        ("test://template/{id}/data", "test://template/data"),
        ("a{/x}", "ab"),
        ("a{/x}", "a/b/c"),
        ("a{?x}", "a&x=1"),
        ("a{?x}", "ax=1"),
        ("a{?x}", "a?x=1#here"),
        ("a{#x}", "a/x"),
        ("a{.x}", "a/x"),
        ("a{;x}", "a?x"),
        ("aa{x}aa", "aaa"),
        ("{x}-{y}", "plain"),
        ("a", "A"),
        ("", "a"),
    ],
)
def test_rejects_other_uris(template: str, uri: str) -> None:
    assert not matches(template, uri)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("{+a}x{b}", "x/x"),
        ("a{/x}{/y}{?z}{#h}", "a?z=1"),
        ("a{/x}{/y}{?z}{#h}", "a/1/2#h"),
        ("{x}{+y}", "1/2"),
        ("{x}a{y}a{z}", "aa"),
        ("{x}a{y}a{z}", "banana"),
        ("note://{title}", "note://two words, and a ?"),
        ("note://{title}", "note://größe"),
        ("größe://{x}", "gr%C3%B6%C3%9Fe://1"),
        ("", ""),
    ],
)
def test_matches_after_backtracking(template: str, uri: str) -> None:
    assert matches(template, uri)


@pytest.mark.parametrize(
    "text",
    [
        "{", "}", "a{b", "a}b", "{}", "{a{b}}", "{+}", "{a,}", "{,a}", "{*}", "{=a}", "{|a}",
        "{a}}", "{?x,}", "x" * (MAX_TEMPLATE + 1),
    ],
)  # fmt: skip
def test_rejects_invalid_template(text: str) -> None:
    assert read_template(text) is None


# --- strangers ---


@given(st.text(st.sampled_from("{}+#./;?&*,:=ax") | st.characters(), max_size=30), st.text())
def test_reads_or_rejects_any_text(text: str, uri: str) -> None:
    template = read_template(text)
    if template is not None:
        assert template.text == text
        assert template.matches(normalize_uri(uri)) in (True, False)
        assert template.cost(normalize_uri(uri)) >= 0


@pytest.mark.parametrize(
    "template", ["{a}x" * 500, "{+a}x{b}" * 200, "{/a}" * 400, "{/a}{?b}" * 200, "{x}" * 600]
)
def test_matches_any_uri_quickly(template: str) -> None:
    """A matcher that goes back would need years."""
    read = read_template(template)
    assert read is not None
    for uri in ("x" * 1000 + "\0/", "/x?x" * 250 + "#\0"):
        read.matches(normalize_uri(uri))
    assert read.cost(normalize_uri(uri)) <= len(normalize_uri(uri)) * len(template)
