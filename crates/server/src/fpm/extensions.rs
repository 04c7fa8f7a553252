//! Finds extensions that a PHP-FPM loads and does not need.
//!
//! An extension is a candidate if an ini file loads it and no other setting gives it work. In addition, none of its
//! names may occur in the site's files and settings ([`super::references`]).
//!
//! Extensions that act without being named are judged by behaviour. A second instance must give the same answer for the
//! URL with and without the candidates. It must load all others without a complaint.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_model::examination::{ModuleSize, ModuleTrial};
use lastdrop_probe::{ProbeError, memory};

use super::Fpm;
use super::ini::{ExtensionLine, Ini};
use super::instance::{Extension, InstanceTemplate, InstanceVariant, ScriptReport, objects};
use super::references::{ReferenceNames, References, folders_of};
use super::script::{self, ServedEvidence, ServedRequest};
use crate::adapter::Adapter;
use crate::execution::Reader;
use crate::fpm_config::Scan;
use crate::leftover_folders::FOR_EXTENSIONS;
use crate::shadow_instance::{ComparableAnswer, MOST_TIME, dispensable};
use crate::{ServerError, ServerRef, container};

/// Time for an instance that describes its extensions.
const TELLING_TIME: Duration = Duration::from_secs(3);
/// Extensions that are never candidates: they monitor or restrict others, without being named and without effect on an
/// answer.
const NEVER: &[&str] = &[
    "appdynamics_agent",
    "blackfire",
    "datadog-profiling",
    "ddappsec",
    "ddtrace",
    "elastic_apm",
    "excimer",
    "instana",
    "newrelic",
    "opentelemetry",
    "pcov",
    "scoutapm",
    "skywalking_agent",
    "snuffleupagus",
    "suhosin",
    "tideways",
    "tideways_xhprof",
    "xhprof",
];

/// Extensions that act only if they are named; those that others depend on come last.
struct RemovableExtensions {
    all: Vec<(String, ReferenceNames)>,
    /// Files that the page consists of.
    included: Vec<PathBuf>,
}

/// Finds the extensions that a running PHP-FPM could do without, by trials on a second instance with its configuration.
/// The server itself gets requests for the URL and its status page and is otherwise left alone. `sites`: folders that
/// the servers in front of it serve.
///
/// # Errors
/// If it cannot be tried, with the reason.
pub fn unused_extensions(server: &ServerRef, url: &Url, sites: &[PathBuf]) -> Result<ModuleTrial, ServerError> {
    Fpm::discover(server)?.try_without_extensions(url, sites)
}

impl Fpm {
    fn try_without_extensions(&self, url: &Url, sites: &[PathBuf]) -> Result<ModuleTrial, ServerError> {
        let refuse = ServerError::Setting;
        let no = |why: &str| Err(refuse(why.to_string()));
        let birth = &self.facts().birth;
        let euid = nix::unistd::geteuid();
        if !euid.is_root() && euid.as_raw() != birth.uid {
            return no("only root or the server's user can try it");
        }
        if container::root_of(birth.pid).is_some() {
            return no("it runs in a container");
        }
        let scan = Scan::read(&self.main);
        if let Some(problem) = scan.problems.first() {
            return no(problem);
        }
        // Another user's program may name any file as one of its own.
        let ini = {
            let _reader = Reader::of(birth);
            Ini::told(&self.php).map_err(refuse)?
        };
        let loads = ini.loads();
        if loads.is_empty() {
            return Ok(ModuleTrial::default());
        }
        if self.pools.len() > 1 && sites.is_empty() {
            return no("it has several pools, and which sites they serve is not known");
        }
        let told = script::of(&scan, url).map_err(refuse)?;
        let served = &told.served;
        if scan.last(&served.pool, "chroot").is_some_and(|line| !line.value.is_empty()) {
            return no("its pool has a root folder of its own (chroot)");
        }
        let ground = InstanceTemplate::new(FOR_EXTENSIONS, birth, scan.clone(), &served.pool, ini.clone())?;
        let RemovableExtensions { all: possible, included } = self.possible(&ground, served, url, &loads)?;
        let mut references = References::to(possible.iter().map(|(_, names)| names));
        references.read_settings(&ini.values());
        for line in scan.lines.iter().filter(|line| line.key.starts_with("php_")) {
            references.read_settings(line.value.as_bytes());
        }
        let roots: Vec<PathBuf> = [served.document_root()].into_iter().chain(sites.iter().cloned()).collect();
        let files = [included, told.others.clone()].concat();
        {
            let _reader = Reader::of(birth);
            references.read_site(folders_of(&roots, &files), &files).map_err(refuse)?;
        }
        let left = possible.into_iter().filter(|(_, names)| !references.has(names));
        let candidates: Vec<String> = left.map(|(name, _)| name).collect();
        if candidates.is_empty() {
            return Ok(ModuleTrial::default());
        }
        self.tried(&ground, &told, url, &loads, &candidates)
    }

