use lastdrop_model::examination::{
    AnswerSharing, ClassMeasurements, ExaminationStep, ExaminedAnswer, ExaminedServer, GeneratorMeasurements, Gzipped,
    LatencySummary, LoadShape, ModuleSize, ModuleTrial, ServerProfile, StepKind,
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

/// An examination of a chain of these kinds with these answers, and processors that are idle.
fn with_answers(kinds: &[&str], answers: Vec<ExaminedAnswer>) -> Examination {
    let server = |kind: &&str| ExaminedServer {
        server: (*kind).into(),
        kind: (*kind).into(),
        named: (*kind).into(),
        ..ExaminedServer::default()
    };
    let seen = |kind: &&str| ServerMeasurements { server: (*kind).into(), ..ServerMeasurements::default() };
    let service = LatencySummary { count: 100, mean: 2_000.0, ..LatencySummary::default() };
    let step = |kind| ExaminationStep {
        kind,
        answered: 100,
        answered_rps: 10.0,
        service,
        response: service,
        cores: vec![0.1; 2],
        servers: kinds.iter().map(seen).collect(),
        ..ExaminationStep::default()
    };
    Examination {
        servers: kinds.iter().map(server).collect(),
        steps: vec![step(StepKind::Alone), step(StepKind::Main)],
        answers,
        ..Examination::default()
    }
}

fn answer(media_type: &str, bytes: u64, gzipped: u64) -> ExaminedAnswer {
    let at = |level| Gzipped { level, bytes: gzipped, cpu_us: 2_000.0 };
    ExaminedAnswer {
        url: format!("http://127.0.0.1/{}", media_type.replace('/', ".")),
        share: 1.0,
        status: 200,
        media_type: media_type.into(),
        bytes,
        gzipped: vec![at(1), at(6)],
        ..ExaminedAnswer::default()
    }
}

fn named<'a>(document: &'a DoctorDocument, id: &str) -> Option<&'a Finding> {
    document.findings.iter().find(|f| f.id == id)
}

#[test]
fn text_without_a_coding_is_told_with_what_it_would_save_and_who_can_compress() {
    let page = || vec![answer("text/html", 500_000, 100_000), answer("text/css", 100_000, 20_000)];
    for (kinds, who, cure) in [
        (&["nginx", "php-fpm"][..], "nginx", "gzip_types text/css"),
        (&["apache"], "apache", "AddOutputFilterByType DEFLATE text/css text/html"),
        (&["haproxy", "nginx"], "haproxy", "compression type text/css text/html"),
        (&["gunicorn"], "gunicorn", "a front that can"),
    ] {
        let said = diagnose(&with_answers(kinds, page()));
        let found = named(&said, "uncompressed-text").unwrap_or_else(|| panic!("{kinds:?}: {said:?}"));
        assert_eq!((found.server.as_str(), found.severity), (who, Severity::Waste));
        assert!(found.advice.contains(cure), "{found:#?}");
        assert_eq!(found.check.contains("compare --live"), who != "gunicorn", "{found:#?}");
        // 480 kB take 960 ms at 4 Mbit/s and 77 ms at 50, compressing takes 4 of them.
        let value = |name: &str| found.evidence.iter().find(|e| e.name.contains(name)).and_then(|e| e.value.as_f64());
        assert_eq!(
            (value("bytes saved"), value("at 4 Mbit/s"), value("at 50 Mbit/s")),
            (Some(480_000.0), Some(956.0), Some(72.8))
        );
        let expected = found.expect.as_ref().expect("a gain");
        assert!((3.8..4.1).contains(&expected.ratio), "{expected:?}");
        assert!(expected.interval.is_some_and(|[_, most]| (4.8..5.0).contains(&most)), "{expected:?}");
    }
}

#[test]
fn what_compression_would_not_help_is_no_uncompressed_text() {
    let plain = answer("text/html", 500_000, 100_000);
    let dear = Gzipped { level: 1, bytes: 100_000, cpu_us: 80_000.0 };
    for other in [
        ExaminedAnswer { coding: "br".into(), ..plain.clone() },
        ExaminedAnswer { no_transform: true, ..plain.clone() },
        ExaminedAnswer { status: 404, ..plain.clone() },
        ExaminedAnswer { gzipped: vec![dear], ..plain.clone() },
        ExaminedAnswer { gzipped: Vec::new(), ..plain },
        answer("image/png", 500_000, 100_000),
        answer("text/event-stream", 500_000, 100_000),
        answer("text/plain", 5_000, 1_000),
        answer("text/plain", 500_000, 400_000),
    ] {
        let said = diagnose(&with_answers(&["nginx"], vec![other.clone()]));
        assert!(said.findings.is_empty(), "{other:?}: {:?}", said.findings);
    }
}

