"""HAProxy with a stats socket, on a configuration of its own."""


def haproxy(place, backend, *, front="", globals_="", threads=2, maxconn=4000, defaults="", ready=True):
    """HAProxy before a backend of these lines; the daemon has `port` and `config`."""
    port = place.port()
    config = place.write("haproxy.cfg", f"""global
  maxconn {maxconn}
  nbthread {threads}
  stats socket {place.folder}/haproxy.stats mode 600 level admin
{globals_}
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  timeout queue 30s
{defaults}
frontend web
  bind 127.0.0.1:{port}
{front}
  default_backend back
backend back
{backend}
""")
    daemon = place.start(["/usr/sbin/haproxy", "-db", "-f", config], place.listens(port) if ready else None,
                         what="haproxy", name=f"haproxy:{config}")
    daemon.port, daemon.config, daemon.url = port, config, f"http://127.0.0.1:{port}"
    return daemon
