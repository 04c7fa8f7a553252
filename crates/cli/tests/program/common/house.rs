//! A simulated machine for the commands of the manual: namespaces of processes, mounts and network with copies of Debian's
//! configurations, a free port 80, and no other servers. The commands of a chapter run there unchanged. All processes in it
//! end on drop. It needs root.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{CommandOutput, Folder, wait_until};

/// The server on port 80.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Front {
    /// Apache prefork, as Debian installs it, with a page, a PHP script and a log with times.
    Apache,
    /// nginx with PHP-FPM, as Debian installs them, and HAProxy in front of both on port 8090.
    Nginx,
}

pub struct House {
    pub folder: Folder,
    holder: Child,
    /// The pid of its first process, outside the namespace.
    init: i32,
    front: Front,
}

const MOUNTS: &str = r#"
set -e
ip link set lo up
for place in apache2 nginx php haproxy; do
    mkdir -p "$HOUSE/etc/$place"
    cp -a "/etc/$place/." "$HOUSE/etc/$place/"
    mount --bind "$HOUSE/etc/$place" "/etc/$place"
done
mount -t tmpfs none /run
mount -t tmpfs none /var/log
mount -t tmpfs none /var/www
mount -t tmpfs none /usr/local/bin
mount -t tmpfs none /var/lib/nginx
mkdir -p /run/php /run/haproxy /run/lock /var/log/apache2 /var/log/nginx /var/www/html /var/lib/nginx
chmod 1777 /run/lock
ln -s "$LASTDROP" /usr/local/bin/lastdrop
sed '/shop\.example/d' /etc/hosts > "$HOUSE/hosts"
echo '127.0.0.1 shop.example api.shop.example db.example' >> "$HOUSE/hosts"
mount --bind "$HOUSE/hosts" /etc/hosts
echo hello > /var/www/html/index.html
echo '<html><body>a page</body></html>' > /var/www/html/page
cp /var/www/html/page /var/www/html/app
echo '<?php usleep(2000); echo "hello";' > /var/www/html/index.php
touch "$HOUSE/ready"
exec sleep 1000000
"#;

/// Creates an authority, and its certificate for the names that the manual uses.
const CERTIFICATES: &str = r#"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -subj /CN=test -days 2
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout site.key -out site.csr -subj /CN=shop.example
printf 'subjectAltName=DNS:shop.example,DNS:api.shop.example,DNS:localhost,IP:127.0.0.1' > site.ext
openssl x509 -req -in site.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out site.pem -days 2 -extfile site.ext
"#;

const TLS_SITE: &str = r#"
log_format timed escape=json '{"time":"$time_iso8601","method":"$request_method","uri":"$request_uri","status":"$status","request_time":"$request_time","request_id":"$http_x_request_id"}';
server {
  listen 127.0.0.1:443 ssl; listen 127.0.0.1:8443 ssl;
  ssl_certificate HOUSE/site.pem; ssl_certificate_key HOUSE/site.key;
  root /var/www/html;
}
server { listen 127.0.0.1:8082; root /var/www/html; access_log HOUSE/access.json timed; }
"#;

const APACHE: &str = r#"
set -e
# Of the machine's modules those that Debian enables by itself: another one that somebody has installed may not even load.
for link in /etc/apache2/mods-enabled/*.load; do
  case $(basename "$link" .load) in
    access_compat|alias|auth*|autoindex|deflate|dir|env|filter|mime|mpm_*|negotiation|perl|php*|reqtimeout|setenvif|status) ;;
    *) rm -f "$link" "${link%.load}.conf" ;;
  esac
done
for module in headers; do [ -e /etc/apache2/mods-enabled/$module.load ] || ln -s ../mods-available/$module.load /etc/apache2/mods-enabled/; done
cat > /etc/apache2/conf-enabled/times.conf <<'END'
ServerName 127.0.0.1
ExtendedStatus On
Header always set X-Request-Received "%t %D"
END
# A virtual host that has a log writes no other one.
sed -i 's#</VirtualHost>##' /etc/apache2/sites-available/000-default.conf
cat >> /etc/apache2/sites-available/000-default.conf <<'END'
CustomLog /var/log/apache2/timed.log "%h %l %u %t \"%r\" %>s %b %D %{X-Request-Id}i"
</VirtualHost>
END
apache2ctl start
"#;

const NGINX: &str = r#"
set -e
cat > /etc/nginx/sites-available/default <<'END'
server {
  listen 127.0.0.1:80;
  root /var/www/html;
  index index.html;
  location /nginx_status { stub_status; }
  location ~ \.php$ {
    include fastcgi_params;
    fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
    fastcgi_pass unix:/run/php/php8.2-fpm.sock;
  }
}
END
sed -i 's#^;*pm.status_path.*#pm.status_path = /status#; s#/run/php/php[0-9.]*-fpm.sock#/run/php/php8.2-fpm.sock#' /etc/php/*/fpm/pool.d/www.conf
cat > /etc/haproxy/haproxy.cfg <<'END'
global
  maxconn 200
  stats socket /run/haproxy/admin.sock mode 660 level operator
