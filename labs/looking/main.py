"""The command: which pages and terminals, what is kept of them, what is published."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from faults import rows
from faults.measure import alone
from faults.place import LabError, Place, clear_up

from . import terminals
from .browser import Browser
from .look import look
from .pages import PAGES, page

NAME = "look.jsonl"
"""Rows of the lab."""
PICTURES = rows.FOLDER / "look"
"""Pages, screenshots and terminals that the rows are about."""
PUBLISHED = Path("docs/pictures")
BOTH = ("1280-light", "1280-dark")
NARROW = {"run", "errors", "tune", "doctor"}
"""Pages that are published as a telephone shows them, too."""
TALLEST = 2600
"""Pixels of a page that are published: what comes further down is more of the same."""


def subjects():
    """{name: function that makes it in a place: (faults, pictures, more of the row)}."""
    found = {subject.name: (lambda place, browser, of=subject: of_page(place, browser, of)) for subject in PAGES}
    found.update({f"terminal-{subject.name}": (lambda place, browser, of=subject: of_terminal(place, browser, of))
                  for subject in terminals.TERMINALS})
    return found


def of_page(place, browser, subject):
    path = (PICTURES / f"{subject.name}.html").resolve()
    with alone():
        missing = page(place, subject, path)
    faults, pictures = look(browser, path, PICTURES, subject.name)
    return missing + faults, pictures, {"bytes": path.stat().st_size}


def of_terminal(place, browser, subject):
    with alone():
        faults, found = terminals.watch(place, subject)
    pictures = []
    for name, (text, width) in found.items():
        (PICTURES / f"{name}.txt").write_text(terminals.plain(text))
        pictures.append(PICTURES / f"{name}.png")
        terminals.draw(browser, text, width, pictures[-1])
    return faults, pictures, {}


def examine(name, make, browser):
    """A row about one subject."""
    row = {"name": name, "strength": 1, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    began, place = time.monotonic(), None
    try:
        place = Place()
        faults, pictures, more = make(place, browser)
        row.update(state="faults" if faults else "ok", faults=faults, pictures=[picture.name for picture in pictures], **more)
    except (LabError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        row.update(state="failed", faults=[f"{type(error).__name__}: {error}"[:1200]])
    finally:
        if place:
            row["left"] = place.close()
    return {**row, "seconds": round(time.monotonic() - began, 1)}


def told(row):
    """A line about a subject."""
    size = f", {row['bytes'] / 1000:.0f} kB" if "bytes" in row else ""
    faults = "nothing wrong" if row["state"] == "ok" else f"{len(row['faults'])} faults: " + "; ".join(row["faults"][:6])
    return f"{row['name']:18} {len(row.get('pictures', []))} pictures{size}, {row['seconds']:.0f} s: {faults}"


def compact(source, file, tallest=None):
    """Copies a picture with a palette of its own, which takes a third of the bytes."""
    try:
        from PIL import Image
    except ImportError:
        sys.exit("lab look: Pillow is missing (Debian: python3-pil)")
    with Image.open(source) as image:
        image = image.convert("RGB")
        if tallest and image.height > tallest:
            image = image.crop((0, 0, image.width, tallest))
        image.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def publish(found):
    """Copies a few pictures of what went well into the manual's folder."""
    terminal = PUBLISHED / "terminal"
    terminal.mkdir(parents=True, exist_ok=True)
    for row in found:
        name = row["name"]
        if name.startswith("terminal-"):
            for width, height in terminals.SIZES:
                stem = f"{name.removeprefix('terminal-')}-{width}x{height}"
                source = PICTURES / f"terminal-{stem}-late"
                shutil.copyfile(source.with_suffix(".txt"), terminal / f"{stem}.txt")
                if (width, height) == (120, 40):
                    compact(source.with_suffix(".png"), terminal / f"{stem}.png")
            continue
        for view in BOTH + (("400-light",) if name in NARROW else ()):
            compact(PICTURES / f"{name}-{view}.png", PUBLISHED / f"report-{name}-{view}.png", TALLEST)


def arguments(names):
    parser = argparse.ArgumentParser(prog="./x lab look", description="Opens pages of real runs in a browser, and watches commands on terminals.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to look at [default: all of {' '.join(names)}]")
    parser.add_argument("--list", action="store_true", help="list the names and end")
    parser.add_argument("--again", action="store_true", help="also what went well with this program")
    parser.add_argument("--publish", action="store_true", help=f"copy a few of the pictures into {PUBLISHED}")
    return parser.parse_args()


def main():
    makers = subjects()
    options = arguments(makers)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unknown = [name for name in options.names if name not in makers]
    if unknown:
        sys.exit(f"lab look: there is no {', '.join(unknown)}; see --list")
    if options.list:
        print("\n".join(makers))
        return
    if os.geteuid():
        sys.exit("lab look: namespaces want root")
    names = options.names or list(makers)
    PICTURES.mkdir(parents=True, exist_ok=True)
    clear_up()
    try:
        about = {"program": rows.version()["program"]}
        done = {} if options.again else rows.latest(NAME, about)
        done = {name: row for (name, _), row in done.items()
                if row["state"] == "ok" and all((PICTURES / picture).exists() for picture in row["pictures"])}
        if any(name not in done for name in names):
            with Browser() as browser:
                for name in names:
                    if name not in done:
                        row = examine(name, makers[name], browser)
                        rows.append(NAME, {**row, **rows.version()})
                        print(told(row), flush=True)
    except LabError as error:
        sys.exit(f"lab look: {error}")
    found = [row for (name, _), row in rows.latest(NAME, about).items() if name in names]
    good = [row for row in found if row["state"] == "ok"]
    sizes = {row["name"]: row["bytes"] for row in found if "bytes" in row}
    print(f"{len(good)} of {len(names)} without faults; {sum(len(row.get('pictures', [])) for row in found)} pictures in {PICTURES}"
          + (f"; the largest page is {max(sizes, key=sizes.get)} with {max(sizes.values()) / 1000:.0f} kB" if sizes else ""))
    for row in found:
        if row["state"] != "ok":
            print(f"  {told(row)}")
    if options.publish:
        publish(good)
    sys.exit(0 if len(good) == len(names) else 1)
