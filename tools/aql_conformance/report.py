"""Format a report as plain text, markdown or JSON. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from tools.aql_conformance.checks import Report

Format = Literal["json", "text", "markdown"]


def written(report: Report, form: Format) -> str:
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
    return _markdown(report) if form == "markdown" else _text(report)


def read(raw: bytes) -> Report:
    """Read a report that was written as JSON. Raises msgspec.DecodeError."""
    return msgspec.json.decode(raw, type=Report)


def _claim(report: Report) -> str:
    if report.conformance_level == 0:
        return f"not conformant with MCP-AQL {report.spec_version}"
    return f"MCP-AQL {report.spec_version}, Level {report.conformance_level}"


def _counts(report: Report) -> str:
    order = ("passed", "warned", "failed", "skipped")
    return ", ".join(f"{report.summary[word]} {word}" for word in order)


def _text(report: Report) -> str:
    lines = [f"{report.implementation} {report.version}: {_claim(report)} ({_counts(report)})"]
    for category in report.categories:
        word = "must" if category.required else "should"
        lines += ["", f"{category.result:<4}  {category.name} ({word})"]
        for test in category.tests:
            lines.append(f"  {test.result:<4}  {test.name}")
            if test.detail:
                lines.append(f"        {test.detail}")
    return "\n".join(lines) + "\n"


def _markdown(report: Report) -> str:
    lines = [
        f"# {report.implementation} {report.version} and MCP-AQL",
        "",
        f"{_claim(report)}. Requested: Level {report.requested_level}. {_counts(report)}.",
    ]
    for category in report.categories:
        word = "must" if category.required else "should"
        lines += ["", f"## {category.name}: {category.result} ({word})", ""]
        for test in category.tests:
            detail = f": {test.detail}" if test.detail else ""
            lines.append(f"- {test.result} {test.name}{detail}")
    return "\n".join(lines) + "\n"
