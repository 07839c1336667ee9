// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const STEPS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const OCTETS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** Return a count with separators. */
export const whole = (value) => (value === null || value === undefined ? "" : WHOLE.format(value));

/** Return a number of three digits or so. */
function short(value) {
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(value >= 10 ? 1 : 2);
}

function scaled(value, steps, rest) {
  for (const [size, name] of steps) if (value >= size) return `${short(value / size)}${name}`;
  return `${short(value)}${rest}`;
}

/** Return a rate of deliveries: nothing if it is not known. */
export const rate = (value) => (value === null || value === undefined ? "" : value === 0 ? "0" : scaled(value, STEPS, ""));

/** Return a number of octets. */
export function octets(value) {
  if (value === null || value === undefined) return "";
  for (const [size, name] of OCTETS) if (value >= size) return `${short(value / size)} ${name}`;
  return `${short(value)} B`;
}

/** Return a time span. Arguments: seconds. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${short(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** Return a time of the day. Arguments: seconds since 1970. */
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

/** Return milliseconds of a trace. Arguments: seconds. */
export const milliseconds = (seconds) => `${(seconds * 1000).toFixed(1)} ms`;

/** The rates of counters, between two readings of the same row. */
export class Rates {
  #seen = new Map();

  /** Return the counters of a row a second; null as long as it was read once. Arguments: now: seconds. */
  take(key, now, counters) {
    const before = this.#seen.get(key);
    if (before !== undefined && now - before.now < 0.2) return before.rates;
    let rates = counters.map(() => null);
    if (before !== undefined) {
      rates = counters.map((each, at) => Math.max(0, each - before.counters[at]) / (now - before.now));
    }
    this.#seen.set(key, { now, counters, rates });
    return rates;
  }

  /** Forget all rows but these. */
  keep(keys) {
    const kept = new Set(keys);
    for (const key of this.#seen.keys()) if (!kept.has(key)) this.#seen.delete(key);
  }
}
