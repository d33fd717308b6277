// Calls of this server. The token is in the memory of this module and nowhere else.
let token = "";
export const useToken = (value) => {
  token = value.trim();
};

// An error as the server words it.
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;  // of HTTP; 0: there was no answer
  }
}

async function call(path, body, signal) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  const options = {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal};
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let said;
  try {
    said = JSON.parse(text).message;
  } catch { /* of a proxy, perhaps */
  }
  throw new CallError(response.status, said || `${response.status} ${response.statusText}`);
}

export const models = async () => (await (await call("edgewise/v1/models")).json()).models || [];
export const predict = async (body, signal) => (await call("edgewise/v1/predict", body, signal)).json();

// The messages of a generation, as they come.
export async function* generate(body, signal) {
  const response = await call("edgewise/v1/generate", body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      signal.throwIfAborted();  // what has come already is not shown either
      const event = text.slice(0, end);
      const message = JSON.parse(event.slice(event.indexOf("data: ") + 6));
      if (event.startsWith("event: error")) throw new CallError(200, message.message);
      yield message;
    }
  }
}

// Runs the newest job, and aborts the one before when that begins. All calls of its jobs wait for their turn.
export class Latest {
  constructor(gap) {
    this.gap = gap;  // between calls, milliseconds
    this.last = -gap;
    this.waiting = null;
    this.controller = new AbortController();
  }

  run(job) {
    const waits = this.waiting !== null;
    this.waiting = job;
    if (!waits) this.begin();
  }

  async begin() {
    await this.turn();
    const job = this.waiting;
    this.waiting = null;
    this.controller.abort();
    this.controller = new AbortController();
    job(this.controller.signal);
  }

  async turn(signal) {
    for (let wait; (wait = this.last + this.gap - performance.now()) > 0;) {
      await new Promise((resume) => {
        setTimeout(resume, wait);
      });
      signal?.throwIfAborted();
    }
    this.last = performance.now();
  }
}
