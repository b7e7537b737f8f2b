// From figures to elements. Elements stay from one moment to the next; only what they say changes.

const MANY = 24;
const FULL = 0.9;
const OLD_S = 10;
const ROWS = 12;
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);

/** Digits with thin spaces between thousands. */
export const number = (value) =>
  Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** A duration as number and unit. */
export function duration(seconds) {
  if (seconds === null) return ["–", ""];
  if (seconds < 0.9995) return [Math.round(seconds * 1000).toString(), "ms"];
  if (seconds < 9.95) return [seconds.toFixed(1), "s"];
  if (seconds < 119.5) return [Math.round(seconds).toString(), "s"];
  return [Math.round(seconds / 60).toString(), "min"];
}

function element(tag, name, parent) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  parent?.append(made);
  return made;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Elements of a list by key, in the order given; new ones are made, old ones go. */
function keyed(parent, list, key, make, fill) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  list.forEach((one, index) => {
    let node = known.get(key(one));
    known.delete(key(one));
    if (!node) {
      node = make(one);
      node.dataset.key = key(one);
    }
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    fill(node, one);
  });
  for (const node of known.values()) node.remove();
}

// ---- bars

function makeBar(parent) {
  const bar = element("div", "bar", parent);
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-valuemin", "0");
  element("div", "", bar);
  return bar;
}

function fillBar(bar, value, limit, label) {
  const share = limit ? Math.min(1, Math.max(0, value / limit)) : 0;
  bar.setAttribute("aria-valuemax", String(limit));
  bar.setAttribute("aria-valuenow", String(value));
  bar.setAttribute("aria-label", label);
  bar.firstChild.style.width = `${(share * 100).toFixed(2)}%`;
  return share;
}

// ---- figures

