"""Authentication over loopback: only requests of the node's own user are `local`.

The clients are real: `curl` as another user, and nginx before the node.
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interlock.channels import peer_user
from interlock.topics.config import TopicConfig, TopicsConfig
from tests.support.http_client import HANG_TIMEOUT, HttpConnection, HttpResponse, request
from tests.support.node import NodeThread, result_text
from tests.support.programs import NGINX, requires_nginx

OTHER_UID = 65534
CURL, SETPRIV = shutil.which("curl"), shutil.which("setpriv")
UPGRADE = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)
PATHS = ("/status", "/ws?topic=room", "/ax", "/approvals", "/sse")

requires_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="another user can only be played by root"
)
requires_linux = pytest.mark.skipif(
    peer_user.find_method() is None, reason="this system does not tell whose a connection is"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node without tokens."""
    topics = TopicsConfig(rooms={"room": TopicConfig(access="private")})
    running = NodeThread(tmp_path_factory.mktemp("local"), topics=topics)
    yield running
    running.stop()


def get(node: NodeThread, path: str, *headers: tuple[str, str]) -> bytes:
    upgrade = UPGRADE if path.startswith(("/ws", "/ax")) else ()
    accept = (("Accept", "text/event-stream" if path == "/sse" else "application/json"),)
    return request(node.host, b"", *accept, *upgrade, *headers, method="GET", path=path)


def calls(node: NodeThread) -> int:
    return len(node.shop.find_received("tools/call"))


def request_as_other_user(node: NodeThread, raw: bytes) -> int:
    """Return the status of a request by a process of another user."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    assert SETPRIV is not None
    assert CURL is not None
    done = subprocess.run(
        [
            SETPRIV, f"--reuid={OTHER_UID}", "--clear-groups",
            CURL, "--silent", "--noproxy", "*", "--max-time", "300", "--request", method,
            *(part for line in lines for part in ("--header", line)),
            *(("--data-binary", "@-") if body else ()),
            "--output", os.devnull, "--write-out", "%{http_code}", f"http://{node.host}{path}",
        ],
        input=body,
        capture_output=True,
        check=True,
        timeout=HANG_TIMEOUT,
    )  # fmt: skip
    return int(done.stdout)


@contextmanager
def sockets_owned_by(uid: int) -> Iterator[None]:
    """Let sockets of this thread belong to another user."""
    libc = ctypes.CDLL(None)
    before = libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(before)


@pytest.mark.feature("tree")
def test_own_user_needs_no_token(node: NodeThread) -> None:
    assert result_text(node.once(node.call("echo", {"text": "mine"}))) == "mine"
    for path in PATHS:
        with node.connect() as connection:
            connection.send(get(node, path))
            status, _ = connection.head()
            # Approvals of others are for operators, whom the socket or a token makes.
            assert status == {"/ws?topic=room": 101, "/ax": 101, "/approvals": 403}.get(path, 200)


@requires_root
@requires_linux
@pytest.mark.skipif(None in (CURL, SETPRIV), reason="curl or setpriv is not installed")
@pytest.mark.feature("tree")
def test_other_user_needs_token(node: NodeThread) -> None:
    before = calls(node)
    assert request_as_other_user(node, node.call("echo", {"text": "theirs"})) == 401
    assert calls(node) == before
    for path in PATHS:
        assert request_as_other_user(node, get(node, path)) == 401, path
    assert request_as_other_user(node, get(node, "/healthz")) == 200


@requires_root
@requires_linux
def test_other_user_closing_connection_is_not_root(node: NodeThread) -> None:
    """Many kernels say of a socket that its process has closed that it is root's."""
    # A call in a session is made though its client is gone.
    raw = node.session().call("echo", {"text": "gone"})
    looked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        looked.set()
        assert go_on.wait(HANG_TIMEOUT)

    assert node._loop is not None
    node._loop.call_soon_threadsafe(block)
    assert looked.wait(HANG_TIMEOUT)
    with sockets_owned_by(OTHER_UID):
        connection = node.connect()
    connection.send(raw)
    connection.close()
    go_on.set()
    assert node.alive()
    received = [
        message["params"]["arguments"]["text"] for message in node.shop.find_received("tools/call")
    ]
    assert "gone" not in received


