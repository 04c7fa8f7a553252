  const number = (v, unit) => {
    if (v === null || v === undefined) return "–";
    const few = (n) => Math.abs(n) >= 1000 || Number.isInteger(n) ? Math.round(n).toLocaleString("en") : n.toFixed(Math.abs(n) >= 100 ? 1 : 2);
    if (unit === "us") return v < 1e3 ? Math.round(v) + " µs" : v < 1e4 ? (v / 1e3).toFixed(2) + " ms" : v < 1e6 ? (v / 1e3).toFixed(1) + " ms" : (v / 1e6).toFixed(2) + " s";
    if (unit === "bytes") {
      const units = ["B", "KB", "MB", "GB", "TB"];
      let i = 0;
      while (v >= 1024 && i < 4) { v /= 1024; i += 1; }
      return (i ? v.toFixed(1) : v) + " " + units[i];
    }
    if (unit === "rate") return few(v) + "/s";
    if (unit === "s") return v > 0 && v < 1 ? number(v * 1e6, "us") : v < 120 ? +v.toFixed(2) + " s" : Math.floor(v / 60) + " min " + Math.round(v % 60) + " s";
    return few(v);
  };
  const tick = (v, unit) => number(v, unit).replace(/\.0+(?= |$|\/)|(\.\d*?)0+(?= |$|\/)/, "$1").replace(/\/s$/, "");

  // Colours are those of the style sheet, as they are now: light, dark, or on paper.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = "var(--" + name + ")";
    return getComputedStyle(probe).color;
  };
  const font = "12px " + getComputedStyle(document.body).fontFamily;

  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
  const clock = (v, step) => (step >= 3600 ? v / 3600 + " h" : step >= 60 ? v / 60 + " min" : step >= 0.1 ? +v.toFixed(1) + " s" : Math.round(v * 1e3) + " ms");
  const decade = (v) => v > 0 && Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9;

  const drawn = [];
  const all = JSON.parse(document.getElementById("plots").textContent);
  const readout = (element) => element.closest("figure").querySelector("output");

  const marks = (plot) => (u) => {
    const { ctx } = u, { left, top, width, height } = u.bbox, dpr = devicePixelRatio;
    ctx.save();
    ctx.font = 11 * dpr + "px sans-serif";
    ctx.textAlign = "left";
    for (const [at, name] of plot.marks) {
      const x = Math.round(u.valToPos(at, "x", true));
      if (x < left - 1 || x > left + width + 1) continue;
      ctx.strokeStyle = ctx.fillStyle = colour("quiet");
      ctx.setLineDash([3 * dpr, 3 * dpr]);
      ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
      if (!plot.small) ctx.fillText(name.slice(0, 24), x + 4 * dpr, top + 11 * dpr);
    }
    ctx.setLineDash([]);
    ctx.fillStyle = colour("bad");
    for (const [i] of plot.events) {
      const x = u.valToPos(plot.x[i], "x", true), s = 5 * dpr;
      ctx.beginPath(); ctx.moveTo(x - s, top); ctx.lineTo(x + s, top); ctx.lineTo(x, top + 1.6 * s); ctx.fill();
    }
    ctx.restore();
  };

  const say = (u, plot, out) => {
    const i = u.cursor.idx;
    if (i === null || i === undefined) { out.textContent = ""; return; }
    const parts = plot.series.map((s) => s.name + " " + number(s.values[i], plot.unit));
    const what = plot.events.filter(([at, text]) => at === i && text).map(([, text]) => text);
    out.textContent = "At " + number(plot.x[i], "s") + ": " + parts.concat(what).join(" · ");
  };

  const draw = (element) => {
    const plot = all[element.dataset.plot], out = readout(element);
    const axis = { stroke: () => colour("quiet"), font, grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false } };
    let top, floor, ceiling;
    const measure = () => {
      const values = plot.series.flatMap((s) => s.values).filter((v) => v !== null);
      top = Math.max(0, ...values);
      // Lines of a logarithmic axis are a factor of ten apart: there shall be two at least.
      floor = 10 ** Math.floor(Math.log10(values.length ? Math.min(...values) : 1e3));
      ceiling = Math.max(10 ** Math.ceil(Math.log10(top || 1)), floor * 10);
    };
    measure();
    const incrs = { bytes: Array.from({ length: 45 }, (_, i) => 2 ** i), count: Array.from({ length: 36 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)) };
    const options = {
      width: element.clientWidth, height: plot.small ? 150 : 250, padding: [10, 26, 0, 0],
      cursor: { sync: { key: plot.sync }, drag: { x: true, y: false }, y: false, points: { size: 8 } },
      legend: { show: false },
      scales: {
        x: { time: false, range: (u, min, max) => (min === null || (min === plot.x[0] && max === plot.x[plot.x.length - 1]) ? [plot.begin || 0, Math.max(plot.end, plot.x[plot.x.length - 1] || 0)] : [min, max]) },
        y: plot.log ? { distr: 3, range: () => [floor, ceiling] } : { range: () => [0, top > 0 ? top * 1.12 : 1] },
      },
      axes: [
        { ...axis, size: 30, space: 64, incrs: steps, values: (u, vs, i, space, step) => vs.map((v) => clock(v, step)) },
        { ...axis, size: 78, grid: { ...axis.grid, filter: (u, vs) => (plot.log ? vs.map((v) => (decade(v) ? v : null)) : vs) }, incrs: incrs[plot.unit], space: plot.small ? 26 : 34, values: (u, vs) => vs.map((v) => (v === null ? "" : tick(v, plot.unit))) },
      ],
      series: [{}].concat(plot.series.map((s) => ({
        label: s.name, stroke: () => colour(s.colour), width: 1.8, dash: s.dashed ? [6, 4] : undefined, spanGaps: false,
        points: { show: () => plot.x.length <= 60, size: 6, fill: () => colour(s.colour) },
      }))),
      hooks: { draw: [marks(plot)], setCursor: [(u) => say(u, plot, out)] },
    };
    const data = () => [plot.x].concat(plot.series.map((s) => s.values));
    const u = new uPlot(options, data(), element);
    drawn.push(u);
    // One moment more, of a run that is under way; the oldest goes when there are too many.
    element.grow = (news, most) => {
      plot.x.push(news.at_s);
      plot.series.forEach((s, i) => s.values.push(news[plot.news[i]]));
      if (plot.x.length > most) {
        plot.x.shift();
        plot.series.forEach((s) => s.values.shift());
        plot.begin = plot.x[0];
      }
      measure();
      u.setData(data());
    };
    new ResizeObserver(() => { if (element.clientWidth && element.clientWidth !== u.width) u.setSize({ width: element.clientWidth, height: options.height }); }).observe(element);
    element.addEventListener("keydown", (e) => {
      const last = plot.x.length - 1, now = u.cursor.idx ?? -1;
      const to = { ArrowRight: now + 1, ArrowLeft: now < 0 ? last : now - 1, PageDown: now + 10, PageUp: now - 10, Home: 0, End: last }[e.key];
      if (e.key === "Escape") { u.setCursor({ left: -10, top: -10 }); return; }
      if (to === undefined) return;
      e.preventDefault();
      u.setCursor({ left: u.valToPos(plot.x[Math.max(0, Math.min(last, to))], "x"), top: 20 });
    });
  };
  document.querySelectorAll("[data-plot]").forEach(draw);

  // Charts of our own: the mark that is nearest, or the next by keyboard, says what it has to say.
  document.querySelectorAll("div.svg").forEach((box) => {
    const points = [...box.querySelectorAll("[data-v]")], out = readout(box);
    let on = -1;
    const choose = (i) => {
      if (on >= 0) points[on].classList.remove("on");
      on = i;
      if (on >= 0) points[on].classList.add("on");
      out.textContent = on >= 0 ? points[on].dataset.v : "";
    };
    box.addEventListener("pointermove", (e) => {
      let best = -1, least = 60 * 60;
      points.forEach((p, i) => {
        const r = p.getBoundingClientRect(), dx = r.x + r.width / 2 - e.clientX, dy = r.y + r.height / 2 - e.clientY;
        if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; best = i; }
      });
      if (best !== on) choose(best);
    });
    box.addEventListener("pointerleave", () => choose(-1));
    box.addEventListener("keydown", (e) => {
      const last = points.length - 1;
      const to = { ArrowRight: on + 1, ArrowLeft: on < 0 ? last : on - 1, Home: 0, End: last, Escape: -1 }[e.key];
      if (to === undefined || last < 0) return;
      e.preventDefault();
      choose(to < 0 && e.key !== "Escape" ? 0 : Math.min(last, to));
    });
  });

  document.querySelectorAll("div.heat").forEach((box) => {
    const map = JSON.parse(box.querySelector("script").textContent), svg = box.querySelector("svg"), aim = box.querySelector(".aim"), out = readout(box);
    const wide = map.columns.length, high = map.rows.length - 1;
    let x = -1, y = 0;
    const choose = (cx, cy) => {
      x = cx < 0 ? cx : Math.min(wide - 1, cx); y = Math.max(0, Math.min(high - 1, cy));
      aim.setAttribute("visibility", x < 0 ? "hidden" : "visible");
      if (x < 0) { out.textContent = ""; return; }
      aim.setAttribute("x", x); aim.setAttribute("y", high - 1 - y);
      const n = map.counts[x][y];
      out.textContent = "From " + number(map.columns[x][0], "s") + " to " + number(map.columns[x][1], "s") + ", " + number(map.rows[y], "us") + " to " + number(map.rows[y + 1], "us") + ": " + n.toLocaleString("en") + (n === 1 ? " answer" : " answers");
    };
    svg.addEventListener("pointermove", (e) => {
      const r = svg.getBoundingClientRect();
      choose(Math.floor((e.clientX - r.x) / r.width * wide), high - 1 - Math.floor((e.clientY - r.y) / r.height * high));
    });
    svg.addEventListener("pointerleave", () => choose(-1, 0));
    box.addEventListener("keydown", (e) => {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[e.key];
      if (e.key === "Escape") { choose(-1, 0); return; }
      if (!step) return;
      e.preventDefault();
      if (x < 0) choose(0, map.counts[0].indexOf(Math.max(...map.counts[0]))); else choose(Math.max(0, x + step[0]), y + step[1]);
    });
  });

  const redraw = () => drawn.forEach((u) => u.redraw(false));
  document.querySelectorAll(".theme input").forEach((i) => i.addEventListener("change", redraw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before;
  addEventListener("beforeprint", () => {
    before = document.querySelector(".theme input:checked");
    document.getElementById("light").checked = true;
    redraw();
  });
  addEventListener("afterprint", () => { if (before) before.checked = true; redraw(); });
