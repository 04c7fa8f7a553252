
  // What follows is for pages that `lastdrop ui` serves.
  const input = (id) => document.getElementById(id);
  try {
    const chosen = input(localStorage.getItem("lastdrop-theme") || "auto");
    if (chosen) { chosen.checked = true; redraw(); }
    document.querySelectorAll(".theme input").forEach((i) => i.addEventListener("change", () => localStorage.setItem("lastdrop-theme", i.id)));
  } catch (e) { /* Where nothing may be stored, colours are those of the system on each page. */ }

  // News of the server. A browser has six connections for all of its tabs: one that is not seen needs none.
  const follow = (address, on) => {
    let source = null;
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource(address());
      for (const [name, act] of Object.entries(on)) source.addEventListener(name, act);
    };
    const close = () => { if (source) source.close(); source = null; };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", open);
    open();
    return close;
  };

  const live = document.querySelector("[data-follow]");
  if (live) {
    const show = (name, text) => { live.querySelector("[data-live=" + name + "]").textContent = text; };
    const total = { answered: +live.dataset.answered, failed: +live.dataset.failed };
    const length = +live.dataset.length, rows = live.querySelector("[data-live=rows]"), bar = live.querySelector("progress");
    let last = +live.dataset.at, key = live.dataset.key;
    const take = (e) => {
      const p = JSON.parse(e.data);
      key = e.lastEventId;
      show("state", "");
      total.answered += p.answered;
      total.failed += p.failed;
      show("answers", total.answered.toLocaleString("en"));
      show("failed", total.failed.toLocaleString("en"));
      // What was still in flight at the end of a phase comes beside the next one.
      if (p.at_s <= last) return;
      last = p.at_s;
      show("time", number(last + 0.5, "s"));
      if (length) bar.value = Math.min(length, last + 0.5);
      show("rate", number(p.answered, "rate"));
      for (const name of ["p50", "p99", "max"]) show(name, number(p[name], "us"));
      live.querySelectorAll("[data-grows=second] [data-plot]").forEach((element) => element.grow(p, 900));
      const row = document.createElement("tr");
      const cells = [number(p.at_s - 0.5, "s"), p.answered.toLocaleString("en"), p.failed.toLocaleString("en")].concat(["p50", "p90", "p99", "max"].map((name) => number(p[name], "us")));
      cells.forEach((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (i) cell.className = "n"; else cell.scope = "row";
        cell.textContent = text;
        row.append(cell);
      });
      rows.prepend(row);
      while (rows.children.length > 120) rows.lastElementChild.remove();
    };
    const look = (e) => {
      const server = live.querySelector("[data-grows=look]");
      key = e.lastEventId;
      server.hidden = false;
      server.querySelectorAll("[data-plot]").forEach((element) => element.grow(JSON.parse(e.data), 900));
    };
    const close = follow(() => live.dataset.follow + "?after=" + key, {
      second: take,
      look,
      ended: () => { close(); show("state", "It has ended; its whole page follows."); location.reload(); },
      error: () => show("state", "No news from lastdrop ui; trying again …"),
    });
  }

  const list = document.getElementById("kept");
  if (list && list.dataset.changes) {
    const renew = async () => {
      const answer = await fetch(location.href);
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("kept");
      const focused = list.contains(document.activeElement) ? document.activeElement.id : "";
      list.querySelectorAll("details[open]").forEach((open) => fresh.querySelector("#" + CSS.escape(open.id))?.setAttribute("open", ""));
      list.replaceChildren(...fresh.childNodes);
      if (focused && input(focused)) input(focused).focus();
    };
    const progress = (e) => {
      const p = JSON.parse(e.data), row = (input("run-" + p.run) || list).closest("tr");
      if (row) row.querySelectorAll("td.n").forEach((cell, i) => { cell.textContent = p.numbers[i]; });
    };
    follow(() => list.dataset.changes, { changed: renew, progress });
  }
