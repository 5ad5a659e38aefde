"""The difference of two sets of Protobuf descriptors: what changed, where, and what it breaks.

Messages travel as bytes and as JSON, between programs of different ages: whatever changes what a
number or a name stands for breaks somebody.
"""

from __future__ import annotations

from typing import Any, Final

from interlock.catalog.contracts.changes import Change, ChangeReason
from interlock.catalog.contracts.proto_fields import diff_enums, diff_fields, diff_reserved, said
from interlock.catalog.contracts.proto_reading import (
    ProtoMethod,
    ProtoService,
    ProtoSet,
    read_descriptors,
)

_R = ChangeReason
# No side effects promises more than idempotent, and both more than nothing.
_EFFECTS: Final = {0: ("not said", 0), 1: ("none", 2), 2: ("idempotent", 1)}


def diff_descriptors(old: bytes, new: bytes) -> list[Change]:
    """What changed between two serialized FileDescriptorSets, most serious first.

    Raises InterlockError when one of them is none, or the `protobuf` package is not installed.
    """
    before, after = read_descriptors(old), read_descriptors(new)
    renamed = _renamed(before, after)
    changes: list[Change] = []
    for package, now in sorted(renamed.items()):
        sentence = f"The package {package} is called {now} now: all names in it are others."
        changes.append(Change(_R.PACKAGE_CHANGED, package, True, sentence, package, now))
    if renamed:
        before = read_descriptors(old, renamed)
    changes += _syntaxes(before, after)
    changes += _messages(before, after)
    changes += _enums(before, after)
    changes += _services(before, after)
    for extended in sorted(before.extensions.keys() | after.extensions.keys()):
        old_fields = before.extensions.get(extended, {})
        new_fields = after.extensions.get(extended, {})
        changes += diff_fields("", old_fields, new_fields)
    return sorted(changes, key=lambda one: (not one.breaking, one.path, one.reason))


def _renamed(old: ProtoSet, new: ProtoSet) -> dict[str, str]:
    """Packages that have another name: those of the same file, or the only one on either side."""
    renamed = {
        package: new.packages[file]
        for file, package in old.packages.items()
        if file in new.packages and new.packages[file] != package
    }
    gone = set(old.packages.values()) - set(new.packages.values()) - set(renamed)
    come = set(new.packages.values()) - set(old.packages.values()) - set(renamed.values())
    if not renamed and len(gone) == len(come) == 1:
        renamed[gone.pop()] = come.pop()
    return renamed


def _syntaxes(old: ProtoSet, new: ProtoSet) -> list[Change]:
    changes: list[Change] = []
    for file in sorted(old.syntaxes.keys() & new.syntaxes.keys()):
        was, now = old.syntaxes[file], new.syntaxes[file]
        if was != now:
            # To editions every difference that matters shows at the fields and enums themselves.
            breaks = "editions" not in (was, now)
            sentence = f"It was {was}, and is {now} now."
            changes.append(Change(_R.SYNTAX_CHANGED, file, breaks, sentence, was, now))
    return changes


def _messages(old: ProtoSet, new: ProtoSet) -> list[Change]:
    changes: list[Change] = []
    for name in sorted(old.messages.keys() | new.messages.keys()):
        if name not in new.messages:
            changes.append(Change(_R.MESSAGE_REMOVED, name, True, f"The message {name} is gone."))
        elif name not in old.messages:
            changes.append(Change(_R.MESSAGE_ADDED, name, False, f"The message {name} is new."))
        else:
            before, after = old.messages[name], new.messages[name]
            changes += said(name, before, after)
            changes += diff_reserved(name, before.reserved, after.reserved)
            changes += diff_fields(
                name,
                {one.name: one for one in before.fields},
                {one.name: one for one in after.fields},
                before.reserved,
                after.reserved,
            )
    return changes


def _enums(old: ProtoSet, new: ProtoSet) -> list[Change]:
    changes: list[Change] = []
    for name in sorted(old.enums.keys() | new.enums.keys()):
        if name not in new.enums:
            changes.append(Change(_R.ENUM_REMOVED, name, True, f"The enum {name} is gone."))
        elif name not in old.enums:
            changes.append(Change(_R.ENUM_ADDED, name, False, f"The enum {name} is new."))
        else:
            changes += diff_enums(name, old.enums[name], new.enums[name])
    return changes


def _services(old: ProtoSet, new: ProtoSet) -> list[Change]:
    changes: list[Change] = []
    for name in sorted(old.services.keys() | new.services.keys()):
        if name not in new.services:
            changes.append(Change(_R.SERVICE_REMOVED, name, True, f"The service {name} is gone."))
        elif name not in old.services:
            changes.append(Change(_R.SERVICE_ADDED, name, False, f"The service {name} is new."))
        else:
            changes += _service(name, old.services[name], new.services[name])
    return changes


def _service(name: str, old: ProtoService, new: ProtoService) -> list[Change]:
    changes = said(name, old, new)
    for method in sorted(old.methods.keys() | new.methods.keys()):
        path = f"{name}.{method}"
        if method not in new.methods:
            changes.append(Change(_R.METHOD_REMOVED, path, True, f"The method {method} is gone."))
        elif method not in old.methods:
            changes.append(Change(_R.METHOD_ADDED, path, False, f"The method {method} is new."))
        else:
            changes += _method(path, old.methods[method], new.methods[method])
    return changes


def _method(path: str, old: ProtoMethod, new: ProtoMethod) -> list[Change]:
    changes = said(path, old, new)
    for side, was, now in (("takes", old.input, new.input), ("returns", old.output, new.output)):
        if was != now:
            sentence = f"It {side} {now}, and not {was} any more."
            changes.append(Change(_R.METHOD_SIGNATURE_CHANGED, path, True, sentence, was, now))
    streams: tuple[tuple[str, Any, Any], ...] = (
        ("requests", old.client_streaming, new.client_streaming),
        ("responses", old.server_streaming, new.server_streaming),
    )
    for side, was, now in streams:
        if was != now:
            sentence = f"It has {'a stream of' if now else 'no longer a stream of'} {side}."
            changes.append(Change(_R.METHOD_STREAMING_CHANGED, path, True, sentence, was, now))
    (was, promised), (now, promises) = (
        _EFFECTS.get(one.idempotency, _EFFECTS[0]) for one in (old, new)
    )
    if was != now:
        raised = promises < promised
        sentence = f"Its side effects were {was}, and are {now} now."
        reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
        changes.append(Change(reason, path, raised, sentence, was, now))
    return changes
