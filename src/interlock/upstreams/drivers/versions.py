"""Which version of a driver's program is there, and whether it will do.

The pattern that finds the version in the command's output is a stranger's: it is matched in a
process of its own, which is ended when it takes too long.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from interlock.config.problems import BadValue
from interlock.errors import VERSION_MISMATCH, InterlockError
from interlock.manifests.driver import DriverManifest, VersionCheck
from interlock.manifests.ranges import in_range
from interlock.upstreams.drivers import processes
from interlock.upstreams.drivers.processes import Runs

_MATCHED_WITHIN: Final = 5.0
_LOOKED_AT: Final = 16 * 1024
_VERSION: Final = re.compile(
    r"[v=\s]*(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?"
    r"(-[0-9A-Za-z][0-9A-Za-z.-]*)?(\+[0-9A-Za-z.-]+)?\s*"
)
_MATCHER: Final = (
    "import json, re, sys; pattern, text = json.load(sys.stdin); found = re.search(pattern, text); "
    "print(json.dumps(found and (found.group(1) if found.re.groups else found.group())))"
)


class Found(Struct, frozen=True):
    """What was found out."""

    version: str = ""
    """Of three parts; empty when nothing was found."""
    problem: str = ""
    """Why it will not do, as the rest of a sentence; empty: it will."""


async def check_version(
    manifest: DriverManifest,
    *,
    run: Runs = processes.run,
    env: Mapping[str, str] | None = None,
    command: Callable[[str], list[str]] | None = None,
    otherwise: Callable[[], str] | None = None,
    reinstall: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """The version that is there; empty when the driver does not ask. Raises InterlockError.

    `command` makes words of the driver's line, such as the installed copy for `npx`. `otherwise`
    knows the version where the command does not tell one; `reinstall` is tried once when the
    version will not do.
    """
    check = manifest.version_check
    if check is None:
        return ""
    found = await _look(manifest, check, run, env or {}, command, otherwise)
    if found.problem and reinstall is not None:
        try:
            await reinstall()
        except InterlockError as error:
            if not found.version:
                raise
            raise _mismatch(manifest, check, found, error.message) from error
        found = await _look(manifest, check, run, env or {}, command, otherwise)
    if found.problem:
        raise _mismatch(manifest, check, found)
    return found.version


async def _look(
    manifest: DriverManifest,
    check: VersionCheck,
    run: Runs,
    env: Mapping[str, str],
    command: Callable[[str], list[str]] | None,
    otherwise: Callable[[], str] | None,
) -> Found:
    try:
        cmd = check.cmd if command is None else command(check.cmd)
    except ValueError as bad:
        return Found(problem=f"version_check.cmd: {bad}")
    ran = await run(cmd, env=env, cwd=str(manifest.folder), timeout=check.timeout_ms / 1000)
    told = ""
    if not ran.trouble and not ran.timed_out:
        for text in (ran.out, ran.err):
            told = told or await matched(check.parse, text[:_LOOKED_AT])
    known = "" if otherwise is None else otherwise()
    # What failed may have told the version of something else, such as its runtime.
    first, then = (told, known) if ran.status == 0 else (known, told)
    version = coerced(first) or coerced(then)
    if not version:
        how = ran.how if ran.trouble or ran.timed_out else "it told no version that parse finds"
        return Found(problem=f"version_check.cmd: {how}")
    try:
        fits = in_range(version, check.range)
    except BadValue as bad:
        return Found(version, f"version_check: {bad.message}")
    if not fits:
        return Found(version, f"its version is {version}, and {check.range} is wanted")
    return Found(version)


async def matched(pattern: str, text: str) -> str:
    """What the first group of a pattern finds in a text; without a group, what all of it finds.
    Empty when it finds nothing, is no pattern, or takes too long."""
    if not text.strip():
        return ""
    ran = await processes.run(
        [sys.executable, "-I", "-S", "-c", _MATCHER],
        env={},
        cwd=None,
        timeout=_MATCHED_WITHIN,
        stdin=msgspec.json.encode([pattern, text]),
    )
    if not ran.ended_with(0):
        return ""
    found = msgspec.json.decode(ran.out)
    return found if isinstance(found, str) else ""


def coerced(text: str) -> str:
    """`v0.4` → `0.4.0`. Empty for what is no version."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return ""
    numbers = ".".join(str(int(found[part] or 0)) for part in (1, 2, 3))
    return f"{numbers}{found[4] or ''}{found[5] or ''}"


def _mismatch(
    manifest: DriverManifest, check: VersionCheck, found: Found, more: str = ""
) -> InterlockError:
    return InterlockError(
        VERSION_MISMATCH,
        f"{manifest.id}: {found.problem}. " + (more or "Install one that fits."),
        {"driver": manifest.id, "version": found.version, "range": check.range},
    )
