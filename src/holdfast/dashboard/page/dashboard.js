// The dashboard of one master. It reads one stream of server-sent events, by fetch because that can send a token, and
// writes what it says into the page. Text of others (keys, names, reasons) is set as text, never as markup.

const KINDS = {
  used: ["Used", "objects that may be evicted"],
  leased: ["Leased", "a reader may be reading them: neither evicted nor removed"],
  soft_pinned: ["Soft-pinned", "evicted after all others, or not at all"],
  hard_pinned: ["Hard-pinned", "never evicted"],
  granted: ["Granted", "given to writers who have not committed yet"],
  quarantined: ["Quarantine", "waits for a writer's word or a lease's end"],
  free: ["Free", "can be granted"],
};
const SIGNS = { // Patterns of 4 x 4, so that kinds differ without colour.
  leased: "M0 4L4 0", soft_pinned: "M1 1h1M3 3h1", hard_pinned: "M0 4L4 0M0 0L4 4", granted: "M2 0v4", quarantined: "M0 2h4",
};
const SVG = "http://www.w3.org/2000/svg";
const REASONS = {
  watermark: "memory was fuller than the high watermark", put: "a put needed the room", quota: "its tenant was beyond a limit",
  disk: "the disk that held it alone was full",
};
const CHART_SECONDS = 300, MINUTE_MS = 60e3, TOKEN = "holdfast-token";
const state = { asker: { roles: [] }, overview: null, earlier: null, samples: [], minute: [], events: [], memory: null, alive: true };

const at = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function element(name, facts = {}, ...children) {
  const made = name.includes(":") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [fact, value] of Object.entries(facts)) made.setAttribute(fact, value);
  made.append(...children);
  return made;
}

function write(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  let unit = -1;
  do { count /= 1024; unit += 1; } while (count >= 1024 && unit < 5);
  return `${count.toFixed(count < 10 ? 1 : 0)} ${["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit]}`;
}

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120e3) return `${(ms / 1000).toFixed(ms < 10e3 ? 1 : 0)} s`;
  return ms < 7200e3 ? `${Math.round(ms / 60e3)} min` : `${Math.round(ms / 3600e3)} h`;
}

// Bounds of latencies are powers of two: two digits say all there is.
function latency(seconds) {
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  return seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;
}

const percent = (share) => `${(100 * share).toFixed(share < 0.995 && share > 0.005 ? 1 : 0)}%`;
const number = (count) => count.toLocaleString("en", { maximumFractionDigits: count < 10 ? 1 : 0 });
const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
const mayOperate = () => state.asker.roles.includes("operator");

// Tables. A row stays the same element while its key is there, so that focus in it is not lost.

