"""A server of the stateless wire with the tasks extension, as the suite's tasks scenarios want one.

    python tasks_server.py

It prints the port that it listens on. No public server offers these tools, so this one is our own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import uvicorn

REVISION = "2026-07-28"
RESERVED = "io.modelcontextprotocol/"
EXTENSION = f"{RESERVED}tasks"
NEEDED: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}

Members = dict[str, Any]


class RefusedError(Exception):
    """An error of JSON-RPC, with the HTTP status that goes with it."""

    def __init__(self, status: int, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"code": code, "message": message} | ({"data": data} if data else {})


def said(text: str, **more: Any) -> Members:
    return {"content": [{"type": "text", "text": text}], **more}


def question(message: str) -> Members:
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}}
    params = {"message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


class Task:
    """Work that goes on after the call was answered."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(12)
        self.status = "working"
        self.created = self.updated = _now()
        self.outcome: Members = {}
        self.questions: dict[str, Members] = {}
        self.answers: dict[str, Any] = {}
        self._answered = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def begin(self, work: Callable[[Task], Awaitable[Members]]) -> None:
        self._work = asyncio.create_task(self._run(work))

    async def _run(self, work: Callable[[Task], Awaitable[Members]]) -> None:
        try:
            self.outcome = {"result": {**await work(self), "resultType": "complete"}}
            self._become("completed")
        except RefusedError as refused:
            self.outcome = {"error": refused.error}
            self._become("failed")

    def _become(self, status: str) -> None:
        self.status, self.updated = status, _now()

    async def ask(self, **questions: Members) -> dict[str, Any]:
        """Wait until every question is answered."""
        self.questions = questions
        self._become("input_required")
        await self._answered.wait()
        return self.answers

    def update(self, answers: dict[str, Any]) -> None:
        for key in answers.keys() & self.questions.keys():
            del self.questions[key]
            self.answers[key] = answers[key]
        if self.status == "input_required" and not self.questions:
            self._become("working")
            self._answered.set()

    def cancel(self) -> None:
        if self.status in ("working", "input_required") and self._work is not None:
            self._work.cancel()
            self.questions = {}
            self._become("cancelled")

    def shown(self) -> Members:
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttlMs": 600_000,
            "pollIntervalMs": 100,
        }

    def detailed(self) -> Members:
        asked = {"inputRequests": self.questions} if self.questions else {}
        return {**self.shown(), **self.outcome, **asked}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- the tools


async def slow_compute(task: Task, arguments: Members) -> Members:
    await asyncio.sleep(arguments.get("seconds", 0))
    return said(f"computed {arguments.get('label', '')}")


async def failing_job(task: Task, arguments: Members) -> Members:
    return said("this job always fails", isError=True)


async def protocol_error_job(task: Task, arguments: Members) -> Members:
    raise RefusedError(500, -32603, "the job broke down")


async def confirm_delete(task: Task, arguments: Members) -> Members:
    await task.ask(confirm=question(f"Delete {arguments.get('filename')}?"))
    return said("deleted")


async def multi_input(task: Task, arguments: Members) -> Members:
    await task.ask(first=question("One?"), second=question("Two?"))
    return said("both answered")


async def greet_later(task: Task, arguments: Members) -> Members:
    return said(f"Hello, {arguments['name']}!")


JOBS = {
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
}
TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}}
    for name in ("greet", *JOBS, "test_tool_with_task")
]


# -- the wire

METHODS = (
    "server/discover",
    "tools/list",
    "tools/call",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
)


class TasksServer:
    """Answers one request at a time; only tasks last."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    async def answer(self, headers: dict[str, str], message: Members) -> Members:
        method, params = message["method"], message.get("params") or {}
        meta = params.get("_meta") or {}
        if headers.get("mcp-protocol-version") != REVISION:
            data = {"supported": [REVISION], "requested": headers.get("mcp-protocol-version", "")}
            raise RefusedError(400, -32022, "Unsupported protocol version", data)
        if method not in METHODS:
            raise RefusedError(404, -32601, f"Method not found: {method}")
        named = params.get("taskId") if method.startswith("tasks/") else params.get("name")
        if headers.get("mcp-method") != method or (named and headers.get("mcp-name") != named):
            raise RefusedError(400, -32020, "The headers and the body differ")
        can = meta.get(f"{RESERVED}clientCapabilities", {})
        speaks_tasks = EXTENSION in can.get("extensions", {})
        if method == "server/discover":
            capabilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
            about = {f"{RESERVED}serverInfo": {"name": "tasks-server", "version": "1"}}
            cached = {"ttlMs": 0, "cacheScope": "private"}
            versions = {"supportedVersions": [REVISION], "capabilities": capabilities}
            return {**versions, **cached, "_meta": about}
        if method == "tools/list":
            return {"tools": TOOLS, "ttlMs": 0, "cacheScope": "private"}
        if method == "tools/call":
            return await self._call(params, speaks_tasks)
        if not speaks_tasks:
            raise RefusedError(400, -32021, "This takes the tasks extension", NEEDED)
        return self._about(method, params)

    async def _call(self, params: Members, speaks_tasks: bool) -> Members:
        name, arguments = params["name"], params.get("arguments") or {}
        if name == "greet":
            return said(f"Hello, {arguments.get('name')}!")
        if name == "slow_compute" and not speaks_tasks:
            return await slow_compute(Task(), arguments)
        if name not in JOBS and name != "test_tool_with_task":
            raise RefusedError(400, -32602, f"Unknown tool: {name}")
        if not speaks_tasks:
            raise RefusedError(400, -32021, "This tool takes the tasks extension", NEEDED)
        job = JOBS.get(name, greet_later)
        if name == "test_tool_with_task":
            answer = (params.get("inputResponses") or {}).get("user_name")
            if answer is None:
                request = {"user_name": question("What is your name?")}
                return {"resultType": "input_required", "inputRequests": request}
            arguments = answer["content"]
        task = Task()
        self._tasks[task.id] = task
        created = {**task.shown(), "resultType": "task"}
        task.begin(lambda task: job(task, arguments))
        return created

    def _about(self, method: str, params: Members) -> Members:
        task = self._tasks.get(params.get("taskId", ""))
        if task is None:
            raise RefusedError(400, -32602, "Unknown taskId")
        if method == "tasks/get":
            return task.detailed()
        if method == "tasks/update":
            task.update(params.get("inputResponses") or {})
        else:
            task.cancel()
        return {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            piece = await receive()
            body, more = body + piece.get("body", b""), piece.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        answer: Members = {"jsonrpc": "2.0", "id": None}
        status = 200
        try:
            if scope["method"] != "POST":
                raise RefusedError(405, -32600, "POST only")
            message = json.loads(body)
            answer["id"] = message.get("id")
            answer["result"] = {
                "resultType": "complete",
                **await self.answer(headers, message),
            }
        except RefusedError as refused:
            status, answer["error"] = refused.status, refused.error
        sent = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def main() -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    settings = uvicorn.Config(TasksServer(), log_level="critical", lifespan="off")
    uvicorn.Server(settings).run(sockets=[listening])


if __name__ == "__main__":
    main()
