"""The gateway that a command connects to, and the credentials for it.

The token comes from the environment or a file, never from the command line, which other users can
read.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import ssl
import stat
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import typer
from msgspec import UNSET

from interlock.channels.channel import Channel
from interlock.channels.websocket import dial
from interlock.core.config.problems import ConfigError, InvalidValueError
from interlock.core.config.quantities import check_gateway_url
from interlock.errors import (
    CONFIG,
    INTERNAL,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES, REPLACED_CODE
from interlock.terminal import node_discovery, output
from interlock.terminal.node_discovery import TargetNode
from interlock.topics.commands.message_format import put_on_one_line
from interlock.topics.config import TopicsConfig

if TYPE_CHECKING:
    from http.client import HTTPConnection

TOKEN_VARIABLE: Final = "INTERLOCK_TOKEN"
_MAX_TOKEN_BYTES: Final = 64 * 1024
_DIALLABLE_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Listen addresses that cannot be dialled, and their replacements."""
_HTTP_NOT_FOUND: Final = 404
_HTTP_FORBIDDEN: Final = 403
_MAX_NAMES: Final = 20
_WITHOUT_TOKEN: Final = {
    401: f"Set a token with ${TOKEN_VARIABLE} or --token-file.",
    403: (
        "Without a token you are the caller local, the user of this machine. Add it to the "
        "participants of the topic: {callers: [local], profile: full_access}. Or set a token with "
        f"${TOKEN_VARIABLE} or --token-file."
    ),
}
"""Advice for callers without a token, by status code."""
_REPLACED_REASON: Final = (
    "another program joined as the same participant, and the newest connection stays (join, watch, "
    "send, call and bridge each have one)."
)
_TOKEN_HINT: Final = f"Give each program its own token, with ${TOKEN_VARIABLE} or --token-file"
_SERVER_RESPONDED: Final = ("certificate", "TLS", "does not open a WebSocket")
"""Parts of errors that show that a server responded, though not as expected."""

GatewayOption = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        metavar="URL",
        help="URL of another gateway: wss://host/ws. Default: the node of the config.",
        show_default=False,
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token in its first line. Default: $INTERLOCK_TOKEN, else no token.",
        show_default=False,
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="CA of the gateway's certificate.", show_default=False
    ),
]