function fill(table, items, keyOf, cellsOf, orderOf = null) {
  const body = at(table).tBodies[0];
  const rows = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  items.forEach((item, place) => {
    const key = keyOf(item);
    const cells = cellsOf(item);
    let row = rows.get(key);
    if (!row) {
      row = element("tr");
      row.dataset.key = key;
      cells.forEach((cell, column) => row.append(element(column ? "td" : "th", column ? {} : { scope: "row" })));
      if (orderOf) orderOf(row.cells[row.cells.length - 1], key);
    }
    rows.delete(key);
    cells.forEach((cell, column) => show(row.cells[column], cell));
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  for (const row of rows.values()) row.remove();
}

// A cell is a text, null to leave it alone, or { text, kind, share, href }.
function show(cell, given) {
  if (given === null) return;
  const fact = typeof given === "object" ? given : { text: String(given) };
  cell.className = fact.kind ?? "";
  if (fact.share !== undefined) {
    let meter = cell.querySelector("meter");
    if (!meter) cell.replaceChildren(meter = element("meter", { min: 0, max: 1 }), element("div"));
    meter.value = fact.share;
    meter.setAttribute("aria-label", fact.text);
    write(cell.lastChild, fact.text);
  } else if (fact.href) {
    if (cell.querySelector("a")?.getAttribute("href") !== fact.href) cell.replaceChildren(element("a", { href: fact.href }));
    write(cell.firstChild, fact.text);
  } else write(cell, fact.text);
}

// Masters.

function showMasters(now) {
  const leader = now.masters.find((one) => one.role === "primary");
  const who = leader ? `${leader.name} leads, epoch ${leader.epoch}` : "No master leads now";
  const here = now.role === "primary" ? "this is its page" : `this is the page of ${now.name}, a standby`;
  write(at("summary"), `${who}; ${here}. ${counted(now.objects, "object")}.`);
  write(at("cluster"), now.cluster);
  write(at("version"), `Version ${now.version}, up ${duration(now.uptime_ms)}.`);
  document.title = `${now.name} (${now.role}) of ${now.cluster}: holdfast`;
  fill("masters", now.masters, (one) => one.name, (one) => [
    one.name === now.name || !/^https?:/.test(one.url) ? { text: `${one.name}${one.name === now.name ? " (here)" : ""}` } : { text: one.name, href: one.url },
    { text: one.role, kind: one.role === "primary" ? "good" : "" }, { text: number(one.epoch), kind: "n" }, { text: number(one.index), kind: "n" },
    { text: one.role === "standby" ? (one.lag_batches ? counted(one.lag_batches, "batch", "batches") : "none") : "", kind: one.lag_batches ? "n bad" : "n" },
    { text: one.role === "primary" ? "leads" : one.promotable ? "yes" : "no", kind: one.role === "primary" || one.promotable ? "good" : "bad" },
    one.reason,
  ]);
  write(at("loss"), lossOf(now));
  const warnings = [...now.insecure.map((text) => `Insecure: ${text}.`), now.waits && `It waits: ${now.waits}.`].filter(Boolean);
  at("warnings").hidden = !warnings.length;
  write(at("warnings"), warnings.join(" "));
  at("orders").hidden = !mayOperate();
  at("failover").disabled = now.role !== "primary";
}

function lossOf(now) {
  if (now.alone) return "Everything would be lost: this master is alone, and its log is in memory only.";
  const ready = now.masters.filter((one) => one.role !== "primary" && one.promotable).map((one) => one.name);
  const successor = ready.length ? `${ready.join(" or ")} would take over. ` : "Nobody could take over at once: no standby has caught up. ";
  if (now.role !== "primary") {
    return `${successor}Of what was acknowledged nothing would be lost that is in the log; how far it is written, the primary's page says.`;
  }
  const behind = now.index - now.durable_index;
  const lost = now.durability === "memory"
    ? `Up to ${counted(behind, "record")} would be lost that were acknowledged from memory (durability is "memory").`
    : now.successor
    ? `Nothing that was acknowledged would be lost, unless ${now.successor} were lost with it: that one holds the ${counted(behind, "record")} not written yet.`
    : `Nothing that was acknowledged would be lost: an answer leaves when its record is in the log. ${counted(behind, "record")} not written yet, and nobody was told of ${behind === 1 ? "it" : "them"}.`;
  const use = { off: "not know which objects were used last", batched: "know which objects were used, except in the last second or so",
    every: "know of every lease" }[now.lease_sync];
  const leases = ` Its readers go on: every object counts as leased at first. It would ${use ?? "know what the log says"}.`;
  return successor + lost + leases;
}

// Charts.

const CHARTS = [
  ["Requests a second", (now, earlier, s) => (sum(now.requests) - sum(earlier.requests)) / s, number],
  ["Hit rate of reads that asked", (now, earlier) => (now.hits - earlier.hits) / (now.hits + now.misses - earlier.hits - earlier.misses), percent, 1],
  ["Bytes found by reads, a second", (now, earlier, s) => (now.hit_bytes - earlier.hit_bytes) / s, bytes],
  ["Bytes stored a second", (now, earlier, s) => (now.stored_bytes - earlier.stored_bytes) / s, bytes],
  ["Evictions a second", (now, earlier, s) => (now.evicted - earlier.evicted) / s, number],
  ["Memory in use", (now) => now.capacity_bytes - now.free_bytes, bytes],
  ["Objects", (now) => now.objects, number],
  ["Read over TCP, bytes a second", (now, earlier, s) => (now.tcp_read_bytes - earlier.tcp_read_bytes) / s, bytes],
  ["Written over TCP, bytes a second", (now, earlier, s) => (now.tcp_written_bytes - earlier.tcp_written_bytes) / s, bytes],
  ["Refused a second", (now, earlier, s) => (sum(now.failures) - sum(earlier.failures)) / s, number],
  ["Connections", (now) => now.connections, number],
];
const sum = (counts) => Object.values(counts ?? {}).reduce((total, one) => total + one, 0);

function takeSample(now) {
  const earlier = state.earlier;
  state.earlier = now;
  if (!earlier || earlier.epoch !== now.epoch || earlier.role !== now.role || now.uptime_ms <= earlier.uptime_ms) state.minute = [];
  state.minute.push(now);
  while (state.minute[0].uptime_ms < now.uptime_ms - MINUTE_MS) state.minute.shift();
  showVerbs(now, state.minute[0]);
  showEvictions(now, state.minute[0]);
  if (!earlier || earlier.epoch !== now.epoch || earlier.name !== now.name || earlier.role !== now.role) return;
  const seconds = (now.uptime_ms - earlier.uptime_ms) / 1000;
  if (seconds <= 0) {
    state.samples = []; // It was started again.
    return;
  }
  const values = CHARTS.map(([, rate]) => rate(now, earlier, seconds)).map((one) => (Number.isFinite(one) && one >= 0 ? one : null));
  state.samples.push({ at: now.uptime_ms / 1000, values });
  while (state.samples[0].at < now.uptime_ms / 1000 - CHART_SECONDS) state.samples.shift();
  drawCharts();
}

function drawCharts() {
  const box = at("charts");
  const end = state.samples.at(-1).at;
  const scale = CHART_SECONDS / Math.max(60, end - state.samples[0].at);
  CHARTS.forEach(([name, , format, full], which) => {
    let figure = box.children[which];
    if (!figure) {
      const line = element("svg:svg", { class: "chart", viewBox: `0 0 ${CHART_SECONDS} 60`, preserveAspectRatio: "none", role: "img" });
      line.append(element("svg:path", { class: "area" }), element("svg:path"));
      box.append(figure = element("figure", {}, element("figcaption", {}, element("span", {}, name), element("strong")), line));
    }
    const known = state.samples.filter((one) => one.values[which] !== null);
    const last = known.at(-1)?.values[which];
    const highest = Math.max(...known.map((one) => one.values[which]), 1e-9), most = full ?? highest;
    const points = known.map((one) => `${(CHART_SECONDS - scale * (end - one.at)).toFixed(1)} ${(58 - (54 * one.values[which]) / most).toFixed(1)}`);
    const text = last !== undefined ? format(last) : state.overview.role === "primary" ? "none yet" : "only the primary counts it";
    write(figure.querySelector("strong"), text);
    const line = figure.querySelector("svg");
    line.setAttribute("aria-label", `${name}: ${text}${points.length ? `, at most ${format(highest)} in the last ${duration(1000 * (end - known[0].at))}` : ""}`);
    const path = points.length ? `M${points.join("L")}` : "";
    line.lastChild.setAttribute("d", path);
    line.firstChild.setAttribute("d", points.length ? `${path}V60H${points[0].split(" ")[0]}Z` : "");
  });
}

// Latency by verb and evictions by reason: of the last minute, or of as much of it as this page has seen.

function showVerbs(now, before) {
  const seconds = (now.uptime_ms - before.uptime_ms) / 1000;
  const verbs = Object.entries(now.latencies).map(([verb, all]) => {
    const counts = all.map((count, bound) => count - (before.latencies[verb]?.[bound] ?? 0));
    return { verb, counts, recent: counts.at(-1), all: all.at(-1) };
  });
  const within = ({ counts, recent }, share) => {
    if (!recent) return "";
    const bound = counts.findIndex((count) => count >= share * recent);
    const limit = now.latency_bounds_seconds[bound];
    return limit === undefined ? `over ${latency(now.latency_bounds_seconds.at(-1))}` : latency(limit);
  };
  fill("verbs", verbs.sort((one, other) => other.all - one.all), ({ verb }) => verb, (one) => [
    one.verb.replaceAll("_", " "), { text: seconds > 0 ? number(one.recent / seconds) : "", kind: "n" },
    { text: within(one, 0.5), kind: "n" }, { text: within(one, 0.99), kind: "n" }, { text: number(one.all), kind: "n" },
  ]);
}

function showEvictions(now, before) {
  const seconds = (now.uptime_ms - before.uptime_ms) / 1000;
  at("evictions-box").hidden = !now.evicted_objects;
  fill("evictions", Object.entries(now.evicted_objects ?? {}), ([reason]) => reason, ([reason, count]) => [
    reason, { text: seconds > 0 ? number((count - before.evicted_objects[reason]) / seconds) : "", kind: "n" },
    { text: number(count), kind: "n" }, { text: bytes(now.evicted_bytes[reason]), kind: "n" }, REASONS[reason] ?? "",
  ]);
}

// Nodes, and the map of their memory.

function showNodes(now) {
  const note = at("nodes-note");
  note.hidden = now.role === "primary" && now.nodes.length > 0;
  write(note, now.role === "primary" ? "No node lends memory yet: holdfast node --name node-1 --size 1GiB" :
    `Sessions and modes are the primary's to know${now.leader ? `: it serves at ${now.leader}` : ""}. The maps below are of this standby's copy.`);
  const { safe = 0, jeopardy = 0 } = now.sessions;
  const expired = now.nodes.filter((one) => one.standing === "expired").length;
  at("sessions").hidden = now.role !== "primary";
  write(at("sessions"), `Sessions: ${number(safe)} safe, ${number(jeopardy)} in jeopardy (silent, and waited for), ${number(expired)} expired.`);
  fill("nodes", now.nodes, (one) => one.name, (one) => [
    one.name,
    { text: one.standing === "safe" && !one.available ? "safe, takes nothing" : one.standing, kind: one.standing === "safe" ? "good" : "bad" },
    { text: duration(one.lease_left_ms), kind: "n" },
    one.mode + (one.mode === "draining" && !one.used_bytes ? ": empty, can be stopped" : "") + (one.waits_for ? `: ${one.waits_for}` : ""),
    { share: one.capacity_bytes ? one.used_bytes / one.capacity_bytes : 0, text: `${bytes(one.used_bytes)} of ${bytes(one.capacity_bytes)}` },
    one.last_command || "none", null,
  ], orderButton);
  for (const row of at("nodes").tBodies[0].rows) {
    const node = now.nodes.find((one) => one.name === row.dataset.key);
    const button = row.querySelector("button");
    button.hidden = !mayOperate();
    write(button, node.mode === "open" ? "Drain" : "Open again");
    button.setAttribute("aria-label", `${button.textContent} ${node.name}`);
  }
}

function orderButton(cell, name) {
  const button = element("button", { type: "button" });
  button.addEventListener("click", () => {
    const node = state.overview.nodes.find((one) => one.name === name);
    if (!node) return;
    const path = `/api/v1/nodes/${encodeURIComponent(name)}/mode`;
    if (node.mode === "open") {
      confirm(`Drain ${name}?`, `${bytes(node.used_bytes)} are moved to the other nodes, and nothing new is placed on ${name}. Reads go on meanwhile. ` +
        "If the others have no room for all of it, it is refused and nothing changes. The order is in the log: it outlives a failover.", "Drain", () => order(path, { mode: "draining" }));
    } else {
      confirm(`Open ${name} again?`, `It was ${node.mode}. New objects are placed on it again; what has moved away stays where it is now.`, "Open", () => order(path, { mode: "open" }));
    }
  });
  cell.append(button);
}

function drawMemory() {
  const maps = at("maps");
  const totals = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  const kept = new Map([...maps.children].map((figure) => [figure.dataset.key, figure]));
  for (const segment of state.memory.segments) {
    const key = `${segment.node}/${segment.number}`;
    const parts = Math.ceil(segment.size_bytes / segment.part_bytes);
    let figure = kept.get(key);
    if (!figure) maps.append(figure = newMap(key));
    kept.delete(key);
    figure.segment = segment;
    figure.parts = parts;
    const tops = new Array(parts).fill(0);
    let used = 0;
    for (const kind of Object.keys(KINDS)) {
      const row = segment.parts[kind] ?? [];
      let path = "";
      row.forEach((count, part) => {
        if (!count || part >= parts) return;
        totals[kind] += count;
        used += count;
        const height = (48 * count) / segment.part_bytes;
        path += `M${part} ${(48 - tops[part]).toFixed(2)}v${(-height).toFixed(2)}h1v${height.toFixed(2)}z`;
        tops[part] += height;
      });
      for (const drawn of figure.querySelectorAll(`[data-kind="${kind}"]`)) drawn.setAttribute("d", path);
    }
    totals.free += Math.max(0, segment.size_bytes - used);
    const map = figure.querySelector("svg");
    map.setAttribute("viewBox", `0 0 ${parts} 48`);
    map.setAttribute("aria-valuemax", parts);
    write(figure.querySelector("strong"), `${bytes(used)} of ${bytes(segment.size_bytes)}`);
  }
  for (const gone of kept.values()) gone.remove();
  fill("kinds", Object.entries(KINDS), ([kind]) => kind, ([kind, [name, meaning]]) => [name, null, { text: bytes(totals[kind]), kind: "n" }, meaning]);
  for (const row of at("kinds").tBodies[0].rows) if (!row.cells[1].firstChild) row.cells[1].append(sign(row.dataset.key));
}

function sign(kind) {
  const drawn = element("svg:svg", { class: "sign", viewBox: "0 0 16 11", "aria-hidden": "true" }, element("svg:rect", { width: 16, height: 11, class: kind }));
  if (SIGNS[kind]) drawn.append(element("svg:rect", { width: 16, height: 11, fill: `url(#sign-${kind})` }));
  return drawn;
}

function newMap(key) {
  const map = element("svg:svg", { class: "map", preserveAspectRatio: "none", role: "slider", tabindex: 0, "aria-label": `Memory of ${key}, part`,
    "aria-valuemin": 1, "aria-valuenow": 1, "aria-valuemax": 1, height: 96 });
  for (const kind of Object.keys(KINDS)) {
    map.append(element("svg:path", { "data-kind": kind, class: kind }));
    if (SIGNS[kind]) map.append(element("svg:path", { "data-kind": kind, fill: `url(#sign-${kind})` }));
  }
  map.append(element("svg:rect", { class: "cursor", y: 0, width: 1, height: 48, visibility: "hidden" }));
  const figure = element("figure", {}, element("figcaption", {}, element("span", {}, `${key}`), element("strong")), map);
  figure.dataset.key = key;
  figure.part = 0;
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    tellPart(figure, Math.floor((figure.parts * (event.clientX - box.left)) / box.width));
  });
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 16, PageDown: -16, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    tellPart(figure, figure.part + step);
  });
  map.addEventListener("focus", () => tellPart(figure, figure.part));
  return figure;
}

