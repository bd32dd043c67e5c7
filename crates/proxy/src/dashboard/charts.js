// What the dashboard and the demo share: charts over time, the connection to the server, the theme.
"use strict";

const Tide = (() => {
  const root = document.documentElement;
  const charts = new Set();
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  // === theme ===

  function theme(wanted) {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = wanted || localStorage.getItem("theme") || system;
    charts.forEach(redraw);
  }

  function themeButton(button) {
    const show = () => {
      button.textContent = root.dataset.theme === "dark" ? "☀ Light" : "☾ Dark";
    };
    button.addEventListener("click", () => {
      const next = root.dataset.theme === "dark" ? "light" : "dark";
      localStorage.setItem("theme", next);
      theme(next);
      show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); show(); });
    show();
  }

  // === drawing ===

  // Charts are drawn when the browser has time, those in view alone, a few per frame: a slow machine
  // skips pictures and not clicks.
  const BUDGET = 25;
  const dirty = new Set();
  let awaited = false;
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) target.dataset.seen = isIntersecting ? "yes" : "";
    if (dirty.size) wake();
  }, { rootMargin: "200px" });

  function redraw(chart) {
    dirty.add(chart);
    wake();
  }

  function wake() {
    if (awaited) return;
    awaited = true;
    requestAnimationFrame(() => {
      awaited = false;
      const begin = performance.now();
      for (const chart of [...dirty].filter((one) => one.element.dataset.seen)) {
        dirty.delete(chart);
        chart.draw();
        if (performance.now() - begin > BUDGET) break;
      }
      if ([...dirty].some((one) => one.element.dataset.seen)) setTimeout(wake, BUDGET);
    });
  }

  function enlist(chart) {
    charts.add(chart);
    seen.observe(chart.element);
  }

  // === charts ===

  const settings = { displayModeBar: false, responsive: true, staticPlot: false, scrollZoom: false };

  function layout({ unit, title, legend = true, left = 48, right = 10, min }) {
    const axis = {
      gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, fixedrange: true,
      tickfont: { size: 11 }, automargin: false,
    };
    return {
      title: { text: title, font: { size: 13 }, x: 0, xref: "paper", xanchor: "left", y: 1, yref: "container", pad: { t: 8 } },
      margin: { l: left, r: right, t: 30, b: legend ? 44 : 24 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), family: "system-ui, 'DejaVu Sans', sans-serif", size: 12 },
      showlegend: legend, hovermode: "x unified",
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
      legend: { orientation: "h", x: 0, y: -0.13, yanchor: "top", font: { size: 11 } },
      xaxis: { ...axis, ticksuffix: " s", nticks: 7 },
      yaxis: { ...axis, rangemode: "tozero", ticksuffix: unit ? ` ${unit}` : "", nticks: 6, range: min },
      shapes: [], annotations: [],
    };
  }

  // How far back a chart shows: what there is, at least half a minute, at most its span.
  const reach = ({ times, span }) => Math.min(span, Math.max(30, (times.at(-1) ?? 0) - (times[0] ?? 0)));

  // Lines over the last `span` seconds. `series`: name, colour, dash ("solid", "dot", "dash"), stack.
  // Each line has its own dash, so that colour is not the only sign.
  class Lines {
    constructor(element, { title, unit, series, span = 90, limit, ceiling }) {
      Object.assign(this, { element, title, unit, series, span, limit, ceiling });
      this.times = [];
      this.values = series.map(() => []);
      enlist(this);
    }

    // A series that was not known before.
    add(series) {
      this.series.push(series);
      this.values.push(this.times.map(() => null));
    }

    push(time, values) {
      this.times.push(time);
      this.values.forEach((list, n) => list.push(values[n] ?? null));
      while (this.times.length && this.times[0] < time - this.span) {
        this.times.shift();
        this.values.forEach((list) => list.shift());
      }
      redraw(this);
    }

    draw() {
      const now = this.times.at(-1) ?? 0;
      const x = this.times.map((time) => Math.round((time - now) * 10) / 10);
      const data = this.series.map((one, n) => ({
        x, y: this.values[n], name: one.name, type: "scatter", mode: "lines",
        stackgroup: one.stack, connectgaps: false,
        line: { color: colour(one.colour), width: one.stack ? 1 : 2.2, dash: one.dash || "solid" },
        hovertemplate: `%{y:.4~g}${this.unit ? " " + this.unit : ""}`,
      }));
      const look = layout(this);
      look.xaxis.range = [-reach(this), 0];
      if (this.ceiling) look.yaxis.range = [0, this.ceiling()];
      if (this.limit) {
        const { value, text } = this.limit;
        look.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line: { color: colour("ink"), width: 1.3, dash: "dash" } });
        look.annotations.push({ xref: "paper", x: 0.005, y: value, text, showarrow: false, xanchor: "left", yanchor: "bottom", font: { size: 11 } });
      }
      Plotly.react(this.element, data, look, settings);
    }
  }

  // Success by rank over time, and where the cursor stands. Brightness rises with success, and the
  // last column is written out.
  class Heat {
    constructor(element, { title, rows, span = 90, labels, note }) {
      Object.assign(this, { element, title, rows, span, labels, note });
      this.times = [];
      this.columns = [];
      this.cursors = [];
      enlist(this);
    }

    // Another takes its place.
    end() {
      charts.delete(this);
      dirty.delete(this);
    }

    // `values`: success of each row from 0 to 1, or null; `cursor`: from 0 to `rows`, or null.
    push(time, values, cursor) {
      this.times.push(time);
      this.columns.push(values);
      this.cursors.push(cursor);
      while (this.times.length && this.times[0] < time - this.span) {
        this.times.shift();
        this.columns.shift();
        this.cursors.shift();
      }
      redraw(this);
    }

    draw() {
      const now = this.times.at(-1) ?? 0;
      const x = this.times.map((time) => Math.round((time - now) * 10) / 10);
      const y = Array.from({ length: this.rows }, (_, n) => n + 0.5);
      const z = y.map((_, row) => this.columns.map((column) => {
        const value = column[row];
        return value === null || value === undefined ? null : 100 * value;
      }));
      const data = [
        {
          type: "heatmap", x, y, z, zmin: 0, zmax: 100, colorscale: "Cividis", hoverongaps: false,
          colorbar: { thickness: 10, len: 1, ticksuffix: " %", tickfont: { size: 10 }, outlinewidth: 0, nticks: 5 },
          hovertemplate: "%{x} s, %{customdata}: %{z:.0f} %<extra></extra>",
          customdata: y.map((_, row) => x.map(() => this.labels ? this.labels[row] ?? "" : `part ${row + 1} of ${this.rows}`)),
        },
        {
          type: "scatter", mode: "lines", x, y: this.cursors, name: "cursor", connectgaps: false, hoverinfo: "skip",
          line: { color: "#ffffff", width: 5, shape: "hv" }, showlegend: false,
        },
        {
          type: "scatter", mode: "lines", x, y: this.cursors, name: "cursor: ranks above it pass",
          connectgaps: false, line: { color: "#d4380d", width: 2, shape: "hv", dash: "dot" },
          hovertemplate: "cursor<extra></extra>",
        },
      ];
      const look = layout({ title: this.title, left: 104, right: 4, legend: true });
      look.hovermode = "closest";
      look.xaxis.range = [-reach(this), 0];
      look.yaxis = { ...look.yaxis, range: [this.rows, 0], rangemode: "normal", showgrid: false };
      if (this.labels) {
        look.yaxis.tickvals = y;
        look.yaxis.ticktext = this.labels;
      } else {
        look.yaxis.tickvals = [0.5, this.rows / 2, this.rows - 0.5];
        look.yaxis.ticktext = ["most important", "middle", "least"];
      }
      Plotly.react(this.element, data, look, settings);
    }
  }

  // === connection ===

  // Calls `hear` with every message. `banner` says what is wrong while nothing comes, and when the
  // other side has begun anew.
  function listen(url, banner, hear) {
    let last = Date.now();
    let lost = false;
    const say = (text) => {
      banner.textContent = text;
      banner.hidden = !text;
      root.dataset.connection = text ? "lost" : "live";
    };
    const open = () => {
      const source = new EventSource(url);
      source.onmessage = (message) => {
        const now = Date.now();
        const data = JSON.parse(message.data);
        if (lost) {
          say("Connected again. Numbers begin anew if the process was restarted.");
          setTimeout(() => say(""), 6000);
          lost = false;
        }
        last = now;
        hear(data);
      };
      source.onerror = () => {
        lost = true;
        say("Connection lost: the process has ended or is being restarted. Trying again …");
        source.close();
        setTimeout(open, 1000);
      };
    };
    setInterval(() => {
      if (!lost && Date.now() - last > 5000) {
        say(`Nothing heard for ${Math.round((Date.now() - last) / 1000)} s: what you see is old.`);
        lost = true;
      }
    }, 1000);
    open();
  }

  // === a gate ===

  const COLOURS = ["red", "orange", "purple", "blue", "sky", "green"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];

  // Refusals so far by reason, enforced or not.
  function byReason(state) {
    const all = {};
    for (const table of [state.refused, state.would_refuse]) {
      for (const band of Object.values(table)) {
        for (const [reason, count] of Object.entries(band)) all[reason] = (all[reason] || 0) + count;
      }
    }
    return all;
  }

  // What there is to see of any gate, from its state: refusals by reason, queueing, what is inside.
  class Gate {
    constructor(reasons, queue, inside) {
      this.reasons = new Lines(reasons, { title: "Refused per second, by reason", series: [] });
      this.queue = new Lines(queue, {
        title: "Queueing in the gate", unit: "ms", series: [
          { name: "delay", colour: "orange" },
          { name: "predicted wait", colour: "blue", dash: "dot" },
        ],
      });
      this.inside = new Lines(inside, {
        title: "Slots, queue and credits", series: [
          { name: "slots", colour: "ink", dash: "dash" },
          { name: "running", colour: "green" },
          { name: "waiting", colour: "orange", dash: "dot" },
          { name: "credits", colour: "purple", dash: "dashdot" },
        ],
      });
      this.before = null;
    }

    push(time, state) {
      this.queue.push(time, [1000 * state.delay_seconds, 1000 * state.predicted_wait_seconds]);
      this.inside.push(time, [state.slots, state.running, state.waiting, state.credits]);
      const now = { uptime: state.uptime_seconds, refused: byReason(state) };
      const { before } = this;
      this.before = now;
      // A process that was restarted counts from zero.
      if (!before || now.uptime < before.uptime) return;
      for (const reason of Object.keys(now.refused)) {
        if (!this.reasons.series.some((one) => one.name === reason)) {
          const n = this.reasons.series.length;
          this.reasons.add({ name: reason, colour: COLOURS[n % COLOURS.length], dash: DASHES[n % DASHES.length], stack: "all" });
        }
      }
      const seconds = Math.max(0.1, now.uptime - before.uptime);
      const rate = ({ name }) => Math.max(0, (now.refused[name] || 0) - (before.refused[name] || 0)) / seconds;
      this.reasons.push(time, this.reasons.series.map(rate));
    }
  }

  // === text ===

  // Everything is set as text, never as markup: names come from strangers.
  const text = (id, value) => {
    const element = typeof id === "string" ? document.getElementById(id) : id;
    if (element && element.textContent !== value) element.textContent = value;
  };

  function rows(body, list) {
    body.replaceChildren(...list.map((cells) => {
      const row = document.createElement("tr");
      for (const cell of cells) {
        const td = document.createElement("td");
        if (typeof cell === "number") {
          td.className = "n";
          td.textContent = number(cell);
        } else {
          td.textContent = cell ?? "–";
        }
        row.append(td);
      }
      return row;
    }));
  }

  const number = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const places = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 1 ? 1 : 2;
    return value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: places });
  };
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0.999 ? 0 : 1)} %`);
  const ms = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ms`);

  theme();
  return { Lines, Heat, Gate, byReason, listen, text, rows, number, percent, ms, themeButton };
})();
