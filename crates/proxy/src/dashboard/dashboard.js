// The sidecar's dashboard. Every number comes from /state as it is, or from two of them in a row.
"use strict";

const at = (id) => document.getElementById(id);
const sum = (table) => Object.values(table).reduce((all, value) => all + (typeof value === "object" ? sum(value) : value), 0);

const traffic = new Tide.Lines(at("traffic"), {
  title: "Requests per second", series: [
    { name: "arrived", colour: "ink", dash: "dot" },
    { name: "served", colour: "green" },
    { name: "refused", colour: "red", dash: "dash" },
  ],
});
const latency = new Tide.Lines(at("latency"), {
  title: "Latency of what was served, at most", unit: "ms", series: [
    { name: "50 %", colour: "sky", dash: "dot" },
    { name: "95 %", colour: "blue", dash: "dash" },
    { name: "99 %", colour: "purple" },
  ],
});
const gate = new Tide.Gate(at("reasons"), at("queue"), at("inside"));
let heat = null;
let heatRows = "";
let before = null;
let parameters = "";

// The time in ms below which so large a part of the new ones lies; within a class they are taken to
// be spread evenly, as Prometheus does.
function quantile(now, then, part) {
  const count = now.count - then.count;
  if (count <= 0) return null;
  let [below, bound] = [0, 0];
  for (let n = 0; n < now.buckets.length; n += 1) {
    const sum = now.buckets[n][1] - then.buckets[n][1];
    const next = 1000 * now.buckets[n][0];
    if (sum >= part * count) return bound + (next - bound) * ((part * count - below) / Math.max(1, sum - below));
    [below, bound] = [sum, next];
  }
  return 1000 * now.buckets.at(-1)[0];
}

// States of the last seconds, for numbers that do not jump.
const recent = [];
const SPAN = 5;

// What is going on, in one sentence.
function sentence(state) {
  if (recent.length && state.uptime_seconds < recent.at(-1).uptime_seconds) recent.length = 0;
  recent.push(state);
  while (recent.length > 2 && recent[1].uptime_seconds <= state.uptime_seconds - SPAN) recent.shift();
  const then = recent[0];
  const seconds = state.uptime_seconds - then.uptime_seconds;
  if (seconds < 0.5) return "…";
  const rate = (now, past) => Math.max(0, (now - past) / seconds);
  const arrived = rate(sum(state.arrived), sum(then.arrived));
  const goodput = rate(served(state), served(then));
  const parts = [];
  if (state.overload_seconds !== null) {
    const times = goodput > 0 ? `${(arrived / goodput).toFixed(1)} × what it serves` : "nothing is served";
    const whether = state.enforce_percent === 0 ? " (observed, nothing is refused)" : "";
    parts.push(`Overloaded for ${lasting(state.overload_seconds)}${whether}: ${Tide.number(arrived)}/s come, ${times}, ${Tide.number(goodput)}/s`);
  } else if (arrived < 0.1) {
    parts.push("Nothing comes");
  } else {
    parts.push(`No overload: ${Tide.number(arrived)}/s come, ${Tide.number(goodput)}/s are served`);
  }
  const fates = fatesOfRules(state, then);
  if (fates) parts.push(fates);
  const slowest = quantile(state.request_seconds, then.request_seconds, 0.99);
  if (slowest !== null) {
    const objective = state.objective_seconds ? ` of ${Math.round(1000 * state.objective_seconds)} ms` : "";
    parts.push(`99 % are answered within ${Tide.ms(slowest)}${objective}`);
  }
  return `${parts.join("; ")}.`;
}

// The most important rules first; what is refused is told of each.
function fatesOfRules(state, then) {
  const rules = Object.entries(state.rules).sort((a, b) => a[1].business - b[1].business);
  const fates = rules.flatMap(([name, now]) => {
    const past = then.rules[name] || { arrived: 0, refused: 0 };
    const came = now.arrived - past.arrived;
    if (came < 1) return [];
    const refused = Math.min(1, (now.refused - past.refused) / came);
    const called = name === "(none)" ? "the rest" : name;
    return [refused < 0.005 ? `all of ${called} let in` : `${Math.round(100 * refused)} % of ${called} refused`];
  });
  return fates.slice(0, 4).join(", ");
}

