// The views of addresses, and of connections and links.

import { change, read } from "./api.js";
import { announce, element, named, shown } from "./dom.js";
import { octets, rate, span, whole } from "./format.js";
import { List } from "./list.js";

const plain = (title, attribute, more = {}) => ({
  title,
  attributes: [attribute],
  sort: attribute,
  value: (row) => row[attribute],
  ...more,
});
const counted = (title, attribute) => plain(title, attribute, { number: true, value: (row) => whole(row[attribute]) });
const rated = (title, counter, shownAs = rate) => ({
  title,
  counters: [counter],
  sort: counter,
  number: true,
  value: (row, rates) => (rates[counter] === null ? "" : shownAs(rates[counter])),
});
const tenant = plain("Tenant", "tenant", { name: true, value: (row) => row.tenant || "–" });
const reason = plain("Reason to wait", "reason", { alert: true });

const ADDRESS = [
  plain("Address", "name", { name: true }),
  tenant,
  plain("Distribution", "distribution"),
  counted("Senders", "producers"),
  counted("Receivers", "consumers"),
  { ...rated("In/s", "deliveries_in"), sort: "rate", attributes: ["rate"] },
  rated("Out/s", "deliveries_out"),
  counted("Waiting", "waiting"),
  counted("Credit", "demand"),
  plain("Oldest", "oldest_unsettled", { number: true, value: (row) => span(row.oldest_unsettled) }),
  reason,
];

const CONNECTION = [
  plain("Number", "number", { value: (row) => String(row.number) }),
  plain("Container", "container_id", { name: true }),
  tenant,
  plain("User", "user", { name: true, value: (row) => row.user ?? "–" }),
  plain("Host", "host"),
  plain("Role", "role"),
  plain("TLS", "tls", { value: (row) => row.tls ?? "–" }),
  counted("Links", "links"),
  rated("In", "octets_in", (value) => `${octets(value)}/s`),
  rated("Out", "octets_out", (value) => `${octets(value)}/s`),
  plain("Unwritten", "unwritten", { number: true, value: (row) => octets(row.unwritten) }),
];

const LINK = [
  plain("Number", "number", { value: (row) => String(row.number) }),
  plain("Link", "name", { name: true }),
  plain("Address", "address", { name: true, value: (row) => row.address ?? "(of each message)" }),
  plain("Direction", "direction"),
  plain("Connection", "connection", { value: (row) => String(row.connection) }),
  rated("Deliveries/s", "deliveries"),
  counted("Waiting", "undelivered"),
  counted("Unsettled", "unsettled"),
  counted("Credit", "credit"),
  reason,
];

/** A view of lists, with the attributes of the row that somebody has chosen. */
class Lists {
  constructor(app, title, lists) {
    this.app = app;
    this.lists = lists
      .filter((each) => app.client.reads.includes(each.kind))
      .map((each) => {
        const columns = each.columns.filter((column) => column !== tenant || app.client.tenants);
        return new List({ ...each, columns, details: (row) => this.show(each.kind, row) }, () => app.refresh());
      });
    this.panel = element("section", { class: "panel", hidden: true, "aria-label": "Attributes", tabindex: -1 });
    this.element = element("div", {}, element("h1", { text: title }), this.panel, ...this.lists.map((each) => each.element));
  }

  async refresh() {
    await Promise.all(this.lists.map((each) => each.refresh()));
  }

  /** Show all attributes of a row. */
  async show(kind, row) {
    const path = `/api/${row.identity.split("/").map(encodeURIComponent).join("/")}`;
    try {
      this.fill(kind, await read(path));
    } catch (error) {
      announce(`It cannot be shown: ${error.message}`);
    }
  }

  fill(kind, entity) {
    const back = document.activeElement;
    const close = () => {
      this.panel.hidden = true;
      back?.focus();
    };
    const rows = Object.entries(entity)
      .filter(([name, value]) => value !== null && name !== "type" && name !== "identity")
      .map(([name, value]) => element("div", {}, element("dt", { text: name.replaceAll("_", " ") }), element("dd", {}, named(text(value)))));
    this.panel.replaceChildren(
      element("h2", {}, `${kind[0].toUpperCase()}${kind.slice(1)} `, named(kind === "connection" ? entity.number : entity.name)),
      element("div", { class: "buttons" }, ...this.buttons(kind, entity, close), element("button", { type: "button", text: "Close", on: { click: close } })),
      element("dl", {}, ...rows),
    );
    this.panel.hidden = false;
    this.panel.focus();
    this.panel.onkeydown = (event) => event.key === "Escape" && close();
  }

  buttons(kind, entity, close) {
    const found = [];
    const { reads, changes } = this.app.client;
    if (kind === "address" && reads.includes("link") && !entity.name.startsWith("$")) {
      found.push(element("a", { class: "button", href: `#trace/${encodeURIComponent(entity.name)}`, text: "Trace a message" }));
    }
    if ((kind === "link" || (kind === "connection" && entity.role === "normal")) && changes.includes(kind)) {
      const word = kind === "connection" ? "Close the connection" : "Detach the link";
      const end = async () => {
        if (!confirm(`${word} of ${shown(entity.container_id ?? entity.name)}? Its client may come again.`)) return;
        try {
          await change("DELETE", `/api/${entity.identity}`);
          announce("Done.");
          close();
          this.app.refresh();
        } catch (error) {
          announce(`The router refuses: ${error.message}`);
        }
      };
      found.push(element("button", { type: "button", class: "danger", text: word, on: { click: end } }));
    }
    return found;
  }
}

function text(value) {
  if (typeof value === "number") return Number.isInteger(value) ? whole(value) : value.toFixed(3);
  if (typeof value !== "object") return String(value) || "–";
  const pairs = Array.isArray(value) ? value : entries(value).map(([name, each]) => `${name}: ${text(each)}`);
  return pairs.join(", ") || "–";
}

/** Return the entries of a map, those of a histogram by their bounds: objects have whole numbers first. */
function entries(map) {
  const bound = ([name]) => (name === "inf" ? Infinity : Number(name));
  const found = Object.entries(map);
  return found.every((each) => !Number.isNaN(bound(each))) ? found.sort((a, b) => bound(a) - bound(b) || 0) : found;
}

/** Return the view of addresses. */
export const addresses = (app) =>
  new Lists(app, "Addresses", [{ kind: "address", caption: "Addresses in use here", columns: ADDRESS, sort: "-rate" }]);

/** Return the view of connections and links. */
export const connections = (app) =>
  new Lists(app, "Connections and links", [
    { kind: "connection", caption: "Connections", columns: CONNECTION, sort: "number" },
    { kind: "link", caption: "Links of clients", columns: LINK, sort: "-rate" },
  ]);
