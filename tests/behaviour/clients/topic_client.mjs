// Participants of topics by the `ws` package, led by whoever writes to its standard input.
//
//   node topic_client.mjs WS_FOLDER
//
// Every line in is a step for one connection: {"open": NAME, "url": URL, "token": TOKEN},
// {"send": NAME, "text": TEXT}, {"send": NAME, "base64": BYTES}, which go as a binary message,
// {"close": NAME, "code": CODE}. Every line out says what happened to one:
// {"name", "event": "open" | "message" | "closed" | "refused", ...}.
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { WebSocket } = await import(pathToFileURL(join(process.argv[2], "wrapper.mjs")));
const sockets = new Map();

const tell = (name, event, more) => console.log(JSON.stringify({ name, event, ...more }));

function open({ open: name, url, token }) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const socket = new WebSocket(url, { headers });
  sockets.set(name, socket);
  socket.on("open", () => tell(name, "open", {}));
  socket.on("message", (data, binary) => tell(name, "message", { text: data.toString(), binary }));
  socket.on("unexpected-response", (request, response) => {
    tell(name, "refused", { status: response.statusCode });
    request.destroy();
  });
  socket.on("close", (code, reason) => tell(name, "closed", { code, reason: reason.toString() }));
  socket.on("error", () => {});
}

for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line);
  if ("open" in step) open(step);
  else if ("base64" in step) sockets.get(step.send).send(Buffer.from(step.base64, "base64"));
  else if ("send" in step) sockets.get(step.send).send(step.text);
  else sockets.get(step.close).close(step.code);
}