function tellPart(figure, part) {
  const segment = figure.segment;
  part = figure.part = Math.max(0, Math.min(figure.parts - 1, part));
  const first = part * segment.part_bytes;
  const size = Math.min(segment.part_bytes, segment.size_bytes - first);
  const found = Object.keys(segment.parts).map((kind) => [kind, segment.parts[kind][part]]).filter(([, count]) => count);
  const free = size - found.reduce((total, [, count]) => total + count, 0);
  if (free > 0) found.push(["free", free]);
  const kinds = found.map(([kind, count]) => `${bytes(count)} ${KINDS[kind][0].toLowerCase()}`).join(", ");
  const text = `${figure.dataset.key}, part ${part + 1} of ${figure.parts} (${bytes(first)} to ${bytes(first + size)}): ${kinds}`;
  const map = figure.querySelector("svg");
  map.setAttribute("aria-valuenow", part + 1);
  map.setAttribute("aria-valuetext", text);
  const cursor = map.querySelector(".cursor");
  cursor.setAttribute("x", part);
  cursor.setAttribute("visibility", "visible");
  write(at("part"), text);
}

function defineSigns() {
  const patterns = Object.entries(SIGNS).map(([kind, path]) => element("svg:pattern", { id: `sign-${kind}`, width: 4, height: 4, patternUnits: "userSpaceOnUse" },
    element("svg:path", { d: path, class: "stroke", stroke: "#fff", "stroke-width": 1 })));
  document.body.append(element("svg:svg", { width: 0, height: 0, "aria-hidden": "true", class: "skip" }, element("svg:defs", {}, ...patterns)));
}