    /// Runs lastdrop's script in an instance: it lists the extensions and the files of the page.
    fn possible(
        &self,
        ground: &InstanceTemplate,
        served: &ServedRequest,
        url: &Url,
        loads: &[ExtensionLine],
    ) -> Result<RemovableExtensions, ServerError> {
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let describe = |like: InstanceVariant<'_>, page: Option<&Path>| {
            let variables = |script: &Path| served.variables(url, script);
            ground.describe(like, page, variables, Instant::now() + TELLING_TIME).map_err(refuse)
        };
        let plain = describe(InstanceVariant::Plain, None)?;
        let described = describe(InstanceVariant::Open, Some(&served.script))?;
        let possible = |load: &ExtensionLine| {
            let (of, before) = (extension(&described, &load.name)?, extension(&plain, &load.name)?);
            let idle = !NEVER.contains(&load.name.as_str()) && !has_something_set(of, before);
            let names = named_by(&load.name, of, &described).filter(|_| idle)?;
            Some((load.name.clone(), ReferenceNames::new(&load.name, names.into_iter())))
        };
        let mut included: Vec<PathBuf> = described.included.clone();
        included.push(served.script.clone());
        included.extend(self.php_ini("opcache.preload").map(PathBuf::from));
        included.retain(|file| file.is_absolute() && file.is_file() && !ground.has(file));
        Ok(RemovableExtensions { all: loads.iter().rev().filter_map(possible).collect(), included })
    }

    fn tried(
        &self,
        ground: &InstanceTemplate,
        told: &ServedEvidence,
        url: &Url,
        loads: &[ExtensionLine],
        candidates: &[String],
    ) -> Result<ModuleTrial, ServerError> {
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let variables = told.served.variables(url, &told.served.script);
        let until = Instant::now() + MOST_TIME;
        let mut tried = ModuleTrial::default();
        let (answer, sizes, all_objects, folders, complaints) = {
            let all = ground.start(InstanceVariant::Without(&[]), &variables, until).map_err(refuse)?;
            let ask = || all.ask(&variables, until).map_err(|e| e.to_string());
            let answer = ComparableAnswer::stable(ask, || Ok(told.answer.clone())).map_err(ServerError::Setting)?;
            (tried.start_s, tried.worker_bytes) = (all.started.as_secs_f64(), all.processes.worker_bytes()?);
            let sizes = all.processes.workers().first().and_then(|pid| memory::of_files(*pid).ok()).unwrap_or_default();
            let is_one = |path: &&String| loads.iter().any(|l| path.rsplit('/').next() == Some(l.file.as_str()));
            let folders: BTreeSet<PathBuf> =
                sizes.keys().filter(is_one).filter_map(|path| Some(PathBuf::from(path).parent()?.into())).collect();
            (answer, sizes.clone(), all.objects(&folders)?, folders, all.complaints.clone())
        };
        if objects(self.facts().birth.pid, &folders)? != all_objects {
            let why = "it has other extensions in its memory than its ini files name: they have changed since, or it was started with \
                       others (-c, -d, PHP_INI_SCAN_DIR)";
            return Err(ServerError::Setting(why.into()));
        }
        let file = |name: &String| loads.iter().find(|l| l.name == *name).map(|l| l.file.clone()).unwrap_or_default();
        let mut last = None;
        let mut works = |without: &[String]| -> Result<Option<bool>, ProbeError> {
            if Instant::now() >= until {
                return Ok(None);
            }
            let Ok(instance) = ground.start(InstanceVariant::Without(without), &variables, until) else {
                return Ok((Instant::now() < until).then_some(false));
            };
            let gone: Vec<String> = without.iter().map(file).collect();
            let is_gone = |path: &PathBuf| path.file_name().is_some_and(|n| gone.iter().any(|g| n == g.as_str()));
            let rest: BTreeSet<PathBuf> = all_objects.iter().filter(|path| !is_gone(path)).cloned().collect();
            let same = instance.ask(&variables, until).is_ok_and(|a| ComparableAnswer::of(&a) == answer)
                && instance.complaints.is_subset(&complaints)
                && instance.objects(&folders)? == rest;
            if same {
                last = Some((instance.started.as_secs_f64(), instance.processes.worker_bytes()?));
            }
            Ok(if same || Instant::now() < until { Some(same) } else { None })
        };
        let unused = dispensable(candidates, &mut works, &mut tried)?;
        if let Some((started, bytes)) = last {
            (tried.start_without_s, tried.worker_bytes_without) = (started, bytes);
        }
        let size = |load: &ExtensionLine| {
            let own = sizes.iter().filter(|(path, _)| path.rsplit('/').next() == Some(load.file.as_str()));
            let bytes = own.map(|(_, bytes)| *bytes).reduce(|a, b| a + b);
            ModuleSize { name: load.name.clone(), bytes, line: Some(load.line.clone()) }
        };
        tried.unused = loads.iter().filter(|l| unused.contains(&l.name)).map(size).collect();
        Ok(tried)
    }
}

