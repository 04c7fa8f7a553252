//! Directives that name code which a server runs, the user that it runs as, or a file that it writes. Whoever may put such
//! a line into a configuration may do on the machine whatever the server may; so they need a right of their own.
//!
//! A name ends in `*` if all that begin so are meant. The list is for all servers: a name means much the same in each.
//! What is in it by error costs the user an option; what is missing lets a plan file run a program. So whole families are
//! in it, and any directive whose arguments have a pipe (`"|program"`) or a path to a script's interpreter.

use crate::change::Directives;

/// Names in lower case.
const CODE: &[&str] = &[
    // Modules and libraries.
    "loadmodule",
    "loadfile",
    "load_module",
    "addmodule",
    "ssl_engine",
    "ssl-engine",
    "sslcryptodevice",
    "module-path",
    "module-load",
    // Other files that are read as configuration, and conditions that read them.
    "include*",
    "macro*",
    "<macro*",
    "accessfilename",
    "allowoverridelist",
    // Programs and languages.
    "action",
    "addhandler",
    "sethandler",
    "authbasicprovider",
    "authformprovider",
    "authdigestprovider",
    "authexternal*",
    "defineexternalauth",
    "authzprovideralias",
    "cgi*",
    "cgid*",
    "dbd*",
    "authdbd*",
    "extfilter*",
    "ext-check",
    "external-check",
    "fastcgi*server",
    "fastcgi_pass",
    "fastcgi_param",
    "fcgi*",
    "insecure-*",
    "init_by_lua*",
    "js_*",
    "lua*",
    "*_by_lua*",
    "log-exec",
    "njs*",
    "option external-check",
    "passenger*",
    "perl*",
    "<perl*",
    "php*",
    "program",
    "command",
    "proxyscgi*",
    "python*",
    "rewritemap",
    "scgi_pass",
    "scgi_param",
    "script*",
    "wsgi*",
    "spoe*",
    "filter spoe",
    "filter lua*",
    "ssl_pass_phrase*",
    "ssl_password_file",
    "sslpassphrasedialog",
    "suexec*",
    "tune.lua*",
    "uwsgi_pass",
    "uwsgi_param",
    "suphp*",
    "mod_gearman*",
    // Environment of what it starts.
    "env",
    "passenv",
    "setenv",
    "setenvif*",
    "presetenv",
    "unsetenv",
    "resetenv",
    "browsermatch*",
    // User, root and process.
    "assignuserid",
    "rusergroup",
    "rmode",
    "capabilit*",
    "chroot*",
    "chrootdir",
    "daemon",
    "gid",
    "uid",
    "group",
    "user",
    "setcap",
    "unix-bind",
    "working_directory",
    "coredumpdirectory",
    "serverroot",
    // Files that are written.
    "pid",
    "pidfile",
    "lock_file",
    "lockfile",
    "mutex",
    "scoreboardfile",
    "cookielog",
    "forensiclog",
    "rewritelog",
    "scriptlog*",
    "*_cache_path",
    "*_temp_path",
    "*_store_access",
    "cacheroot",
    "cachelockpath",
    "socacheroot",
    "client_body_temp_path",
    "dav*",
    "create_full_put_path",
    "dumpio*",
    "server-state-*",
    "load-server-state-*",
    "stats socket",
    "sslsessioncache",
    "sslstaplingcache",
    "sslrandomseed",
    "ssl_stapling_file",
    "heartbeatstorage",
    "ring",
    "google_perftools_profiles",
    "debug_points",
    "secaudit*",
    "sec*dir",
    "secdebuglog",
    "modsecurity*",
    "set-dumpable",
    "watchdog*",
];

/// Directives that name a file to be written, unless their value is one of these.
const WRITES: &[&str] =
    &["access_log", "error_log", "customlog", "errorlog", "transferlog", "globallog", "accesslog", "log", "*_store"];
const NO_FILE: &[&str] = &["off", "none", "global"];

/// Returns the lines of directives that are in the list.
pub fn code_in(directives: &Directives) -> Vec<String> {
    directives.lines().iter().filter(|line| is_code(line)).cloned().collect()
}