class GatewayTarget:
    """A gateway and the credentials for it."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        ca: str | None = None,
        node: TargetNode | None = None,
        url_hint: str = "",
    ) -> None:
        """
        Args:
            node: the node of this user; its config has the certificate.
            url_hint: why the URL may be wrong.
        """
        self.url = url
        self.error: InterlockError | None = None
        """The last connection error."""
        self.topic = ""
        """The topic to join."""
        self._was_connected = False
        self._last_note = ""
        self._token = token
        self._ca = ca
        self._node = node
        self._url_hint = url_hint

    def settings(self, *, retry: bool) -> dict[str, Any]:
        """Return arguments for a Participant.

        Args:
            retry: retry after the connection is lost, but not if the first attempt finds no
                server.
        """
        sleep = self._retry if retry else self._do_not_retry
        return {"token": self._token, "ca": self._ca, "dial": self._dial, "sleep": sleep}

    def explain(self, error: InterlockError) -> InterlockError:
        """Return a better error: with the cause of a failed connection, and with advice from the
        config."""
        if self.error is not None and error.failure is INTERNAL:
            return self._add_advice(_put_on_one_line(self.error))
        error = _put_on_one_line(error)
        data = error.data or {}
        if data.get("close") == REPLACED_CODE:
            return InterlockError(error.failure, self._make_replaced_text(), data)
        if data.get("status") == _HTTP_NOT_FOUND:
            # Not an error of the local config.
            text = self._no_topics_advice() or f"{error.message} {self._url_hint}".rstrip()
            return InterlockError(INVALID_REQUEST, text, data)
        advice = self._topic_advice() if data.get("status") == _HTTP_FORBIDDEN else ""
        if not advice and self._token is None:
            advice = _WITHOUT_TOKEN.get(data.get("status") or data.get("close") or 0, "")
        if not advice:
            return error
        return InterlockError(error.failure, f"{error.message} {advice}", data)

    def open_http(self, timeout: float) -> HTTPConnection:
        """Return an HTTP connection to the node of this gateway. Raises InterlockError."""
        from http.client import HTTPConnection, HTTPSConnection

        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "ws":
            return HTTPConnection(host, port, timeout=timeout)
        return HTTPSConnection(host, port, timeout=timeout, context=self._make_ssl_context())

    @property
    def headers(self) -> dict[str, str]:
        """The Authorization header, if there is a token."""
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    @property
    def advice(self) -> str:
        """Advice if the node of this user does not respond."""
        if self._node is None:
            return ""
        hint = node_discovery.describe_other_nodes(self._node)
        return f", but {hint}" if hint else ". Start one: `interlock up`"

    def _add_advice(self, error: InterlockError) -> InterlockError:
        """Add advice to the error if no server responded."""
        if error.failure is not UPSTREAM_UNAVAILABLE:
            return error
        text = [error.message, self._url_hint]
        if not _has_response(error) and not any(
            phrase in error.message for phrase in _SERVER_RESPONDED
        ):
            text.insert(1, self._start_advice())
        return InterlockError(error.failure, " ".join(filter(None, text)), error.data)

    def _start_advice(self) -> str:
        if self._node is None:
            return (
                "Is a gateway running there? `interlock up` starts a node. --gateway selects "
                "another gateway, --node a node of this machine."
            )
        hint = node_discovery.describe_other_nodes(self._node)
        if hint:
            return f"But {hint}."
        return (
            "Start the node: `interlock up`. Or select a node at another address with --node, "
            "or any other gateway with --gateway."
        )

    def _make_replaced_text(self) -> str:
        """Return the error text for a participant that was replaced by another program of the same
        user."""
        description = f"Disconnected from {self.topic}: {_REPLACED_REASON}"
        if self._token is None:
            return (
                f"{description} All programs without a token are one participant, the user of this "
                f"machine. {_TOKEN_HINT} (see `tokens` in the node's config)."
            )
        return f"{description} {_TOKEN_HINT}, and join again."

    def _make_ssl_context(self) -> ssl.SSLContext:
        if self._node is not None and self._node.config.tls is not None:
            from interlock.terminal.node_http import create_ssl_context

            return create_ssl_context(self._node)
        from interlock.channels.tls import client_context

        return client_context(self._ca)

    def _topic_advice(self) -> str:
        """Return advice from the config of this user. The gateway does not reveal which topics
        exist."""
        if self._node is None:
            return ""
        names = list(self._node.config.section(TopicsConfig).rooms)
        if not names or any(fnmatchcase(self.topic, name) for name in names):
            return ""
        matches = difflib.get_close_matches(self.topic.casefold(), names, n=1, cutoff=0.6)
        if matches:
            return f'Its config has no topic {self.topic}; did you mean "{matches[0]}"?'
        suffix = ", …" if len(names) > _MAX_NAMES else ""
        return f"Topics of its config: {', '.join(names[:_MAX_NAMES])}{suffix}."

    def _no_topics_advice(self) -> str:
        if self._node is None or self._node.config.section(TopicsConfig).rooms or self._url_hint:
            return ""
        return "The node has no topics (HTTP 404). Add them to its config, under topics.rooms."

    async def _dial(
        self,
        url: str,
        *,
        bearer: str | None = None,
        ssl: ssl.SSLContext | None = None,
        max_message: int = MAX_ENVELOPE_BYTES,
    ) -> Channel:
        if self._node is not None and self._node.config.tls is not None:
            from interlock.terminal.node_http import create_ssl_context

            ssl = create_ssl_context(self._node)
        try:
            channel = await dial(url, bearer=bearer, ssl=ssl, max_message=max_message)
        except InterlockError as error:
            self.error = error
            raise
        self.error = None
        self._was_connected = True
        return channel

    async def _retry(self, seconds: float) -> None:
        """Wait before a retry. If no server has responded at all, raise the error: the URL is wrong
        or nothing runs there."""
        error = self.error
        if error is not None and not self._was_connected:
            if not _has_response(error):
                raise error
            if error.message != self._last_note:
                self._last_note = error.message
                output.print_note(f"{put_on_one_line(error.message)} Retrying.")
        await asyncio.sleep(seconds)

    async def _do_not_retry(self, seconds: float) -> None:
        lost_error = InterlockError(UPSTREAM_LOST, f"{self.url}: the connection was lost.")
        self.error = self.error or lost_error
        raise self.error


def _has_response(error: InterlockError) -> bool:
    """Return whether a server responded with an error."""
    return "status" in (error.data or {})


def _put_on_one_line(error: InterlockError) -> InterlockError:
    """Put the error text on one line. A gateway may send anything, including text that imitates
    output of this program. Config errors are our own and keep their lines."""
    if isinstance(error, ConfigError):
        return error
    return InterlockError(error.failure, put_on_one_line(error.message), error.data)


def find_gateway(
    config: Path | None,
    node: str | None,
    url: str | None,
    token_file: Path | None,
    ca: Path | None = None,
) -> GatewayTarget:
    """Return the target that the options name. Raises InterlockError and BadParameter."""
    if url is not None:
        for option, value in (("--node", node), ("--config", config)):
            if value is not None:
                raise typer.BadParameter(f"{option} cannot be combined with --gateway.")
        try:
            check_gateway_url(url, token=f"set a token with ${TOKEN_VARIABLE} or --token-file")
        except InvalidValueError as bad:
            raise typer.BadParameter(f"--gateway: {bad.message}; {bad.hint}.") from None
        target, location = None, _TopicsUrl(url)
    else:
        target = node_discovery.find_node(config, node)
        location = _find_topics_url(target, is_named=node is not None)
    if ca is not None:
        if target is not None and target.config.tls is not None:
            raise typer.BadParameter("--ca: the config of this node already has its certificate.")
        if not location.url.startswith("wss:"):
            raise typer.BadParameter(f"--ca requires a wss:// URL. This is {location.url}.")
    ca_path = None if ca is None else str(ca)
    return GatewayTarget(
        location.url, read_token(token_file), ca=ca_path, node=target, url_hint=location.url_hint
    )


class _TopicsUrl(NamedTuple):
    """The URL of the topics, and why it may be wrong."""

    url: str
    url_hint: str = ""


def _find_topics_url(target: TargetNode, *, is_named: bool) -> _TopicsUrl:
    """Return the URL of the topics of a node. The running node is asked if its config is unknown or
    invalid.

    Raises InterlockError and BadParameter.
    """
    summary = target.fetch_summary() if is_named or target.config_error is not None else None
    if target.config_error is not None:
        if summary is None or not (is_named or node_discovery.can_locate_node(target.config_error)):
            # The node is unknown or not running, so the config must be corrected first.
            hint = node_discovery.describe_other_nodes(target)
            if hint:
                output.print_note(f"Note: {hint}")
            raise target.config_error
        node_discovery.print_earlier_config_note(target.config_error)
    url_hint = ""
    if summary is not None and isinstance(summary.topics_url, str):
        parsed_url = urlsplit(summary.topics_url)
        url = _make_url(
            parsed_url.scheme, parsed_url.hostname or "", parsed_url.port, parsed_url.path
        )
        if parsed_url.scheme == "wss" and target.config.tls is None:
            url_hint = "If its CA is private, add --ca FILE."
    else:
        config = target.config
        scheme = "ws" if config.tls is None else "wss"
        url = _make_url(
            scheme, config.address.host, config.address.port, config.section(TopicsConfig).path
        )
        if is_named and target.source is None and (summary is None or summary.topics_url is UNSET):
            url_hint = (
                f"The node did not tell the URL of its topics, so {url} was tried. Set another "
                f"path, or wss://, with --gateway."
            )
    if is_named and summary is None:
        # The server at this URL is unknown, and it would receive the token.
        try:
            check_gateway_url(url, token="")
        except InvalidValueError as bad:
            raise typer.BadParameter(
                f"--node: {bad.message}; set a wss:// URL with --gateway."
            ) from None
    return _TopicsUrl(url, url_hint)


def _make_url(scheme: str, host: str, port: int | None, path: str) -> str:
    host = _DIALLABLE_HOSTS.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


def read_token(file: Path | None) -> str | None:
    """Return the token, or None. Raises InterlockError."""
    if file is None:
        return _check_token(os.environ.get(TOKEN_VARIABLE) or None, f"${TOKEN_VARIABLE}")
    try:
        with open(file, encoding="utf-8") as token_file:
            is_shared = stat.S_IMODE(os.fstat(token_file.fileno()).st_mode) & (
                stat.S_IRGRP | stat.S_IROTH
            )
            token = token_file.readline(_MAX_TOKEN_BYTES).strip()
            more = "" if token else token_file.read(_MAX_TOKEN_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise InterlockError(CONFIG, f"cannot read the token file {file}: {reason}.") from None
    if not token:
        problem = "has an empty first line; put the token there" if more else "is empty"
        raise InterlockError(CONFIG, f"the token file {file} {problem}.")
    if is_shared:
        output.print_note(
            f"Note: other users of this machine can read {file}. Fix: chmod 600 {file}"
        )
    return _check_token(token, f"the token file {file}")


def _check_token(token: str | None, location: str) -> str | None:
    if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise InterlockError(CONFIG, f"{location} has characters that are invalid in a token.")
    return token