#[test]
fn a_program_for_each_request_is_told_and_workers_that_are_replaced_or_a_pipe_of_a_log_are_not() {
    let with = |change: fn(&mut ExaminationStep), calls: &[(&str, f64)]| {
        let mut all = with_answers(&["apache"], Vec::new());
        all.steps.iter_mut().filter(|s| s.kind == StepKind::Main).for_each(|step| {
            (step.duration_s, step.started_tasks, step.servers[0].cpu_cores) = (10.0, Some(2), Some(0.1));
            change(step);
        });
        let calls: std::collections::BTreeMap<String, f64> = calls.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let objects = [("exec-program".to_string(), "/srv/page.cgi".to_string())].into();
        let inside =
            ServerProfile { server: "apache".into(), requests: 10.0, calls, objects, ..ServerProfile::default() };
        diagnose(&Examination { inside: vec![inside], ..all })
    };
    let traced = with(|_| {}, &[("exec", 1.0), ("exec-program", 1.0)]);
    assert!(named(&traced, "process-per-request").is_some_and(|f| f.title.contains("/srv/page.cgi")), "{traced:?}");
    // What cannot be traced shows by its children and the tasks that the machine starts.
    let untraced = with(
        |step| {
            step.started_tasks = Some(110);
            step.servers[0].ended_children_cores = 0.1;
            step.servers[0].programs.insert("page.cgi".into(), 0.5);
        },
        &[],
    );
    let found = named(&untraced, "process-per-request").unwrap_or_else(|| panic!("{untraced:?}"));
    let share = found.evidence.iter().find(|e| e.name.starts_with("share")).and_then(|e| e.value.as_f64());
    assert!(found.title.contains("page.cgi") && share == Some(0.5), "{found:#?}");
    let forked = with(|step| step.started_tasks = Some(110), &[("fork", 1.0)]);
    assert!(named(&forked, "process-per-request").is_none(), "{forked:?}");
    let mut piped = with_answers(&["apache"], Vec::new());
    for step in &mut piped.steps {
        step.servers[0].programs.insert("rotatelogs".into(), 1.0);
    }
    assert!(named(&diagnose(&piped), "process-per-request").is_none());
}

/// A page that was asked for as several users, all with the same bytes.
fn shared() -> ExaminedAnswer {
    let asked = ["again", "cookies", "language", "browser", "coding"];
    let same = asked.iter().map(|what| ((*what).to_string(), true)).collect();
    let sharing = AnswerSharing { same, took_us: 20_000.0, ..AnswerSharing::default() };
    ExaminedAnswer { sharing: Some(sharing), ..answer("text/html", 3_000, 1_000) }
}

/// An examination in which 10 users get 100 answers per second of 20 ms each, with idle processors.
fn slow_pages(kinds: &[&str], answers: Vec<ExaminedAnswer>) -> Examination {
    let mut all = with_answers(kinds, answers);
    for step in &mut all.steps {
        (step.users, step.answered, step.answered_rps, step.duration_s) = (10, 1_000, 100.0, 10.0);
        (step.service.mean, step.response.mean) = (20_000.0, 20_000.0);
        step.servers.iter_mut().for_each(|seen| seen.cpu_cores = Some(0.05));
    }
    all
}

#[test]
fn a_page_that_is_the_same_for_all_users_is_told_with_lines_for_the_front_that_could_keep_it() {
    let mut said = diagnose(&slow_pages(&["nginx", "gunicorn"], vec![shared()]));
    let found = named(&said, "cacheable-responses").unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!((found.server.as_str(), found.severity, found.fix.len()), ("nginx", Severity::Waste, 0));
    assert!(
        found.advice.contains("nothing is turned on") && found.advice.contains("proxy_cache_lock on"),
        "{found:#?}"
    );
    let value = |name: &str| found.evidence.iter().find(|e| e.name.contains(name)).and_then(|e| e.value.as_f64());
    // Of 100 requests in a second all but the one that fetches it, and so on.
    assert_eq!((value("of 1 s"), value("of 10 s")), (Some(0.99), Some(1.0)), "{found:#?}");
    assert!(found.expect.as_ref().is_some_and(|e| e.ratio > 10.0), "{found:#?}");
    // Several kinds of pages at once: those that may be shared, and what that is of all requests.
    let half = |answer: ExaminedAnswer, share| ExaminedAnswer { share, ..answer };
    let private = AnswerSharing { kept_from_caches: "Cache-Control: private".into(), ..AnswerSharing::default() };
    let other = ExaminedAnswer { url: "http://127.0.0.1/me".into(), sharing: Some(private), ..shared() };
    said = diagnose(&slow_pages(&["apache"], vec![half(shared(), 0.5), half(other, 0.5)]));
    let found = named(&said, "cacheable-responses").unwrap_or_else(|| panic!("{said:?}"));
    assert!(found.advice.contains("CacheLock on") && !found.advice.contains("/me"), "{found:#?}");
    assert!(found.expect.as_ref().is_some_and(|e| (1.8..2.1).contains(&e.ratio)), "{found:#?}");
}

