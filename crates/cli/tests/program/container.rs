//! A server in a container: namespaces of its own and another root. lastdrop finds and watches it from outside, distinguishes
//! it from a server of this machine with the same name, and lets only its owner change it. It needs root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use crate::common::servers::{Daemon, children_of, nginx};
use crate::common::{Folder, free_port, n, processes_with, wait_until};
use serde_json::Value;

/// nginx in its own root, with its own processes, mounts and network.
struct Container {
    holder: Child,
    folder: Folder,
}

impl Container {
    fn start() -> Container {
        let folder = Folder::new();
        let root = folder.join("root");
        let config = root.join("srv/site.conf");
        for name in ["usr", "lib", "lib64", "bin", "sbin", "etc", "proc", "tmp", "dev", "srv"] {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("its mode");
        fs::write(
            &config,
            "user root;\ndaemon off;\nworker_processes 3;\npid /tmp/nginx.pid;\nerror_log /tmp/error.log;\nevents {}\n\
             http {\n access_log off;\n client_body_temp_path /tmp/b;\n proxy_temp_path /tmp/p;\n fastcgi_temp_path /tmp/f;\n \
             uwsgi_temp_path /tmp/u;\n scgi_temp_path /tmp/s;\n server { listen 127.0.0.1:80; return 200 within; }\n}\n",
        )
        .expect("written");
        let path = root.display();
        let binds = ["usr", "lib", "lib64", "bin", "sbin", "etc"]
            .map(|n| format!("mount --rbind /{n} {path}/{n}"))
            .join(" && ");
        let inside = format!(
            "{binds} && mount --rbind /dev {path}/dev && mount -t proc proc {path}/proc && ip link set lo up && \
             exec chroot {path} /usr/sbin/nginx -c /srv/site.conf -p /tmp/"
        );
        let holder = Command::new("unshare")
            .args(["-m", "-p", "-n", "-f", "--kill-child", "--propagation", "private", "sh", "-c", &inside])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("util-linux");
        let container = Container { holder, folder };
        wait_until("nginx in its container (as root)", || container.master().is_some());
        container
    }

    /// The pid of nginx's master, once the child of unshare has become it.
    fn master(&self) -> Option<i32> {
        let mut all = processes_with("nginx: master process /usr/sbin/nginx -c /srv/site.conf -p /tmp/");
        let folder = self.folder.join("root");
        all.retain(|pid| fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|root| root == folder));
        all.first().copied()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn a_change_of_files_that_are_not_ours_is_told_as_a_patch() {
    let (folder, ours, port) = (Folder::new(), Folder::new(), free_port());
    let site = format!(" server {{\n  listen 127.0.0.1:{port};\n  return 200 ok;\n }}");
    let server = nginx(&folder, &site, port);
    let config = folder.join("nginx.conf");
    let before = fs::read(&config).expect("there");
    let plan = ours.join("plan.toml");
    let url = format!("http://127.0.0.1:{port}/");
    let of = format!(
        "server = 'nginx:{}'\nurl = '{url}'\nduration = '200ms'\nusers = 1\n[settings]\nworker_processes = [3, 4]\n",
        config.display()
    );
    fs::write(&plan, of).expect("written");
    // Like a read-only volume.
    let mount = format!("mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec \"$@\"", config.display());
    let program = ours.lastdrop(&["sweep", &plan.display().to_string(), "--quiet"]);
    let sweep = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &mount, "sh"])
        .arg(program.get_program())
        .args(program.get_args())
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
        .expect("util-linux");
    let told = String::from_utf8_lossy(&sweep.stderr).into_owned();
    let hunk = "-worker_processes 2;\n+worker_processes 3;\n";
    let wanted = [hunk, &format!("+++ {}\n", config.display()), &format!("then: kill -1 {}", server.pid())];
    assert!(!sweep.status.success() && wanted.iter().all(|w| told.contains(w)), "{told}");
    assert!(fs::read(&config).expect("there") == before && ours.journal().is_none());
    assert_eq!(children_of(server.pid()), 2);
}

