// A list of the router's entities: a page of rows from the server, sorted and filtered there, and read again in place.

import { read } from "./api.js";
import { announce, brief, element, mark, named, say, shown } from "./dom.js";
import { Rates, whole } from "./format.js";

const ROWS = 50;
const PATIENCE = 250; // milliseconds after a key until the filter is asked for

/**
 * A list. Settings: `kind` of the entities, `caption`, `columns`, `sort`, `details`: called with the row that is chosen.
 * A column has `title`, `value(row, rates)` and `attributes`; `sort`: an attribute; `number`: true; `name`: a peer chose it;
 * `counters`: attributes whose rates it shows; `alert`: its text is a reason for concern.
 */
export class List {
  #settings;
  #offset = 0;
  #sort;
  #text = "";
  #rates = new Rates();
  #rows = new Map();
  #seen = null;
  #timer = 0;

  constructor(settings, again) {
    this.#settings = settings;
    this.#sort = settings.sort ?? "";
    this.#again = again;
    this.element = this.#built();
  }

  #again;
  #heads;
  #body;
  #count;
  #pages;

  /** Ask for the rows again, and show them. */
  async refresh() {
    const { kind, columns } = this.#settings;
    const attributes = new Set(["identity", ...columns.flatMap((each) => [...(each.attributes ?? []), ...(each.counters ?? [])])]);
    const told = await read(`/api/${kind}`, {
      offset: this.#offset,
      count: ROWS,
      sort: this.#sort,
      filter: this.#text,
      attributes: [...attributes].join(","),
    });
    if (told.results.length === 0 && this.#offset > 0 && told.matching <= this.#offset) {
      this.#offset = Math.floor(Math.max(0, told.matching - 1) / ROWS) * ROWS;
      return await this.refresh();
    }
    this.#show(told);
  }

  #built() {
    const { kind, caption, columns } = this.#settings;
    const id = `filter-${kind}`;
    const filter = element("input", {
      id,
      type: "search",
      maxlength: 100,
      spellcheck: "false",
      autocomplete: "off",
      on: { input: (event) => this.#filter(event.target.value) },
    });
    this.#count = element("p", { class: "count", id: `count-${kind}` });
    this.#heads = columns.map((each) => this.#head(each));
    this.#body = element("tbody");
    this.#pages = element("div", { class: "pages", role: "group", "aria-label": `Pages of ${caption.toLowerCase()}` });
    const table = element(
      "table",
      { "aria-describedby": `count-${kind}` },
      element("caption", { text: caption }),
      element("thead", {}, element("tr", {}, ...this.#heads)),
      this.#body,
    );
    const tools = element("div", { class: "tools" }, element("label", { for: id, text: "Filter" }), filter, this.#count, this.#pages);
    return element(
      "section",
      { class: "list", "aria-label": caption },
      tools,
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${caption}, scrolls sideways` }, table),
    );
  }

  #head(column) {
    const properties = { scope: "col", class: column.number ? "number" : null };
    if (column.sort === undefined) return element("th", { ...properties, text: column.title });
    const choose = () => {
      const first = column.number ? `-${column.sort}` : column.sort;
      const other = column.number ? column.sort : `-${column.sort}`;
      this.#sort = this.#sort === first ? other : first;
      this.#offset = 0;
      announce(`Sorted by ${column.title}, ${this.#sort.startsWith("-") ? "greatest first" : "least first"}`);
      this.#again();
    };
    const button = element("button", { type: "button", class: "sort", text: column.title, on: { click: choose } });
    return element("th", { ...properties, "data-sort": column.sort }, button);
  }

  #filter(text) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      this.#text = text.trim();
      this.#offset = 0;
      await this.#again();
      if (this.#seen !== null) announce(`${whole(this.#seen.matching)} rows match`);
    }, PATIENCE);
  }

  #show(told) {
    this.#seen = told;
    const { columns } = this.#settings;
    for (const head of this.#heads) {
      const sort = head.dataset.sort;
      if (sort === undefined) continue;
      mark(head, "aria-sort", this.#sort === sort ? "ascending" : this.#sort === `-${sort}` ? "descending" : null);
    }
    const keys = [];
    told.results.forEach((row, at) => {
      const counters = columns.flatMap((each) => each.counters ?? []);
      const rates = this.#rates.take(row.identity, told.now, counters.map((name) => row[name]));
      const rated = Object.fromEntries(counters.map((name, position) => [name, rates[position]]));
      keys.push(row.identity);
      const shownRow = this.#row(row.identity);
      columns.forEach((column, position) => fill(shownRow.cells[position], column, row, rated));
      shownRow.row = row;
      if (this.#body.children[at] !== shownRow.element) this.#body.insertBefore(shownRow.element, this.#body.children[at] ?? null);
    });
    while (this.#body.children.length > keys.length) this.#body.lastElementChild.remove();
    const kept = new Set(keys);
    for (const key of this.#rows.keys()) if (!kept.has(key)) this.#rows.delete(key);
    this.#rates.keep(keys);
    this.#number(told);
  }

  #row(key) {
    let found = this.#rows.get(key);
    if (found === undefined) {
      const { columns, details } = this.#settings;
      found = { row: null, cells: [], element: element("tr") };
      columns.forEach((column, at) => {
        const cell = element(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: column.number ? "number" : column.name ? "name" : null });
        if (at === 0 && details !== undefined) {
          cell.append(element("button", { type: "button", class: "link", on: { click: () => details(found.row) } }));
        }
        found.cells.push(cell);
      });
      found.element.append(...found.cells);
      this.#rows.set(key, found);
    }
    return found;
  }

  #number(told) {
    const last = this.#offset + told.results.length;
    const of = told.matching === told.total ? whole(told.total) : `${whole(told.matching)} that match, of ${whole(told.total)}`;
    const order = told.age > 5 ? `; order of ${Math.round(told.age)} s ago` : "";
    const gone = told.results.length === 0 && told.matching > 0;
    if (gone) say(this.#count, `These are gone; ${Math.round(told.age)} s ago there were ${of}`);
    else say(this.#count, told.matching === 0 ? `None${told.total === 0 ? "" : ` of ${whole(told.total)}`}` : `${whole(this.#offset + 1)} to ${whole(last)} of ${of}${order}`);
    const turn = (offset) => () => {
      this.#offset = offset;
      this.#again().then(() => announce(this.#count.textContent));
    };
    const before = this.#offset > 0, after = last < told.matching;
    if (this.#pages.children.length === 0 && !before && !after) return;
    const buttons = [
      ["Previous", before, turn(Math.max(0, this.#offset - ROWS))],
      ["Next", after, turn(Math.max(last, this.#offset + 1))],
    ];
    buttons.forEach(([text, on, click], at) => {
      let button = this.#pages.children[at];
      if (button === undefined) {
        button = element("button", { type: "button", text });
        this.#pages.append(button);
      }
      button.onclick = on ? click : null; // a button that is disabled would lose the focus
      mark(button, "aria-disabled", on ? null : "true");
    });
  }
}

function fill(cell, column, row, rates) {
  const value = column.value(row, rates);
  const text = value === null || value === undefined ? "" : column.name ? brief(value) : shown(value);
  const place = cell.querySelector("button") ?? cell;
  if (column.name) {
    if (place.firstElementChild === null) place.append(named(text));
    say(place.firstElementChild, text || "(no name)");
  } else {
    say(place, text);
  }
  if (column.alert) mark(cell, "data-alert", text !== "");
}