#[test]
fn what_differs_by_user_or_says_that_it_is_for_one_or_is_a_file_is_not_told_as_cacheable() {
    type Change = fn(&mut ExaminedAnswer, &mut AnswerSharing);
    let differs = |what: &'static str| {
        let mut page = shared();
        page.sharing.as_mut().expect("asked").same.insert(what.into(), false);
        page
    };
    let changed = |change: Change| {
        let mut page = shared();
        let mut sharing = page.sharing.take().expect("asked");
        change(&mut page, &mut sharing);
        ExaminedAnswer { sharing: Some(sharing), ..page }
    };
    for page in [
        differs("again"),
        differs("cookies"),
        differs("language"),
        differs("type"),
        differs("browser"),
        differs("x-user"),
        differs("after the load"),
        changed(|_, s| s.known_share = 1.0),
        changed(|_, s| s.kept_from_caches = "Set-Cookie".into()),
        changed(|_, s| s.from_cache = true),
        changed(|_, s| s.known_users = true),
        changed(|_, s| s.same.retain(|what, _| what != "cookies")),
        changed(|page, _| page.file = true),
        changed(|page, _| page.status = 302),
        changed(|page, _| page.embedded = true),
        ExaminedAnswer { sharing: None, ..shared() },
    ] {
        let said = diagnose(&slow_pages(&["nginx", "gunicorn"], vec![page.clone()]));
        assert!(named(&said, "cacheable-responses").is_none(), "{page:?}: {said:?}");
    }
    // Half of the users have logged in: the others share a page, and the cache answers nobody else.
    let mut half = differs("cookies");
    half.sharing.as_mut().expect("asked").known_share = 0.5;
    let said = diagnose(&slow_pages(&["nginx", "gunicorn"], vec![half]));
    let found = named(&said, "cacheable-responses").unwrap_or_else(|| panic!("{said:?}"));
    assert!(found.title.ends_with("all users without a cookie"), "{found:#?}");
    assert!(found.expect.as_ref().is_some_and(|e| (1.8..2.1).contains(&e.ratio)), "{found:#?}");
    // A language that the answer tells caches about is part of the key.
    let mut told = differs("language");
    told.sharing.as_mut().expect("asked").vary = "accept-encoding, accept-language".into();
    let said = diagnose(&slow_pages(&["nginx"], vec![told]));
    assert!(named(&said, "cacheable-responses").is_some_and(|f| f.against[0].contains("Accept-Language")), "{said:?}");
    // At a rate that is borne, 20 ms are no reason, and 80 ms are one.
    for (took_us, told) in [(20_000.0, false), (80_000.0, true)] {
        let mut page = shared();
        page.sharing.as_mut().expect("asked").took_us = took_us;
        let mut borne = slow_pages(&["nginx", "gunicorn"], vec![page]);
        borne.load = LoadShape::Open;
        let said = diagnose(&borne);
        assert_eq!(named(&said, "cacheable-responses").is_some(), told, "{said:?}");
    }
    // What costs nothing needs no cache.
    let mut quick = shared();
    quick.sharing.as_mut().expect("asked").took_us = 1_000.0;
    let said = diagnose(&with_answers(&["nginx"], vec![quick]));
    assert!(named(&said, "cacheable-responses").is_none(), "{said:?}");
}

#[test]
fn lookups_of_names_and_debug_modes_are_told_where_they_are_on() {
    let with = |name: &str, value: &str, debug: &[&str]| {
        let debug = debug.iter().map(|sign| (*sign).to_string()).collect();
        let page = ExaminedAnswer { debug, ..answer("text/html", 900, 500) };
        let mut all = with_answers(&["apache", "php-fpm"], vec![page]);
        all.servers.iter_mut().for_each(|server| drop(server.directives.insert(name.into(), value.into())));
        diagnose(&all)
    };
    for (value, told) in [("On", true), ("Double", true), ("off", false)] {
        let said = with("HostnameLookups", value, &[]);
        let found = named(&said, "hostname-lookups");
        assert_eq!(found.is_some(), told, "{value}: {said:?}");
        assert!(found.is_none_or(|f| f.fix[0].to == "Off" && f.server == "apache"), "{said:?}");
    }
    for (mode, signs, told) in
        [("off", &[][..], false), ("", &[], false), ("develop", &[], true), ("off", &["Django, DEBUG = True"], true)]
    {
        let said = with("xdebug.mode", mode, signs);
        assert_eq!(named(&said, "debug-mode").is_some(), told, "{mode} {signs:?}: {said:?}");
    }
}