/// True if the name, or the name with its first argument, is in a list.
fn is_in(list: &[&str], first: &str, second: &str) -> bool {
    let two = format!("{first} {second}");
    list.iter().any(|name| match (name.strip_prefix('*'), name.strip_suffix('*')) {
        (Some(_), Some(_)) => first.contains(name.trim_matches('*')),
        (Some(end), None) => first.ends_with(end),
        (None, Some(begins)) => first.starts_with(begins) || two.starts_with(begins),
        (None, None) => match name.split_once('*') {
            Some((begins, ends)) => first.starts_with(begins) && first.ends_with(ends),
            None => first == *name || two == *name,
        },
    })
}

fn is_code(line: &str) -> bool {
    let lower = line.trim().to_ascii_lowercase();
    let negated = lower.strip_prefix("no ").map(str::trim_start);
    let lower = negated.unwrap_or(&lower);
    let mut words = lower.split_whitespace();
    let first = words.next().unwrap_or_default().trim_end_matches('>');
    let second = words.next().unwrap_or_default();
    // Quotes, variables and continued lines could hide a name: the server would put it together.
    let is_plain = first.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:<>/".contains(c))
        && !lower.contains(['\n', '\r', '\0'])
        && !lower.ends_with('\\');
    let writes = is_in(WRITES, first, second) && negated.is_none() && !NO_FILE.contains(&second);
    // "|program" gets a log, or its output is read.
    let has_pipe = lower.split_whitespace().skip(1).any(|word| word.trim_start_matches(['"', '\'']).starts_with('|'));
    let has_program =
        ["prg:", "exec:", "fcgi://", "cgi:", "uwsgi://", "scgi://"].iter().any(|mark| lower.contains(mark));
    !is_plain || is_in(CODE, first, second) || writes || has_pipe || has_program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_that_run_or_write_something_are_code() {
        for line in [
            "LoadModule x_module /tmp/x.so",
            "loadmodule x /tmp/x.so",
            "load_module /tmp/x.so",
            "CustomLog \"|/bin/sh\" combined",
            "ErrorLog /etc/cron.d/x",
            "access_log /etc/cron.d/x",
            "LogFormat \"|x\"",
            "PerlModule Evil",
            "php_admin_value auto_prepend_file /tmp/x",
            "SetHandler cgi-script",
            "RewriteMap x prg:/tmp/x",
            "User root",
            "user root;",
            "PidFile /etc/x",
            "pid /x",
            "lua-load /tmp/x.lua",
            "content_by_lua_block { os.execute('x') }",
            "init_worker_by_lua_file /tmp/x",
            "fastcgi_param PHP_VALUE auto_prepend_file=/tmp/x",
            "proxy_cache_path /tmp/x keys_zone=a:1m",
            "stats socket /tmp/s level admin",
            "log /dev/log local0",
            "external-check command /tmp/x",
            "option external-check",
            "no option external-check",
            "Include /tmp/x.conf",
            "IncludeOptional /tmp/*.conf",
            "<Perl>",
            "SSLPassPhraseDialog exec:/tmp/x",
            "proxy_store on",
            "SetEnv LD_PRELOAD /tmp/x",
            "Header set X \"a\nLoadModule x /tmp/x.so\n\"",
            "Load\\",
            "${LOAD}Module x /tmp/x.so",
            "\"user\" root",
            "lua\\-load /tmp/x",
            "filter spoe engine x",
            "tune.lua.forced-yield 1",
        ] {
            assert!(is_code(line), "{line}");
        }
    }

    #[test]
    fn directives_that_only_say_how_requests_are_served_are_not() {
        for line in [
            "AllowOverride None",
            "HostnameLookups On",
            "KeepAlive Off",
            "<Directory />",
            "</Directory>",
            "Header set X \"a;b\"",
            "DirectoryIndex index.html",
            "gzip_comp_level 9",
            "sendfile on",
            "open_file_cache max=100",
            "add_header X 1",
            "proxy_buffering off",
            "option httplog",
            "no option httpclose",
            "maxconn 10",
            "balance leastconn",
            "timeout client 5s",
            "http-request set-header X y",
            "compression algo gzip",
            "Options -Indexes",
            "RewriteEngine Off",
            "DeflateCompressionLevel 9",
            "access_log off",
            "no log",
            "log global",
            "filter compression",
            "stats enable",
            "ProxyPass /x http://127.0.0.1:1/",
        ] {
            assert!(!is_code(line), "{line}");
        }
        assert_eq!(code_in(&Directives::read("KeepAlive On; User x")), ["User x"]);
    }
}
