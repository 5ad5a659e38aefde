"""Network namespaces joined by virtual cables that can be pulled out. Linux, root and iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

from bench.targets import TargetMissing


class NoNamespaces(TargetMissing):
    """This machine has no network namespaces to offer, or not to this user."""


def ip(*arguments: str) -> None:
    """Run ``ip``; what it complains about is raised."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise NoNamespaces(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


class Namespaces:
    """Machines of their own, as far as the network goes; leaving the block takes them away."""

    def __init__(self, names: Sequence[str]) -> None:
        self._mark = f"il{secrets.token_hex(3)}"
        self._names = names
        self._made: list[str] = []
        self._cables = 0

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NoNamespaces("network namespaces need root")
        if shutil.which("ip") is None:
            raise NoNamespaces("network namespaces need iproute2 (`ip`)")
        try:
            for name in self._names:
                ip("netns", "add", self.real(name))
                self._made.append(name)
                ip("-n", self.real(name), "link", "set", "lo", "up")
        except NoNamespaces:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            # With a namespace go its ends of the cables, and with them the other ends.
            subprocess.run(["ip", "netns", "del", self.real(name)], check=False, timeout=20)
        self._made.clear()

    def real(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def join(self, upper: str, lower: str) -> str:
        """A cable between two; the address of the upper end."""
        self._cables += 1
        net = f"10.88.{self._cables}"
        ends = self.end(upper, lower), self.end(lower, upper)
        ip(
            "-n", self.real(upper), "link", "add", ends[0], "type", "veth",
            "peer", "name", ends[1], "netns", self.real(lower),
        )  # fmt: skip
        for name, end, number in ((upper, ends[0], 1), (lower, ends[1], 2)):
            ip("-n", self.real(name), "addr", "add", f"{net}.{number}/30", "dev", end)
            ip("-n", self.real(name), "link", "set", end, "up")
        return f"{net}.1"

    @staticmethod
    def end(here: str, there: str) -> str:
        return f"{here}-{there}"

    def cut(self, upper: str, lower: str) -> None:
        """Pull the cable out: nothing gets through, and nobody is told."""
        ip("-n", self.real(upper), "link", "set", self.end(upper, lower), "down")

    def heal(self, upper: str, lower: str) -> None:
        ip("-n", self.real(upper), "link", "set", self.end(upper, lower), "up")

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The same command, run inside."""
        return ["ip", "netns", "exec", self.real(name), *command]