/// Looks an extension up by name, ignoring case.
fn extension<'a>(described: &'a ScriptReport, name: &str) -> Option<&'a Extension> {
    described.extensions.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, of)| of)
}

/// True if one of its settings is neither its default nor off: the extension may then act without being named.
fn has_something_set(of: &Extension, plain: &Extension) -> bool {
    let value = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
        "" | "0" | "off" | "no" | "false" | "none" => None,
        "1" | "on" | "yes" | "true" => Some("1".to_string()),
        _ => Some(text.trim().to_string()),
    };
    of.settings.iter().any(|(name, now)| {
        let now = value(now);
        now.is_some() && now != plain.settings.get(name).and_then(|default| value(default))
    })
}

/// Names by which a page would use an extension. For one that defines nothing itself, the names of what it extends: a
/// driver is used through PDO. `None` if there are no names and it is not a library of others: it acts by itself.
fn named_by<'a>(name: &str, of: &'a Extension, all: &'a ScriptReport) -> Option<Vec<&'a str>> {
    let defines = |of: &Extension| of.defined.iter().any(|defined| !of.settings.contains_key(defined));
    let mut names: Vec<&str> = of.defined.iter().map(String::as_str).collect();
    if defines(of) {
        return Some(names);
    }
    let needs = of.needs.iter().filter_map(|need| extension(all, need)).filter(|of| defines(of));
    let adds_to: Vec<&Extension> = needs.collect();
    names.extend(adds_to.iter().flat_map(|of| &of.defined).map(String::as_str));
    let needed = all.extensions.values().any(|other| other.needs.iter().any(|need| need.eq_ignore_ascii_case(name)));
    (needed || !adds_to.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(defined: &[&str], needs: &[&str], settings: &[(&str, &str)]) -> Extension {
        let all = |texts: &[&str]| texts.iter().map(|t| (*t).to_string()).collect();
        let settings = settings.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string())).collect();
        Extension { defined: all(defined), needs: all(needs), settings }
    }

    #[test]
    fn a_setting_counts_where_it_is_neither_the_default_nor_off() {
        let plain = one(&[], &[], &[("a.on", "1"), ("a.off", "0"), ("a.path", "/run/x"), ("a.size", "8")]);
        for (name, value, counts) in [
            ("a.on", "On", false),
            ("a.on", "", false),
            ("a.off", "", false),
            ("a.off", "1", true),
            ("a.path", "", false),
            ("a.path", "/run/y", true),
            ("a.size", "9", true),
            ("a.new", "x", true),
        ] {
            assert_eq!(has_something_set(&one(&[], &[], &[(name, value)]), &plain), counts, "{name} = {value}");
        }
    }

    #[test]
    fn what_defines_nothing_acts_by_itself_or_is_used_through_others() {
        let all: Vec<(&str, Extension)> = vec![
            ("agent", one(&["agent.name"], &[], &[("agent.name", "")])),
            ("mysqlnd", one(&[], &[], &[])),
            ("mysqli", one(&["mysqli_connect"], &["mysqlnd"], &[])),
            ("PDO", one(&["PDO", "pdo_drivers"], &[], &[])),
            ("pdo_mysql", one(&["pdo_mysql.default_socket"], &["pdo", "MySQLnd"], &[("pdo_mysql.default_socket", "")])),
        ];
        let extensions = all.iter().map(|(n, e)| ((*n).to_string(), e.clone())).collect();
        let described = ScriptReport { extensions, ..ScriptReport::default() };
        let of = |name: &str| named_by(name, extension(&described, name).expect("there"), &described);
        assert_eq!((of("agent"), of("mysqlnd")), (None, Some(vec![])));
        assert_eq!(of("mysqli"), Some(vec!["mysqli_connect"]));
        assert_eq!(of("pdo_mysql"), Some(vec!["pdo_mysql.default_socket", "PDO", "pdo_drivers"]));
    }
}