// Events, tenants, clients.

function showEvents() {
  const list = at("events");
  list.hidden = !state.events.length;
  at("events-note").hidden = !!state.events.length;
  const today = new Date().toDateString();
  list.replaceChildren(...[...state.events].sort((one, other) => other.at - one.at).slice(0, 200).map((event) => {
    const time = new Date(event.at);
    const said = time.toDateString() === today ? time.toLocaleTimeString() : time.toLocaleString();
    const about = [event.subject, event.text].filter(Boolean).join(": ");
    return element("li", {}, element("time", { datetime: time.toISOString() }, said), element("strong", {}, event.kind.replaceAll("_", " ")),
      element("span", { class: "about" }, event.subject === event.master ? about : `${about} (${event.master})`));
  }));
}

function showTenants(now) {
  at("tenants-note").hidden = now.tenants.length > 0;
  at("tenants-box").hidden = !now.tenants.length;
  write(at("tenants-note"), now.role === "primary" ? "There are no tenants." : "The primary's page shows the tenants.");
  fill("tenants", now.tenants, (one) => one.name, (one) => [
    one.name,
    one.limit_bytes ? { share: one.used_bytes / one.limit_bytes, text: `${bytes(one.used_bytes)} of ${bytes(one.limit_bytes)}` } : `${bytes(one.used_bytes)}, no limit`,
    { text: bytes(one.guaranteed_bytes), kind: "n" },
    { text: number(one.objects) + (one.max_objects ? ` of ${number(one.max_objects)}` : ""), kind: "n" },
    { text: number(one.clients) + (one.max_clients ? ` of ${number(one.max_clients)}` : ""), kind: "n" },
    { text: number(one.evicted), kind: "n" }, { text: number(one.refused), kind: "n" },
  ]);
}

