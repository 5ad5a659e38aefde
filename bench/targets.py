"""What is measured: each target is started, given an MCP address, and ended.

Every target stands in front of the same raw upstream (over HTTP, or as its stdio child). Where a
peer is not on the machine, the target says why and is left out.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from bench.exchange import Mode
from bench.processes import (
    ROOT,
    TargetFailure,
    TargetProcess,
    free_port,
    module_command,
    python_environment,
)


class TargetMissing(Exception):
    """A peer that this machine does not have; the message says which and why."""


class Running(msgspec.Struct):
    """A started target: where to call it, how, and the process to look at."""

    name: str
    url: str
    mode: Mode
    tool: str
    process: TargetProcess
    slow: bool = False
    """Too slow for timed runs: a few calls are enough."""


class Bench:
    """Holds the temporary folder and every process started, newest first at the end."""

    def __init__(self, folder: Path, nginx_workers: int = 1) -> None:
        self.folder = folder
        self.nginx_workers = nginx_workers
        self.processes: list[TargetProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.end()
        self.processes.clear()

    def start(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> TargetProcess:
        log = self.folder / f"{len(self.processes)}-{name.replace(' ', '-')}.log"
        process = TargetProcess(name, command, log, environment or python_environment(), cwd)
        self.processes.append(process)
        return process

    def raw_upstream(self, *arguments: str) -> tuple[TargetProcess, int]:
        """The raw upstream on a free port."""
        port = free_port()
        command = module_command("bench.raw_upstream", "--port", str(port), *arguments)
        process = self.start("raw upstream", command)
        process.wait_for_port(port)
        return process, port

    def nginx(self, body: str) -> tuple[TargetProcess, int]:
        """nginx with this inside its ``http`` block; ``PORT`` in it becomes the port."""
        binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if binary is None:
            raise TargetMissing("nginx is not installed")
        port = free_port()
        home = self.folder / f"nginx-{port}"
        home.mkdir()
        temp_paths = "".join(
            f"{kind}_temp_path {home}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        config = textwrap.dedent("""\
            {user}
            daemon off;
            worker_processes {workers};
            pid {home}/nginx.pid;
            error_log {home}/error.log warn;
            events {{ worker_connections 1024; }}
            http {{
            access_log off;
            keepalive_requests 1000000000;
            sendfile on;
            tcp_nopush on;
            {temp_paths}
            {body}
            }}
            """).format(
            user=user,
            workers=self.nginx_workers,
            home=home,
            temp_paths=temp_paths,
            body=body.replace("PORT", str(port)),
        )
        path = home / "nginx.conf"
        path.write_text(config)
        command = [binary, "-p", str(home), "-e", str(home / "error.log"), "-c", str(path)]
        process = self.start("nginx", command)
        process.wait_for_port(port)
        return process, port

    def nginx_proxy(self, upstream_port: int) -> tuple[TargetProcess, int]:
        """``proxy_pass`` with kept upstream connections, nginx at its best."""
        return self.nginx(f"""
            upstream raw {{
                server 127.0.0.1:{upstream_port};
                keepalive 128;
                keepalive_requests 1000000000;
            }}
            server {{
                listen 127.0.0.1:PORT;
                location / {{
                    proxy_pass http://raw;
                    proxy_http_version 1.1;
                    proxy_set_header Connection "";
                }}
            }}""")

    def interlock(
        self, name: str, config: str, port: int | None = None
    ) -> tuple[TargetProcess, int]:
        """A node with this config; ``PORT`` in it becomes the port.

        One that is started again on the port of an earlier one finds its files.
        """
        port = port or free_port()
        home = self.folder / f"interlock-{port}"
        home.mkdir(exist_ok=True)
        path = home / "interlock.yaml"
        path.write_text(config.replace("PORT", str(port)))
        environment = python_environment() | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CACHE_HOME": str(home / "cache"),
        }
        command = [*interlock_command(), "up", "--config", str(path)]
        process = self.start(name, command, environment, cwd=home)
        process.wait_for_port(port)
        return process, port

    def fastmcp(self, upstream_port: int) -> tuple[TargetProcess, int]:
        """FastMCP's proxy as it comes, in front of the raw upstream."""
        python = python_with_fastmcp()
        port = free_port()
        script = self.folder / "fastmcp_proxy.py"
        script.write_text(
            "from fastmcp.server import create_proxy\n"
            f'proxy = create_proxy("http://127.0.0.1:{upstream_port}/mcp")\n'
            f'proxy.run(transport="http", host="127.0.0.1", port={port}, show_banner=False)\n'
        )
        process = self.start("fastmcp", [python, str(script)])
        process.wait_for_port(port, patience=60.0)
        return process, port

    def npm_mcp_proxy(self) -> tuple[TargetProcess, int]:
        """npm's ``mcp-proxy`` with the raw upstream as its stdio child."""
        script = installed_mcp_proxy()
        port = free_port()
        child = module_command("bench.raw_upstream", "--stdio")
        command = ["node", str(script), "--port", str(port), "--host", "127.0.0.1"]
        process = self.start("mcp-proxy", [*command, "--server", "stream", "--", *child])
        process.wait_for_port(port, patience=60.0)
        return process, port


