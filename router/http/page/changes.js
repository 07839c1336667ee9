// The view of changes of the last hour.

import { read } from "./api.js";
import { element, named, say } from "./dom.js";
import { clock, whole } from "./format.js";


class Changes {
  constructor() {
    this.note = element("p", { class: "count" });
    this.body = element("tbody");
    this.seen = "";
    const heads = ["Time", "Change", "Details"].map((each) => element("th", { scope: "col", text: each }));
    this.element = element(
      "div",
      {},
      element("h1", { text: "Changes of the last hour" }),
      element("div", { class: "tools" }, this.note),
      element(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Changes, scrolls sideways" },
        element("table", {}, element("caption", { text: "Changes, the latest first" }), element("thead", {}, element("tr", {}, ...heads)), this.body),
      ),
    );
  }

  async refresh() {
    const told = await read("/view/changes");
    const seen = told.changes.map((each) => each.number).join();
    if (seen === this.seen && seen !== "") return;
    this.seen = seen;
    const more = told.more > 0 ? `, and ${whole(told.more)} before` : "";
    say(this.note, told.changes.length === 0 ? "Nothing has changed: no configuration, no link of the mesh, no policy." : `${whole(told.changes.length)} changes${more}`);
    this.body.replaceChildren(...told.changes.map(row));
  }
}

function row(change) {
  const { router, to, ...others } = change.fields;
  const isLink = router !== undefined && to !== undefined;
  const rest = Object.entries(isLink ? others : change.fields);
  const fields = rest.flatMap(([name, value], at) => [at > 0 || isLink ? ", " : "", `${name.replaceAll("_", " ")} `, named(value)]);
  if (isLink) fields.unshift(named(router), " – ", named(to));
  const time = element("time", { datetime: new Date(change.at * 1000).toISOString(), text: clock(change.at) });
  return element("tr", {}, element("td", {}, time), element("th", { scope: "row", text: change.event }), element("td", {}, ...fields));
}

/** Return the view. */
export const changes = () => new Changes();
