//! A second instance of an Apache with the profiler of the language that its workers execute: Perl by mod_perl, or PHP
//! by mod_php. Nothing is loaded into the server itself, and its visitors notice nothing but the load.

use std::fs;
use std::time::Instant;

use lastdrop_model::Url;
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status;

use super::Apache;
use super::instance::{InstanceTemplate, InstanceVariant};
use crate::adapter::Adapter as _;
use crate::code::{
    ASK_TIME, Clock, CodeRequest, CodeTemplate, Language, ProfiledServer, Recording, START_TIME, SecondInstance,
    check_instance, impossible, note_about, perl, php, unlike, user_of_workers,
};
use crate::edits::Edits;
use crate::leftover_folders::FOR_CODE;
use crate::{ServerError, ServerRef};

/// What is needed to start second instances of an Apache.
struct ApacheCode {
    server: String,
    language: Language,
    template: InstanceTemplate,
    flat: Vec<u8>,
    url: Url,
    workers: u32,
    clock: Clock,
    /// Status of the server's own answer.
    status: u16,
    birth: Birth,
}

pub fn code_template(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    let no = |why: &str| Err(impossible(why));
    let apache = Apache::discover(server)?;
    let (birth, url) = (&apache.facts.birth, request.url);
    check_instance(birth, url)?;
    if !apache.facts.listeners.iter().any(|l| l.port() == url.port) {
        return no("it does not listen at the URL itself; name the server that executes the code");
    }
    if birth.argv.iter().skip(1).any(|w| w.starts_with("-c") || w.starts_with("-C")) {
        return no("it was started with directives on its command line");
    }
    let language = match request.language.or_else(|| apache.language()) {
        Some(language) => language,
        None => return no("it has neither mod_perl nor mod_php; name the server that executes the code"),
    };
    if apache.threaded() {
        return no(&format!(
            "{} does not know threads, and this server's model is {}, not prefork",
            language.tool(),
            apache.facts.model
        ));
    }
    if language == Language::Perl {
        perl::check_installed(&user_of_workers(birth, process::child_pids(birth.pid).first().copied()))?;
    }
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
    if language == Language::Php {
        const SCANNED: &str = "PHP_INI_SCAN_DIR";
        let theirs = birth.environment.iter().find(|(name, _)| name == SCANNED).map_or("", |(_, folders)| folders);
        // An empty name stands for the folder that was compiled in.
        template.variables.push((SCANNED.into(), format!("{theirs}:{}", template.file("ini").display())));
    }
    let status = status::get(url, ASK_TIME).map_err(|e| ServerError::Setting(e.to_string()))?.status;
    Ok(Box::new(ApacheCode {
        server: apache.facts.name.clone(),
        language,
        template,
        flat,
        url: url.clone(),
        workers: request.workers,
        clock: request.clock,
        status,
        birth: birth.clone(),
    }))
}

impl CodeTemplate for ApacheCode {
    fn server(&self) -> &str {
        &self.server
    }

    fn language(&self) -> Language {
        self.language
    }

    fn note(&self) -> String {
        note_about(self.workers)
    }

    fn start(&self, profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError> {
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let mut recording = Recording::new(self.language, &self.birth, |name| self.template.file(name))?;
        let mut after = String::new();
        if profiled && self.language == Language::Perl {
            recording.write_script(&perl::module(&recording))?;
            after = perl::apache_lines(&recording, self.clock);
        } else if profiled {
            recording.write_script(&php::prepended(&recording, self.clock, None))?;
            let (folder, cannot) = (self.template.file("ini"), "cannot write PHP's settings");
            fs::create_dir_all(&folder).map_err(ServerError::io(cannot))?;
            fs::write(folder.join(php::INI), php::ini(&recording)).map_err(ServerError::io(cannot))?;
        }
        let mut variant = InstanceVariant { workers: Some(self.workers), ..InstanceVariant::default() };
        if !after.is_empty() {
            variant.after = Some((perl::MODULE, after.as_str()));
        }
        let instance = self.template.start(&self.flat, variant, &self.url, Instant::now() + START_TIME);
        let instance = instance.map_err(refuse)?;
        recording.give_to(instance.processes.workers().first().copied())?;
        let answer = instance.ask(&self.url, Instant::now() + ASK_TIME).map_err(|e| refuse(e.to_string()))?;
        if profiled && self.language == Language::Php {
            php::check_installed(&recording)?;
        }
        if answer.status != self.status {
            return Err(unlike(answer.status, self.status));
        }
        Ok(Box::new(SecondInstance { address: instance.at, processes: instance.processes, recording, _front: None }))
    }
}

impl Apache {
    /// The language that the server executes, if any.
    fn language(&self) -> Option<Language> {
        let has = |name: &str| self.modules.contains(name);
        if has(perl::MODULE) {
            return Some(Language::Perl);
        }
        php::MODULES.into_iter().any(has).then_some(Language::Php)
    }
}