def interlock_command() -> list[str]:
    """What BENCH_INTERLOCK says, or ``interlock`` beside this Python."""
    if named := os.environ.get("BENCH_INTERLOCK"):
        return shlex.split(named)
    beside = Path(sys.executable).with_name("interlock")
    if beside.exists():
        return [str(beside)]
    raise TargetMissing("interlock is not installed beside this Python: run `make setup`")


def python_with_fastmcp() -> str:
    """This Python if it has fastmcp, else the one that BENCH_FASTMCP_PYTHON names."""
    if importlib.util.find_spec("fastmcp") is not None:
        return sys.executable
    named = os.environ.get("BENCH_FASTMCP_PYTHON")
    if named is None:
        raise TargetMissing(
            "fastmcp is not installed here: install it, or name a Python that has it "
            "in BENCH_FASTMCP_PYTHON"
        )
    return named


MCP_PROXY_VERSION = "6.7.19"


def installed_mcp_proxy() -> Path:
    """The peer's script, installed once into the user's cache."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise TargetMissing("npm and node are not installed")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "interlock-bench" / f"mcp-proxy-{MCP_PROXY_VERSION}"
    script = folder / "node_modules" / "mcp-proxy" / "dist" / "bin" / "mcp-proxy.mjs"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder)]
        done = subprocess.run(
            [*install, f"mcp-proxy@{MCP_PROXY_VERSION}"],
            capture_output=True,
            text=True,
            timeout=180,
        )
        if done.returncode != 0 or not script.exists():
            raise TargetMissing(f"npm could not install mcp-proxy: {done.stderr[-300:]}")
    return script


TRUST = """\
policy:
  rules:
    - {name: reading is free, effects: [read_only], then: allow}
    - {name: nothing is dropped, tools: ["*.drop_*", "*.delete_all*"], then: deny}
    - {name: strangers only read, callers: [guest-*], effects: [mutating, irreversible], then: deny}
budgets:
  callers: [{calls_per_minute: 1000000000, mutable_calls: 1000000}]
"""
"""Rules that every call is held against, and a budget that every call is taken from."""


def http_config(upstream_port: int, trust: str = "") -> str:
    return (
        "listen: 127.0.0.1:PORT\n" + trust + "servers:\n"
        "  up:\n"
        f"    url: http://127.0.0.1:{upstream_port}/mcp\n"
        "    expose: prefixed\n"
    )


def stdio_config(trust: str = "") -> str:
    return (
        "listen: 127.0.0.1:PORT\n" + trust + "servers:\n"
        "  up:\n"
        f"    command: {sys.executable}\n"
        "    args: [-m, bench.raw_upstream, --stdio]\n"
        f"    env: {{PYTHONPATH: {ROOT}}}\n"
        "    expose: prefixed\n"
    )


def endpoint(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


def call_targets(bench: Bench) -> dict[tuple[str, ...], Callable[[], list[Running]]]:
    """Everything that the call benchmark measures: names, and what starts the process for them."""
    _, upstream_port = bench.raw_upstream()

    def direct() -> list[Running]:
        process = bench.processes[0]
        url = endpoint(upstream_port)
        return [
            Running("direct", url, "session", "echo", process),
            Running("direct stateless", url, "stateless", "echo", process),
        ]

    def nginx() -> list[Running]:
        process, port = bench.nginx_proxy(upstream_port)
        return [
            Running("nginx", endpoint(port), "session", "echo", process),
            Running("nginx stateless", endpoint(port), "stateless", "echo", process),
        ]

    def interlock_http() -> list[Running]:
        process, port = bench.interlock("interlock-http", http_config(upstream_port))
        url = endpoint(port)
        return [
            Running("interlock session", url, "session", "up.echo", process),
            Running("interlock stateless", url, "stateless", "up.echo", process),
        ]

    def interlock_guarded() -> list[Running]:
        config = http_config(upstream_port, TRUST)
        process, port = bench.interlock("interlock-guarded", config)
        return [Running("interlock guarded", endpoint(port), "session", "up.echo", process)]

    def interlock_stdio() -> list[Running]:
        process, port = bench.interlock("interlock-stdio", stdio_config())
        return [Running("interlock stdio", endpoint(port), "session", "up.echo", process)]

    def fastmcp() -> list[Running]:
        process, port = bench.fastmcp(upstream_port)
        return [Running("fastmcp", endpoint(port), "session", "echo", process, slow=True)]

    def mcp_proxy() -> list[Running]:
        process, port = bench.npm_mcp_proxy()
        return [Running("mcp-proxy", endpoint(port), "session", "echo", process)]

    return {
        ("direct", "direct stateless"): direct,
        ("nginx", "nginx stateless"): nginx,
        ("interlock session", "interlock stateless"): interlock_http,
        ("interlock guarded",): interlock_guarded,
        ("interlock stdio",): interlock_stdio,
        ("fastmcp",): fastmcp,
        ("mcp-proxy",): mcp_proxy,
    }


__all__ = ["Bench", "Running", "TargetFailure", "TargetMissing", "call_targets"]
