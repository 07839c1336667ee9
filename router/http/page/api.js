// Requests to the router. A token is kept in this module's memory alone: it is gone with the page.

let token = null;
let worker = null;
let aborting = new AbortController();

/** The router asks for a login. `offered`: the ways, `basic` or `bearer`. */
export class LoginError extends Error {
  constructor(text, offered) {
    super(text);
    this.offered = offered;
  }
}

/** The router refuses a request, with this status; 0: it cannot be reached. */
export class RefusedError extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

/** Show a token with each request from now on; null: none. */
export function useToken(text) {
  token = text;
}

export const hasToken = () => token !== null;

/** Ask one worker of the router from now on; null: the router has none. */
export function useWorker(id) {
  worker = id;
}

/** Give up the reads that are under way: nobody looks at their answers any more. */
export function abandon() {
  aborting.abort();
  aborting = new AbortController();
}

/** Return the answer to a read. Arguments: parameters: those that are null are left out. */
export async function read(path, parameters = {}) {
  return await ask("GET", path, parameters, undefined, aborting.signal);
}

/** Return the answer to a change; null: it has no content. */
export async function change(method, path, content) {
  return await ask(method, path, {}, content, undefined);
}

async function ask(method, path, parameters, content, signal) {
  const target = new URL(path, location.origin);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") target.searchParams.set(name, value);
  }
  if (worker !== null) target.searchParams.set("router", worker);
  const headers = { "X-Amqpmesh-Page": "1" };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (method !== "GET") headers["X-Amqpmesh-Change"] = "1";
  if (content !== undefined) headers["Content-Type"] = "application/json";
  const body = content === undefined ? undefined : JSON.stringify(content);
  let answer;
  try {
    answer = await fetch(target, { method, headers, body, signal, redirect: "error", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RefusedError("the router does not answer", 0);
  }
  if (answer.status === 204) return null;
  let told;
  try {
    told = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RefusedError("the answer was cut off", answer.ok ? 0 : answer.status);
  }
  if (answer.status === 401) {
    const offered = /offered="([^"]*)"/.exec(answer.headers.get("WWW-Authenticate") ?? "");
    throw new LoginError(told.error, offered === null ? [] : offered[1].split(" "));
  }
  if (!answer.ok) throw new RefusedError(told.error ?? `the router answers ${answer.status}`, answer.status);
  return told;
}
