// The form for a client that has to show who it is.

import { useToken } from "./api.js";
import { element } from "./dom.js";

/** Return the form. Arguments: offered: the ways to log in. reason: of the last refusal. again: asks once more. */
export function loginForm(offered, reason, again) {
  const parts = [element("h1", { text: "Log in" }), element("p", { text: `The router answers: ${reason}.` })];
  if (offered.includes("basic")) {
    parts.push(
      element("p", {}, element("a", { class: "button", href: "/login", text: "Log in with name and password" })),
      element("p", { class: "note", text: "The browser asks for them, and shows them until it is closed." }),
    );
  }
  if (offered.includes("bearer")) {
    const field = element("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
    const submit = (event) => {
      event.preventDefault();
      useToken(field.value.trim());
      field.value = "";
      again();
    };
    parts.push(
      element(
        "form",
        { on: { submit } },
        element("label", { for: "token", text: "Token" }),
        field,
        element("button", { type: "submit", text: "Log in with a token" }),
      ),
      element("p", { class: "note", text: "It is kept in the memory of this page, and nowhere else." }),
    );
  }
  if (!parts.some((each) => each.tagName === "FORM") && !offered.includes("basic")) {
    parts.push(element("p", { text: "It knows its clients by certificates: choose one in the browser, and load the page again." }));
  }
  return element("section", { class: "login" }, ...parts);
}
