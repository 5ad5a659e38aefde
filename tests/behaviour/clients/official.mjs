// The official TypeScript client, led by whoever writes to its standard input.
//
//   node official.mjs SDK_FOLDER session|legacy|modern|auto http|sse|stdio ADDRESS
//
// `session` takes the SDK that knows one era (1.x), the others the one that knows both (2.x). Every
// line in is a step, every line out what came of it: {"do": "callTool", "with": [...]} calls a method
// of the client, {"await": "notifications/..."} waits for a notification, which may have come before.
// For stdio the address is the command to start, as JSON: {"command", "args", "env"}.
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, mode, transport, address] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(join(folder, file)));

const said = { type: "text", text: "something" };
const answers = {
  "sampling/createMessage": () => ({ role: "assistant", content: said, model: "a-model" }),
  "elicitation/create": ({ params }) =>
    params.mode === "url"
      ? { action: "accept" }
      : { action: "accept", content: { name: "A. Person" } },
  "roots/list": () => ({ roots: [{ uri: "file:///some/where", name: "Where" }] }),
};
const capabilities = { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} };
const info = { name: "official-typescript", version: "1" };

const files =
  mode === "session"
    ? {
        client: "dist/esm/client/index.js",
        http: "dist/esm/client/streamableHttp.js",
        sse: "dist/esm/client/sse.js",
        stdio: "dist/esm/client/stdio.js",
      }
    : { client: "dist/index.mjs", http: "dist/index.mjs", sse: "dist/index.mjs", stdio: "dist/stdio.mjs" };

async function newClient() {
  const { Client } = await load(files.client);
  if (mode !== "session") {
    const negotiated = mode === "modern" ? { pin: "2026-07-28" } : mode;
    const client = new Client(info, { capabilities, versionNegotiation: { mode: negotiated } });
    for (const method in answers) client.setRequestHandler(method, answers[method]);
    return client;
  }
  const types = await load("dist/esm/types.js");
  const client = new Client(info, { capabilities });
  const schemas = [types.CreateMessageRequestSchema, types.ElicitRequestSchema, types.ListRootsRequestSchema];
  Object.values(answers).forEach((answer, at) => client.setRequestHandler(schemas[at], answer));
  return client;
}

async function newTransport() {
  const classes = await load(files[transport]);
  if (transport === "stdio") return new classes.StdioClientTransport(JSON.parse(address));
  const Transport = transport === "sse" ? classes.SSEClientTransport : classes.StreamableHTTPClientTransport;
  return new Transport(new URL(address));
}

const client = await newClient();
const heard = new Map();
const notice = (method) => {
  if (!heard.has(method)) {
    let tell;
    heard.set(method, { came: new Promise((resolve) => (tell = resolve)), tell });
  }
  return heard.get(method);
};
client.fallbackNotificationHandler = async ({ method, params }) => notice(method).tell(params ?? {});
await client.connect(await newTransport());

for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line);
  let came;
  try {
    const progress = [];
    const listening = { onprogress: (one) => progress.push(one.progress) };
    const more = !step.progress ? [] : mode === "session" ? [undefined, listening] : [listening];
    if (step.await) came = { result: await notice(step.await).came };
    else came = { result: (await client[step.do](...(step.with ?? []), ...more)) ?? null, progress };
    if (step.do === "listen") came = { result: null };
  } catch (error) {
    came = { error: { code: error.code ?? null, message: String(error.message) } };
  }
  process.stdout.write(`${JSON.stringify(came)}\n`);
}
await client.close();
