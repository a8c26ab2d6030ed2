// The one place that talks to the server: token, errors in words, pictures, the stream of events.

import { askToken } from "./dialog.js";
import { plainMessage } from "./words.js";

const KEY = "midspan-token";

/** The gallery that the address names; null: the server's default. */
export const galleryName = new URLSearchParams(location.search).get("gallery");

const inGallery = (path) => (galleryName !== null && path.startsWith("/v1/") && path !== "/v1/galleries"
  ? `/v1/galleries/${encodeURIComponent(galleryName)}${path.slice(3)}` : path);

export class ApiError extends Error {
  constructor(words, status, type = null) {
    super(plainMessage(words));
    this.status = status;
    this.type = type; // the name of the server's error, where a job tells it
  }
}

const token = () => {
  try { return sessionStorage.getItem(KEY); } catch { return null; }
};

const SILENCE = 3000; // ms after "not now" without a further question
let asking = null; // one question for all requests that wait for it
let declined = -SILENCE;

function newToken(words) {
  if (performance.now() - declined < SILENCE) return false;
  asking ??= askToken(words).then((given) => {
    asking = null;
    if (given === null) {
      declined = performance.now();
      return false;
    }
    sessionStorage.setItem(KEY, given);
    return true;
  });
  return asking;
}

/** fetch with the token; asks for one on 401, then tries again. On 403 it asks for a stronger one.
 *  `quietly`: never asks; for what the page would only like to show. */
async function send(path, { quietly = false, ...options } = {}) {
  for (;;) {
    const used = token();
    const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    let response;
    try {
      response = await fetch(inGallery(path), { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is it running?", 0);
    }
    if (response.ok) return response;
    if (!quietly && (response.status === 401 || (response.status === 403 && used))) {
      if (token() !== used) continue; // somebody was asked in the meantime
      if (await newToken(tokenWords(response.status, used))) continue;
    }
    throw new ApiError(await wordsOf(response), response.status);
  }
}

function tokenWords(status, used) {
  if (status === 403) return "This needs an admin token; yours may only read.";
  return used ? "The server does not know this token. Try another one." : "This server asks for a token.";
}

async function wordsOf(response) {
  const wait = response.headers.get("Retry-After");
  if (response.status === 503) {
    return `The server is busy. Try again${wait ? ` in ${wait} s` : " in a moment"}.`;
  }
  let found;
  try { found = await response.json(); } catch { found = null; }
  return found?.error?.message ?? `The server answered ${response.status} ${response.statusText}.`;
}

const jsonBody = (body, method = "POST") => ({
  method,
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

export async function get(path, { signal, quietly = false } = {}) {
  return (await send(path, { signal, quietly })).json();
}

/** For the page of the API: status and text, whatever they are. */
export async function raw(path, method, body) {
  const options = body && method !== "GET" ? { ...jsonBody(null, method), body } : { method };
  try {
    const response = await send(path, options);
    return { status: response.status, text: (await response.text()).slice(0, 20_000) };
  } catch (error) {
    return { status: error.status, text: error.message };
  }
}

export async function post(path, body = {}, { signal } = {}) {
  return (await send(path, { ...jsonBody(body), signal })).json();
}

const LOOK = 400; // ms between two looks at a job

/** A long step as a job: `onJob(job)` hears how it stands; its result, or its error thrown. */
export const step = (name, body, options) => job(`/v1/upgrade/${name}`, body, options);

export async function job(path, body = {}, { onJob = () => {} } = {}) {
  const sent = jsonBody(body);
  sent.headers.Prefer = "respond-async";
  let found = await (await send(path, sent)).json();
  while (found.job_id !== undefined) {
    onJob(found);
    if (found.state === "done") return found.result ?? {};
    if (found.error) throw new ApiError(found.error.message, found.error.type === "Cancelled" ? "cancelled" : 409, found.error.type);
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    found = await get(`/v1/jobs/${found.job_id}`);
  }
  return found; // it was done at once
}

export const cancelJob = (id) => post(`/v1/jobs/${encodeURIComponent(id)}/cancel`);

/** `query` is {file}, {id} or {words}; `settings` are k, filter, threshold, exact. `verb`: search or compare. */
export async function ask(verb, query, settings, { signal } = {}) {
  const compare = verb === "compare";
  const given = Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== null));
  if (query.words !== undefined) return post("/v1/search", { text: query.words, ...given }, { signal });
  if (query.id !== undefined) {
    return post(compare ? "/v1/search/compare" : "/v1/search/item", { id: query.id, ...given }, { signal });
  }
  const form = new FormData();
  form.append("file", query.file, query.file.name || "pasted");
  for (const [name, value] of Object.entries(given)) {
    form.append(name, name === "filter" ? JSON.stringify(value) : String(value));
  }
  const path = compare ? "/v1/search/compare" : "/v1/search/image";
  return (await send(path, { method: "POST", body: form, signal })).json();
}

/** Add or replace an item by its image. */
export async function putImage(path, file, payload) {
  const form = new FormData();
  form.append("file", file, file.name || "image");
  form.append("payload", JSON.stringify(payload));
  return (await send(path, { method: "PUT", body: form })).json();
}

export const itemPath = (id) => `/v1/items/${encodeURIComponent(id)}`;

/** A thumbnail into `image`; `missing` is called if there is none. With a token: as a blob. */
export async function showThumbnail(image, id, { size = 160, missing = () => {} } = {}) {
  const path = `/v1/thumbnails/${encodeURIComponent(id)}?size=${size}`;
  image.addEventListener("error", missing, { once: true });
  if (!token()) {
    image.src = inGallery(path);
    return;
  }
  try {
    const url = URL.createObjectURL(await (await send(path)).blob());
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    image.src = url;
  } catch {
    missing();
  }
}

/** Server-sent events through fetch, which can carry the token. Never ends; tells when it is cut. */
export async function listen({ on, connected }) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 10_000)) {
    try {
      const response = await send("/v1/events", { headers: { Accept: "text/event-stream" }, quietly: true });
      connected(true);
      wait = 500;
      await readEvents(response.body.pipeThrough(new TextDecoderStream()).getReader(), on);
      connected(false);
    } catch (error) {
      if (error.status !== 401) connected(false); // else no token was given yet
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function readEvents(reader, on) {
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer = (buffer + value).replaceAll("\r\n", "\n");
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const fields = part.split("\n").filter((line) => !line.startsWith(":"));
      const field = (name) => fields.filter((line) => line.startsWith(`${name}:`))
        .map((line) => line.slice(name.length + 1).replace(/^ /, "")).join("\n");
      const data = field("data");
      if (data) on(field("event") || "message", JSON.parse(data));
    }
  }
}