#[test]
fn files_from_heavy_workers_are_told_and_those_of_a_front_or_of_light_workers_are_not() {
    let page = |took_us| ExaminedAnswer { took_us, ..answer("text/html", 3_000, 1_000) };
    let picture =
        ExaminedAnswer { took_us: 4_000.0, file: true, embedded: true, ..answer("image/png", 900_000, 900_000) };
    let with = |kinds: &[&str], embeds: &str, megabytes: u64, page: ExaminedAnswer| {
        let mut all = with_answers(kinds, vec![page, picture.clone()]);
        all.servers[0].embeds = vec![embeds.to_string()];
        for seen in all.steps.iter_mut().flat_map(|step| &mut step.servers) {
            (seen.workers_most, seen.real_memory_bytes) = (10, Some(megabytes * 10_000_000));
        }
        diagnose(&all)
    };
    let said = with(&["apache"], "mod_perl", 100, page(4_000.0));
    let found = named(&said, "static-on-heavy-workers").unwrap_or_else(|| panic!("{said:?}"));
    assert!(found.title.contains("100 MB") && found.title.contains("image.png"), "{found:#?}");
    assert_eq!(found.expect.as_ref().map(|e| e.ratio), Some(2.0), "{found:#?}");
    for (kinds, embeds, megabytes, took_us) in [
        (&["nginx", "apache"][..], "mod_perl", 100, 4_000.0),
        (&["apache"], "other", 100, 4_000.0),
        (&["apache"], "mod_perl", 5, 4_000.0),
        (&["apache"], "mod_perl", 100, 400_000.0),
    ] {
        let said = with(kinds, embeds, megabytes, page(took_us));
        assert!(named(&said, "static-on-heavy-workers").is_none(), "{kinds:?} {embeds} {megabytes}: {said:?}");
    }
}

/// A pool of 8 PHP workers, all busy, before which requests queue; of each class its answers, and its time alone and now, ms.
fn full_pool(classes: &[(&str, u64, f64, f64)]) -> Examination {
    let mut all = slow_pages(&["nginx", "php-fpm"], Vec::new());
    all.servers[1].one_request_a_worker = true;
    for step in &mut all.steps {
        let is_main = step.kind == StepKind::Main;
        let time = |ms: f64| LatencySummary { count: 100, mean: ms * 1e3, p99: ms * 2e3, ..LatencySummary::default() };
        let class = |(name, answered, alone, now): &(&str, u64, f64, f64)| ClassMeasurements {
            name: (*name).into(),
            answered: *answered,
            response: time(if is_main { *now } else { *alone }),
            service: time(if is_main { *now } else { *alone }),
        };
        step.classes = classes.iter().map(class).collect();
        let seen = &mut step.servers[1];
        (seen.workers_first, seen.workers_last, seen.workers_most) = (8, 8, 8);
        (seen.threads, seen.readings, seen.queue_mean) = (8.0, 50, Some(12.0));
        seen.waits.insert("sleep".into(), 8.0);
    }
    all
}

#[test]
fn a_class_that_holds_the_workers_which_others_wait_for_is_told_and_equal_classes_or_a_common_lock_are_not() {
    let said = diagnose(&full_pool(&[("GET /fast", 900, 2.0, 150.0), ("GET /slow", 180, 400.0, 550.0)]));
    let found = named(&said, "class-starves-others").unwrap_or_else(|| panic!("{said:?}"));
    assert!(found.title.starts_with("GET /slow holds"), "{found:#?}");
    assert!(found.advice.contains("limit_conn class 6") && found.advice.contains("pm.max_children = 6"), "{found:#?}");
    assert!(found.expect.as_ref().is_some_and(|e| e.ratio == 75.0), "{found:#?}");
    for other in [
        // As slow as each other; others that wait for nothing; half of all requests; workers that the class does not hold.
        [("GET /a", 500, 80.0, 200.0), ("GET /b", 500, 80.0, 200.0)],
        [("GET /fast", 900, 2.0, 3.0), ("GET /slow", 180, 400.0, 401.0)],
        [("GET /fast", 200, 2.0, 150.0), ("GET /slow", 200, 400.0, 550.0)],
        [("GET /fast", 900, 2.0, 150.0), ("GET /slow", 18, 400.0, 550.0)],
    ] {
        let said = diagnose(&full_pool(&other));
        assert!(named(&said, "class-starves-others").is_none(), "{other:?}: {said:?}");
    }
}
