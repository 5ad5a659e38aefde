"""Reads the prompts, resources and templates that an upstream lists, and keeps what can be used.

What would make a client refuse a whole list is set aside. Everything else stays as it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from interlock.catalog import names
from interlock.catalog.set_aside import SetAsides, take_apart, usable, without_nulls
from interlock.protocol.jsonrpc import NULL, decode_members, encode_value

MAX_URI: Final = 8192
"""A URI travels in a header, which has its limits too."""


class _Argument(msgspec.Struct, gc=False):
    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class PromptEntry(msgspec.Struct, gc=False):
    """The members of a prompt that the node reads."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[_Argument] | None = None


class _About(msgspec.Struct, gc=False, rename="camel"):
    """What a resource and a template have in common."""

    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: dict[str, Raw] | None = None


class _ResourceEntry(_About, gc=False, rename="camel", kw_only=True):
    uri: str
    size: int | float | None = None


class _TemplateEntry(_About, gc=False, rename="camel", kw_only=True):
    uri_template: str


_decode_prompt = msgspec.json.Decoder(PromptEntry).decode
_decode_resource = msgspec.json.Decoder(_ResourceEntry).decode
_decode_template = msgspec.json.Decoder(_TemplateEntry).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode


class ReadPrompt(NamedTuple):
    """A prompt that is to be shown, before it has its names."""

    entry: PromptEntry
    members: dict[str, Raw]
    """All but the name."""


class ReadUri(NamedTuple):
    """A resource or a template that is to be shown."""

    uri: str
    members: dict[str, Raw]
    """All but the URI."""


def sift_prompts(entries: Iterable[Raw | bytes], set_aside: SetAsides) -> list[ReadPrompt]:
    """The prompts that are to be shown, in their order."""
    return usable(entries, set_aside, _read_prompt, lambda read: read.entry.name)


def sift_resources(entries: Iterable[Raw | bytes], set_aside: SetAsides) -> list[ReadUri]:
    """The resources that are to be shown, in their order."""

    def read(raw: bytes) -> ReadUri:
        entry, members = take_apart(raw, _decode_resource, "uri", MAX_URI)
        return ReadUri(entry.uri, members)

    return usable(entries, set_aside, read, lambda one: one.uri)


def sift_templates(entries: Iterable[Raw | bytes], set_aside: SetAsides) -> list[ReadUri]:
    """The templates that are to be shown, in their order."""

    def read(raw: bytes) -> ReadUri:
        entry, members = take_apart(raw, _decode_template, "uriTemplate", MAX_URI)
        return ReadUri(entry.uri_template, members)

    return usable(entries, set_aside, read, lambda one: one.uri)


def _read_prompt(raw: bytes) -> ReadPrompt:
    entry, members = take_apart(raw, _decode_prompt, "name", names.MAX_OWN)
    arguments = members.get("arguments")
    if arguments is not None and NULL in bytes(arguments):
        cleaned = [without_nulls(decode_members(one)) for one in _decode_list(arguments)]
        members["arguments"] = Raw(encode_value(cleaned))
    return ReadPrompt(entry, members)
