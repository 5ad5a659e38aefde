"""Checks before a driver is used: its signature, and whether the operator allows its network
access."""

from __future__ import annotations

import os
from pathlib import Path

from interlock.core.config import Config
from interlock.drivers.config import DriversConfig
from interlock.drivers.sandbox.docker import env_problem
from interlock.drivers.sandbox.patterns import Egress
from interlock.drivers.sandbox.remote import check_remote
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest
from interlock.manifests.signatures import (
    SIGNATURE,
    SIGNED,
    SignatureProblem,
    read_public_key,
    verify,
)


def find_rejection(manifest: DriverManifest, config: Config, base_dir: Path) -> str:
    """Return why a driver is rejected, as a sentence. Empty: it is not rejected."""
    settings = config.section(DriversConfig)
    if settings.trust:
        try:
            keys = [read_public_key(base_dir / Path(path).expanduser()) for path in settings.trust]
            verify(manifest.folder, keys, manifest=manifest.digest)
        except SignatureProblem as problem:
            return str(problem)
    try:
        Egress.compile(
            manifest.egress, any_egress=settings.any_egress, local_egress=settings.local_egress
        )
    except ValueError as exc:
        return f"network.egress: {exc}."
    server = manifest.server
    if server is not None and server.kind == "docker" and (problem_text := env_problem(server.env)):
        return problem_text
    if server is not None and server.kind == "remote":
        try:
            check_remote(
                server.url,
                manifest.egress,
                any_egress=settings.any_egress,
                local_egress=settings.local_egress,
                key=manifest.id,
            )
        except InterlockError as error:
            return error.message
    return ""


def signature_fingerprint(manifest: DriverManifest) -> tuple[object, ...]:
    """Return a fingerprint of a driver's signature and the signed files."""
    parts: list[object] = []
    for name in (SIGNATURE, *SIGNED):
        try:
            status = os.stat(manifest.folder / name)
        except OSError:
            parts.append(None)
        else:
            parts.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(parts)