async function watchClients() {
  while (state.alive) {
    if (state.overview && !document.hidden) {
      try {
        const { clients, total } = await (await ask("/api/v1/clients")).json();
        write(at("clients-note"), total ? `${counted(total, "client")}${total > 50 ? "; the busiest 50:" : ", the busiest first:"}` : "Nobody is connected.");
        fill("clients", clients.slice(0, 50), (one) => one.handle, (one) => [
          one.handle + (one.name ? ` (${one.name})` : ""), one.kind, one.address + (one.pid ? `, process ${one.pid}` : ""),
          { text: number(one.requests_per_second), kind: "n" }, { text: number(one.leases), kind: "n" }, { text: bytes(one.granted_bytes), kind: "n" }]);
      } catch { /* The line at the top says that the master does not answer. */ }
    }
    await sleep(5000);
  }
}

// Keys.

async function search(prefix) {
  const { objects, cursor } = await (await ask(`/api/v1/objects?limit=50&prefix=${encodeURIComponent(prefix)}`)).json();
  write(at("keys-note"), objects.length ? `${counted(objects.length, "key")}${cursor ? "; there may be more" : ""}.` : `No key${cursor ? " among the first" : ""} begins so.`);
  at("reasons").replaceChildren();
  at("found-box").hidden = !objects.length;
  fill("found", objects, (one) => one.key, (one) => [
    { text: one.key, kind: "key" }, { text: bytes(one.size_bytes), kind: "n" }, one.replicas.map((place) => `${place.node}${place.kind === "DISK" ? " (disk)" : ""}`).join(", "),
    [one.hard_pin && "hard pin", one.soft_pin_left_ms && "soft pin", one.lease_left_ms && `lease, ${duration(one.lease_left_ms)}`].filter(Boolean).join(", ") || "use alone", null,
  ], (cell, key) => {
    const button = element("button", { type: "button", "aria-label": `Explain ${key}` }, "Explain");
    button.addEventListener("click", () => attempt(() => explain(key)));
    cell.append(button);
  });
}

