"""Apache with the MPM, modules and handlers that a fault needs, on a configuration of its own."""

from pathlib import Path

from .place import LabError

MODULES = Path("/usr/lib/apache2/modules")
PLAIN = ("authz_core", "status", "dir", "mime")


def load(*names):
    return "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in names)


def pool(mpm, workers, threads=25):
    """A pool that is at its size from the start, so that nothing but the fault changes under load."""
    if mpm == "prefork":
        return (f"ServerLimit {workers}\nMaxRequestWorkers {workers}\nStartServers {workers}\n"
                f"MinSpareServers {workers}\nMaxSpareServers {workers + 1}\n")
    children = -(-workers // threads)
    return (f"ServerLimit {children}\nThreadLimit {threads}\nThreadsPerChild {threads}\n"
            f"MaxRequestWorkers {workers}\nStartServers {children}\n"
            f"MinSpareThreads {workers}\nMaxSpareThreads {workers + threads}\n")


def apache(place, *, mpm="prefork", workers=10, threads=25, pool_lines=None, backlog=511, keepalive="Off", modules=(),
           lines="", server_lines="", log="", groups=(), limits=(), overrides="None", ready="/server-status?auto"):
    """Starts one; the daemon has its `port`, `docs` and `config`. `lines` stand in the server, `server_lines` before the
    pool (modules with directives of their own)."""
    port, docs = place.port(), place.open_folder("docs")
    if not (docs / "index.html").exists():
        place.write("docs/index.html", "hello\n")
    config = place.write("apache2.conf", f"""ServerRoot "{place.folder}"
ServerName 127.0.0.1
PidFile {place.folder}/apache2.pid
Listen 127.0.0.1:{port}
ListenBackLog {backlog}
ErrorLog {place.folder}/apache-error.log
DefaultRuntimeDir {place.folder}
{load("mpm_" + mpm, *PLAIN, *modules)}{server_lines}
User www-data
Group www-data
TypesConfig /etc/mime.types
DocumentRoot "{docs}"
{pool(mpm, workers, threads) if pool_lines is None else pool_lines}
MaxConnectionsPerChild 0
KeepAlive {keepalive}
MaxKeepAliveRequests 0
HostnameLookups Off
<Directory "/">
AllowOverride None
</Directory>
<Directory "{docs}">
AllowOverride {overrides}
Require all granted
</Directory>
<Location "/server-status">
SetHandler server-status
</Location>
{log}
{lines}
""")
    ask = place.answers(port, ready) if ready else place.listens(port)
    daemon = place.start(["/usr/sbin/apache2", "-D", "FOREGROUND", "-f", config], ask, what="apache2",
                         name=f"apache:{config}", groups=groups, limits=limits)
    daemon.port, daemon.docs, daemon.config = port, docs, config
    daemon.url = f"http://127.0.0.1:{port}"
    return daemon


def buffered_log(place):
    """Lines of an access log that costs nothing to speak of."""
    return (f'LogFormat "%h %t \\"%r\\" %>s %b" plain\nBufferedLogs On\nCustomLog {place.folder}/access.log plain\n')


def perl(place, code, *, before="", child="", path="/page"):
    """Lines that serve `path` by Perl in the server; `before` runs at the server's start, `child` at that of each
    child."""
    file = place.write("startup.pl", f"""package Lab;
use strict;
use warnings;
no warnings 'once';
use Apache2::RequestRec ();
use Apache2::RequestIO ();
use Fcntl qw(:flock);
use Socket;
use IO::Socket::INET ();
{before}
sub child {{ {child}; return 0 }}
sub handler {{
    my $r = shift;
    {code}
    $r->content_type("text/plain");
    $r->print("ok\\n");
    return 0;
}}
1;
""")
    born = "PerlChildInitHandler Lab::child\n" if child else ""
    return (f'{load("perl")}PerlRequire "{file}"\n{born}<Location "{path}">\nSetHandler modperl\n'
            f"PerlResponseHandler Lab\n</Location>\n")


def php(place):
    """Lines that load PHP into the server."""
    modules = sorted(MODULES.glob("libphp*.so"))
    if not modules:
        raise LabError("libapache2-mod-php is not installed")
    return (f"LoadModule php_module {modules[-1]}\n<FilesMatch \"\\.php$\">\nSetHandler application/x-httpd-php\n"
            "</FilesMatch>\n")