function makeFigure(name) {
  const figure = element("div", "figure");
  say(element("p", "name", figure), name);
  const value = element("p", "value", figure);
  element("span", "digits", value);
  element("span", "unit", value);
  element("p", "more", figure);
  const spark = document.createElementNS(SVG, "svg");
  spark.setAttribute("class", "spark");
  spark.setAttribute("viewBox", "0 0 100 38");
  spark.setAttribute("preserveAspectRatio", "none");
  spark.setAttribute("aria-hidden", "true");
  for (const part of ["area", "faint", "line"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", part);
    spark.append(path);
  }
  figure.append(spark);
  return figure;
}

/** Draw one or two rows of values over all moments, the newest at the right.
 *  `top` is the least height of the scale, which both share. */
function draw(spark, moments, [main, second], top) {
  const [first, now] = [moments[0].at, moments.at(-1).at];
  const points = (name) =>
    moments.filter((m) => m[name] !== null).map((m) => [100 * ((m.at - first) / (now - first)), m[name]]);
  const [mains, seconds] = [points(main), second ? points(second) : []];
  const scale = Math.max(top, ...[...mains, ...seconds].map(([, value]) => value));
  const place = ([x, value]) => `${x.toFixed(2)} ${(36 - (value / scale) * 32).toFixed(2)}`;
  const path = (list) => (list.length > 1 ? `M${list.map(place).join("L")}` : "");
  const line = path(mains);
  const area = line && `${line}L${mains.at(-1)[0].toFixed(2)} 38L${mains[0][0].toFixed(2)} 38Z`;
  spark.querySelector(".line").setAttribute("d", line);
  spark.querySelector(".faint").setAttribute("d", path(seconds));
  spark.querySelector(".area").setAttribute("d", area);
}

/** Name, digits, unit, a second line, what is drawn, and the least height of its scale. */
function figuresOf(m) {
  const { queue, totals } = m.load;
  const oldest = queue.waiting ? `oldest ${duration(queue.oldest_s).join(" ")}` : m.waiting ? "all at replicas" : "nobody";
  const slow = m.ttft ? `p90 ${duration(m.p90).join(" ")}` : "none in a minute";
  const [tokens, preempted] = [m.tokens, m.preempted].map((n) => (n === null ? "–" : number(n)));
  return [
    ["Running", number(m.running), "", `of ${number(m.seats)} seats`, ["running"], 4],
    ["Waiting", number(m.waiting), "", oldest, ["waiting"], 4],
    ["KV blocks used", number(m.share * 100), "%", `${number(m.used)} of ${number(m.blocks)}`, ["share"], 1],
    ["First token, p50", ...duration(m.p50), slow, ["p50", "p90"], 0.01],
    ["Tokens", tokens, "/s", `${number(totals.generated_tokens)} in all`, ["tokens"], 10],
    ["Preemptions", preempted, "/min", `${number(totals.preemptions)} in all`, ["preempted"], 4],
  ];
}

function renderFigures(moments) {
  keyed($("figures"), figuresOf(moments.at(-1)), (one) => one[0], (one) => makeFigure(one[0]), (node, one) => {
    const [, digits, unit, more, names, top] = one;
    say(node.querySelector(".digits"), digits);
    say(node.querySelector(".unit"), digits === "–" ? "" : unit);
    say(node.querySelector(".more"), more);
    draw(node.querySelector(".spark"), moments, names, top);
  });
}

// ---- replicas

function makeReplica() {
  const node = element("li", "replica");
  const top = element("div", "top", node);
  const name = element("span", "name", top);
  element("span", "text", name);
  element("span", "state", name);
  element("span", "share", top);
  makeBar(node);
  const under = element("div", "under", node);
  element("span", "work", under);
  element("span", "age", under);
  return node;
}

function fillReplica(node, one) {
  const used = one.total_blocks - one.free_blocks;
  const label = `KV blocks of ${one.replica}: ${used} of ${one.total_blocks} used`;
  const bar = node.querySelector(".bar");
  const share = fillBar(bar, used, one.total_blocks, label);
  bar.dataset.full = String(share >= FULL);
  const waits = one.waiting ? `, ${one.waiting} waiting` : "";
  const work = `${one.running} running${waits}`;
  say(node.querySelector(".text"), one.replica);
  say(node.querySelector(".state"), one.state === "serving" ? "" : one.state);
  say(node.querySelector(".share"), many() ? `${Math.round(share * 100)} %` : `${number(used)} / ${number(one.total_blocks)}`);
  say(node.querySelector(".work"), work);
  const age = one.report_age_s > 3 ? `heard ${duration(one.report_age_s).join(" ")} ago` : "";
  say(node.querySelector(".age"), age || `${number(one.preemptions)} preempted`);
  node.title = `${one.replica}: ${one.state}, ${used} of ${one.total_blocks} blocks, ${work}, ${one.placed} placed`;
}

const many = () => $("replicas").classList.contains("many");

function renderReplicas(replicas) {
  const share = (one) => (one.total_blocks ? one.free_blocks / one.total_blocks : 1);
  const order = $("sort").value === "full" ? [...replicas].sort((a, b) => share(a) - share(b)) : replicas;
  $("replicas").classList.toggle("many", replicas.length > MANY);
  keyed($("replicas"), order, (one) => one.replica, makeReplica, fillReplica);
  const states = ["serving", "leaving", "suspect"];
  const sums = states.map((state) => [replicas.filter((one) => one.state === state).length, state]);
  say($("replicas-sum"), sums.filter(([n]) => n).map(([n, state]) => `${n} ${state}`).join(", "));
  $("replicas-none").hidden = replicas.length > 0;
}

// ---- the queue, tenants, totals

function row(...cells) {
  const node = element("tr");
  for (const name of cells) element("td", name, node);
  return node;
}

function renderQueue(queue) {
  const most = Math.max(1, ...queue.by_priority.map((one) => one.waiting));
  $("queue").hidden = queue.by_priority.length === 0;
  $("queue-none").hidden = queue.waiting > 0;
  say($("queue-sum"), queue.settling ? "settling after a start" : `${number(queue.waiting)} of ${number(queue.limit)}`);
  const make = () => {
    const node = row("", "", "number");
    makeBar(node.children[1]);
    element("span", "count", node.children[1]);
    return node;
  };
  const shown = queue.by_priority.slice(0, ROWS);
  const hidden = queue.by_priority.length - shown.length;
  say($("queue-more"), hidden ? `${hidden} lower priorities` : "");
  keyed($("queue").tBodies[0], shown, (one) => String(one.priority), make, (node, one) => {
    const priority = one.priority > 0 ? `+${one.priority}` : String(one.priority).replace("-", "−");
    say(node.children[0], priority);
    fillBar(node.querySelector(".bar"), one.waiting, most, `Waiting at priority ${one.priority}`);
    say(node.querySelector(".count"), number(one.waiting));
    say(node.children[2], duration(one.oldest_s).join(" "));
    node.children[2].classList.toggle("old", one.oldest_s > OLD_S);
  });
}

function renderTenants(tenants) {
  $("tenants-panel").hidden = tenants.length === 0;
  const make = () => row("", "number", "number", "number");
  keyed($("tenants").tBodies[0], tenants, (one) => one.tenant, make, (node, one) => {
    say(node.children[0], one.tenant || "no name");
    say(node.children[1], `${Math.round(one.share * 100)} %`);
    say(node.children[2], one.max_in_flight === null ? number(one.in_flight) : `${number(one.in_flight)} / ${number(one.max_in_flight)}`);
    say(node.children[3], number(one.waiting));
  });
}

const TOTALS = [
  ["ended", "requests ended"],
  ["resumed", "moves"],
  ["refused", "turned away"],
  ["errors", "failed"],
  ["replicas_lost", "replicas lost"],
  ["prompt_tokens", "prompt tokens"],
  ["generated_tokens", "generated tokens"],
];

function renderTotals(totals) {
  const parent = $("totals");
  if (!parent.children.length) {
    for (const [key, name] of TOTALS) {
      const pair = element("div", "", parent);
      say(element("dt", "", pair), name);
      element("dd", key, pair);
    }
  }
  for (const [key] of TOTALS) say(parent.querySelector(`dd.${key}`), number(totals[key]));
}

/** Show the newest of these moments. */
export function render(moments) {
  const { load } = moments.at(-1);
  $("main").classList.remove("empty");
  say($("model"), load.model);
  renderFigures(moments);
  renderReplicas(load.replicas);
  renderQueue(load.queue);
  renderTenants(load.tenants);
  renderTotals(load.totals);
}

/** Say how the page itself is: "live", "wait", "away" or "key". */
export function state(name, text) {
  $("status").dataset.state = name;
  say($("status"), text);
  $("main").classList.toggle("stale", name !== "live");
  $("key-form").hidden = name !== "key";
}