async function explain(key) {
  const found = await (await ask(`/api/v1/explain?key=${encodeURIComponent(key)}`)).json();
  write(at("keys-note"), `${found.stat ? "Stored" : "Not stored"}: ${key}`);
  at("reasons").replaceChildren(...found.reasons.map((reason) => element("li", {}, reason)));
}

async function attempt(what) {
  try { await what(); } catch (error) { write(at("keys-note"), error.message); }
}

// Orders.

function confirm(title, text, label, act) {
  const dialog = at("confirm"), go = at("confirm-go");
  write(at("confirm-h"), title);
  write(at("confirm-text"), text);
  write(at("confirm-answer"), "");
  write(go, label);
  write(at("confirm-cancel"), "Leave it");
  go.hidden = go.disabled = false;
  go.onclick = async () => {
    go.disabled = true;
    try {
      write(at("confirm-answer"), await act());
    } catch (error) {
      write(at("confirm-answer"), error.message);
    }
    go.hidden = true;
    write(at("confirm-cancel"), "Close");
    at("confirm-cancel").focus();
  };
  dialog.showModal();
}

async function order(path, content) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(content ?? {}), headers: { "content-type": "application/json" } });
  return (await answer.json()).done;
}

// The stream.

class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, "x-holdfast-page": "1", ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, typeof said.detail === "string" ? said.detail : `the master answered ${answer.status}`);
}

