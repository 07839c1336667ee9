// The view of a message's trace: it is begun here, and its events are shown while they happen.

import { RefusedError, change, read } from "./api.js";
import { announce, element, named, say } from "./dom.js";
import { milliseconds } from "./format.js";
import { sentence, verdict } from "./events.js";

const PAUSE = 300; // milliseconds between two questions
const LATE = 2000; // after the end at the first router, until others are asked no longer
const MOST = 64; // routers that are asked

class Trace {
  #running = 0;

  constructor(app, address) {
    this.app = app;
    this.address = element("input", { id: "address", required: true, spellcheck: "false", autocomplete: "off", value: address });
    this.next = element("input", { id: "next", type: "checkbox" });
    this.wait = element("input", { id: "wait", type: "number", min: 1, max: 3600, value: 30 });
    this.result = element("div", { class: "trace" });
    this.verdict = element("p", { class: "verdict" });
    const submit = (event) => {
      event.preventDefault();
      this.#follow();
    };
    const field = (label, input) => element("p", {}, element("label", { for: input.id, text: label }), input);
    this.element = element(
      "div",
      {},
      element("h1", { text: "Trace a message" }),
      element("p", { class: "note", text: "The router sends a small message of its own, and a receiver gets it." }),
      element(
        "form",
        { class: "begin", on: { submit } },
        field("Address", this.address),
        field("Seconds until it is given up", this.wait),
        element("p", {}, this.next, element("label", { for: "next", text: "Send nothing: follow the next message that comes there" })),
        element("button", { type: "submit", text: "Trace" }),
      ),
      this.verdict,
      this.result,
    );
  }

  async refresh() {
    // Events are asked for while a trace runs, in their own rhythm.
  }

  leave() {
    this.#running += 1;
  }

  async #follow() {
    const run = (this.#running += 1);
    const address = this.address.value;
    this.result.replaceChildren();
    say(this.verdict, "Begun …");
    try {
      const wait = Number(this.wait.value) || 30;
      const begun = await change("POST", "/view/traces", { address, next: this.next.checked, wait });
      await this.#ask(run, begun, Date.now() + (wait + 10) * 1000);
    } catch (error) {
      if (run === this.#running && error.name !== "AbortError") this.#end(`It cannot be traced: ${error.message}`);
    }
  }

  async #ask(run, begun, until) {
    const routers = new Map([[begun.router, router(begun.router)]]);
    const first = routers.get(begun.router);
    let late = Infinity;
    while (run === this.#running && Date.now() < until) {
      for (const each of [...routers.values()]) {
        if (!each.over) await this.#hear(begun.trace, each, each === first);
        for (const event of each.events) {
          if (event.event === "left" && event.router && routers.size < MOST && !routers.has(event.to)) routers.set(event.to, router(event.to));
        }
      }
      if (run !== this.#running) return;
      this.result.replaceChildren(tree(first, routers, new Set()));
      if (first.over && late === Infinity) late = Date.now() + LATE;
      if (Date.now() >= late) {
        for (const each of routers.values()) {
          if (!each.over && each.events.length === 0) [each.over, each.silence] = [true, "nothing is known of the message here: the mark was lost on the way"];
        }
      }
      if ([...routers.values()].every((each) => each.over)) break;
      await new Promise((done) => setTimeout(done, PAUSE));
    }
    if (run === this.#running) this.#end(verdict(first.events) ?? "It has no outcome yet");
  }

  async #hear(trace, asked, isFirst) {
    try {
      const told = await read(`/view/traces/${trace}`, { after: asked.events.length, at: isFirst ? null : asked.name });
      asked.events.push(...told.events);
      [asked.over, asked.lost] = [told.over, told.lost];
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      if (error.status === 404 && asked.events.length === 0 && !isFirst) return; // its mark may be on the way
      [asked.over, asked.silence] = [true, `the router does not tell: ${error.message}`];
    }
  }

  #end(text) {
    say(this.verdict, text);
    announce(text);
  }
}

const router = (name) => ({ name, events: [], over: false, lost: 0, silence: "" });

function tree(asked, routers, above) {
  const items = [];
  const inside = new Set([...above, asked.name]);
  const left = new Map();
  for (const event of asked.events) {
    const parts = sentence(event, left, routers);
    items.push(element("li", {}, element("span", { class: "at", text: milliseconds(event.at) }), element("span", { "data-event": event.event }, ...parts)));
    if (event.event === "left") {
      left.set(event.branch ?? 0, event);
      const there = event.router ? routers.get(event.to) : undefined;
      if (there !== undefined && !inside.has(event.to)) items.push(element("li", { class: "next" }, tree(there, routers, inside)));
    }
  }
  if (asked.lost > 0) items.push(element("li", { class: "note", text: `${asked.lost} more events, for which the router had no room` }));
  if (asked.silence !== "") items.push(element("li", { class: "note" }, named(asked.silence)));
  return element("section", {}, element("h2", {}, "Router ", named(asked.name)), element("ol", {}, ...items));
}

/** Return the view. Arguments: address: the one that is filled in. */
export const trace = (app, address) => new Trace(app, address);
