// Requests to the server. The API key lives as long as the tab.

const KEY = "mrs-api-key";

export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new HttpError(0, "The server does not answer.");
  });
  if (!response.ok) throw new HttpError(response.status, await reason(response));
  return response;
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text || response.statusText;
  }
}

export async function getJson(path) {
  return (await request(path)).json();
}

function post(path, fields, signal) {
  return request(path, { method: "POST", body: JSON.stringify(fields), signal });
}

/** How many tokens a text has, and how many the model's context. */
export async function countTokens(model, content) {
  const { count, max_model_len } = await (await post("tokenize", { model, content })).json();
  return { tokens: count, context: max_model_len };
}

/** The chunks of a streamed chat completion, before which those about loading the model come. */
export async function* chat(fields, signal) {
  const how = { stream: true, stream_options: { include_usage: true }, return_progress: true };
  const response = await post("v1/chat/completions", { ...fields, ...how }, signal);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new HttpError(response.status, chunk.error.message);
    yield chunk;
  }
  throw lost();
}

function lost() {
  return new HttpError(0, "The connection ended before the reply did.");
}

/** The data of server-sent events, each of which is one line. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : lost();
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}