function askForToken(why) {
  const dialog = at("token"), field = dialog.querySelector("input");
  sessionStorage.removeItem(TOKEN);
  if (why) write(at("token-note"), why);
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, field.value);
      field.value = "";
      dialog.close();
      done();
    };
    dialog.onclose = () => { if (!sessionStorage.getItem(TOKEN)) dialog.showModal(); };
  });
}

const TAKE = {
  asker: (asker) => { state.asker = asker; state.fresh = true; },
  overview: (now) => {
    state.overview = now;
    tell(now.stopping ? "the master is stopping" : "live", now.stopping);
    showMasters(now);
    showNodes(now);
    showTenants(now);
    takeSample(now);
    if (!mayOperate()) write(at("events-note"), "Events are for operators.");
  },
  memory: (memory) => { state.memory = memory; drawMemory(); },
  events: ({ events }) => {
    const dated = events.map((event) => ({ ...event, at: Date.now() - event.age_ms }));
    state.events = state.fresh ? dated : [...state.events, ...dated].slice(-1000);
    state.fresh = false;
    showEvents();
  },
  trouble: ({ detail }) => tell(detail, true),
  stopping: () => tell("the master is stopping", true),
};

async function readStream() {
  const answer = await ask("/api/v1/stream");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
      TAKE[kind]?.(JSON.parse(data));
    }
  }
}

function tell(text, lost = false) {
  write(at("link"), text);
  at("link").className = lost ? "lost" : "";
}

async function live() {
  while (state.alive) {
    try {
      await readStream();
      await sleep(200);
    } catch (error) {
      if (error.status === 401) {
        await askForToken(sessionStorage.getItem(TOKEN) ? "That token is not known here, or not any longer." : "");
        continue;
      }
      tell(error.status ? error.message : `this master does not answer; ${elsewhere()}`, true);
      await sleep(error.status === 503 ? 5000 : 1000);
    }
  }
}

function elsewhere() {
  const others = (state.overview?.masters ?? []).filter((one) => one.name !== state.overview.name);
  return others.length ? `the other masters are linked below (${others.map((one) => one.name).join(", ")})` : "it is asked again every second";
}

function begin() {
  defineSigns();
  for (const [form, act] of [["search", (form) => search(form.prefix.value)], ["explain", (form) => explain(form.key.value)]]) {
    at(form).addEventListener("submit", (event) => { event.preventDefault(); attempt(() => act(event.target)); });
  }
  at("failover").addEventListener("click", () => confirm("Hand over to a standby?",
    `${state.overview.name} writes what it has begun and resigns; a standby that has caught up takes over in the next epoch, in a fraction of a second. Clients see a pause, not an error. ` +
    "It is refused where no standby can take over.", "Hand over", () => order("/api/v1/failover")));
  at("snapshot").addEventListener("click", () => confirm("Write a snapshot?",
    `${state.overview.name} writes its catalogue to its data directory; the bytes of the objects are not part of it. Requests go on meanwhile.`, "Write it", () => order("/api/v1/snapshot")));
  at("confirm").querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); at("confirm").close(); });
  addEventListener("pagehide", () => { state.alive = false; });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  live();
  watchClients();
}

begin();