@pytest.mark.parametrize(
    "header",
    [
        ("X-Forwarded-For", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("X-Forwarded-Anything", ""),
        ("X-Real-IP", "192.0.2.1"),
        ("Forwarded", "for=192.0.2.1"),
        ("Via", "1.1 proxy"),
    ],
)
@pytest.mark.feature("tree")
def test_forwarded_request_needs_token(node: NodeThread, header: tuple[str, str]) -> None:
    before = calls(node)
    assert node.once(node.call("echo", {"text": "x"}, 1, header)).status == 401
    for path in PATHS:
        assert node.once(get(node, path, header)).status == 401, path
    assert node.once(get(node, "/healthz", header)).status == 200
    assert calls(node) == before


def test_forwarded_request_on_local_connection_needs_token(node: NodeThread) -> None:
    """Who a request is from is decided by its own head, not by the one before."""
    with node.connect() as connection:
        assert connection.request(node.call("echo", {"text": "1"})).status == 200
        assert (
            connection.request(node.call("echo", {"text": "1"}, 1, ("Via", "1.1 p"))).status == 401
        )
        assert connection.request(node.call("echo", {"text": "1"})).status == 200


def test_token_is_enough_for_forwarded_request(tmp_path: Path) -> None:
    node = NodeThread(tmp_path, tokens={"agent": "0123456789abcdef-agent"})
    try:
        headers = (("Authorization", "Bearer 0123456789abcdef-agent"), ("Via", "1.1 proxy"))
        assert result_text(node.once(node.call("echo", {"text": "y"}, 1, *headers))) == "y"
    finally:
        node.stop()


@contextmanager
def nginx(folder: Path, node: NodeThread, *lines: str, user: str = "root root") -> Iterator[str]:
    """Run nginx in front of the node, and return the path of its Unix socket."""
    assert NGINX is not None
    folder.mkdir()
    folder.chmod(0o755)
    socket_path, config = folder / "s", folder / "nginx.conf"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    config.write_text(
        "\n".join(
            [
                f"user {user};" if os.geteuid() == 0 else "",
                f"daemon off; pid {folder}/pid; error_log {folder}/error.log;",
                "events {}",
                "http { access_log off;",
                *(f"{kind}_temp_path {folder}/{kind};" for kind in kinds),
                f"server {{ listen unix:{socket_path};",
                f"location / {{ proxy_pass http://{node.host}; {' '.join(lines)} }} }} }}",
            ]
        )
    )
    command = [NGINX, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(command)
    try:
        node.until(
            lambda: process.poll() is not None or accepts_connections(str(socket_path)),
            "nginx listens",
        )
        yield str(socket_path)
    finally:
        process.terminate()
        process.wait(HANG_TIMEOUT)


def accepts_connections(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def request_through(socket_path: str, raw: bytes) -> HttpResponse:
    with HttpConnection(socket_path, family=socket.AF_UNIX) as connection:
        return connection.request(raw)


@requires_nginx
def test_nginx_with_forwarded_header_is_not_local(node: NodeThread, tmp_path: Path) -> None:
    line = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
    with nginx(tmp_path / "n", node, line) as socket_path:
        assert request_through(socket_path, node.call("echo", {"text": "z"})).status == 401
        assert request_through(socket_path, get(node, "/healthz")).status == 200


@requires_nginx
@requires_root
@requires_linux
def test_nginx_of_other_user_is_not_local(node: NodeThread, tmp_path: Path) -> None:
    """Without a header nothing but its user gives a proxy away."""
    tmp_path.chmod(0o755)
    with nginx(
        tmp_path / "n",
        node,
        user=f"{pwd.getpwuid(OTHER_UID).pw_name} {grp.getgrgid(OTHER_UID).gr_name}",
    ) as socket_path:
        Path(socket_path).chmod(0o777)
        assert request_through(socket_path, node.call("echo", {"text": "z"})).status == 401
        assert request_through(socket_path, get(node, "/healthz")).status == 200


FINDERS = [peer_user.ask_kernel, peer_user.read_tables]


@requires_linux
@pytest.mark.parametrize("find", FINDERS)
@pytest.mark.parametrize("listen", ["127.0.0.1", "127.3.2.1", "::1", "::"])
def test_finds_owner_of_socket(find: Callable[..., int | None], listen: str) -> None:
    v6 = ":" in listen
    family = socket.AF_INET6 if v6 else socket.AF_INET
    with socket.create_server(
        (listen, 0), family=family, dualstack_ipv6=listen == "::"
    ) as listener:
        port = listener.getsockname()[1]
        target = "127.0.0.1" if listen == "::" else listen
        client = socket.create_connection((target, port))
        accepted, address = listener.accept()
        with client, accepted:
            ends = address[:2], accepted.getsockname()[:2]
            assert find(*ends) == os.geteuid()
            client.shutdown(socket.SHUT_WR)
            assert find(*ends) == os.geteuid()
            client.close()
            assert find(*ends) is None
        # Nobody ever connected from there: the socket that listens is not the answer.
        assert find((target, 1), ends[1]) is None


@requires_linux
@requires_root
@pytest.mark.parametrize("find", FINDERS)
def test_finds_other_owner(find: Callable[..., int | None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with sockets_owned_by(OTHER_UID):
            client = socket.create_connection(listener.getsockname())
        with client:
            assert find(client.getsockname(), client.getpeername()) == OTHER_UID


def test_file_shortage_authenticates_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int | None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(peer_user, "find_method", lambda: fail)
    assert not peer_user.is_own_user(("127.0.0.1", 1), ("127.0.0.1", 2))
