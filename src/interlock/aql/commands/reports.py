"""What MCP-AQL adds to commands that belong to no feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.aql.config import AqlConfig
from interlock.terminal.feature_reports import FeatureReports, collect_other_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.core.config import Config
    from interlock.terminal.config_source import ConfigSource, ConfigWarning

_CLOSE: Final = 0.75


class AqlReports(FeatureReports):
    def config_warnings(self, config: Config, source: ConfigSource) -> Iterator[ConfigWarning]:
        """Servers that are trusted, and are not there."""
        if not config.section(AqlConfig).trust:
            return
        import difflib

        others = collect_other_servers(config)
        known = {*config.servers, *others.names}
        for key in config.section(AqlConfig).trust:
            close = difflib.get_close_matches(key, known, n=1, cutoff=_CLOSE)
            if key in known or (not close and others.unknown):
                continue
            hint = f'did you mean "{close[0]}"?' if close else "correct it, or remove it"
            yield ("aql", "trust", key), f"there is no server {key}", hint

    def safety_config(self, config: Config) -> Config:
        from msgspec.structs import replace

        aql = config.section(AqlConfig)
        safety = aql.safety
        if safety.mode == "disabled":
            safety = replace(safety, mode="enforcing")
        view = "aql" if aql.view == "plain" else aql.view
        only = replace(aql, view=view, safety=safety, safety_only=True)
        return replace(config, servers={}).with_sections(only)

    def client_lines(self, config: Config, url: str) -> Iterator[tuple[str, str]]:
        if config.section(AqlConfig).view == "plain":
            yield "Many tools?", f"{url}?view=aql   five endpoints instead of every tool"


REPORTS: Final = AqlReports()
