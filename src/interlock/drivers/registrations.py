"""The drivers as they were accepted last, kept in the state folder: a driver that changes what its
users rely on needs a new major version, also when the node was started anew in between."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from interlock.core.paths import make_private
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest

_log = logging.getLogger("interlock.drivers")


def _plain(value: Any) -> Any:
    return str(value)


def _made(kind: type, value: Any) -> Any:
    return Path(value) if issubclass(kind, Path) else value


_decode = msgspec.json.Decoder(dict[str, DriverManifest], dec_hook=_made).decode
_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def read_registrations(path: Path) -> dict[str, DriverManifest]:
    """By `id@major`. What cannot be read was never kept, or not by this version."""
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s cannot be read, and is begun anew: %s", path.name, type(error).__name__)
        return {}


def write_registrations(path: Path, registered: Mapping[str, DriverManifest]) -> None:
    """Keep them, whole or not at all."""
    try:
        content = _encode(dict(registered))
        if not registered and not path.exists():
            return
        if path.exists() and path.read_bytes() == content:
            return
        make_private(path.parent)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_bytes(content)
        os.replace(written, path)
    except (OSError, InterlockError) as error:
        _log.warning("the drivers that are used cannot be kept on disk: %s", error)
