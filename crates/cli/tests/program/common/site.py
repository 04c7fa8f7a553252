import os, signal, socket, sys
def settings():
    s = {"procs": os.environ.get("PROCS", 3), "backlog": os.environ.get("BACKLOG", 9), "port": 0, "file": None}
    def read(file):
        for line in open(file):
            words = line.split("#")[0].replace("=", " ").split()
            if words and words[0] == "include":
                if os.path.exists(words[1]): read(words[1])
            elif words: s[words[0]] = words[1]
    words = iter(sys.argv[1:])
    for w in words:
        if w == "--file":
            s["file"] = next(words)
            read(s["file"])
        elif w.startswith("--") and w != "--check": s[w[2:]] = next(words)
    if int(s["procs"]) > 50:
        sys.exit("site: procs: at most 50")
    return s
s = settings()
if "--check" in sys.argv:
    sys.exit(0)
listener = socket.create_server(("127.0.0.1", int(s["port"])), backlog=int(s["backlog"]))
def worker():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    while True:
        c, _ = listener.accept()
        with c:
            c.settimeout(5)
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = c.recv(65536)
                    if not part: raise OSError
                    head += part
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
            except OSError: pass
def fork():
    pid = os.fork()
    if pid == 0: worker()
    return pid
workers = [fork() for _ in range(int(s["procs"]))]
def end(*_):
    for w in workers: os.kill(w, signal.SIGTERM)
    sys.exit(0)
def again(*_):
    global workers
    old, workers = workers, [fork() for _ in range(int(settings()["procs"]))]
    for w in old: os.kill(w, signal.SIGTERM)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGHUP, again)
while True:
    try: os.wait()
    except ChildProcessError: signal.pause()
