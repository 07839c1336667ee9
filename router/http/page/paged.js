// A table of rows that are all known, of which it shows some at a time.

import { brief, element, mark, named, say, shown } from "./dom.js";
import { whole } from "./format.js";

const ROWS = 50;

/** A table. Arguments: heads: titles, and whether numbers stand below them. turn: called with the page that somebody asks for; it shows the table again. */
export class Paged {
  #rows = new Map();

  constructor(caption, heads, turn) {
    this.page = 0;
    this.turn = turn;
    this.body = element("tbody");
    this.count = element("p", { class: "count" });
    this.before = element("button", { type: "button", text: "Previous", on: { click: () => this.page > 0 && turn(this.page - 1) } });
    this.after = element("button", { type: "button", text: "Next", on: { click: () => this.page + 1 < this.pages && turn(this.page + 1) } });
    this.group = element("div", { class: "pages", role: "group", "aria-label": `Pages of ${caption.toLowerCase()}`, hidden: true }, this.before, this.after);
    const table = element("table", {}, element("caption", { text: caption }), element("thead", {}, element("tr", {}, ...heads.map(([text, isNumber]) => element("th", { scope: "col", class: isNumber ? "number" : null, text })))), this.body);
    this.element = element(
      "section",
      { class: "list", "aria-label": caption },
      element("div", { class: "tools" }, this.count, this.group),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${caption}, scrolls sideways` }, table),
    );
  }

  show(all, keyOf, cellsOf) {
    this.pages = Math.max(1, Math.ceil(all.length / ROWS));
    this.page = Math.min(this.page, this.pages - 1);
    const from = this.page * ROWS;
    const some = all.slice(from, from + ROWS);
    this.group.hidden = this.pages === 1;
    mark(this.before, "aria-disabled", this.page === 0 ? "true" : null);
    mark(this.after, "aria-disabled", this.page + 1 === this.pages ? "true" : null);
    say(this.count, this.pages === 1 ? "" : `${whole(from + 1)} to ${whole(from + some.length)} of ${whole(all.length)}`);
    const kept = new Set();
    some.forEach((each, at) => {
      const key = keyOf(each);
      kept.add(key);
      const row = this.#row(key, cellsOf(each));
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
    });
    while (this.body.children.length > some.length) this.body.lastElementChild.remove();
    for (const key of this.#rows.keys()) if (!kept.has(key)) this.#rows.delete(key);
  }

  #row(key, cells) {
    let row = this.#rows.get(key);
    if (row === undefined) {
      row = element("tr", {}, ...cells.map((cell, at) => element(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: cell.number ? "number" : cell.name ? "name" : null })));
      this.#rows.set(key, row);
    }
    cells.forEach((cell, at) => {
      const place = row.children[at];
      if (cell.press && place.firstElementChild === null) place.append(element("button", { type: "button", class: "link", on: { click: cell.press } }));
      const inner = cell.press ? place.firstElementChild : place;
      if (cell.name && inner.firstElementChild === null) inner.append(named(""));
      say(cell.name ? inner.firstElementChild : inner, cell.name ? brief(cell.text) : shown(cell.text));
      mark(place, "data-alert", Boolean(cell.alert) && cell.text !== "" ? true : null);
    });
    return row;
  }
}
