// Elements, made without markup: names in a mesh are chosen by its peers, and stay text whatever they contain.

const SVG = "http://www.w3.org/2000/svg";
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Return an element. Properties: `on` has listeners, `text` the text, all others are attributes; null: left out. */
export function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Return an element of SVG. */
export function drawn(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(found, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) found.addEventListener(event, listener);
    else if (name === "text") found.textContent = value;
    else found.setAttribute(name, value === true ? "" : String(value));
  }
  found.append(...children.filter((each) => each !== null && each !== undefined));
  return found;
}

/** Return a name as it can be shown: characters that would be invisible, or turn the text around, are escaped. */
export function shown(text) {
  return String(text).replace(CONTROLS, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const BRIEF = 160; // characters of a name in a table

/** Return a name as it can be shown in a table: of a long one its beginning and its end. */
export function brief(text) {
  const name = shown(text);
  return name.length <= BRIEF ? name : `${name.slice(0, BRIEF - 41)}…${name.slice(-40)}`;
}

/** Return an element with a name in it, which changes the direction of no text around it. */
export function named(text, properties = {}) {
  return element("bdi", { ...properties, text: shown(text) });
}

/** Set the text of an element, if it is another one. */
export function say(found, text) {
  if (found.textContent !== text) found.textContent = text;
}

/** Set or remove an attribute. */
export function mark(found, name, value) {
  if (value === null || value === false) found.removeAttribute(name);
  else if (found.getAttribute(name) !== String(value)) found.setAttribute(name, value === true ? "" : String(value));
}

const SAID = 8000; // milliseconds for which it can be read
let said = 0;

/** Say something that has just happened, to those who see the page and to those who hear it. */
export function announce(text) {
  const place = document.getElementById("said");
  say(place, text);
  clearTimeout(said);
  said = setTimeout(() => say(place, ""), SAID);
}
