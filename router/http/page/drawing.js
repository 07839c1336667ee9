// The drawing of a mesh. What it shows is in the tables below it, too: for those it is hidden from.

import { drawn, mark, say, shown } from "./dom.js";
import { fitted, tallest } from "./layout.js";

const NAMED = 60; // routers that have their names in the drawing; of more, only those that matter
const PRICED = 60; // links that have their costs in the drawing
const LONGEST = 22; // characters of a name
const LETTER = 3.8; // pixels of half a letter
const NARROW = 640; // pixels, in which a link has room for its costs only

export class Drawing {
  #lines = new Map();
  #nodes = new Map();
  #under = drawn("g", { class: "links" });
  #over = drawn("g", { class: "routers" });
  #size = { width: 0, height: 0 };

  /** Arguments: choose: called with the id of a router that somebody has clicked. */
  constructor(choose) {
    this.choose = choose;
    this.element = drawn("svg", { class: "mesh", "aria-hidden": "true", focusable: "false" }, this.#under, this.#over);
  }

  /**
   * Draw. Arguments: routers: with `id`, `state` and `title`. links: with `from`, `to`, `state`, `label`, `short`, `weight` (0 to 1).
   * places: of the layout. chosen: the id of the router whose details are shown.
   */
  draw(routers, links, places, chosen) {
    const width = Math.max(280, this.element.parentElement?.clientWidth ?? 800);
    const height = Math.round(Math.min(Math.max(300, width * 0.5), innerHeight * 0.62, Math.max(180, tallest(places) + 100)));
    if (width !== this.#size.width || height !== this.#size.height) {
      this.#size = { width, height };
      mark(this.element, "viewBox", `0 0 ${width} ${height}`);
      mark(this.element, "height", height);
    }
    const size = routers.length <= 12 ? 13 : routers.length <= 60 ? 8 : routers.length <= 250 ? 5.5 : 3.5;
    const radius = width < NARROW && size < 13 ? 0.6 * size : size;
    const at = fitted(places, width, height, routers.length <= NAMED ? 46 : 20);
    const linked = new Set(links.filter((each) => each.from === chosen || each.to === chosen).flatMap((each) => [each.from, each.to]));
    this.#drawLinks(links, at, chosen);
    const kept = new Set();
    for (const router of routers) {
      const place = at.get(router.id);
      if (place === undefined) continue;
      kept.add(router.id);
      const node = this.#node(router.id);
      mark(node.group, "transform", `translate(${place.x} ${place.y})`);
      mark(node.group, "data-state", router.state);
      mark(node.group, "data-chosen", router.id === chosen || null);
      mark(node.circle, "r", router.state.includes("own") ? radius + 2 : radius);
      mark(node.text, "y", radius + 15);
      const stands = router.state !== "" || router.id === chosen;
      const named = routers.length <= NAMED || stands || linked.has(router.id);
      const name = shown(router.id);
      say(node.text, named ? (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name) : "");
      say(node.title, router.title);
      const half = LETTER * Math.min(name.length, LONGEST);
      mark(node.text, "x", Math.round(Math.max(0, half - place.x) - Math.max(0, place.x + half - width)));
      if (stands && !node.stands) this.#over.append(node.group); // nothing covers its name
      node.stands = stands;
    }
    drop(this.#nodes, kept, (each) => each.group);
  }

  #drawLinks(links, at, chosen) {
    const kept = new Set();
    for (const link of links) {
      const [from, to] = [at.get(link.from), at.get(link.to)];
      if (from === undefined || to === undefined) continue;
      const key = `${link.from}\n${link.to}`;
      kept.add(key);
      const line = this.#line(key);
      mark(line.line, "x1", from.x);
      mark(line.line, "y1", from.y);
      mark(line.line, "x2", to.x);
      mark(line.line, "y2", to.y);
      mark(line.group, "data-state", link.state);
      mark(line.group, "data-chosen", link.from === chosen || link.to === chosen || null);
      mark(line.line, "stroke-width", (1.2 + 4.5 * link.weight).toFixed(1));
      const labelled = links.length <= PRICED || link.state !== "" || link.from === chosen || link.to === chosen;
      this.#label(line, labelled ? (this.#size.width < NARROW ? link.short : link.label) : "", (from.x + to.x) / 2, (from.y + to.y) / 2);
    }
    drop(this.#lines, kept, (each) => each.group);
  }

  /** Write on a link, at its middle; the line is not to be seen between the letters. */
  #label(line, label, x, y) {
    if (line.text.textContent !== label) {
      line.text.textContent = label;
      line.width = label === "" ? 0 : line.text.getComputedTextLength() + 8;
    }
    mark(line.text, "x", Math.round(x));
    mark(line.text, "y", Math.round(y) + 4);
    mark(line.back, "x", Math.round(x - line.width / 2));
    mark(line.back, "y", Math.round(y) - 7);
    mark(line.back, "width", Math.round(line.width));
  }

  #line(key) {
    let found = this.#lines.get(key);
    if (found === undefined) {
      const line = drawn("line"), back = drawn("rect", { width: 0, height: 14 }), text = drawn("text");
      found = { line, back, text, width: 0, group: drawn("g", {}, line, back, text) };
      this.#lines.set(key, found);
      this.#under.append(found.group);
    }
    return found;
  }

  #node(id) {
    let found = this.#nodes.get(id);
    if (found === undefined) {
      const circle = drawn("circle"), text = drawn("text"), title = drawn("title");
      found = { circle, text, title, stands: false, group: drawn("g", { on: { click: () => this.choose(id) } }, title, circle, text) };
      this.#nodes.set(id, found);
      this.#over.append(found.group);
    }
    return found;
  }
}

function drop(found, kept, part) {
  for (const [key, each] of found) {
    if (kept.has(key)) continue;
    part(each).remove();
    found.delete(key);
  }
}
