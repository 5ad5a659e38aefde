"""The parts of general commands that belong to MCP-AQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.aql.config import AqlConfig
from interlock.terminal.feature_reports import FeatureReports, collect_other_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.core.config import Config
    from interlock.terminal.config_source import ConfigSource, ConfigWarning

_MIN_SIMILARITY: Final = 0.75


class AqlReports(FeatureReports):
    def config_warnings(self, config: Config, source: ConfigSource) -> Iterator[ConfigWarning]:
        """Yield the trusted servers that are not in the config."""
        if not config.section(AqlConfig).trust:
            return
        import difflib

        other_servers = collect_other_servers(config)
        server_keys = {*config.servers, *other_servers.names}
        for key in config.section(AqlConfig).trust:
            similar_keys = difflib.get_close_matches(key, server_keys, n=1, cutoff=_MIN_SIMILARITY)
            if key in server_keys or (not similar_keys and other_servers.unknown):
                continue
            hint = f'did you mean "{similar_keys[0]}"?' if similar_keys else "correct or remove it"
            yield ("aql", "trust", key), f"unknown server {key}", hint

    def safety_config(self, config: Config) -> Config:
        from msgspec.structs import replace

        aql = config.section(AqlConfig)
        safety = aql.safety
        if safety.mode == "disabled":
            safety = replace(safety, mode="enforcing")
        view = "aql" if aql.view == "plain" else aql.view
        safety_only_config = replace(aql, view=view, safety=safety, safety_only=True)
        return replace(config, servers={}).with_sections(safety_only_config)

    def client_lines(self, config: Config, url: str) -> Iterator[tuple[str, str]]:
        if config.section(AqlConfig).view == "plain":
            yield "Many tools?", f"{url}?view=aql   five endpoints instead of every tool"


REPORTS: Final = AqlReports()
