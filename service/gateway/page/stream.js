// One answer over HTTP: server-sent events, and what to do when they break off.

const RESUMES = 6; // how often one answer may be picked up again
const WAITS_S = [0.2, 0.5, 1, 2, 4, 4];

export class Failure extends Error {
  constructor({ message, code = null, param = null, status = 0, retryAfter = null, broken = false }) {
    super(message);
    Object.assign(this, { code, param, status, retryAfter, broken });
  }
}

// Events of one response: {id, kind, data}. A stream that ends within an event gives that event up.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end;
      while ((end = rest.indexOf("\n\n")) >= 0) {
        const event = { id: null, kind: "message", data: "" };
        for (const line of rest.slice(0, end).split("\n")) {
          if (line.startsWith("data: ")) event.data += line.slice(6);
          else if (line.startsWith("id: ")) event.id = line.slice(4);
          else if (line.startsWith("event: ")) event.kind = line.slice(7);
        }
        rest = rest.slice(end + 2);
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function open(body, key, lastId, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (lastId) headers["Last-Event-ID"] = lastId;
  let response;
  try {
    response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Failure({ message: "The gateway cannot be reached.", broken: true });
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  const { message = `The gateway answered with status ${response.status}.`, code, param } = said.error ?? {};
  const broken = [502, 503, 504].includes(response.status);
  throw new Failure({ message, code, param, status: response.status, retryAfter: Number(response.headers.get("Retry-After")) || null, broken });
}

// One answer, picked up where it broke off, from whichever gateway answers. `tell` hears {text}, {figures}, {waiting}.
export async function answer(body, key, signal, tell) {
  let lastId = null;
  for (let breaks = 0; ; breaks += 1) {
    try {
      const response = await open(body, key, lastId, signal);
      tell({ waiting: null });
      for await (const { id, kind, data } of events(response)) {
        if (data === "[DONE]") return;
        const said = JSON.parse(data);
        if (kind === "error") {
          const { type, code } = said.error;
          throw new Failure({ ...said.error, broken: type === "server_error" && code !== "internal_error" });
        }
        if (id) lastId = id;
        const choice = said.choices[0];
        if (choice?.delta.content) tell({ text: choice.delta.content });
        if (choice?.finish_reason) tell({ figures: said.soloist });
      }
      throw new Failure({ message: "The connection was lost.", broken: true });
    } catch (error) {
      if (signal.aborted) throw error;
      const failure = error instanceof Failure ? error : new Failure({ message: "The connection was lost.", broken: true });
      // Before its first word an answer can simply be asked for again, and a person decides about that.
      if (!failure.broken || !lastId || breaks >= RESUMES) throw failure;
      tell({ waiting: "Connection lost. Picking the answer up where it stopped…" });
      await pause(Math.max(WAITS_S[breaks] ?? 4, failure.retryAfter ?? 0), signal);
    }
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}
