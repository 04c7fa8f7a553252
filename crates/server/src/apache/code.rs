//! A second instance of an Apache with the profiler of the language that its workers execute: Perl by
//! mod_perl. Nothing is loaded into the server itself, and its visitors notice nothing but the load.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status;

use super::Apache;
use super::instance::{Instance, InstanceTemplate, InstanceVariant};
use crate::adapter::Adapter as _;
use crate::code::{Clock, Language, perl};
use crate::edits::Edits;
use crate::leftover_folders::FOR_CODE;
use crate::{ServerError, ServerRef, container};

const START_TIME: Duration = Duration::from_secs(60);
/// Time for the workers to finish their records.
const END_TIME: Duration = Duration::from_secs(20);
const ASK_TIME: Duration = Duration::from_secs(30);

/// What is needed to start second instances with and without the profiler.
#[derive(Debug)]
pub struct CodeTemplate {
    /// The server's name.
    pub server: String,
    pub language: Language,
    template: InstanceTemplate,
    flat: Vec<u8>,
    url: Url,
    workers: u32,
    clock: Clock,
    /// Status of the server's own answer.
    status: u16,
    birth: Birth,
}

/// A running second instance; it ends when dropped.
#[derive(Debug)]
pub struct CodeInstance {
    instance: Instance,
    folder: PathBuf,
    /// The workers record when this file is there.
    go: PathBuf,
    user: Birth,
}

impl CodeTemplate {
    /// Finds the server and its language, and checks that a second instance can be made.
    ///
    /// # Errors
    /// With the reason why it cannot.
    pub fn new(
        server: &ServerRef,
        url: &Url,
        language: Option<Language>,
        clock: Clock,
        workers: u32,
    ) -> Result<CodeTemplate, ServerError> {
        let no = |why: &str| Err(ServerError::Setting(format!("its code is not profiled: {why}")));
        let apache = Apache::discover(server)?;
        let birth = &apache.facts.birth;
        let euid = nix::unistd::geteuid();
        if !euid.is_root() && euid.as_raw() != birth.uid {
            return no("only root or the server's user can start a second instance of it");
        }
        if url.tls {
            return no("a second instance is loaded by http only; give --url an http URL");
        }
        if !apache.facts.listeners.iter().any(|l| l.port() == url.port) {
            return no("it does not listen at the URL itself; name the server that executes the code");
        }
        if container::root_of(birth.pid).is_some() {
            return no("it runs in a container");
        }
        if birth.argv.iter().skip(1).any(|w| w.starts_with("-c") || w.starts_with("-C")) {
            return no("it was started with directives on its command line");
        }
        let language = match language.or_else(|| apache.language()) {
            Some(language) => language,
            None => return no("it has no mod_perl; name the server that executes the code"),
        };
        if apache.threaded() {
            return no(&format!(
                "{} does not know threads, and this server's model is {}, not prefork",
                language.tool(),
                apache.facts.model
            ));
        }
        perl::check_installed(&user_of_workers(birth, process::child_pids(birth.pid).first().copied()))?;
        let scan = apache.scan(apache.started_on());
        if let Some(problem) = scan.problems.first() {
            return no(problem);
        }
        let flat = scan.flat(&Edits::default()).text;
        let mut template = InstanceTemplate::new(FOR_CODE, birth, url, false, |file| apache.argv_with(file))?;
        template.why = "a second Apache is profiled";
        // The application's own code is found as the server finds it.
        let paths = birth.environment.iter().filter(|(name, _)| ["PERL5LIB", "PERLLIB"].contains(&name.as_str()));
        template.variables = paths.cloned().collect();
        let status = status::get(url, ASK_TIME).map_err(|e| ServerError::Setting(e.to_string()))?.status;
        Ok(CodeTemplate {
            server: apache.facts.name.clone(),
            language,
            template,
            flat,
            url: url.clone(),
            workers,
            clock,
            status,
            birth: birth.clone(),
        })
    }

    /// Starts an instance and waits until it answers as the server does.
    ///
    /// # Errors
    /// If it does not, or the profiler is missing.
    pub fn start(&self, profiled: bool) -> Result<CodeInstance, ServerError> {
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let cannot = || ServerError::io("cannot make a place for records");
        let folder = self.template.file("records");
        let _ = fs::remove_dir_all(&folder);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(cannot())?;
        let ours = self.template.file("LastdropProfile.pm");
        // Not in the records' folder, which is the workers': there, a link could lead root to write elsewhere.
        let go = self.template.file("go");
        let (text, after) = (perl::module(&folder, &go), perl::apache_lines(&ours, self.clock));
        fs::write(&ours, text).map_err(cannot())?;
        fs::set_permissions(&ours, fs::Permissions::from_mode(0o644)).map_err(cannot())?;
        let mut variant = InstanceVariant { workers: Some(self.workers), ..InstanceVariant::default() };
        if profiled {
            variant.after = Some((perl::MODULE, after.as_str()));
        }
        let instance = self.template.start(&self.flat, variant, &self.url, Instant::now() + START_TIME);
        let instance = instance.map_err(refuse)?;
        let user = user_of_workers(&self.birth, instance.processes.workers().first().copied());
        std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid)).map_err(cannot())?;
        let answer = instance.ask(&self.url, Instant::now() + ASK_TIME).map_err(|e| refuse(e.to_string()))?;
        if answer.status != self.status {
            return Err(refuse(format!("it answers {} where the server answers {}", answer.status, self.status)));
        }
        Ok(CodeInstance { instance, folder, go, user })
    }
}

impl CodeInstance {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.instance.at
    }

    #[must_use]
    pub fn master(&self) -> i32 {
        self.instance.processes.master()
    }

    /// From now on each worker records its calls.
    ///
    /// # Errors
    /// If its folder cannot be written.
    pub fn begin(&self) -> Result<(), ServerError> {
        fs::write(&self.go, "").map_err(ServerError::io(format!("cannot write {}", self.go.display())))
    }

    /// Ends the instance and returns the record of its workers, as [`crate::code`] describes it.
    ///
    /// # Errors
    /// If it does not end, or there is nothing to be read.
    pub fn finish(mut self) -> Result<String, ServerError> {
        if !self.instance.processes.end(END_TIME) {
            return Err(ServerError::Setting("of its second instance: it does not end".into()));
        }
        perl::read(&self.user, &self.folder)
    }
}

/// The rights of a server's worker; if there is none, the server's own.
fn user_of_workers(birth: &Birth, worker: Option<i32>) -> Birth {
    let owner = worker.and_then(|pid| fs::metadata(format!("/proc/{pid}")).ok());
    match owner {
        Some(m) if m.uid() != birth.uid => {
            Birth { uid: m.uid(), gid: m.gid(), groups: vec![m.gid()], directory: "/".into(), ..birth.clone() }
        }
        _ => birth.clone(),
    }
}

impl Apache {
    /// The language that the server executes, if any.
    fn language(&self) -> Option<Language> {
        self.modules.contains("perl_module").then_some(Language::Perl)
    }
}
