"""The accepted versions of drivers, stored in the state folder. An incompatible change of a driver
needs a new major version, also if the node was restarted in between."""

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


def _encode_path(value: Any) -> Any:
    return str(value)


def _decode_path(kind: type, value: Any) -> Any:
    return Path(value) if issubclass(kind, Path) else value


_decode = msgspec.json.Decoder(dict[str, DriverManifest], dec_hook=_decode_path).decode
_encode = msgspec.json.Encoder(enc_hook=_encode_path).encode


def read_registrations(path: Path) -> dict[str, DriverManifest]:
    """Read the accepted drivers, by `id@major`. An unreadable file counts as empty."""
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning(
            "drivers: cannot read %s, it is replaced by a new file: %s",
            path.name,
            type(error).__name__,
        )
        return {}


def write_registrations(path: Path, registered: Mapping[str, DriverManifest]) -> None:
    """Write the accepted drivers atomically."""
    try:
        content = _encode(dict(registered))
        if not registered and not path.exists():
            return
        if path.exists() and path.read_bytes() == content:
            return
        make_private(path.parent)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except (OSError, InterlockError) as error:
        _log.warning("drivers: cannot store the accepted versions: %s", error)