defaults
  mode http
  # No connection stays open: nginx would be in use by it.
  option httpclose
  timeout connect 5s
  timeout client 10s
  timeout server 10s
frontend fe_web
  bind 127.0.0.1:8090
  default_backend be_app
backend be_app
  server app1 127.0.0.1:80 maxconn 20
END
for fpm in /usr/sbin/php-fpm*; do "$fpm" --daemonize; break; done
nginx
haproxy -W -D -f /etc/haproxy/haproxy.cfg -p /run/haproxy.pid
"#;

impl House {
    pub fn new(front: Front) -> House {
        let folder = Folder::new();
        let path = folder.path();
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--pid", "--fork", "--net", "--mount-proc", "--kill-child", "sh", "-c", MOUNTS]);
        holder.env("HOUSE", path).env("LASTDROP", env!("CARGO_BIN_EXE_lastdrop"));
        let holder = holder.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("unshare (util-linux)");
        let ready = path.join("ready");
        wait_until("a machine of its own (as root)", || ready.exists());
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", holder.id())).expect("its children");
        let init = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("its first process");
        let house = House { folder, holder, init, front };
        house.must("certificates", CERTIFICATES);
        let site = TLS_SITE.replace("HOUSE", &house.folder.path().display().to_string());
        match front {
            Front::Nginx => {
                house.must("nginx's further site", &format!("cat > /etc/nginx/sites-enabled/tls <<'END'\n{site}\nEND"));
                house.must("nginx, PHP-FPM and HAProxy", NGINX);
            }
            Front::Apache => {
                let dir = house.folder.path().display().to_string();
                let config = format!(
                    "pid {dir}/nginx.pid;\nerror_log {dir}/nginx.log;\nevents {{}}\nhttp {{\n access_log off;\n{site}\n}}\n"
                );
                fs::write(house.folder.join("tls.conf"), config).expect("written");
                house.must("a server with TLS", &format!("nginx -c {dir}/tls.conf"));
                house.must("Apache", APACHE);
            }
        }
        for port in [8080, 8081] {
            let start = format!(
                "setsid lastdrop target --listen 127.0.0.1:{port} --workers 8 --service 2ms --server-time >/dev/null 2>&1 </dev/null &"
            );
            house.must("a target", &start);
        }
        for url in ["http://127.0.0.1/", "http://127.0.0.1:8080/", "http://127.0.0.1:8081/"] {
            wait_until(url, || house.sh(&format!("curl -sf -o /dev/null {url}")).code == 0);
        }
        house
    }

    /// A shell inside, in the scratch folder, with the environment of a fresh login.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-m", "-p", "-n", "--", "bash", "-c"]);
        command.arg(format!("cd '{0}' && {{ {script}\n}}", self.folder.path().display())).env_clear();
        let home: PathBuf = self.folder.join("home");
        let _ = fs::create_dir_all(home.join("bin"));
        let path = format!("{}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", home.display());
        let env = [("PATH", path), ("HOME", home.display().to_string()), ("LC_ALL", "C.UTF-8".to_string())];
        command
            .envs(env)
            .env("SSL_CERT_FILE", self.folder.join("ca.pem"))
            .env("LASTDROP_STATE", self.folder.join("state"));
        command.stdin(Stdio::null());
        command
    }

    pub fn sh(&self, script: &str) -> CommandOutput {
        CommandOutput::of(self.shell(script).output().expect("nsenter"), &[script])
    }

    fn must(&self, what: &str, script: &str) {
        let done = self.sh(script);
        assert_eq!(done.code, 0, "{what} (./x test installs what it takes): {done:?}");
    }

    pub fn front(&self) -> Front {
        self.front
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // The end of the first process ends all processes in its namespace.
        // SAFETY: a plain call on a process that we have started.
        unsafe { libc::kill(self.init, libc::SIGKILL) };
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
