"""Drivers in Python: behaviour that a DRIVER.md cannot express, and servers without a node.

A `driver.py` beside a DRIVER.md exports `driver`:

    from interlock.drivers.sdk import HookArguments, HookResult, define_driver

    def build_arguments(args: HookArguments) -> dict:
        return {**args.input, "tenant_id": args.context["tenant_id"]}

    def parse_tool_result(args: HookArguments) -> HookResult:
        if args.result.get("isError"):
            return HookResult(ok=False, code="shop:closed", message="Come back tomorrow.")
        return HookResult(value=args.result["structuredContent"])

    driver = define_driver(build_arguments=build_arguments, parse_tool_result=parse_tool_result)

A node runs it only where the operator has said so (`drivers.allow_code`), in a confined process of
its own: what hooks are given and return is JSON. Where front matter and code say something of the
same field, the front matter counts. Whatever a hook raises is an error of its call. Plain functions
run in a thread, `async` ones on the process's loop, and those are cancelled with their call. All
but `execute` have ten seconds.

Everything has its name in the specification's own spelling, too: `defineDriver`.
"""

from interlock.drivers.errors import ToolFault
from interlock.drivers.sdk.reference import (
    call_mcp_tool,
    callMcpTool,
    connect_mcp_server,
    connectMcpServer,
    list_mcp_tools,
    listMcpTools,
    subscribe_mcp_prompts,
    subscribeMcpPrompts,
)
from interlock.drivers.standalone import StandaloneServer
from interlock.manifests.definitions import (
    DriverDefinition,
    define_driver,
    define_io,
    define_mcp_driver,
    define_secret,
    define_tool,
    defineDriver,
    defineIO,
    defineMcpDriver,
    defineSecret,
    defineTool,
)
from interlock.manifests.document import ManifestError
from interlock.manifests.hook_types import HookArguments, HookResult

__all__ = [
    "DriverDefinition",
    "HookArguments",
    "HookResult",
    "ManifestError",
    "StandaloneServer",
    "ToolFault",
    "callMcpTool",
    "call_mcp_tool",
    "connectMcpServer",
    "connect_mcp_server",
    "defineDriver",
    "defineIO",
    "defineMcpDriver",
    "defineSecret",
    "defineTool",
    "define_driver",
    "define_io",
    "define_mcp_driver",
    "define_secret",
    "define_tool",
    "listMcpTools",
    "list_mcp_tools",
    "subscribeMcpPrompts",
    "subscribe_mcp_prompts",
]
