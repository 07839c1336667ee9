// The page: its views, the login, and the rhythm in which it asks the router.

import { LoginError, RefusedError, abandon, hasToken, read, useToken, useWorker } from "./api.js";
import { changes } from "./changes.js";
import { announce, element, mark, named } from "./dom.js";
import { addresses, connections } from "./lists.js";
import { loginForm } from "./login.js";
import { mesh } from "./mesh.js";
import { trace } from "./trace.js";

const PERIOD = 2000; // milliseconds between two refreshes
const RETRY = 5000; // the same, while the router does not answer

const VIEWS = [
  { name: "mesh", title: "Mesh", make: mesh, for: (client) => client.tenant === null && ["route", "neighbour"].every((each) => client.reads.includes(each)) },
  { name: "addresses", title: "Addresses", make: addresses, for: (client) => client.reads.includes("address") },
  { name: "connections", title: "Connections", make: connections, for: (client) => ["connection", "link"].some((each) => client.reads.includes(each)) },
  { name: "trace", title: "Trace", make: trace, for: (client) => ["address", "link"].every((each) => client.reads.includes(each)) },
  { name: "changes", title: "Changes", make: changes, for: (client) => client.tenant === null && client.reads.includes("router") },
];

/** The page. Attributes: `client`: the client that is logged in, and its rights. */
class App {
  #content = document.getElementById("content");
  #view = null;
  #timer = 0;
  #paused = false;
  #asked = 0;

  async begin() {
    addEventListener("hashchange", () => this.#route(true));
    document.addEventListener("visibilitychange", () => this.#wake());
    document.getElementById("skip").addEventListener("click", (event) => {
      event.preventDefault();
      this.#content.focus();
    });
    await this.#enter();
  }

  /** Ask who the client is, and show the first view. */
  async #enter() {
    try {
      this.client = await read("/view/client");
    } catch (error) {
      this.#failed(error);
      return;
    }
    const { router, workers, user, tenant } = this.client;
    useWorker(workers.length > 0 ? workers[0] : null);
    this.#name(workers[0] ?? router);
    const who = [user === null ? "not logged in" : "as ", user === null ? null : named(user)];
    document.getElementById("client").replaceChildren(...who.filter((each) => each !== null), ...(tenant === null ? [] : [" of ", named(tenant)]));
    this.#control(workers);
    this.views = VIEWS.filter((each) => each.for(this.client));
    const link = (each) => element("li", {}, element("a", { href: `#${each.name}`, text: each.title }));
    document.getElementById("views").replaceChildren(...this.views.map(link));
    this.#route(false);
  }

  #name(router) {
    document.title = `${router} – amqpmesh`;
    document.getElementById("router").replaceChildren("Router ", named(router));
  }

  #control(workers) {
    const pause = element("button", { type: "button", text: "Pause", "aria-pressed": "false" });
    pause.addEventListener("click", () => {
      this.#paused = !this.#paused;
      mark(pause, "aria-pressed", String(this.#paused));
      announce(this.#paused ? "The figures stand still" : "The figures are read again");
      this.#wake();
    });
    const parts = [pause];
    if (workers.length > 0) {
      const options = workers.map((each) => element("option", { value: each, text: each }));
      const choose = (event) => {
        useWorker(event.target.value);
        this.#name(event.target.value);
        this.#route(false);
      };
      parts.unshift(element("label", { text: "Worker " }, element("select", { on: { change: choose } }, ...options)));
    }
    if (hasToken()) {
      const forget = () => {
        useToken(null);
        location.reload();
      };
      parts.push(element("button", { type: "button", text: "Log out", on: { click: forget } }));
    }
    document.getElementById("controls").replaceChildren(...parts);
  }

  /** Show the view that the address of the page names. Arguments: moves: the focus goes to it. */
  #route(moves) {
    if (this.views === undefined) return;
    const [name, rest] = location.hash.slice(1).split("/");
    const found = this.views.find((each) => each.name === name) ?? this.views[0];
    if (found === undefined) {
      this.#content.replaceChildren(element("p", { text: "You may see nothing of this router." }));
      return;
    }
    abandon();
    this.#view?.leave?.();
    for (const link of document.querySelectorAll("#views a")) {
      mark(link, "aria-current", link.getAttribute("href") === `#${found.name}` ? "page" : null);
    }
    let argument = "";
    try {
      argument = decodeURIComponent(rest ?? "");
    } catch {
      // somebody has written it by hand
    }
    this.#view = found.make(this, argument);
    this.#content.replaceChildren(this.#view.element);
    if (moves) this.#content.focus();
    this.refresh();
  }

  /** Read the figures of the view again, now. */
  refresh() {
    clearTimeout(this.#timer);
    const asked = (this.#asked += 1);
    return this.#refresh(asked);
  }

  async #refresh(asked) {
    const view = this.#view;
    let pause = PERIOD;
    try {
      await view.refresh();
      if (asked === this.#asked) this.#fresh();
    } catch (error) {
      if (error.name === "AbortError" || asked !== this.#asked) return;
      this.#failed(error);
      if (error instanceof LoginError) return;
      pause = RETRY;
    }
    if (asked === this.#asked && !this.#paused && !document.hidden) this.#timer = setTimeout(() => this.refresh(), pause);
  }

  #wake() {
    clearTimeout(this.#timer);
    if (!this.#paused && !document.hidden && this.#view !== null) this.refresh();
  }

  #fresh() {
    if (document.body.dataset.lost !== undefined) {
      delete document.body.dataset.lost;
      announce("The router answers again");
    }
  }

  #failed(error) {
    if (error instanceof LoginError) {
      clearTimeout(this.#timer);
      this.#content.replaceChildren(loginForm(error.offered, error.message, () => this.#enter()));
      this.#view = null;
      return;
    }
    if (error instanceof RefusedError && error.status !== 0 && error.status !== 503) announce(`The router refuses: ${error.message}`);
    else announce(`No fresh figures: ${error.message}`);
    if (!(error instanceof RefusedError)) console.error(error);
    document.body.dataset.lost = "";
    if (this.#view === null) {
      this.#content.replaceChildren(element("p", { class: "problem", text: `The router cannot be asked: ${error.message}` }));
      this.#timer = setTimeout(() => this.#enter(), RETRY);
    }
  }
}

const app = new App();
await app.begin();
