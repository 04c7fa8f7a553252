"""The command: which blows, how often, how many at once; what is kept of them, what is published."""

import argparse
import os
import queue
import signal
import sys
import threading
from pathlib import Path

from faults import rows
from faults.place import LabError, clear_up

from .blows import BLOWS
from .one import struck

FILE = "fleet.jsonl"
PAGE = Path("docs/fleet-lab.md")


def arguments():
    parser = argparse.ArgumentParser(
        prog="./x lab fleet", description="Strikes parts of a fleet while a run is under way, and counts what is missing or double.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="blows as --list shows them [default: all]")
    parser.add_argument("--list", action="store_true", help="list the blows and end")
    parser.add_argument("--times", type=int, default=50, metavar="N", help="each so often [default: 50]")
    parser.add_argument("--lanes", type=int, default=2 * (os.cpu_count() or 1), metavar="N", help="so many fleets at once [default: two for each processor]")
    parser.add_argument("--seconds", type=int, default=4, metavar="S", help="of load in a run [default: 4]")
    parser.add_argument("--seed", type=int, default=19, metavar="S", help="of the moments and victims [default: 19]")
    parser.add_argument("--again", action="store_true", help="also what has a row for this commit")
    parser.add_argument("--publish", action="store_true", help=f"write the table to {PAGE}")
    return parser.parse_args()


def chosen(names):
    unknown = sorted(set(names) - {blow.name for blow in BLOWS})
    if unknown:
        sys.exit(f"lab fleet: there is no blow {', '.join(unknown)}; see --list")
    return [blow for blow in BLOWS if not names or blow.name in names]


def done_before(options, about):
    """Rows about this program, whatever was committed since, and this seed: {(name, number): row}."""
    return {(row["name"], row["number"]): row for row in rows.read(FILE)
            if row["program"] == about["program"] and row["seed"] == options.seed}


def strike_all(blows, options, about):
    """Some lanes at once, each with its own fleet; the blows take turns, so that what is there after half of the time is half of each."""
    done = {} if options.again else done_before(options, about)
    tasks = queue.SimpleQueue()
    for number in range(options.times):
        for blow in blows:
            if not done.get((blow.name, number), {}).get("ok"):
                tasks.put((blow, number))
    writing = threading.Lock()
    stop = threading.Event()
    found = {key: row for key, row in done.items() if row["ok"] and key[1] < options.times}

    def lane():
        while not stop.is_set():
            try:
                blow, number = tasks.get_nowait()
            except queue.Empty:
                return
            row = {**struck(blow, number, options.seed, options.seconds), **about}
            with writing:
                rows.append(FILE, row)
                found[row["name"], row["number"]] = row
                print(f"{'ok   ' if row['ok'] else 'WRONG'} {row['name']} {row['number']}: {row['seconds']} s "
                      f"{row.get('verdict', '')} {'; '.join(row['wrong'])[:1200]}", flush=True)
    lanes = [threading.Thread(target=lane) for _ in range(max(1, options.lanes))]
    for thread in lanes:
        thread.start()
    try:
        for thread in lanes:
            thread.join()
    finally:
        # Whoever is told to end lets each lane take its fleet away.
        stop.set()
        for thread in lanes:
            thread.join()
    return [row for (name, _), row in sorted(found.items()) if name in {blow.name for blow in blows}]


def table(found, about):
    """Markdown."""
    lines = [f"Commit {about['commit']}, program {about['program']}.", "",
             "| blow | what | promised | kept | of | runs that were whole at once | requests | served |", "|---|---|---|---|---|---|---|---|"]
    for blow in BLOWS:
        of = [row for row in found if row["name"] == blow.name]
        if of:
            at_once = sum("agent-lost" not in row.get("rules", ["agent-lost"]) and row.get("verdict") != "none" for row in of)
            lines.append(f"| {blow.name} | {blow.what} | {blow.promise} | {sum(row['ok'] for row in of)} | {len(of)} | {at_once} | "
                         f"{sum(row.get('sent', 0) for row in of)} | {sum(row.get('served', 0) for row in of)} |")
    broken = [row for row in found if not row["ok"]]
    if broken:
        lines += ["", "What was wrong:", ""]
        lines += [f"- {row['name']} {row['number']} (seed {row['seed']}): {'; '.join(row['wrong'])[:400]}" for row in broken]
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    # Ended from outside, nothing may remain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    blows = chosen(options.names)
    if options.list:
        for blow in blows:
            print(f"{blow.name:20} {blow.what}: {blow.promise}")
        return
    if os.geteuid():
        sys.exit("lab fleet: namespaces and disks want root")
    clear_up()
    try:
        about = rows.version()
    except LabError as error:
        sys.exit(f"lab fleet: {error}")
    found = strike_all(blows, options, about)
    print(table(found, about))
    if options.publish:
        PAGE.write_text(HEAD + table(done_before(options, about).values(), about))
    sys.exit(0 if found and all(row["ok"] for row in found) else 1)


HEAD = """# A fleet under blows

`./x lab fleet` runs `lastdrop run --fleet` on three agents in namespaces, against an nginx that writes down each request. It strikes one part at a
moment that a seed chooses. After each blow this must hold:

* what each agent says that it sent is what the server has written down (of a lost agent: no more than that);
* `due = sent + unsent`, and `sent` is the sum of all fates, for the whole and for each agent;
* what the broker had acknowledged is with the coordinator;
* the report is whole, or names the lost agent, and the next command adds what came late;
* the agents stay for the next run, and nothing is left waiting.

One of each is in the tests. An agent's engine is a thread of its process: the agent as a whole is killed, or hangs (SIGSTOP).

"""
