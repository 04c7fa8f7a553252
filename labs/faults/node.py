"""Node with a script of a few lines, in one process or a cluster."""


def node(place, code, *, before="", processes=1, options=(), env=None, groups=()):
    """A server whose handler is `async (request, response) => {code}` and then answers; the daemon has its `port`."""
    port = place.port()
    file = place.write("server.js", f"""const http = require("http"), fs = require("fs"), dns = require("dns"),
  crypto = require("crypto"), cluster = require("cluster");
if ({processes} > 1 && cluster.isPrimary) {{
  for (let i = 0; i < {processes}; i++) cluster.fork();
}} else {{
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  let served = 0;
  {before}
  http.createServer(async (request, response) => {{
    served++;
    {code}
    response.setHeader("Content-Type", "text/plain");
    response.end("ok\\n");
  }}).listen({port}, "127.0.0.1");
}}
""")
    daemon = place.start(["/usr/bin/node", *options, file], place.listens(port), what="node", env=env, groups=groups,
                         name=f"node@http://127.0.0.1:{port}/")
    daemon.port, daemon.url = port, f"http://127.0.0.1:{port}"
    return daemon
