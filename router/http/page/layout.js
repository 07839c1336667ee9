// Places for the routers of a mesh: links pull, routers push, in slices so that the browser goes on.
//
// The same mesh has the same places on each load, and a router that is there keeps its place when others come and go.

const SLICE = 8; // milliseconds
const GRAVITY = 0.06;

export class Layout {
  #places = new Map();
  #run = 0;

  /** The places so far: by router, `x` and `y`, of any scale. */
  get places() {
    return this.#places;
  }

  /** Find places, in slices. Arguments: links: pairs of ids. Returns: false: a later call has taken over. */
  async arrange(ids, links) {
    const run = (this.#run += 1);
    const known = ids.filter((each) => this.#places.has(each)).length;
    const steps = this.#steps(ids, links, known > 0);
    for (;;) {
      const until = performance.now() + SLICE;
      while (performance.now() < until) if (steps.next().done) return run === this.#run;
      await new Promise((done) => setTimeout(done));
      if (run !== this.#run) return false;
    }
  }

  *#steps(ids, links, keeps) {
    const at = new Map(ids.map((each, position) => [each, position]));
    const pairs = links.map(([from, to]) => [at.get(from), at.get(to)]).filter((each) => !each.includes(undefined));
    const heads = ids.map(() => []);
    for (const [from, to] of pairs) {
      heads[from].push(to);
      heads[to].push(from);
    }
    const places = this.#first(ids, heads);
    const fixed = ids.map((each) => keeps && this.#places.has(each));
    const count = ids.length;
    const turns = fixed.every(Boolean) ? 0 : Math.max(40, Math.min(400, Math.floor(20_000_000 / (count * count + 1))));
    const spread = Math.sqrt(count);
    for (let turn = 0; turn < turns; turn += 1) {
      const most = 0.35 * spread * (1 - turn / turns) ** 1.5 + 0.01;
      const pushes = places.map(({ x, y }) => ({ x: -x * GRAVITY, y: -y * GRAVITY }));
      for (let a = 0; a < count; a += 1) {
        for (let b = a + 1; b < count; b += 1) {
          const x = places[a].x - places[b].x, y = places[a].y - places[b].y;
          const push = 1 / (x * x + y * y + 0.01);
          pushes[a].x += x * push;
          pushes[a].y += y * push;
          pushes[b].x -= x * push;
          pushes[b].y -= y * push;
        }
        if (a % 32 === 31) yield;
      }
      for (const [a, b] of pairs) {
        const x = places[a].x - places[b].x, y = places[a].y - places[b].y;
        const pull = Math.sqrt(x * x + y * y);
        pushes[a].x -= x * pull;
        pushes[a].y -= y * pull;
        pushes[b].x += x * pull;
        pushes[b].y += y * pull;
      }
      for (let a = 0; a < count; a += 1) {
        if (fixed[a]) continue;
        const size = Math.hypot(pushes[a].x, pushes[a].y) || 1;
        const step = Math.min(size * 0.1, most) / size;
        places[a].x += pushes[a].x * step;
        places[a].y += pushes[a].y * step;
      }
      yield;
    }
    if (!keeps) lay(places);
    this.#places = new Map(ids.map((each, position) => [each, places[position]]));
  }

  /** Return the first places: known ones, beside a neighbour, or on a spiral in the order of the links. */
  #first(ids, heads) {
    const order = breadthFirst(ids, heads);
    const places = new Array(ids.length);
    order.forEach((position, rank) => {
      const known = this.#places.get(ids[position]);
      const beside = heads[position].map((each) => places[each] ?? this.#places.get(ids[each])).find((each) => each !== undefined);
      const angle = rank * 2.399963, distance = 0.6 * Math.sqrt(rank);
      if (known !== undefined) places[position] = { ...known };
      else if (this.#places.size > 0 && beside !== undefined) places[position] = { x: beside.x + 0.8 * Math.cos(angle), y: beside.y + 0.8 * Math.sin(angle) };
      else places[position] = { x: distance * Math.cos(angle), y: distance * Math.sin(angle) };
    });
    return places;
  }
}

function breadthFirst(ids, heads) {
  const order = [], seen = new Set();
  const starts = ids.map((_, position) => position).sort((a, b) => heads[b].length - heads[a].length || a - b);
  for (const start of starts) {
    if (seen.has(start)) continue;
    seen.add(start);
    const queue = [start];
    for (const each of queue) {
      order.push(each);
      for (const next of heads[each]) {
        if (!seen.has(next)) {
          seen.add(next);
          queue.push(next);
        }
      }
    }
  }
  return order;
}

/** Turn the drawing so that it lies on its long side: screens are wider than high. */
function lay(places) {
  const mean = (read) => places.reduce((sum, each) => sum + read(each), 0) / Math.max(1, places.length);
  const x = mean((each) => each.x), y = mean((each) => each.y);
  const xx = mean((each) => (each.x - x) ** 2), yy = mean((each) => (each.y - y) ** 2), xy = mean((each) => (each.x - x) * (each.y - y));
  const angle = -0.5 * Math.atan2(2 * xy, xx - yy);
  for (const each of places) {
    const [right, down] = [each.x - x, each.y - y];
    each.x = right * Math.cos(angle) - down * Math.sin(angle);
    each.y = right * Math.sin(angle) + down * Math.cos(angle);
  }
}

const MOST = 180; // pixels of a unit at most: few routers fill no frame

/** Return the pixels that places can have from the highest to the lowest, without margins. */
export function tallest(places) {
  const all = [...places.values()].map((each) => each.y);
  return MOST * Math.max(0, Math.max(...all) - Math.min(...all));
}

/** Return places within a frame. Arguments: margin: around all of them. Returns: by router, whole pixels. */
export function fitted(places, width, height, margin) {
  const all = [...places.values()];
  if (all.length === 0) return new Map();
  const low = (read) => Math.min(...all.map(read)), high = (read) => Math.max(...all.map(read));
  const [left, right, top, bottom] = [low((each) => each.x), high((each) => each.x), low((each) => each.y), high((each) => each.y)];
  const free = [width - 2 * margin, height - 2 * margin];
  const wide = right - left || 1e-9, tall = bottom - top || 1e-9;
  const scale = Math.min(free[0] / wide, free[1] / tall, MOST);
  // A mesh that is long and narrow may be stretched a little: labels get more room.
  const down = Math.min(scale * 1.35, free[1] / tall, MOST), along = Math.min(scale * 1.35, free[0] / wide, MOST);
  const centre = { x: (left + right) / 2, y: (top + bottom) / 2 };
  const placed = ({ x, y }) => ({ x: Math.round(width / 2 + (x - centre.x) * along), y: Math.round(height / 2 + (y - centre.y) * down) });
  return new Map([...places].map(([id, place]) => [id, placed(place)]));
}
