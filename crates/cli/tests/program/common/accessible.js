// What keeps somebody from a page: rules of WCAG 2.2 that can be decided by looking at the document, each fault a sentence.
// The body of a function; it leaves the page with all of its details open.
const faults = [];
const all = (css, of = document) => [...of.querySelectorAll(css)];
const show = (e) => e.outerHTML.replace(/\s+/g, " ").slice(0, 120);
const fault = (rule, e) => faults.push(rule + ": " + show(e));
all("details").forEach((d) => { d.open = true; });
const visible = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest("[aria-hidden=true]");

// 4.1.2, 1.1.1, 1.3.1: whatever is used or looked at has a name.
const text = (e) => (e ? e.textContent.trim() : "");
const name = (e) =>
  (e.getAttribute("aria-label") || "").trim() ||
  (e.getAttribute("aria-labelledby") || "").split(/\s+/).filter(Boolean).map((id) => text(document.getElementById(id))).join(" ") ||
  [...(e.labels || [])].map(text).join(" ") || (e.getAttribute("alt") || "").trim() || (e.getAttribute("title") || "").trim();
const control = "button, a[href], summary";
all(control).filter(visible).forEach((e) => { if (!name(e) && !text(e)) fault("no name", e); });
all("input:not([type=hidden]), select, textarea, progress, iframe, [role=img], [role=group], [role=search][aria-label], [tabindex='0']:not(button, a, summary)")
  .filter(visible).forEach((e) => { if (!name(e)) fault("no name", e); });
all("svg, canvas").filter((e) => !e.closest("[aria-hidden=true]") && !e.parentElement.closest("[role=img]"))
  .forEach((e) => { if (e.getAttribute("role") !== "img") fault("a picture that is none and not hidden", e); });
all("img:not([alt])").forEach((e) => fault("no alternative", e));
all("div[aria-label], span[aria-label], p[aria-label]").filter((e) => !e.getAttribute("role")).forEach((e) => fault("a name of nothing", e));
all("[aria-hidden=true] :is(a[href], button, input, [tabindex='0'])").forEach((e) => fault("reached, though hidden", e));
all("[role=button], [role=link]").filter((e) => e.tabIndex < 0).forEach((e) => fault("not reached by keyboard", e));
all("[tabindex]").filter((e) => e.tabIndex > 0).forEach((e) => fault("an order of its own", e));

// 2.4.2, 3.1.1, 1.4.4
if (!document.title.trim()) fault("no title", document.head);
if (!document.documentElement.lang) fault("no language", document.documentElement);
all("meta[name=viewport]").filter((e) => /user-scalable\s*=\s*no|maximum-scale/.test(e.content)).forEach((e) => fault("cannot be zoomed", e));

// 1.3.1, 2.4.1: headings one after the other, one main part, nothing outside of the parts.
const heads = all("h1, h2, h3, h4, h5, h6").filter(visible);
if (heads.filter((h) => h.tagName === "H1").length !== 1) fault("not one h1", document.body);
heads.reduce((before, h) => { const now = +h.tagName[1]; if (now > before + 1) fault("a level left out", h); if (!text(h)) fault("an empty heading", h); return now; }, 0);
if (all("main").length !== 1) fault("not one main", document.body);
[...document.body.children].filter((e) => visible(e) && !e.matches("header, nav, main, footer, script")).forEach((e) => fault("outside of all parts", e));
for (const tag of ["nav", "form[role=search]", "section[aria-labelledby]"]) {
  const names = all(tag).filter(visible).map(name);
  if (names.length > 1 && new Set(names).size !== names.length) fault("two of the same name", all(tag)[1]);
}
all("fieldset").filter((e) => !text(e.querySelector("legend"))).forEach((e) => fault("no legend", e));

// 1.3.1: tables, lists.
all("table").forEach((t) => {
  if (!text(t.caption)) fault("no caption", t);
  if (!t.querySelector("th")) fault("no headings", t);
  all("th", t).forEach((h) => { if (!h.scope) fault("a heading of what", h); if (!text(h)) fault("an empty heading", h); });
});
all("ul, ol").filter((e) => [...e.children].some((c) => !c.matches("li, script, template"))).forEach((e) => fault("a list of other things", e));
all("li").filter((e) => !e.parentElement.matches("ul, ol, menu")).forEach((e) => fault("of no list", e));
all("dl").filter((e) => [...e.children].some((c) => !c.matches("dt, dd, div"))).forEach((e) => fault("a list of other things", e));

// 4.1.1: ids, and who refers to them.
const ids = all("[id]").map((e) => e.id);
ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => fault("an id twice", document.getElementById(id)));
for (const attribute of ["for", "aria-labelledby", "aria-describedby", "aria-controls"]) {
  all("[" + attribute + "]").forEach((e) => e.getAttribute(attribute).split(/\s+/).filter((id) => !ids.includes(id)).forEach(() => fault("refers to nothing", e)));
}

// 2.1.1: what scrolls can be scrolled by keyboard. 1.4.10: the page itself does not scroll sideways.
all("*").filter((e) => visible(e) && /auto|scroll/.test(getComputedStyle(e).overflowX + getComputedStyle(e).overflowY) && e !== document.documentElement)
  .filter((e) => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
  .filter((e) => e.tabIndex < 0 && !e.querySelector("a[href], button, input, summary, [tabindex='0']"))
  .forEach((e) => fault("scrolls, but not by keyboard", e));
if (document.documentElement.scrollWidth > innerWidth) fault("wider than the window", document.documentElement);

// 1.4.3 and 1.4.11: contrast of text, and of what is drawn.
const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
const known = new Map();
const rgba = (colour) => {
  if (!known.has(colour)) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    known.set(colour, [r, g, b, a / 255]);
  }
  return known.get(colour);
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => { const v = c[i] / 255; return sum + share * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
const back = (e) => {
  if (!e) return rgba(getComputedStyle(document.documentElement).colorScheme.trim() === "dark" ? "#121212" : "#ffffff");
  // Words in a flame graph stand on the box before them.
  const box = e.namespaceURI.endsWith("svg") && e.parentElement.tagName === "g" && e.parentElement.querySelector(":scope > rect");
  const own = rgba(box && box !== e ? getComputedStyle(box).fill : getComputedStyle(e).backgroundColor);
  return own[3] === 1 ? own : over(own, back(e.parentElement));
};
const seen = (colour, e) => {
  let [r, g, b, a] = rgba(colour);
  for (let up = e; up; up = up.parentElement) a *= +getComputedStyle(up).opacity;
  return over([r, g, b, a], back(e));
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const told = new Set();
for (let node; (node = walker.nextNode());) {
  const e = node.parentElement;
  if (!node.data.trim() || told.has(e) || e.closest("script, style, noscript, option") || !visible(e)) continue;
  told.add(e);
  const style = getComputedStyle(e), size = parseFloat(style.fontSize);
  if (style.clipPath === "inset(50%)" || e.closest(":disabled")) continue;
  const is = ratio(seen(e.namespaceURI.endsWith("svg") ? style.fill : style.color, e), back(e));
  const least = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700) ? 3 : 4.5;
  if (is < least) fault("contrast " + is.toFixed(2) + " of text", e);
}
all("svg .line, svg .pt:not(.stop)").filter(visible).forEach((e) => {
  const style = getComputedStyle(e), colour = style.fill === "none" ? style.stroke : style.fill;
  const is = ratio(seen(colour, e), back(e.ownerSVGElement));
  if (is < 3) fault("contrast " + is.toFixed(2) + " of a mark", e);
});
return [...new Set(faults)];
