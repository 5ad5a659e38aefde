"""The node that a subserver registers with, as its author names it: checked, with an id there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final

from interlock.channels.channel import Channel
from interlock.channels.dial import dial
from interlock.channels.lines import over_stdio
from interlock.core.config import ConfigError
from interlock.core.config.problems import BadValue
from interlock.core.config.quantities import check_parent_url
from interlock.core.instance_lock import alone
from interlock.core.paths import make_private, state_home
from interlock.protocol import mcpax as ax
from interlock.tree.config import ParentConfig
from interlock.tree.registrant import Dial, check_presented
from interlock.tree.store import TreeStore

STDIO: Final = "stdio:"
"""The address of the node that started this program."""
_FIELDS: Final = (
    "token", "authority", "authority_key", "ca", "certificate", "key", "heartbeat",
)  # fmt: skip


def parent_of(url: str, segment: str, backup: Sequence[str], **settings: Any) -> ParentConfig:
    """Raises ConfigError for what cannot be used."""
    if url == STDIO:
        return ParentConfig(url=url, segment=os.environ.get(ax.SEGMENT_VARIABLE, segment))
    for one in (url, *backup):
        try:
            check_parent_url(one)
        except BadValue as bad:
            raise ConfigError.of(f"{one}: {bad.message}", bad.hint) from None
    parent = ParentConfig(url=url, segment=segment, backup=list(backup), **settings)
    check_presented(parent, {field: f"`{field}`" for field in _FIELDS})
    return parent


def dial_of(parent: ParentConfig) -> Dial:
    """How it is dialled."""
    return _stdio if parent.url == STDIO else dial


async def _stdio(url: str, *, bearer: str | None = None, ssl: Any = None) -> Channel:
    return await over_stdio()


@contextmanager
def known_as(parent: ParentConfig, given: str | None) -> Iterator[str]:
    """The id by which the node knows this subserver again: the one given, by the author or by the
    node that started this program, or else one that is made once and kept. Nobody else on this
    machine has a kept one meanwhile. Raises InterlockError."""
    if given is None and parent.url == STDIO:
        told = os.environ.get(ax.ID_VARIABLE)
        given = told if ax.is_uuid(told) else None
    if given is not None:
        yield given
    elif parent.url == STDIO:
        yield _kept_id(parent)
    else:
        place = blake2b(f"{parent.url} {parent.segment}".encode(), digest_size=6).hexdigest()
        lock = state_home(os.environ) / "subservers" / f"{parent.segment}-{place}.lock"
        otherwise = "end that one first, or give this one another segment or a subserver_id"
        with alone(lock, parent.segment, parent.url, otherwise=otherwise):
            yield _kept_id(parent)


def _kept_id(parent: ParentConfig) -> str:
    folder = state_home(os.environ)
    make_private(folder)
    store = TreeStore(folder / "subservers.db")
    try:
        return store.identity(f"{parent.url} {parent.segment}")
    finally:
        store.close()
