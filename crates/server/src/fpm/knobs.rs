//! The knobs of pools: a single pool's by their own names, those of several as POOL.NAME. Defaults: `fpm_conf.c` of
//! 8.2.

use lastdrop_model::settings::KnobValues;
use lastdrop_model::{Knob, ReloadClass, Role};

use crate::intern;

pub const PM: &str = "pm";
pub const CHILDREN: &str = "pm.max_children";
pub const START: &str = "pm.start_servers";
pub const SPARE_MIN: &str = "pm.min_spare_servers";
pub const SPARE_MAX: &str = "pm.max_spare_servers";
pub const RECYCLE: &str = "pm.max_requests";
pub const IDLE: &str = "pm.process_idle_timeout";
pub const BACKLOG: &str = "listen.backlog";

const COUNT: KnobValues = KnobValues::Count(1, 100_000);
const DYNAMIC: &str = "at least 1, at most pm.max_children";

/// A PHP switch, which a pool sets by `php_admin_value`.
pub const SWITCH: KnobValues = KnobValues::Switch { on: "on", off: "off" };

/// All knobs of a pool; those of opcache come last.
pub static KNOBS: &[Knob] = &[
    Knob::by_reload(
        PM,
        KnobValues::Choice(&["static", "dynamic", "ondemand"]),
        "static",
        "dynamic needs spare servers that fit pm.max_children",
        "static keeps pm.max_children workers, dynamic some spare ones, ondemand starts each when it is asked for",
    ),
    Knob::by_reload(
        CHILDREN,
        COUNT,
        "1",
        "at least pm.max_spare_servers where pm is dynamic",
        "how many requests are served at once; more wait in the listen queue",
    )
    .with_role(Role::PoolSize)
    .worth_trying_for(&["fpm-children-exhausted", "memory-overcommit"]),
    Knob::by_reload(START, COUNT, "1", "from pm.min_spare_servers to pm.max_spare_servers", "workers at the start")
        .with_role(Role::PoolStart)
        .only_with(PM, &["dynamic"])
        .worth_trying_for(&["spawn-ramp"]),
    Knob::by_reload(
        SPARE_MIN,
        COUNT,
        "1",
        DYNAMIC,
        "idle workers that are kept for a burst; with 1 a pool grows by one worker a second",
    )
    .with_role(Role::SpareMin)
    .only_with(PM, &["dynamic"])
    .worth_trying_for(&["spawn-ramp", "process-churn"]),
    Knob::by_reload(SPARE_MAX, COUNT, "1", DYNAMIC, "idle workers beyond this are ended")
        .with_role(Role::SpareMax)
        .only_with(PM, &["dynamic"])
        .worth_trying_for(&["process-churn"]),
    Knob::by_reload(
        RECYCLE,
        KnobValues::Count(0, 1_000_000_000),
        "0",
        "0 is never",
        "a worker that has served so many leaves and another is forked: bounds what leaks, costs a start",
    )
    .with_role(Role::Recycle)
    .worth_trying_for(&["memory-leak", "process-churn"]),
    Knob::by_reload(
        IDLE,
        KnobValues::Count(1, 86_400),
        "10",
        "seconds",
        "a worker that has been idle for so long is ended",
    )
    .only_with(PM, &["ondemand"])
    .worth_trying_for(&["process-churn"]),
    Knob::new(
        BACKLOG,
        KnobValues::Count(-1, 65_535),
        "-1",
        ReloadClass::Restart,
        "at most net.core.somaxconn, which -1 is; a listening socket survives a reload",
        "connections that wait for a worker; on a unix socket a further one fails at once",
    )
    .with_role(Role::Backlog)
    .worth_trying_for(&["accept-queue-overflow", "upstream-backlog-overflow"]),
    Knob::by_reload("opcache.enable", SWITCH, "on", PHP_ONCE, "PHP keeps what it has compiled of each file")
        .worth_trying_for(&["opcode-cache-off"]),
    Knob::by_reload(
        "opcache.validate_timestamps",
        SWITCH,
        "on",
        "php_admin_value; off: a new version of a file is seen after a reload",
        "each file is looked at again, to see whether it has changed",
    )
    .only_with("opcache.enable", &["on"])
    .worth_trying_for(&["htaccess-lookups", "cpu-saturated"])
    .only_by_name("a deployment would have to reload PHP-FPM to be seen"),
    Knob::by_reload(
        "opcache.revalidate_freq",
        KnobValues::Count(0, 86_400),
        "2",
        "seconds; 0 is at each request",
        "how long a file that was looked at is taken to be unchanged",
    )
    .only_with("opcache.validate_timestamps", &["on"])
    .worth_trying_for(&["cpu-saturated"])
    .usually(&[60, 10]),
];

const PHP_ONCE: &str = "php_admin_value; how much memory it may take is for php.ini alone";
const OPCACHE: usize = 3;

/// The knobs of some pools, for a PHP with or without opcache.
pub fn of(pools: &[String], has_opcache: bool) -> &'static [Knob] {
    let own = if has_opcache { KNOBS } else { &KNOBS[..KNOBS.len() - OPCACHE] };
    let [_, _, ..] = pools else { return own };
    let named = |pool: &String, knob: &Knob| Knob {
        name: intern::text(&full(pool, knob.name)),
        when: knob.when.map(|(other, values)| (intern::text(&full(pool, other)), values)),
        ..*knob
    };
    intern::table(pools.iter().flat_map(|pool| own.iter().map(move |knob| named(pool, knob))).collect())
}

/// Qualified name of a setting, if there are several pools.
pub fn full(pool: &str, name: &str) -> String {
    format!("{pool}.{name}")
}

/// True if it is a setting of PHP and not of the pool.
pub fn is_of_php(name: &str) -> bool {
    KNOBS[KNOBS.len() - OPCACHE..].iter().any(|k| k.name == name)
}
