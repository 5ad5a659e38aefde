"""Python API for drivers: hooks that a DRIVER.md cannot express, and driver servers without a node
(AIP-32).

A `driver.py` beside a DRIVER.md exports `driver`:

    from interlock.drivers.sdk import HookArguments, HookResult, define_driver

    def build_arguments(args: HookArguments) -> dict:
        return {**args.input, "tenant_id": args.context["tenant_id"]}

    def parse_tool_result(args: HookArguments) -> HookResult:
        if args.result.get("isError"):
            return HookResult(ok=False, code="shop:closed", message="Try again tomorrow.")
        return HookResult(value=args.result["structuredContent"])

    driver = define_driver(build_arguments=build_arguments, parse_tool_result=parse_tool_result)

A node runs a driver.py only if the operator allows it (`drivers.allow_code`), in a confined process
of its own. Hooks receive and return JSON values. If front matter and code set the same field, the
front matter wins. An exception in a hook is an error of its call. Plain functions run in a thread.
`async` functions run on the event loop of the process and are cancelled with their call. Every hook
except `execute` has a timeout of ten seconds.

Every name is also available in the spelling of the specification: `defineDriver`.
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
