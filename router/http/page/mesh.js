// The view of the mesh: the drawing, the router that somebody has chosen, and the same as tables.

import { change, read } from "./api.js";
import { announce, element, named, say, shown } from "./dom.js";
import { Drawing } from "./drawing.js";
import { Rates, octets, span, whole } from "./format.js";
import { Layout } from "./layout.js";
import { Paged } from "./paged.js";

const CUT = 3600; // seconds for which a link that is gone is drawn

class Mesh {
  #graph = { version: null, routers: [], links: [] };
  #cuts = new Map();
  #neighbours = new Map();
  #rates = new Rates();
  #others = new Map();
  #isReading = false;
  #layout = new Layout();
  #chosen = null;
  #there = [];
  #laid = "";
  #pages = { routers: 0, links: 0 };

  constructor(app) {
    this.app = app;
    this.drawing = new Drawing((id) => this.#choose(id));
    this.lead = element("p", { class: "count" });
    this.panel = element("section", { class: "panel", hidden: true, tabindex: -1, "aria-label": "Router" });
    this.routers = new Paged("Routers", [["Router"], ["Distance", true], ["Links", true], ["State"]], (page) => this.#turn("routers", page));
    this.links = new Paged("Links", [["From"], ["To"], ["Cost there", true], ["Cost back", true], ["Rate there", true], ["Rate back", true], ["State"]], (page) => this.#turn("links", page));
    this.element = element(
      "div",
      {},
      element("h1", { text: "Mesh" }),
      this.lead,
      element("figure", {}, this.drawing.element, element("figcaption", { text: "Numbers on links are costs; the thicker a link, the more goes over it. The tables below say the same." })),
      this.panel,
      this.routers.element,
      this.links.element,
    );
    this.resized = () => this.#draw();
    addEventListener("resize", this.resized);
  }

  leave() {
    removeEventListener("resize", this.resized);
  }

  async refresh() {
    const told = await read("/view/mesh", { known: this.#graph.version });
    const isNew = told.routers !== undefined;
    this.now = told.now;
    this.own = told.router;
    if (isNew) {
      this.#graph = told;
      await this.#readCuts();
    }
    this.#rate(told);
    void this.#readRates();
    const ids = this.#graph.routers.map((each) => each.id);
    const links = [...this.#graph.links.map(([from, to]) => [from, to])];
    const laid = JSON.stringify([ids, links]);
    if (laid !== this.#laid) {
      this.#laid = laid;
      await this.#layout.arrange(ids, links);
    }
    this.#draw();
  }

  /** Read the rates of other routers' links. The drawing does not wait for them: a router may be slow to answer. */
  async #readRates() {
    if (this.#isReading) return;
    this.#isReading = true;
    try {
      const { links } = await read("/view/rates");
      this.#others = new Map();
      for (const [from, to, there, back] of links) {
        this.#others.set(`${from}\n${to}`, [there, back]);
        this.#others.set(`${to}\n${from}`, [back, there]);
      }
    } catch {
      // Those that are known stay. What is wrong is said where the mesh itself is read.
    } finally {
      this.#isReading = false;
    }
  }

  async #readCuts() {
    if (!this.app.client.reads.includes("router")) return;
    const { now, changes } = await read("/view/changes");
    this.#cuts = new Map();
    for (const { event, at, fields } of changes.toReversed()) {
      const key = `${fields.router}\n${fields.to}`;
      if (event === "link up") this.#cuts.delete(key);
      else if (event === "link down" && at > now - CUT) this.#cuts.set(key, { from: fields.router, to: fields.to, ago: now - at });
    }
  }

  /** Take the counters of the connections to neighbours. */
  #rate(told) {
    this.#neighbours = new Map();
    for (const each of told.neighbours) {
      const [came, left] = this.#rates.take(each.connection, told.now, [each.octets_in, each.octets_out]);
      const before = this.#neighbours.get(each.router);
      const sum = { ...each, came: (before?.came ?? 0) + (came ?? 0), left: (before?.left ?? 0) + (left ?? 0), connections: [...(before?.connections ?? []), each] };
      this.#neighbours.set(each.router, { ...sum, known: came !== null, up: each.up || (before?.up ?? false) });
    }
    this.#rates.keep(told.neighbours.map((each) => each.connection));
  }

  #state(router) {
    if (router.id === this.own) return router.overload ? "own drains" : "own";
    if (router.distance === null) return "lost";
    return router.overload ? "drains" : router.transit ? "" : "stops";
  }

  /** Return the links of the mesh, and those that were cut lately, as they are drawn. */
  #drawnLinks() {
    const overloaded = new Set(this.#graph.routers.filter((each) => each.overload).map((each) => each.id));
    const found = this.#graph.links.map(([from, to, there, back]) => {
      const other = from === this.own ? to : to === this.own ? from : null;
      const neighbour = other === null ? undefined : this.#neighbours.get(other);
      const [out, into] = neighbour?.known ? [neighbour.left, neighbour.came] : [null, null];
      const ofOwn = from === this.own ? [out, into] : [into, out];
      const [rateThere, rateBack] = other === null ? (this.#others.get(`${from}\n${to}`) ?? [null, null]) : ofOwn;
      const busy = rateThere === null ? 0 : Math.log10(1 + rateThere + rateBack) / 9;
      const short = there === back ? String(there) : `${there} / ${back}`;
      const rate = busy > 0 ? ` · ${octets(rateThere + rateBack)}/s` : "";
      const state = overloaded.has(from) || overloaded.has(to) ? "drains" : neighbour !== undefined ? "own" : "";
      return { from, to, there, back, rateThere, rateBack, weight: Math.min(1, busy), state, label: short + rate, short };
    });
    const linked = new Set(found.map((each) => `${each.from}\n${each.to}`));
    for (const [key, cut] of this.#cuts) {
      if (!linked.has(key)) found.push({ ...cut, there: null, back: null, rateThere: null, rateBack: null, weight: 0, state: "cut", label: "cut", short: "cut" });
    }
    for (const [id, neighbour] of this.#neighbours) {
      const [from, to] = [this.own, id].sort();
      if (linked.has(`${from}\n${to}`) || this.#cuts.has(`${from}\n${to}`)) continue;
      found.push({ from, to, there: neighbour.cost, back: neighbour.remote_cost, rateThere: null, rateBack: null, weight: 0, state: "cut", label: "not used", short: "not used", reason: neighbour.reason });
    }
    return found;
  }

  #draw() {
    if (this.own === undefined) return;
    const { routers, left_out } = this.#graph;
    const links = this.#drawnLinks();
    const shownRouters = routers.map((each) => ({ id: each.id, state: this.#state(each), title: `${shown(each.id)}: ${WORDS[this.#state(each)]}` }));
    this.drawing.draw(shownRouters, links, this.#layout.places, this.#chosen);
    const cut = links.filter((each) => each.state === "cut").length;
    const lost = routers.filter((each) => each.distance === null).length;
    const more = left_out > 0 ? `; ${whole(left_out)} more are not shown` : "";
    const parts = [`${count(routers.length, "router")}, ${count(links.length - cut, "link")}${more}`];
    if (lost > 0) parts.push(`${count(lost, "router")} out of reach`);
    if (cut > 0) parts.push(`${count(cut, "link")} cut`);
    say(this.lead, parts.join("; "));
    const degree = new Map();
    for (const each of links) if (each.state !== "cut") for (const id of [each.from, each.to]) degree.set(id, (degree.get(id) ?? 0) + 1);
    this.routers.show(routers, (each) => each.id, (each) => [
      { text: each.id, press: () => this.#choose(each.id), name: true },
      { text: each.distance === null ? "" : whole(each.distance), number: true },
      { text: whole(degree.get(each.id) ?? 0), number: true },
      { text: WORDS[this.#state(each)], alert: !["", "own"].includes(this.#state(each)) },
    ]);
    this.links.show(links, (each) => `${each.from}\n${each.to}`, (each) => [
      { text: each.from, name: true },
      { text: each.to, name: true },
      { text: whole(each.there), number: true },
      { text: whole(each.back), number: true },
      { text: each.rateThere === null ? "" : `${octets(each.rateThere)}/s`, number: true },
      { text: each.rateBack === null ? "" : `${octets(each.rateBack)}/s`, number: true },
      { text: each.state === "cut" ? (each.reason ?? `cut ${each.ago === undefined ? "" : `${span(each.ago)} ago`}`) : each.state === "drains" ? "a router drains" : "", alert: each.state === "cut" },
    ]);
    if (this.#chosen !== null && !this.panel.hidden) this.#fill(false);
  }

  #turn(table, page) {
    this[table].page = page;
    this.#draw();
  }

  #choose(id) {
    this.#chosen = id;
    this.#there = [];
    this.#ask(id);
    this.back = document.activeElement;
    this.panel.hidden = false;
    this.#fill(true);
    this.#draw();
    this.panel.focus();
  }

  /** Ask another router for its connections to neighbours. */
  async #ask(id) {
    if (id === this.own) return;
    try {
      const told = await read("/view/neighbours", { at: id });
      if (this.#chosen === id) this.#there = told.neighbours;
    } catch (error) {
      if (error.name === "AbortError" || this.#chosen !== id) return;
      this.#there = error.message;
    }
    this.#fill(false);
  }

  #close() {
    this.#chosen = null;
    this.panel.hidden = true;
    this.back?.focus?.();
    this.#draw();
  }

  /** Show the router that is chosen. Arguments: anew: also what somebody may be typing into. */
  #fill(anew) {
    const router = this.#graph.routers.find((each) => each.id === this.#chosen);
    if (router === undefined) {
      this.#close();
      return;
    }
    const neighbour = this.#neighbours.get(router.id);
    const state = this.#state(router);
    const key = JSON.stringify([router.id, state, router.distance, (neighbour?.connections ?? []).map((each) => [each.connection, each.cost, each.up]), this.#there]);
    if (!anew && key === this.filled) return;
    if (!anew && this.panel.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
    this.filled = key;
    const facts = [
      ["State", WORDS[state]],
      ["Distance", router.id === this.own ? "this router" : router.distance === null ? "out of reach" : whole(router.distance)],
    ];
    const list = facts.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value })));
    for (const each of neighbour?.connections ?? []) list.push(this.#connection(each, this.own, null));
    if (typeof this.#there === "string") list.push(element("div", {}, element("dt", { text: "Its own connections" }), element("dd", { text: this.#there })));
    else for (const each of this.#there) list.push(this.#connection(each, router.id, router.id));
    this.panel.replaceChildren(
      element("h2", {}, "Router ", named(router.id)),
      element("div", { class: "buttons" }, ...this.#buttons(router), element("button", { type: "button", text: "Close", on: { click: () => this.#close() } })),
      element("dl", {}, ...list),
    );
    this.panel.onkeydown = (event) => event.key === "Escape" && this.#close();
  }

  /** Return a connection with its cost. Arguments: from: the router that has it. at: the same; null: this one. */
  #connection(each, from, at) {
    const since = at === null ? ` for ${span(this.now - each.since)}` : "";
    const told = each.reason === null ? `up${since}, cost ${each.cost} there, ${each.remote_cost ?? "none"} back` : `not used: ${each.reason}`;
    const parts = [element("span", { text: told })];
    if (this.app.client.changes.includes("neighbour")) {
      const id = `cost-${at === null ? "own" : "other"}-${each.connection}`;
      const field = element("input", { id, type: "number", min: 1, max: 65535, value: each.cost, required: true });
      const submit = async (event) => {
        event.preventDefault();
        const cost = Number(field.value);
        const own = () => change("PATCH", `/api/neighbour/${each.connection}`, { cost });
        const other = () => change("POST", "/view/cost", { at, connection: each.connection, cost });
        await this.#do(at === null ? own : other, "The cost is changed");
        if (at !== null) await this.#ask(at);
      };
      parts.push(element("form", { class: "cost", on: { submit } }, element("label", { for: id, text: `Cost from ${shown(from)} to ${shown(each.router)}` }), field, element("button", { type: "submit", text: "Set the cost" })));
    }
    return element("div", {}, element("dt", {}, named(from), " to ", named(each.router)), element("dd", {}, ...parts));
  }

  #buttons(router) {
    if (!this.app.client.changes.includes("router")) return [];
    const at = router.id;
    const drain = async () => {
      if (!confirm(`Move all clients of ${shown(at)} to other routers? The router ends then.`)) return;
      await this.#do(() => change("POST", "/view/drain", { at }), "The router drains");
    };
    const cancel = () => this.#do(() => change("POST", "/view/drain", { at, cancel: true }), "The drain is cancelled");
    return router.overload
      ? [element("button", { type: "button", text: "Cancel the drain", on: { click: cancel } })]
      : [element("button", { type: "button", class: "danger", text: "Drain the router", on: { click: drain } })];
  }

  async #do(work, done) {
    try {
      await work();
      announce(done);
      await this.app.refresh();
    } catch (error) {
      announce(`The router refuses: ${error.message}`);
    }
  }
}

const WORDS = { "": "up", own: "this router", "own drains": "this router drains", lost: "out of reach", drains: "drains: paths lead around it", stops: "is about to stop" };

const count = (number, what) => `${whole(number)} ${what}${number === 1 ? "" : "s"}`;

/** Return the view. */
export const mesh = (app) => new Mesh(app);
