// Events of a trace in sentences; the names in them are elements.

import { named } from "./dom.js";
import { milliseconds, whole } from "./format.js";

const HIDDEN = "(of another tenant)";

const name = (event, field) => named(event[field] ?? HIDDEN);
const outcome = (event) => [event.outcome, event.condition ? " (" : "", event.condition ? named(event.condition) : "", event.condition ? ")" : ""];
const branch = (event) => (event.branch ? `branch ${event.branch}: ` : "");

const SENTENCES = {
  begun: (event) => [event.next ? "awaits the next message to " : "sends to ", name(event, "address")],
  came: (event) => [
    "came from ",
    name(event, "from"),
    event.lane ? `, by a lane (${event.lane})` : "",
    `: ${whole(event.octets)} octets`,
    event.settled ? ", settled" : "",
  ],
  routed: (event) => [
    "goes to ",
    name(event, "to"),
    `: ${event.rule}, cost ${event.cost}`,
    event.ways === undefined ? "" : `, ${event.ready} of ${event.ways} have credit`,
  ],
  chosen: (event) => [
    event.ways === undefined ? "leaves: " : `leaves by ${event.branches} of ${event.ways} links: `,
    event.rule === "lane" ? "by the lane" : event.rule,
    event.ready === undefined || event.ways === undefined ? "" : `, ${event.ready} ready`,
  ],
  left: (event) =>
    event.router
      ? ["left for ", name(event, "to"), event.copy ? " as a copy" : "", `, by a lane (${event.lane}) of `, name(event, "far")]
      : ["left for ", name(event, "to"), event.copy ? " as a copy" : "", ", by link ", name(event, "link")],
  waits: (event) => [branch(event), "waits: ", named(event.reason)],
  sent: (event) => [branch(event), "all of it is sent"],
  outcome: (event) => [branch(event), ...outcome(event)],
  lost: (event) => [branch(event), "the receiver is gone: ", ...outcome(event)],
  again: (event) => [`is sent again, after ${event.attempts} attempts`],
  told: (event) => ["the sender is told: ", ...outcome(event)],
  unsent: (event) => ["goes no further: ", named(event.reason)],
  failed: (event) => ["failed: ", named(event.reason)],
  ended: (event) => [event.aborted ? "aborted by its sender" : "ended"],
};

/** Return an event as texts and elements. Arguments: left: by branch, where it has left for. routers: with their events. */
export function sentence(event, left, routers) {
  const parts = SENTENCES[event.event]?.(event) ?? [event.event];
  if (event.waited !== undefined) parts.push(`, after ${milliseconds(event.waited)} of waiting: `, named(event.waited_for ?? ""));
  const sent = left.get(event.branch ?? 0);
  const there = event.event === "outcome" && sent?.router ? stay(routers.get(sent.to)?.events ?? []) : null;
  if (there !== null) {
    const between = Math.max(0, event.at - sent.at - there);
    parts.push(` (${milliseconds(there)} there, ${milliseconds(between)} on the way there and back)`);
  }
  return parts.filter((each) => each !== "");
}

/** Return the seconds from a message's arrival at a router until its sender was told the outcome; null: it was not. */
function stay(events) {
  const came = events.find((each) => each.event === "came"), told = events.find((each) => each.event === "told");
  return came === undefined || told === undefined ? null : told.at - came.at;
}

/** Return the end of a message where its trace began; null: there is none yet. */
export function verdict(events) {
  let settled = false;
  for (const event of events) {
    settled ||= Boolean(event.settled);
    if (event.event === "told") return event.outcome === "accepted" ? "Delivered: accepted" : `Not delivered: ${event.outcome}`;
    if (event.event === "unsent" || event.event === "failed") return `Not delivered: ${event.reason}`;
    if (event.event === "ended") {
      const left = events.some((each) => each.event === "left");
      return settled && left ? "Sent settled: no receiver tells an outcome" : "Not delivered: its sender has given it up";
    }
  }
  return null;
}
