"""Holds a page against what it has to be, at all widths, light and dark; pictures of it."""

import os
import time
from pathlib import Path

from faults.place import LabError

WIDTHS = {400: 800, 1280: 900, 2560: 1300}
SCHEMES = ("light", "dark")
LARGEST = 1_000_000
"""Bytes of a page."""
SETTLING = 20
RULES = Path("crates/cli/tests/program/common/accessible.js")
"""What the tests hold pages against as well: a body of a function that returns sentences."""
SERIOUS = """return axe.run({resultTypes: ['violations']}).then((result) => result.violations
    .filter((v) => ['serious', 'critical'].includes(v.impact))
    .map((v) => v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 120)).slice(0, 3).join(' | ')))"""


def axe():
    """axe-core's own text."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "axe-core"
    files = sorted(folder.rglob("axe.min.js"))
    named = os.environ.get("LASTDROP_AXE")
    if not named and not files:
        raise LabError(f"there is no axe-core in {folder} (./x gets it by npm; LASTDROP_AXE names another)")
    return Path(named or files[-1]).read_text()


def settled(browser):
    """What our own rules find when the page has come to rest: plots take a new width when they are told of it."""
    rules, end = RULES.read_text(), time.monotonic() + SETTLING
    found = browser.run(rules)
    while found and time.monotonic() < end:
        time.sleep(0.1)
        found = browser.run(rules)
    return found


def fold(browser):
    """Details are as a reader finds them: those that were open at first."""
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = window.__open.includes(d); })")


def look(browser, page, folder, name):
    """(faults of a page as sentences, pictures that were taken). Pictures are of the page as it opens."""
    faults, pictures, text = [], [], axe()
    url = f"file://{page.resolve()}"
    browser.console(), browser.requests(url)
    for scheme in SCHEMES:
        browser.shape(1280, WIDTHS[1280], scheme)
        browser.go(url)
        browser.run("window.__open = [...document.querySelectorAll('details[open]')]")
        for width, height in WIDTHS.items():
            browser.shape(width, height, scheme)
            faults += [f"{scheme}, {width} pixels: {fault}" for fault in settled(browser)]
            fold(browser)
            path = folder / f"{name}-{width}-{scheme}.png"
            # A browser draws what has changed in its next frame, and the one after that has it.
            browser.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
            browser.picture(path)
            pictures.append(path)
        faults += [f"{scheme}, axe: {fault}" for fault in browser.run(f"{text};\n{SERIOUS}")]
    said, asked = browser.console(), [request for request in browser.requests(url) if request != url and not request.startswith("data:")]
    policy = [line for line in said if "Content Security Policy" in line]
    faults += [f"policy: {line[:300]}" for line in policy]
    faults += [f"console: {line[:300]}" for line in said if line not in policy]
    faults += [f"asks for {request[:200]}" for request in asked]
    size = page.stat().st_size
    if size >= LARGEST:
        faults.append(f"{size} bytes, more than {LARGEST}")
    return faults, pictures
