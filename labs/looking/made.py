"""Runs that would take an hour, or a hundred machines: the seconds and looks of a real one, many times over, in its store.

Whoever reads the store makes all numbers anew from the seconds, as of any run that was killed; the document that it makes is put
in with the end that the run would have had.
"""

import json
import random
import sqlite3
import struct
import subprocess
import zlib

from faults.measure import environment, lastdrop
from faults.place import LabError

COOKIE_V2 = 0x1C849303
COOKIE_DEFLATED = 0x1C849304
HISTOGRAMS = ("response", "service", "blocked", "lateness", "connect", "tls", "first_byte", "page",
              "link", "queue", "server", "upstream", "transfer")


def _unzigzag(data):
    """Numbers of HDR's own ZigZag LEB128: up to eight bytes of seven bits, and a ninth of eight."""
    at = 0
    while at < len(data):
        value = shift = 0
        for byte in range(9):
            one, at = data[at], at + 1
            value |= (one if byte == 8 else one & 0x7F) << shift
            if byte == 8 or one < 0x80:
                break
            shift += 7
        yield (value >> 1) ^ -(value & 1)


def _zigzag(number):
    value, out = ((number << 1) ^ (number >> 63)) & (2**64 - 1), bytearray()
    for _ in range(8):
        if value < 0x80:
            break
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def times(blob, factor):
    """A compressed HDR V2 histogram in which everything has happened `factor` times."""
    cookie, length = struct.unpack(">II", blob[:8])
    if cookie & ~0xF0 != COOKIE_DEFLATED & ~0xF0:
        raise LabError(f"no compressed histogram of version 2: {cookie:x}")
    plain = zlib.decompress(blob[8:8 + length])
    head, body = plain[:40], plain[40:]
    counts = b"".join(_zigzag(n * factor if n > 0 else n) for n in _unzigzag(body))
    packed = zlib.compress(head[:4] + struct.pack(">I", len(counts)) + head[8:] + counts)
    return blob[:4] + struct.pack(">I", len(packed)) + packed


def grown(value, factor):
    """Numbers in JSON, `factor` times each."""
    if isinstance(value, dict):
        return {name: grown(inner, factor) for name, inner in value.items()}
    return value * factor


def stretch(place, run, seconds, factor=1):
    """Makes a run of one phase last so many seconds, with `factor` times the load. Each second is one of the real ones, drawn."""
    draw = random.Random(1)
    with sqlite3.connect(place.folder / "runs.sqlite") as store:
        names = ", ".join(HISTOGRAMS)
        real = store.execute(f"SELECT counts, status, {names} FROM seconds WHERE run = ? ORDER BY second", [run]).fetchall()
        looks = [json.loads(zlib.decompress(blob)) for blob, in store.execute("SELECT document FROM looks WHERE run = ? ORDER BY t_ms", [run])]
        if len(real) < 5 or len(looks) < 5:
            raise LabError(f"run {run} has {len(real)} seconds and {len(looks)} looks")
        # The first second and the last are not like the others.
        middle, peeks = real[1:-1], looks[1:-1]
        more = [(json.dumps(grown(json.loads(counts), factor)), json.dumps([[status, n * factor] for status, n in json.loads(answers)]),
                 *(blob and times(blob, factor) for blob in blobs)) for counts, answers, *blobs in middle]
        for table in ("seconds", "looks", "phase_ends", "classes"):
            store.execute(f"DELETE FROM {table} WHERE run = ?", [run])
        marks = ", ".join("?" * (5 + len(HISTOGRAMS)))
        store.executemany(f"INSERT INTO seconds (run, phase, second, counts, status, {names}) VALUES ({marks})",
                          ((run, 0, second, *draw.choice(more)) for second in range(seconds)))
        store.executemany("INSERT INTO looks VALUES (?, ?, ?)", (
            (run, second * 1000 + 1000, zlib.compress(json.dumps({**draw.choice(peeks), "t_s": second + 1.0}).encode())) for second in range(seconds)))
        store.execute("INSERT INTO phase_ends VALUES (?, 0, ?, ?)", [run, seconds * 1_000_000, 16 * factor])
        plan, document = store.execute("SELECT plan, document FROM runs WHERE id = ?", [run]).fetchone()
        plan, document = json.loads(plan), json.loads(document)
        plan["phases"][0]["duration"] = {"secs": seconds, "nanos": 0} if isinstance(plan["phases"][0]["duration"], dict) else seconds
        load = plan["phases"][0]["load"]
        if "rate_rps" in load:
            load["rate_rps"] *= factor
        store.execute("UPDATE runs SET plan = ?, document = NULL WHERE id = ?", [json.dumps(plan), run])
    told = subprocess.run([lastdrop(), "show", run, "--format", "json"], capture_output=True, text=True, env=environment(place), timeout=300)
    if told.returncode:
        raise LabError(f"show {run}: {told.stderr[-400:]}")
    made = json.loads(told.stdout)
    for phase in made["phases"]:
        phase["seconds"] = []
    (made.get("server") or {}).pop("looks", None)
    made["end"], made["generator"], made["environment"] = document["end"], document["generator"], document["environment"]
    with sqlite3.connect(place.folder / "runs.sqlite") as store:
        store.execute("UPDATE runs SET document = ? WHERE id = ?", [json.dumps(made), run])
    return run