#[test]
fn a_server_in_a_container_is_read_from_outside_and_a_change_of_it_is_told() {
    let container = Container::start();
    let folder = &container.folder;
    let master = container.master().expect("it runs");
    let config = format!("/proc/{master}/root/srv/site.conf");
    let name = format!("nginx:{config}");
    let mut document = Value::Null;
    wait_until("its workers", || {
        document = folder.json(&["watch", &name, "--once", "--interval", "200ms"], 0);
        document["worker_count"] == 3
    });
    assert_eq!((document["master"].as_i64(), document["server"].as_str()), (Some(master.into()), Some(name.as_str())));
    let listener = &document["listen"][0];
    assert!(listener["address"] == "127.0.0.1:80" && n(&listener["limit"]) > 0, "{document:#}");
    assert!(n(&document["real_memory_bytes"]) > 0, "{document:#}");
    let files = || fs::read(&config).expect("readable");
    let before = files();
    let plan = folder.join("plan.toml");
    let of = format!("server = '{name}'\nurl = 'http://127.0.0.1:1/'\n[settings]\nworker_processes = [1, 2]\n");
    fs::write(&plan, of).expect("written");
    // Its settings are read inside, where paths and pids are valid.
    let knobs = folder.json(&["knobs", &name], 0);
    let value = |of: &str| {
        let rows = knobs["knobs"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == of).unwrap_or_else(|| panic!("{of}: {knobs:#}"))["value"].clone()
    };
    assert!(value("worker_processes") == 3 && value("gzip_comp_level") == 1, "{knobs:#}");
    // A change is reported with the container's paths and the pid outside.
    let swept = folder.run(&["sweep", &plan.display().to_string(), "--quiet"]);
    let hunk = ["--- /srv/site.conf\n+++ /srv/site.conf\n", "-worker_processes 3;\n+worker_processes 1;\n"];
    let wanted = [hunk[0], hunk[1], "runs in a container", &format!("then: kill -1 {master}")];
    assert!(swept.code != 0 && wanted.iter().all(|w| swept.stderr.contains(w)), "{swept:?}");
    // A restart has to be done inside.
    let refused = folder.run(&["tune", &name, "--url", "http://127.0.0.1:1/", "--seed", "1"]);
    let told = [format!("runs in a container (process {master})"), format!("nsenter -t {master}")];
    assert!(refused.code != 0 && told.iter().all(|w| refused.stderr.contains(w)), "{refused:?}");
    assert!(files() == before && folder.journal().is_none());
    // The same path on this machine is another file, and no server uses it.
    let here = folder.join("site.conf");
    fs::write(&here, &before).expect("written");
    let none = folder.run(&["watch", &format!("nginx:{}", here.display()), "--once"]);
    assert!(none.code == 1 && none.stderr.contains("no running nginx is meant"), "{none:?}");
}

#[test]
fn a_server_in_a_container_that_has_changed_its_user_tells_its_settings() {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let config = folder.join("haproxy.cfg");
    let text = "global\n maxconn 77\n user www-data\n group www-data\ndefaults\n mode http\n timeout connect 5s\n timeout client 5s\n \
                timeout server 5s\nfrontend f\n bind 127.0.0.1:80\n http-request return status 200\n";
    fs::write(&config, text).expect("written");
    let config = config.display().to_string();
    let mut holder = Command::new("unshare");
    holder.args(["-m", "-p", "-n", "-f", "--kill-child", "--mount-proc"]);
    holder.args(["sh", "-c", "ip link set lo up; exec haproxy -db -f \"$0\"", &config]);
    let is_www_data = |pid: &i32| {
        let is_haproxy = fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("haproxy"));
        is_haproxy && fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| s.contains("\nUid:\t33\t"))
    };
    let _holder = Daemon::start(holder, "haproxy", |_| processes_with(&config).iter().any(is_www_data));
    // The kernel hides the process's environment, program and folder from its own user.
    let knobs = folder.json(&["knobs", &format!("haproxy:{config}")], 0);
    let rows = knobs["knobs"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["name"] == "maxconn" && row["value"] == 77), "{knobs:#}");
    let executed = knobs["environment"]["executed"].as_array().expect("a list");
    let asked =
        executed.iter().filter(|one| one["program"].as_str().is_some_and(|program| program.ends_with("haproxy")));
    let users: Vec<u64> = asked.map(|one| n(&one["uid"])).collect();
    assert!(!users.is_empty() && users.iter().all(|uid| *uid == 33), "{executed:#?}");
    for pid in processes_with(&config).into_iter().filter(is_www_data) {
        // SAFETY: a plain call on a server of ours; its container ends with it.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}
