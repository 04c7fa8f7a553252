"""Commands that are watched on terminals of tmux: what is on them midway and shortly before the end, at each size, and the report that follows."""

import html
import subprocess
import time
from dataclasses import dataclass
from typing import Callable

from faults.measure import environment, lastdrop

from . import pages

SIZES = ((80, 24), (120, 40), (200, 60))
DRAWN = 0.7
"""Seconds in which a terminal of another size is drawn anew."""
PATIENCE = 400


@dataclass
class Terminal:
    """`words(place)` is the command."""

    name: str
    words: Callable
    codes: tuple = (0, 3, 4)


def run(place):
    server = pages.perl(place)
    return ["run", server.url + "/page", "-c", 24, "-d", "30s", "--server", server.name]


def capacity(place):
    server = pages.perl(place)
    return ["capacity", server.url + "/page", "--objective", "p99<150ms", "-d", "2s", "--max-time", "50s", "-c", 16]


def compare(place):
    server = pages.perl(place)
    plain = place.write("docs/plain.html", "hello\n" * 20)
    return ["compare", "--live", server.url + "/page", f"{server.url}/{plain.name}", "--blocks", 6, "-d", "2s", "-c", 4]


def sweep(place):
    server = pages.perl(place, 4)
    plan = place.write("sweep.toml", f"server = '{server.name}'\nurl = '{server.url}/page'\nusers = [2, 8, 16]\nduration = '2s'\nkeepalive = 'off'\n"
                                     "[settings]\nMaxRequestWorkers = [2, 4, 8]\n")
    return ["sweep", plan]


def tune(place):
    server = pages.perl(place, 3)
    return ["tune", server.name, "--url", server.url + "/page", "-c", 24, "-d", "1s", "--blocks", 5, "--trials", 8, "--keepalive", "off"]


def doctor(place):
    server = pages.perl(place, 4)
    return ["doctor", server.name, "--url", server.url + "/page", "-c", 16, "--keepalive", "off"]


def replay(place):
    url = pages.target(place, "--workers", "4", "--service", "exp 4ms", "--error-every", "40")
    return ["replay", pages.log(place), "--to", url, "--speed", 3]


TERMINALS = [Terminal("run", run), Terminal("capacity", capacity), Terminal("compare", compare), Terminal("sweep", sweep),
             Terminal("tune", tune, (0, 1, 3, 4)), Terminal("doctor", doctor), Terminal("replay", replay)]


