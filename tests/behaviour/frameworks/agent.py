# mypy: ignore-errors
# It runs in an environment that has the frameworks.
"""An agent of one LLM framework, as its documentation shows it: `agent.py FRAMEWORK NODE MODEL`.

NODE is the URL of an MCP server, MODEL the base URL of a model API. Runs in the environment of
`requirements.txt`, prints what the model says last, and ends with an error if the framework does.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

TASK = "Add two and three."


async def run_langchain(node: str, model: str) -> Any:
    from langchain.agents import create_agent
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_openai import ChatOpenAI

    client = MultiServerMCPClient({"interlock": {"transport": "streamable_http", "url": node}})
    chat = ChatOpenAI(model="stand-in", base_url=model, api_key="none", max_retries=0)
    agent = create_agent(chat, await client.get_tools())
    said = await agent.ainvoke({"messages": [{"role": "user", "content": TASK}]})
    return said["messages"][-1].content


async def run_openai_agents(node: str, model: str) -> Any:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStreamableHttp
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    api = AsyncOpenAI(base_url=model, api_key="none", max_retries=0)
    async with MCPServerStreamableHttp(
        params={"url": node, "timeout": 60}, client_session_timeout_seconds=60
    ) as server:
        chat = OpenAIChatCompletionsModel(model="stand-in", openai_client=api)
        agent = Agent(name="agent", model=chat, mcp_servers=[server])
        return (await Runner.run(agent, TASK)).final_output


async def run_pydantic_ai(node: str, model: str) -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    api = AsyncOpenAI(base_url=model, api_key="none", max_retries=0)
    chat = OpenAIChatModel("stand-in", provider=OpenAIProvider(openai_client=api))
    return (await Agent(chat, toolsets=[MCPToolset(node)]).run(TASK)).output


async def run_llama_index(node: str, model: str) -> Any:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    chat = OpenAILike(
        model="stand-in", api_base=model, api_key="none", max_retries=0,
        is_chat_model=True, is_function_calling_model=True,
    )  # fmt: skip
    tools = await McpToolSpec(BasicMCPClient(node)).to_tool_list_async()
    return str(await FunctionAgent(tools=tools, llm=chat, streaming=False).run(TASK))


FRAMEWORKS = {
    "langchain-mcp-adapters": run_langchain,
    "openai-agents": run_openai_agents,
    "pydantic-ai": run_pydantic_ai,
    "llama-index-tools-mcp": run_llama_index,
}

if __name__ == "__main__":
    print(asyncio.run(FRAMEWORKS[sys.argv[1]](*sys.argv[2:])))
