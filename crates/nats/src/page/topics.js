// The page "Topics": asks /state once a second and draws what has changed since.
"use strict";

const KEPT = 120;
const history = new Map();
let before = null;

const round = (value) => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);

function element(kind, text, parent, kindOfText) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (kindOfText) made.className = kindOfText;
  parent?.append(made);
  return made;
}

function drawn(kind, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
}

// One line over the last two minutes, and a bound if there is one.
function chart(parent, caption, values, bound) {
  const figure = element("figure", undefined, parent);
  const most = Math.max(bound ?? 0, ...values, 1e-6) * 1.1;
  const height = (value) => (100 - 100 * value / most).toFixed(2);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", caption);
  if (bound !== undefined) drawn("line", { x1: 0, x2: KEPT - 1, y1: height(bound), y2: height(bound) }, svg);
  const first = KEPT - values.length;
  drawn("polyline", { points: values.map((value, n) => `${first + n},${height(value)}`).join(" ") }, svg);
  figure.append(svg);
  element("figcaption", caption, figure);
}

function row(table, cells, kind) {
  const made = element("tr", undefined, table);
  for (const cell of cells) element(kind ?? "td", cell, made);
  return made;
}

function topic(now, seconds, old, addresses) {
  const passed = old ? (now.passed - old.passed) / seconds : 0;
  const delay = old && now.passed > old.passed ? 1e3 * (now.delay_ms.sum_s - old.delay_ms.sum_s) / (now.passed - old.passed) : 0;
  const kept = history.get(now.name) ?? { passed: [], delay: [] };
  history.set(now.name, kept);
  for (const [list, value] of [[kept.passed, passed], [kept.delay, delay]]) {
    list.push(value);
    if (list.length > KEPT) list.shift();
  }
  const section = element("section");
  element("h2", now.name === now.subject ? now.name : `${now.name} (${now.subject})`, section);
  if (now.lease) {
    const { connected, problem, rate } = now.lease;
    const text = connected ? `shared: this gate has ${round(rate)}/s of it` : `shared: the daemon is not heard, ${round(rate)}/s are left`;
    element("p", problem ? `${text}; ${problem}` : text, section, connected && !problem ? "note" : "bad");
  }
  chart(section, `${round(passed)}/s of ${round(now.rate)}/s, ${now.burst} at once`, kept.passed, now.rate);
  chart(section, `access delay ${round(delay)} ms on average; since the start p99 ${round(now.delay_ms.p99)} ms`, kept.delay);
  const table = element("table", undefined, section);
  row(table, ["broker", "share of the rate", "burst", "waiting"], "th");
  now.brokers.forEach((broker, n) => row(table, [addresses[n], `${round(broker.rate)}/s`, broker.burst, broker.waiting]));
  const refused = old ? (now.refused - old.refused) / seconds : 0;
  element("p", `refused ${now.refused}, now ${round(refused)}/s; lag ${round(now.lag_ms)} ms at most`, section, refused > 0 ? "bad" : "note");
  return section;
}

function brokers(state, seconds) {
  const table = document.getElementById("brokers");
  table.replaceChildren();
  row(table, ["broker", "state", "publishers", "messages", "in doubt"], "th");
  state.brokers.forEach((broker, n) => {
    const old = before?.state.brokers[n].published ?? broker.published;
    const made = row(table, [
      broker.address, broker.leaving ? "leaving" : broker.state, broker.publishers,
      `${round((broker.published - old) / seconds)}/s`, broker.in_doubt,
    ]);
    if (broker.why) made.title = broker.why;
    if (broker.state !== "up") made.className = "bad";
  });
}

async function look() {
  const totals = document.getElementById("totals");
  try {
    const state = await (await fetch("/state")).json();
    const at = performance.now() / 1e3;
    // A gate that was restarted counts from the start.
    if (before && state.published < before.state.published) before = null;
    const seconds = before ? at - before.at : 1;
    const addresses = state.brokers.map((broker) => broker.address);
    const old = (n) => before?.state.topics[n];
    document.getElementById("topics").replaceChildren(...state.topics.map((one, n) => topic(one, seconds, old(n), addresses)));
    brokers(state, seconds);
    totals.textContent = `clients: ${state.clients}; moves: ${state.moves}${state.moving ? `, ${state.moving} under way` : ""}` +
      `${state.draining ? "; draining" : ""}${state.topics.length ? "" : "; no topic is limited"}`;
    totals.className = "note";
    before = { state, at };
  } catch (error) {
    totals.textContent = `The gate does not answer: ${error.message}`;
    totals.className = "bad";
  }
  setTimeout(look, 1000);
}

look();
