"""An agent's journals, as crates/fleet/src/journal.rs writes them."""

import json
import struct
import zlib


def read(path):
    """(run, epoch, {sequences of records}, {those of them that were acknowledged})."""
    data, at = path.read_bytes(), 0
    whose, records, acknowledged = None, set(), set()
    while at + 8 <= len(data):
        length, crc = struct.unpack_from(">II", data, at)
        body = data[at + 8:at + 8 + length]
        if len(body) < length or length < 9 or zlib.crc32(body) != crc:
            break
        kind, seq = body[:1], struct.unpack_from(">Q", body, 1)[0]
        if kind == b"h":
            whose = json.loads(body[9:])
        elif kind in (b"r", b"e"):
            records.add(seq)
        elif kind == b"a":
            acknowledged.add(seq)
        at += 8 + length
    return (whose["run"], whose["epoch"], records, acknowledged) if whose else None


def of_agent(disk):
    """All journals on an agent's disk."""
    found = [read(path) for path in sorted(disk.glob("agent/*/journal/*.journal"))]
    return [journal for journal in found if journal]
