"""The additions of topics to the commands that belong to no feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.primitives.text import format_count
from interlock.terminal.feature_reports import FeatureReports, OtherServers
from interlock.topics.config import TopicsConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.core.config import Config, ServerConfig
    from interlock.core.status import StatusReport
    from interlock.terminal.config_source import ConfigSource, ConfigWarning
    from interlock.trust.identity.api_tokens import AccessToken

_MAX_NAMES: Final = 8
"""The maximum number of topics that are named when a node starts."""


class TopicsReports(FeatureReports):
    # -- the config

    def config_warnings(self, config: Config, source: ConfigSource) -> Iterator[ConfigWarning]:
        from interlock.topics.commands.checks import check_topics

        return check_topics(config, access_tokens=_read_access_tokens(config, source))

    def count(self, config: Config) -> str:
        count = len(config.section(TopicsConfig).rooms)
        return format_count(count, "topic") if count else ""

    def other_servers(self, config: Config) -> OtherServers:
        """Return participants of topics that are upstreams."""
        servers: dict[str, ServerConfig] = {}
        for topic, room in config.section(TopicsConfig).rooms.items():
            if room.upstreams:
                # Imported here, because few topics have upstreams.
                from interlock.topics.participant_upstream import (
                    make_server_config,
                    make_upstream_key,
                )

                for id, settings in room.upstreams.items():
                    if settings.enabled:
                        servers[make_upstream_key(topic, id)] = make_server_config(
                            topic, id, settings
                        )
        return OtherServers(servers)

    # -- a running node

    def client_lines(self, config: Config, url: str) -> Iterator[tuple[str, str]]:
        """Yield the URL and names of the topics, and the command to join one."""
        names = list(config.section(TopicsConfig).rooms)
        if not names:
            return
        from urllib.parse import urlsplit, urlunsplit

        parts = urlsplit(url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        topics_url = urlunsplit(
            parts._replace(scheme=scheme, path=config.section(TopicsConfig).path)
        )
        suffix = ", …" if len(names) > _MAX_NAMES else ""
        names_text = ", ".join(names[:_MAX_NAMES])
        yield "Topics", f"{topics_url}   {names_text}{suffix}: `interlock topic join NAME`"

    def activity_lines(self, report: StatusReport) -> Iterator[str]:
        from interlock.terminal import output
        from interlock.topics.overview import TopicsStatus

        for name, topic in sorted(report.part(TopicsStatus).topics.items()):
            count = format_count(topic.refused, "message")
            rejected_text = f", {count} rejected" if topic.refused else ""
            members_text = format_count(topic.members, "member")
            yield f"topic {output.sanitize(name)}: {members_text}{rejected_text}"


def _read_access_tokens(config: Config, source: ConfigSource) -> list[AccessToken]:
    """Return the valid tokens of `interlock token`."""
    import os
    import time

    from interlock.core.paths import access_path
    from interlock.errors import InterlockError
    from interlock.trust.identity.token_store import AccessStore

    path = access_path(config, os.environ, source.base_dir)
    if not path.exists():
        return []
    try:
        now = time.time()
        return [token for token in AccessStore(path).tokens() if token.state(now) == "good"]
    except (InterlockError, OSError):
        # Commands that need the file report the problem.
        return []


REPORTS: Final = TopicsReports()
