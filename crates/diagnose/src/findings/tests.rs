use lastdrop_model::examination::{
    ExaminationStep, ExaminedServer, GeneratorMeasurements, ModuleSize, ModuleTrial, StepKind,
};

use super::*;

#[test]
fn every_rule_is_explained_and_what_is_explained_has_a_rule() {
    let ruled: std::collections::BTreeSet<&str> =
        [LIMITS, WASTES, RISKS].iter().flat_map(|t| t.iter()).flat_map(|t| t.iter()).map(|r| r.id).collect();
    let told: std::collections::BTreeSet<&str> = finding_kinds().iter().map(|a| a.id).collect();
    assert_eq!(ruled, told);
}

/// Two full processors, of which the server uses a tenth: the verdict depends on what else fills them.
#[test]
fn what_other_machines_give_to_the_load_is_taken_from_none_of_the_servers() {
    let full = |generator: GeneratorMeasurements| {
        let seen = ServerMeasurements { server: "nginx".into(), cpu_cores: Some(0.2), ..ServerMeasurements::default() };
        let step =
            ExaminationStep { cores: vec![1.0; 2], servers: vec![seen], generator, ..ExaminationStep::default() };
        let all =
            Examination { steps: vec![ExaminationStep { kind: StepKind::Main, ..step }], ..Examination::default() };
        LoadEvidence::of(&all).is_some_and(|case| case.cpu_full())
    };
    let cores = 1.8;
    assert!(full(GeneratorMeasurements { cores, ..GeneratorMeasurements::default() }));
    assert!(full(GeneratorMeasurements { cores, cores_here: Some(1.8), ..GeneratorMeasurements::default() }));
    assert!(!full(GeneratorMeasurements { cores, cores_here: Some(0.0), ..GeneratorMeasurements::default() }));
}

/// An examination of an Apache before a PHP-FPM, with this many unused modules and extensions.
fn with_unused(machine: &str, modules: usize, extensions: usize) -> Examination {
    let tried = |count: usize| {
        let one = |n| ModuleSize { name: format!("m{n}"), bytes: Some(4096), line: Some(format!("/etc/{n}.ini:1")) };
        let (unused, needed) = ((0..count).map(one).collect(), vec!["ctype".to_string()]);
        Some(ModuleTrial {
            unused,
            needed,
            worker_bytes: Some(8192),
            worker_bytes_without: Some(4096),
            ..ModuleTrial::default()
        })
    };
    let server = |kind: &str, count: usize| ExaminedServer {
        server: format!("{machine}{kind}"),
        kind: kind.into(),
        modules: tried(count),
        ..ExaminedServer::default()
    };
    let servers = vec![server("apache", modules), server("php-fpm", extensions)];
    let seen = servers
        .iter()
        .map(|s| ServerMeasurements { server: s.server.clone(), ..ServerMeasurements::default() })
        .collect();
    let step = ExaminationStep { kind: StepKind::Main, servers: seen, ..ExaminationStep::default() };
    Examination { machine: machine.trim_end_matches('/').into(), servers, steps: vec![step], ..Examination::default() }
}

#[test]
fn modules_of_apache_and_extensions_of_php_are_told_of_each_server() {
    let of = |all: &Examination| -> Vec<Finding> {
        diagnose(all).findings.into_iter().filter(|f| f.id == "unused-modules").collect()
    };
    let both = of(&with_unused("", 3, 4));
    let servers: Vec<&str> = both.iter().map(|f| f.server.as_str()).collect();
    assert_eq!(servers, ["apache", "php-fpm"]);
    assert!(both[0].advice.contains("a2dismod") && !both[0].advice.contains("phpdismod"), "{both:#?}");
    let php = &both[1];
    assert!(
        php.title.starts_with("4 extensions of PHP") && php.advice.contains("phpdismod -s fpm m0 m1 m2 m3"),
        "{php:#?}"
    );
    assert!(
        php.advice.contains("3.ini:1 in /etc") && php.against.iter().any(|a| a.contains("ctype would be named")),
        "{php:#?}"
    );
    assert!(php.evidence.iter().any(|e| e.value == "8, 4"), "{php:#?}");
    assert!(of(&with_unused("", 2, 2)).is_empty(), "not worth a word");
    // With several machines, Apache's modules are not mistaken for PHP's extensions.
    let nodes = vec![with_unused("a/", 3, 4), with_unused("b/", 0, 5)];
    let site = Examination { nodes, ..Examination::default() };
    let told: Vec<String> = of(&site).into_iter().map(|f| f.title).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("modules") && told[0].ends_with("(a/apache)"), "{told:?}");
    assert!(told[1].contains("extensions") && told[1].ends_with("(a/php-fpm, b/php-fpm)"), "{told:?}");
}
