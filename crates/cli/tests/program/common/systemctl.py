#!/usr/bin/python3
# Stands in for systemctl where there is no systemd: one unit, its drop-ins, what is loaded of them, and its main process.
import json, os, re, signal, sys, time
home = os.environ["STAND_IN"]
words = [w for w in sys.argv[1:] if not w.startswith("-")]
options = [w for w in sys.argv[1:] if w.startswith("-")]
unit = open(home + "/unit").read().strip()
with open(home + "/log", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\n")
def files():
    yield "/run/systemd/system/" + unit
    found = {}
    # The same name below /etc hides the one below /run.
    for place in ("/run", "/etc"):
        folder = place + "/systemd/system/" + unit + ".d"
        if os.path.isdir(folder):
            found.update({n: folder + "/" + n for n in os.listdir(folder) if n.endswith(".conf")})
    for name in sorted(found): yield found[name]
def split(text, dollars):
    out = []
    for quoted, plain in re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', text):
        word = re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
        word = word.replace("%%", "%")
        out.append(word.replace("$$", "$") if dollars else word)
    return out
def load():
    argv, env = [], {}
    for name in files():
        for line in open(name):
            key, _, value = line.strip().partition("=")
            if key == "ExecStart": argv = split(value, True)
            elif key == "Environment": env.update(v.split("=", 1) for v in split(value, False))
            elif key == "UnsetEnvironment":
                for v in split(value, False): env.pop(v, None)
    json.dump([argv, env], open(home + "/loaded", "w"))
def main():
    try:
        pid = int(open(home + "/main").read())
        return pid if open("/proc/%d/stat" % pid).read().rsplit(")")[1].split()[0] != "Z" else None
    except (OSError, ValueError): return None
def stop():
    pid = main()
    if pid:
        os.kill(pid, signal.SIGTERM)
        while main(): time.sleep(0.01)
        # As systemd does: a worker that is still there has the listener.
        group = os.environ["STAND_IN_CGROUP"] + "/cgroup.procs"
        for _ in range(1000):
            if not open(group).read().strip(): break
            time.sleep(0.01)
def start():
    argv, env = json.load(open(home + "/loaded"))
    if os.fork(): return
    os.setsid()
    open(os.environ["STAND_IN_CGROUP"] + "/cgroup.procs", "w").write(str(os.getpid()))
    open(home + "/main.new", "w").write(str(os.getpid()))
    os.rename(home + "/main.new", home + "/main")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    program, names = argv[0], argv
    if program.startswith("@"): program, names = program[1:], argv[1:]
    os.execve(program, names, dict(env, PATH="/usr/bin:/bin"))
if words[0] == "daemon-reload": load()
elif words[0] == "restart":
    stop()
    os.path.exists(home + "/main") and os.remove(home + "/main")
    start()
    while not os.path.exists(home + "/main"): time.sleep(0.01)
elif words[0] == "stop": stop()
elif words[0] == "reload": os.kill(main(), signal.SIGHUP)
elif words[0] == "show":
    print({"ActiveState": "active" if main() else "failed", "CanReload": "yes"}[options[0].split("=")[1]])
