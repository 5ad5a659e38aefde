"""What the environment says about AQL, over what the file says: the draft's own variables."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final, get_args

from msgspec.structs import replace

from interlock.aql.config import BUILT_IN_VIEWS, AqlConfig, SafetyMode
from interlock.core.config.model import Config
from interlock.core.config.problems import ConfigError, quoted

MODE: Final = "MCP_AQL_ENDPOINT_MODE"
PROFILE: Final = "MCP_AQL_ENDPOINT_PROFILE"
PREFIX: Final = "MCP_AQL_TOOL_PREFIX"
SAFETY: Final = "MCPAQL_SAFETY_LOOP"
_MODES: Final = {"semantic": "aql", "crude": "aql", "single": "aql-single", "all": "aql-all"}
_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,17}_")
"""As the file's own; see `AqlConfig.prefix`."""

_log = logging.getLogger("interlock.config")


def with_environment(config: Config, environ: Mapping[str, str]) -> Config:
    """The config as a node runs by it. Raises ConfigError."""
    before = aql = config.section(AqlConfig)
    mode, profile = environ.get(MODE), environ.get(PROFILE)
    if mode:
        if mode not in _MODES:
            raise _wrong(MODE, mode, _MODES)
        if mode == "crude":
            _log.warning("%s=crude is how it was said once: write semantic.", MODE)
        aql = replace(aql, view=_MODES[mode])
    if profile and profile != "crude":
        known = ["crude", *(name for name in BUILT_IN_VIEWS if name == "semantic"), *aql.profiles]
        if profile not in known:
            raise _wrong(PROFILE, profile, known)
        if mode in (None, "", "semantic", "crude"):
            aql = replace(aql, view=profile)
    prefix = environ.get(PREFIX)
    if prefix:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError.of(
                f"{PREFIX}={quoted(prefix)} cannot be a prefix",
                "write small letters, digits and _, fewer than 20, and _ as the last one",
            )
        aql = replace(aql, prefix=prefix)
    safety = environ.get(SAFETY)
    if safety:
        if safety not in get_args(SafetyMode):
            raise _wrong(SAFETY, safety, get_args(SafetyMode))
        aql = replace(aql, safety=replace(aql.safety, mode=safety))
    return config if aql is before else config.with_sections(aql)


def _wrong(name: str, value: str, known: Iterable[str]) -> ConfigError:
    choices = ", ".join(known)
    return ConfigError.of(f"{name}={quoted(value)} is not known", f"write {choices}")
