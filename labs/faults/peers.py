"""What servers talk to: HTTP services that are slow in a known way, and a name server."""

from .python import script

SERVICE = '''"""A service that answers each request after a while: to all at once, or to one at a time."""
import asyncio, sys

port, delay, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
size = int(sys.argv[4]) if len(sys.argv) > 4 else 3


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            if how == "serial":
                async with one:
                    await asyncio.sleep(delay)
            elif delay:
                await asyncio.sleep(delay)
            keep = b"connection: close" not in head and b"http/1.0" not in head.split(b"\\r\\n")[0]
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\nContent-Length: %d\\r\\n" % size
                         + (b"" if keep else b"Connection: close\\r\\n") + b"\\r\\n" + b"o" * size)
            await writer.drain()
            if not keep:
                break
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def main():
    global one
    one = asyncio.Lock()
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


asyncio.run(main())
'''

NAMES = '''"""A name server that answers each question after a while: one at a time, or all at once."""
import socket, sys, threading, time

delay = float(sys.argv[1])
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("127.0.0.1", 53))


def answer(question, address):
    time.sleep(delay)
    end = 12
    while question[end]:
        end += question[end] + 1
    end += 5
    kind = int.from_bytes(question[end - 4:end - 2], "big")
    data = {1: bytes([127, 0, 0, 1]), 12: b"\\x04lab1\\x07example\\x00"}.get(kind)
    head = question[:2] + b"\\x81\\x80\\x00\\x01" + (b"\\x00\\x01" if data else b"\\x00\\x00") + bytes(4)
    record = b"\\xc0\\x0c" + kind.to_bytes(2, "big") + b"\\x00\\x01\\x00\\x00\\x00\\x00" + len(data).to_bytes(2, "big") + data if data else b""
    listener.sendto(head + question[12:end] + record, address)


while True:
    question, address = listener.recvfrom(4096)
    threading.Thread(target=answer, args=(question, address), daemon=True).start()
'''

RESOLVER = {"/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n",
            "/etc/hosts": "127.0.0.1 localhost\n", "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n"}
"""Files with which a place asks the name server of its own."""


def service(place, delay, how="parallel", size=3, groups=()):
    """A service; how is serial or parallel. The daemon has its `port`."""
    port = place.port()
    daemon = script(place, f"service-{port}.py", SERVICE, str(port), str(delay), how, str(size),
                    ready=place.listens(port), groups=groups)
    daemon.port, daemon.url = port, f"http://127.0.0.1:{port}/"
    return daemon


def names(place, delay):
    """A name server for the place."""
    return script(place, "names.py", NAMES, str(delay),
                  ready=lambda _: "127.0.0.1:53 " in place.call(["ss", "-lunH"]).stdout)