function lasting(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function served(state) {
  return Object.values(state.finished).reduce((all, band) => all + band.served, 0);
}

function showRates(time, state, then, seconds) {
  const rate = (now, past) => Math.max(0, (now - past) / seconds);
  const refusedNow = sum(Tide.byReason(state));
  const refused = rate(refusedNow, sum(Tide.byReason(then)));
  const goodput = rate(served(state), served(then));
  const arrived = rate(sum(state.arrived), sum(then.arrived));
  traffic.push(time, [arrived, goodput, refused]);
  Tide.text("served", Tide.number(goodput));
  Tide.text("refused", Tide.number(refused));
  const times = [0.5, 0.95, 0.99].map((part) => quantile(state.request_seconds, then.request_seconds, part));
  latency.push(time, times);
  Tide.text("p99", Tide.ms(times[2]));
  const verdict = at("verdict");
  const [kind, words] = state.overload_seconds !== null ? ["warn", "▲ overload"] : ["good", "● no overload"];
  verdict.className = `verdict ${kind}`;
  Tide.text(verdict, state.draining ? "◼ ending" : words);
  showHeat(time, state, then);
}

// What is known of a business rank: the rules that give it.
function rulesOf(state, key) {
  const names = Object.entries(state.rules).filter(([name, one]) => one.business === key && name !== "(none)").map(([name]) => name);
  const all = names.join(", ");
  return all.length > 16 ? `${all.slice(0, 15)}…` : all;
}

// A row per business rank there is, or per part of its users while there is only one.
function showHeat(time, state, then) {
  const keys = Object.keys(state.ranks).map(Number).sort((a, b) => a - b);
  if (keys.length === 0) return;
  const single = keys.length === 1;
  const id = keys.map((key) => `${key} ${rulesOf(state, key)}`).join();
  const cells = keys.flatMap((key) => {
    const [now, past] = [state.ranks[key], then.ranks[key] || []];
    const parts = now.map((part, n) => {
      const old = past[n] || { admitted: 0, refused: 0, served: 0 };
      return { served: part.served - old.served, refused: part.refused - old.refused };
    });
    if (single) return parts;
    return [parts.reduce((all, part) => ({ served: all.served + part.served, refused: all.refused + part.refused }))];
  });
  if (heatRows !== id) {
    heatRows = id;
    const labels = single ? cells.map((_, n) => (n % 4 === 0 ? `${keys[0]}, user ${n}/16` : "")) : keys.map((key) => rulesOf(state, key) || `rank ${key}`);
    if (heat) heat.end();
    heat = new Tide.Heat(at("heat"), { title: "Served, of those served or refused", rows: cells.length, labels });
  }
  const success = cells.map((cell) => (cell.served + cell.refused > 0 ? cell.served / (cell.served + cell.refused) : null));
  let cursor = null;
  if (state.cursor < 64) {
    if (single) cursor = Math.min(16, Math.max(0, 16 * (state.cursor - keys[0])));
    else cursor = keys.filter((key) => key + 1 <= state.cursor).length + (keys.includes(Math.floor(state.cursor)) ? state.cursor % 1 : 0);
  }
  heat.push(time, success, cursor);
}

function showLevels(time, state) {
  gate.push(time, state);
  Tide.text("policy", state.policy);
  Tide.text("delay", Tide.ms(1000 * state.delay_seconds));
  Tide.text("slots", `${state.running} of ${state.slots}`);
  Tide.text("waiting", Tide.number(state.waiting));
  Tide.text("credits", state.credits === null ? "–" : Tide.number(state.credits));
  Tide.text("cursor", state.last_rank ? `${state.last_rank[0]}, ${state.last_rank[1]}` : "all");
  Tide.text("enforced", `${state.enforce_percent} %`);
  Tide.text("sentence", sentence(state));
  Tide.text("uptime", lasting(state.uptime_seconds));
  Tide.rows(at("upstreams"), state.upstreams.map((one) => [one.address, one.in_flight, one.latency_seconds === null ? null : Tide.ms(1000 * one.latency_seconds)]));
  const counts = (table) => Object.entries(table).map(([name, one]) => [name, one.arrived, one.refused, one.served]);
  Tide.rows(at("rules"), Object.entries(state.rules).map(([name, one]) => [name, one.business, one.arrived, one.refused, one.served, one.failed]));
  Tide.rows(at("workflows"), counts(state.workflows));
  Tide.rows(at("callers"), Object.entries(state.callers).slice(0, 50).map(([id, one]) => [id, one.credits, one.in_flight, one.demand, one.sheds]));
  const asked = (one) => one.top.map((row) => [one.limit, row.who, Math.round(row.asked), `${Math.round((100 * row.asked) / one.asked)} %`]);
  Tide.rows(at("heavy"), state.heavy_hitters.flatMap(asked));
  const ranks = Object.entries(state.ranks).map(([rank, parts]) => [rank, ...["arrived", "refused", "served"].map((what) => parts.reduce((all, part) => all + part[what], 0))]);
  Tide.rows(at("by-rank"), ranks);
  // A table that has nothing to say takes no room.
  for (const id of ["rules", "workflows", "callers", "heavy"]) at(id).closest(".card").hidden = at(id).rows.length === 0;
}

function showOperations({ enforce, shadow }) {
  Tide.text("percent", `${enforce.percent} %`);
  Tide.text("overridden", enforce.overridden ? ` (the file says ${enforce.configured} %)` : "");
  Tide.text("candidate", shadow.candidate ? "is compared" : "none");
  const list = [];
  if (shadow.candidate) {
    list.push(["compared for", `${Math.round(shadow.since_ms / 1000)} s`]);
    list.push(["arrivals put to both", shadow.arrivals], ["same verdict", shadow.same], ["different", shadow.differ]);
    list.push(["only the live policy refuses", shadow.live_only], ["only the candidate refuses", shadow.candidate_only]);
    for (const [band, one] of Object.entries(shadow.by_band || {})) {
      list.push([`${band}: live only / candidate only`, `${one.live_only} / ${one.candidate_only} of ${one.arrivals}`]);
    }
    list.push(["by reason", JSON.stringify(shadow.by_reason)]);
  }
  Tide.rows(at("shadow-table"), list);
}

async function showSlowly() {
  try {
    const list = await (await fetch("/refusals?limit=25")).json();
    Tide.text("refusals-total", Tide.number(list.total));
    Tide.rows(at("refusals-table"), list.refusals.map((one) => [
      Math.round(one.ago_ms / 100) / 10, `${one.rank[0]}, ${one.rank[1]} (${one.band})`, one.rule, one.workflow,
      one.reason + (one.enforced ? "" : " (not enforced)"), ...readable(one), one.retry,
    ]));
    const policy = await (await fetch("/policy")).json();
    if (JSON.stringify(policy) !== parameters) {
      parameters = JSON.stringify(policy);
      Tide.rows(at("policy-table"), policy.map((one) => [one.field, one.value, one.meaning]));
    }
  } catch {
    // The banner says that nothing is heard.
  }
}

// Times are told in ms.
function readable({ measured, limit, unit }) {
  return unit === "ns" ? [measured / 1e6, limit / 1e6, "ms"] : [measured, limit, unit];
}

async function explain(event) {
  event.preventDefault();
  const query = new URLSearchParams();
  for (const name of ["business", "user", "deadline", "attempt"]) {
    if (at(name).value !== "") query.set(name, at(name).value);
  }
  const answer = await fetch(`/explain?${query}`);
  if (!answer.ok) {
    Tide.text("explain-answer", await answer.text());
    Tide.rows(at("explain-table"), []);
    return;
  }
  const told = await answer.json();
  const words = {
    start: "● It would start at once.",
    wait: "◐ It would wait for a slot.",
    refuse: `▲ It would be refused: ${told.refusal ? told.refusal.text : ""}`,
  };
  Tide.text("explain-answer", words[told.verdict] || told.verdict);
  const list = [
    ["policy", told.policy], ["rank", `${told.rank[0]}, ${told.rank[1]} (${told.criticality})`],
    ["last rank let in", told.last_rank_let_in || "all"], ["slots", told.slots], ["running", told.running], ["waiting", told.waiting],
    ["predicted wait", Tide.ms(1000 * told.predicted_wait_seconds)],
  ];
  if (told.refusal) {
    const { reason, retry } = told.refusal;
    const [measured, limit, unit] = readable(told.refusal);
    list.push(["rule", reason], ["measured", `${Tide.number(measured)} ${unit}`], ["limit", `${Tide.number(limit)} ${unit}`], ["told to retry", retry]);
  }
  Tide.rows(at("explain-table"), list);
}

async function change(what) {
  const headers = { authorization: `Bearer ${at("token").value}` };
  const requests = {
    enforce: [`/enforce?percent=${encodeURIComponent(at("enforce").value)}`, { method: "POST" }],
    kill: ["/enforce?percent=0", { method: "POST" }],
    shadow: ["/shadow", { method: "POST", body: at("block").value }],
    promote: ["/shadow/promote", { method: "POST" }],
    drop: ["/shadow", { method: "DELETE" }],
  };
  const [url, how] = requests[what];
  const answer = await fetch(url, { ...how, headers });
  const words = await answer.text();
  Tide.text("change-answer", answer.ok ? `Done: ${words}` : `Not done (${answer.status}): ${words}`);
}

at("explain-form").addEventListener("submit", explain);
at("change-form").addEventListener("submit", (event) => event.preventDefault());
for (const button of document.querySelectorAll("[data-change]")) {
  button.addEventListener("click", () => change(button.dataset.change));
}
Tide.themeButton(at("theme"));
Tide.listen("/events", at("banner"), (message) => {
  const time = message.unix_ms / 1000;
  const { state } = message;
  showLevels(time, state);
  showOperations(message);
  // A process that was restarted counts from zero.
  if (before && state.uptime_seconds >= before.state.uptime_seconds) {
    showRates(time, state, before.state, Math.max(0.1, time - before.time));
  }
  before = { time, state };
});
showSlowly();
setInterval(showSlowly, 2000);
