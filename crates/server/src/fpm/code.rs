//! A second instance of a pool of PHP-FPM with Excimer, behind a front server of lastdrop's. Nothing is loaded into the
//! pool itself.

use std::time::Instant;

use lastdrop_model::Url;
use lastdrop_probe::process::Birth;

use super::gateway::Gateway;
use super::ini::Ini;
use super::instance::{InstanceTemplate, InstanceVariant};
use super::script::{self, ServedRequest};
use super::{Fpm, OURS};
use crate::adapter::Adapter as _;
use crate::code::{
    ASK_TIME, Clock, CodeRequest, CodeTemplate, Language, ProfiledServer, Recording, START_TIME, SecondInstance,
    check_instance, impossible, note_about, php, unlike,
};
use crate::execution::Reader;
use crate::leftover_folders::FOR_CODE;
use crate::{ServerError, ServerRef};

/// Restricts scripts to some folders; lastdrop's is added.
const RESTRICTED: &str = "open_basedir";

/// What is needed to start second instances of a pool.
struct FpmCode {
    server: String,
    template: InstanceTemplate,
    served: ServedRequest,
    url: Url,
    workers: u32,
    clock: Clock,
    /// Status of the server's own answer.
    status: u16,
    birth: Birth,
    /// The file that is before each page, and the folders to which scripts are restricted; empty for none.
    prepended: String,
    restricted: String,
}

pub fn code_template(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    let no = |why: &str| Err(impossible(why));
    let fpm = Fpm::discover(server)?;
    let birth = &fpm.facts().birth;
    check_instance(birth, request.url)?;
    if request.language.is_some_and(|language| language != Language::Php) {
        return no("a PHP-FPM executes PHP");
    }
    let (scan, ini) = {
        let _reader = Reader::of(birth);
        (fpm.scan(), Ini::told(&fpm.php).map_err(ServerError::Setting)?)
    };
    if let Some(problem) = scan.problems.first() {
        return no(problem);
    }
    let told = script::of(&scan, request.url).map_err(ServerError::Setting)?;
    let pool = &told.served.pool;
    if scan.last(pool, "chroot").is_some_and(|line| !line.value.is_empty()) {
        return no("its pool has a root folder of its own (chroot)");
    }
    let value = |name: &str| {
        let text = match scan.of_php(pool, name, OURS) {
            Some((line, _)) => line.value.as_str(),
            None => fpm.php_ini(name).unwrap_or_default(),
        };
        if text == "no value" { String::new() } else { text.to_string() }
    };
    let (prepended, restricted) = (value(php::PREPENDED), value(RESTRICTED));
    let mut template = InstanceTemplate::new(FOR_CODE, birth, scan.clone(), pool, ini)?;
    template.why = "a second PHP-FPM is profiled";
    Ok(Box::new(FpmCode {
        server: fpm.facts().name.clone(),
        template,
        url: request.url.clone(),
        workers: request.workers,
        clock: request.clock,
        status: told.answer.status,
        birth: birth.clone(),
        prepended,
        restricted,
        served: told.served,
    }))
}

impl CodeTemplate for FpmCode {
    fn server(&self) -> &str {
        &self.server
    }

    fn language(&self) -> Language {
        Language::Php
    }

    fn note(&self) -> String {
        note_about(self.workers)
    }

    fn start(&self, profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError> {
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let mut recording = Recording::new(Language::Php, &self.birth, |name| self.template.file(name))?;
        let mut ini = String::new();
        if profiled {
            recording.write_script(&php::prepended(&recording, self.clock, Some(&self.prepended)))?;
            ini = php::ini(&recording);
            if !self.restricted.is_empty() {
                ini.push_str(&format!("{RESTRICTED} = \"{}:{}\"\n", self.restricted, self.template.file("").display()));
            }
        }
        let variables = self.served.variables(&self.url, &self.served.script);
        let variant = InstanceVariant::Loaded { workers: self.workers, ini: &ini };
        let instance = self.template.start(variant, &variables, Instant::now() + START_TIME).map_err(refuse)?;
        recording.give_to(instance.processes.workers().first().copied())?;
        let answer = instance.ask(&variables, Instant::now() + ASK_TIME).map_err(|e| refuse(e.to_string()))?;
        if profiled {
            php::check_installed(&recording)?;
        }
        if answer.status != self.status {
            return Err(unlike(answer.status, self.status));
        }
        let gateway = Gateway::start(instance.socket.clone(), self.served.clone(), self.url.clone());
        let gateway = gateway.map_err(ServerError::io("cannot listen on a loopback port"))?;
        let (address, processes) = (gateway.address, instance.processes);
        Ok(Box::new(SecondInstance { address, processes, recording, _front: Some(gateway) }))
    }
}
