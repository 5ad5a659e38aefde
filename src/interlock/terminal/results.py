"""Output of tool results, for a person or for a program."""

from __future__ import annotations

import sys
from typing import Any, Final

from interlock.terminal import node_discovery, output

CLIENT_HINT: Final = "`tools/list` returns the names."
"""The end of an error for a program. Commands replace it by the command that lists the tools."""
_DEFAULT_SELECTOR: Final = node_discovery.NodeSelector()


def print_result(
    raw: bytes,
    *,
    json_output: bool = False,
    selector: node_discovery.NodeSelector = _DEFAULT_SELECTOR,
    node_stopped: bool = False,
) -> int:
    """Print the result of a tool call and return the exit code.

    Args:
        selector: the options that selected the node, for the commands in hints.
        node_stopped: True if the node was temporary and has stopped.
    """
    import msgspec

    from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT, STATUS

    result = msgspec.json.decode(raw)
    if sys.stderr.isatty():
        # Clear an incomplete progress line.
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    failed = result.get("isError") is True
    meta = result.get("_meta")
    structured = result.get("structuredContent")
    if isinstance(meta, dict) and APPROVAL in meta:
        executed_at, id = (
            output.sanitize(str(meta.get(key, "?"))) for key in (EXECUTED_AT, APPROVAL)
        )
        output.print_note(
            f"This is the result of the approved call {id}, which ran at {executed_at}."
        )
        content = result.get("content")
        if isinstance(content, list) and content and id in str(content[-1]):
            # The last block says the same to a model.
            content.pop()
    if json_output:
        output.print_json(result.get("structuredContent", result))
    elif isinstance(meta, dict) and STATUS in meta and isinstance(structured, dict):
        no_operator = structured.get("operators_enrolled") is False
        _print_pending(structured, selector, no_operator=no_operator, node_stopped=node_stopped)
    else:
        stream = sys.stderr if failed else sys.stdout
        content = result.get("content")
        for block in content if isinstance(content, list) else ():
            text = _format_block(block)
            # A file or a pipe gets the exact text. For a terminal, control characters are removed.
            print(output.sanitize(text) if stream.isatty() else text, file=stream)
        if not result.get("content") and "structuredContent" in result:
            output.print_json(result["structuredContent"])
    return output.FAILED if failed else output.OK


def _print_pending(
    structured: dict[str, Any],
    selector: node_discovery.NodeSelector,
    *,
    no_operator: bool,
    node_stopped: bool,
) -> None:
    """Tell a person at a terminal how to approve or reject a pending call."""
    import shlex

    def field_text(name: str) -> str:
        return " ".join(output.sanitize(str(structured.get(name, ""))).split())

    id = shlex.quote(field_text("confirmation_id"))
    tool, reason, url = field_text("tool"), field_text("reason"), field_text("url")
    output.print_problem(
        f"{tool} was not called: approval required.{f' {reason}' if reason else ''}"
    )
    if node_stopped:
        # The approval is stored, but only a running node can accept the decision and run the call.
        output.print_note(
            "No node is running that can accept the approval. "
            f"Start one first: `{selector.up_command}`"
        )
    output.print_note(
        f"Approve: `{selector.format_command(f'approve {id}')}`" + (f", or {url}" if url else "")
    )
    output.print_note(f"Reject:  `{selector.format_command(f'reject {id}')}`")
    output.print_note(
        "The call runs when it is approved, and `interlock approve` prints the result. "
        f"If no operator decides before {field_text('expires_at')}, the call expires."
    )
    output.print_note(
        "To get the result later, use the same tool and arguments: "
        f"{selector.format_command(f'call … --approval {id}')}"
    )
    if no_operator:
        enrol_command = selector.format_command("keys new NAME")
        output.print_note(
            f"This node has no operator who can approve calls. Enrol one: `{enrol_command}`"
        )


def _format_block(block: Any) -> str:
    """Format a content block. The block is untrusted: a topic participant can send any value."""
    if not isinstance(block, dict):
        return "[?]"
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        data = str(block.get("data", ""))
        return f"[{kind} {block.get('mimeType', '')}, {len(data) * 3 // 4} bytes]"
    if kind == "resource_link":
        return str(block.get("uri", ""))
    resource = block.get("resource")
    if isinstance(resource, dict):
        return str(resource.get("text") or f"[{resource.get('uri', 'resource')}]")
    return f"[{kind}]"
