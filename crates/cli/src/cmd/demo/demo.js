// The demo's page: two lanes under the same load, and what sets it.
"use strict";

const at = (id) => document.getElementById(id);
const POLICIES = {
  open: "open: no control", codel: "codel", dagor: "dagor", breakwater: "breakwater", tide: "tide: our default",
};

class Lane {
  constructor() {
    const part = document.importNode(at("lane").content, true);
    this.card = part.querySelector("article");
    at("lanes").append(part);
    const chart = (name) => this.card.querySelector(`[data-chart=${name}]`);
    this.traffic = new Tide.Lines(chart("traffic"), {
      title: "Requests per second", limit: { value: 200, text: "capacity" }, series: [
        { name: "offered", colour: "ink", dash: "dot" },
        { name: "good", colour: "green" },
        { name: "refused", colour: "red", dash: "dash" },
        { name: "late or given up", colour: "orange", dash: "dashdot" },
      ],
    });
    this.heat = new Tide.Heat(chart("heat"), { title: "Answered in time, by importance", rows: 16 });
    this.latency = new Tide.Lines(chart("latency"), {
      title: "Latency of what was not refused", unit: "ms", limit: { value: 400, text: "objective" }, series: [
        { name: "p50", colour: "sky", dash: "dot" },
        { name: "p95", colour: "blue", dash: "dash" },
        { name: "p99", colour: "purple" },
      ],
    });
    this.gate = new Tide.Gate(chart("reasons"), chart("queue"), chart("inside"));
  }

  say(name, value) {
    Tide.text(this.card.querySelector(`[data-is=${name}]`), value);
  }

  show(time, lane, capacity, slow) {
    const { state } = lane;
    this.card.dataset.policy = lane.policy;
    for (const name of ["goodput", "offered", "success_top_quarter", "p99_ms"]) this.card.dataset[name] = lane[name];
    this.say("policy", lane.policy);
    this.say("goodput", `${Math.round(lane.goodput)}/s`);
    this.say("p99", lane.p99_ms >= 1000 ? "> 1 s" : Tide.ms(lane.p99_ms));
    this.say("top", Tide.percent(lane.success_top_quarter));
    this.say("refused", `${Math.round(lane.refused)}/s`);
    this.say("gave_up", `${Math.round(lane.gave_up)}/s`);
    this.card.querySelector("[data-is=admin]").href = lane.admin;
    const possible = Math.min(lane.offered, capacity / slow);
    const share = possible > 5 ? lane.goodput / possible : 1;
    const [kind, words] = share > 0.85 ? ["good", "● holds"] : share > 0.4 ? ["warn", "◐ suffers"] : ["bad", "✕ collapsed"];
    const verdict = this.card.querySelector("[data-is=verdict]");
    verdict.className = `verdict ${kind}`;
    Tide.text(verdict, words);
    this.traffic.push(time, [lane.offered, lane.goodput, lane.refused, lane.late + lane.gave_up]);
    this.heat.push(time, lane.rows, lane.cursor);
    this.latency.push(time, [lane.p50_ms, lane.p95_ms, lane.p99_ms]);
    this.gate.push(time, state);
  }
}

for (const select of [at("a"), at("b")]) {
  for (const [value, words] of Object.entries(POLICIES)) select.append(new Option(words, value));
}
const lanes = [new Lane(), new Lane()];
let touched = 0;

async function set(settings) {
  touched = Date.now();
  const answer = await fetch(`/set?${new URLSearchParams(settings)}`, { method: "POST" });
  if (answer.ok) follow(await answer.json());
}

// What the server says is what the controls show, unless a hand is on them.
function follow(controls) {
  for (const name of ["load", "slow"]) {
    if (document.activeElement !== at(name) || Date.now() - touched > 2000) at(name).value = controls[name];
    Tide.text(`${name}-out`, `${Number(controls[name]).toFixed(1)} ×`);
  }
  for (const name of ["mix", "a", "b"]) if (document.activeElement !== at(name)) at(name).value = controls[name];
  for (const name of ["tenant", "retries"]) at(name).checked = controls[name];
}

for (const name of ["load", "slow"]) {
  at(name).addEventListener("input", () => {
    Tide.text(`${name}-out`, `${Number(at(name).value).toFixed(1)} ×`);
    set({ [name]: at(name).value });
  });
}
for (const name of ["mix", "a", "b"]) at(name).addEventListener("change", () => set({ [name]: at(name).value }));
for (const name of ["tenant", "retries"]) {
  at(name).addEventListener("change", () => set({ [name]: at(name).checked ? "on" : "off" }));
}
at("compare").addEventListener("change", () => {
  lanes[1].card.hidden = !at("compare").checked;
  at("b").disabled = !at("compare").checked;
  window.dispatchEvent(new Event("resize"));
});
const calm = { slow: 1, tenant: "off", retries: "off" };
const SCENES = {
  calm: { load: 0.8, ...calm }, overload: { load: 2, ...calm }, flood: { load: 5, ...calm },
  storm: { ...calm, load: 1.3, retries: "on" },
};
for (const button of document.querySelectorAll("[data-scene]")) {
  button.addEventListener("click", () => set(SCENES[button.dataset.scene]));
}
Tide.themeButton(at("theme"));
Tide.listen("/events", at("banner"), (message) => {
  Tide.text("objective", String(message.objective_ms));
  follow(message.controls);
  message.lanes.forEach((lane, n) => {
    if (n === 0 || at("compare").checked) lanes[n].show(message.unix_ms / 1000, lane, message.capacity, message.controls.slow);
  });
  document.documentElement.dataset.ticks = String(Number(document.documentElement.dataset.ticks || 0) + 1);
});