class Screen:
    """A terminal of tmux in a place, in which a command runs and says its exit code at the end."""

    def __init__(self, place, words):
        self.socket = place.folder / "tmux"
        self.code = place.folder / "code"
        line = " ".join("'" + str(word).replace("'", "'\\''") + "'" for word in [lastdrop(), *words])
        self.report = place.folder / "report"
        # Of a window that is resized meanwhile tmux keeps parts of the view on the normal screen: the report is read from a file.
        script = place.write("watched", f"cd '{place.folder}'\n{line} --view full > {self.report}\necho $? > {self.code}.part; mv {self.code}.part {self.code}\nexec cat\n")
        variables = {name: value for name, value in environment(place).items() if name not in ("CI", "NO_COLOR", "TMUX", "TERM")}
        width, height = SIZES[0]
        subprocess.run([*place.enter, "tmux", "-S", self.socket, "-u", "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height),
                        f"sh {script}"], env={**variables, "LC_ALL": "C.UTF-8"}, check=True, timeout=30, stdin=subprocess.DEVNULL)

    def ask(self, *words):
        done = subprocess.run(["tmux", "-S", self.socket, "-u", *words], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        return done.stdout

    def is_live(self):
        return self.ask("display-message", "-p", "#{alternate_on}").strip() == "1"

    def resize(self, size):
        self.ask("resize-window", "-x", str(size[0]), "-y", str(size[1]))

    def shown(self):
        return self.ask("capture-pane", "-p", "-e")

    def close(self):
        self.ask("kill-server")


def watch(place, subject):
    """(faults, {picture's name: what was on the terminal, with its styles, and its width}) of a command that runs to its end."""
    screen = Screen(place, subject.words(place))
    frames, faults = {size: [] for size in SIZES}, []
    try:
        end = time.monotonic() + PATIENCE
        while not screen.code.exists():
            if time.monotonic() > end:
                faults.append(f"does not end within {PATIENCE} s")
                break
            for size in SIZES:
                screen.resize(size)
                time.sleep(DRAWN)
                text = screen.shown()
                # What was asked while it was still there.
                if screen.is_live():
                    frames[size].append(text)
        report = screen.report.read_text()
    finally:
        screen.close()
    if screen.code.exists() and int(screen.code.read_text()) not in subject.codes:
        faults.append(f"ends with {screen.code.read_text().strip()}")
    found = {f"terminal-{subject.name}-report": (report, max(map(len, report.splitlines()), default=80))}
    for size, texts in frames.items():
        name = f"terminal-{subject.name}-{size[0]}x{size[1]}"
        if not texts:
            faults.append(f"nothing was seen at {size[0]}x{size[1]}")
            continue
        for when, text in (("midway", texts[len(texts) // 2]), ("late", texts[-1])):
            faults += [f"{size[0]}x{size[1]}, {when}: {fault}" for fault in wrong(plain(text), size)]
            found[f"{name}-{when}"] = (text, size[0])
    return faults, found


def wrong(text, size):
    """What can be told of a picture without looking at it."""
    lines, found = text.splitlines(), []
    if len(lines) > size[1] or max(map(len, lines)) > size[0]:
        found.append("larger than the terminal")
    if "q stop" not in text and "help" not in text:
        found.append("no line of keys")
    if "panicked" in text:
        found.append("a panic")
    return found


# Terminals as pictures.

COLOURS = ["#2e3436", "#ef4545", "#6cc644", "#d9b430", "#5b9cf0", "#c080d8", "#35b5c0", "#d3d7cf",
           "#7f8583", "#ff7070", "#8ae234", "#fce94f", "#86b6ff", "#e0a0f0", "#50e0ea", "#ffffff"]


def pieces(text):
    """Lines of (style, words): escapes of SGR taken apart. A style is (foreground, background, bold, dim, reverse)."""
    style = [None, None, False, False, False]
    for line in text.splitlines():
        row = []
        for number, part in enumerate(line.split("\x1b[")):
            if number:
                codes, _, part = part.partition("m")
                apply(style, [int(code or 0) for code in codes.replace(":", ";").split(";")])
            part = part.replace("\x0e", "").replace("\x0f", "")
            if part:
                row.append((tuple(style), part))
        yield row


def apply(style, codes):
    while codes:
        code = codes.pop(0)
        if code == 0:
            style[:] = [None, None, False, False, False]
        elif code in (1, 2, 7):
            style[{1: 2, 2: 3, 7: 4}[code]] = True
        elif code in (22, 27):
            style[2:4] = [False, False] if code == 22 else style[2:4]
            style[4] = style[4] if code == 22 else False
        elif code in (38, 48) and codes[:1] == [5]:
            style[code == 48] = cube(codes[1])
            del codes[:2]
        elif code in (38, 48) and codes[:1] == [2]:
            style[code == 48] = "#{:02x}{:02x}{:02x}".format(*codes[1:4])
            del codes[:4]
        elif code in (39, 49):
            style[code == 49] = None
        else:
            for first, background, bright in ((30, 0, 0), (40, 1, 0), (90, 0, 8), (100, 1, 8)):
                if first <= code < first + 8:
                    style[background] = COLOURS[code - first + bright]


def cube(number):
    """One of 256 colours."""
    if number < 16:
        return COLOURS[number]
    if number >= 232:
        return "#{0:02x}{0:02x}{0:02x}".format(8 + 10 * (number - 232))
    steps = (0, 95, 135, 175, 215, 255)
    return "#{:02x}{:02x}{:02x}".format(*(steps[(number - 16) // part % 6] for part in (36, 6, 1)))


def plain(text):
    """Without its styles."""
    return "\n".join("".join(words for _, words in row) for row in pieces(text)) + "\n"


def page(text, width):
    """A terminal as a page: each cell at its place, whatever a font thinks of its width."""
    rows = []
    for row in pieces(text):
        cells = []
        for (front, back, bold, dim, reverse), words in row:
            if reverse:
                front, back = back or "#16181a", front or "#d3d7cf"
            style = "".join([f"color:{front};" if front else "", f"background:{back};" if back else "",
                             "font-weight:bold;" if bold else "", "opacity:.6;" if dim else ""])
            cells.append(f"<b style='{style}'>{html.escape(words)}</b>")
        rows.append(f"<p>{''.join(cells) or '&nbsp;'}</p>")
    style = ("body{margin:0;background:#16181a;color:#d3d7cf;padding:8px;font:14px/17px 'DejaVu Sans Mono',monospace;"
             f"width:{width}ch}}p{{margin:0;white-space:pre;height:17px}}b{{font-weight:normal;display:inline-block;height:17px}}")
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>terminal</title><style>{style}</style><body>{''.join(rows)}</body></html>"


def draw(browser, text, width, path):
    """A PNG of what was on a terminal."""
    source = path.with_suffix(".html")
    source.write_text(page(text, width))
    browser.shape(100, 100, "dark")
    browser.go(f"file://{source.resolve()}")
    size = browser.run("const r = document.body.getBoundingClientRect(); return [Math.ceil(r.width), Math.ceil(r.height)]")
    browser.shape(*size, "dark")
    browser.picture(path)
    source.unlink()
