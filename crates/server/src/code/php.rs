//! Excimer, for PHP-FPM and mod_php.
//!
//! A script of lastdrop's goes before each page (`auto_prepend_file`); it includes the file that was there. Excimer
//! interrupts the page every millisecond at random offsets. Each sample has the time of the chosen clock since the last
//! one: half of it is given to the stack before, half to the stack now. What is more than a millisecond is a wait or a
//! long internal function, and is given to the stack now, which is the first after it.
//!
//! Excimer's own CPU clock is not used. The kernel looks at it at its ticks only (4 ms), and on a busy machine a request
//! begins at a tick: of functions with 60, 25 and 15 % of 5.5 ms it then saw 45, 35 and 20 %.

use std::path::Path;

use super::{Clock, Language, Recording, read_lossy};
use crate::ServerError;
use crate::execution::Reader;

/// The setting that names the script before each page.
pub const PREPENDED: &str = "auto_prepend_file";
/// The modules of Apache that execute it.
pub const MODULES: [&str; 2] = ["php_module", "php7_module"];
/// The instance's file of settings, read after all others.
pub const INI: &str = "lastdrop.ini";

/// The lines of that file.
pub fn ini(recording: &Recording) -> String {
    // Where it is loaded already, this is a warning in the instance's log.
    format!("extension = excimer.so\n{PREPENDED} = \"{}\"\ndisplay_startup_errors = 0\n", recording.script.display())
}

/// The file in which the script says that Excimer is not there.
const MISSING: &str = "missing";

/// The script before each page. `original`: the file that was before each page, empty for none; if it is not known, the
/// script looks for it in the ini files.
pub fn prepended(recording: &Recording, clock: Clock, original: Option<&str>) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let path = |path: &Path| quoted(&path.display().to_string());
    let clock = match clock {
        Clock::Cpu => {
            "$u = getrusage();\n        return ($u['ru_utime.tv_sec'] + $u['ru_stime.tv_sec']) * 1e6 + $u['ru_utime.tv_usec'] + $u['ru_stime.tv_usec'];"
        }
        Clock::Wall => "return hrtime(true) / 1e3;",
    };
    let original = match original {
        Some(file) => format!("$lastdrop_original = {};", quoted(file)),
        None => format!("{LOOK}$lastdrop_original = lastdrop_original({});", path(&recording.folder)),
    };
    SCRIPT
        .replace("{folder}", &path(&recording.folder))
        .replace("{go}", &path(&recording.go))
        .replace("{missing}", MISSING)
        .replace("{clock}", clock)
        .replace("{original}", &original)
}

/// Finds the file that was before each page, and remembers it.
const LOOK: &str = r#"function lastdrop_original($folder)
{
    $remembered = @file_get_contents($folder . '/original');
    if ($remembered !== false) {
        return $remembered;
    }
    $found = '';
    $files = array_map('trim', explode(',', (string) php_ini_scanned_files()));
    foreach (array_filter(array_merge([(string) php_ini_loaded_file()], $files)) as $file) {
        $all = basename($file) === 'lastdrop.ini' ? [] : (@parse_ini_file($file, false, INI_SCANNER_RAW) ?: []);
        $found = $all['auto_prepend_file'] ?? $found;
    }
    @file_put_contents($folder . '/original', trim($found, "'\""));
    return trim($found, "'\"");
}
"#;

const SCRIPT: &str = r"<?php
if (!class_exists('ExcimerProfiler', false)) {
    @file_put_contents({folder} . '/{missing}', '');
} elseif (file_exists({go})) {
    (static function () {
        $clock = static function () {
            {clock}
        };
        $period = 1000;
        $seen = [];
        $profiler = new ExcimerProfiler();
        $profiler->setEventType(EXCIMER_REAL);
        $profiler->setPeriod($period / 1e6);
        $profiler->setFlushCallback(static function ($log) use (&$seen, $clock) {
            $seen[] = [$clock(), $log];
        }, 1);
        $name = static function ($frame) {
            static $known = [];
            $file = $frame['file'] ?? '';
            $function = $frame['function'] ?? null;
            $class = $frame['class'] ?? null;
            $line = $frame['closure_line'] ?? 0;
            $key = $class . '::' . $function . '|' . $file . '|' . $line;
            if (!isset($known[$key])) {
                try {
                    if ($line) {
                        $shown = '{closure}';
                    } elseif ($function === null) {
                        $shown = basename($file);
                    } else {
                        $shown = $class === null ? $function : $class . '::' . $function;
                        $of = $class === null ? new ReflectionFunction($function) : new ReflectionMethod($class, $function);
                        $line = (int) $of->getStartLine();
                    }
                } catch (Throwable $e) {
                }
                $known[$key] = strtr($shown, ';|', '__') . '|' . strtr($file, ';|', '__') . '|' . $line;
                $known[$key] = preg_replace('/[\\t\\r\\n]/', '_', $known[$key]);
            }
            return $known[$key];
        };
        $end = static function () use (&$seen, $profiler, $name, $period, &$then) {
            $profiler->stop();
            $profiler->clearFlushCallback();
            $all = [];
            $before = null;
            foreach ($seen as [$now, $log]) {
                $frames = [];
                foreach ($log as $entry) {
                    foreach ($entry->getTrace() as $frame) {
                        if (($frame['file'] ?? '') !== __FILE__) {
                            $frames[] = $name($frame);
                        }
                    }
                    break;
                }
                $stack = implode(';', array_reverse($frames));
                $passed = $now - $then;
                if ($before === null) {
                    $all[$stack] = max($passed, $period) - $period / 2;
                } else {
                    $half = min($passed, $period) / 2;
                    $all[$before] += $half;
                    $all[$stack] = ($all[$stack] ?? 0) + $passed - $half;
                }
                [$before, $then] = [$stack, $now];
            }
            if ($before !== null) {
                $all[$before] += $period / 2;
            }
            unset($all['']);
            $text = sprintf('n%ssamples%s%d%s', chr(9), chr(9), count($seen), chr(10));
            foreach ($all as $stack => $us) {
                $text .= sprintf('s%s%s%s%d%s', chr(9), $stack, chr(9), round($us), chr(10));
            }
            file_put_contents({folder} . '/stacks', $text, FILE_APPEND | LOCK_EX);
        };
        // Registered while the page's own shutdown functions are called, it is called after them.
        register_shutdown_function(static function () use ($end) {
            register_shutdown_function($end);
        });
        $then = $clock();
        $profiler->start();
    })();
}
{original}
if ($lastdrop_original !== '') {
    require $lastdrop_original;
}
unset($lastdrop_original);
";

/// Checks, after the first answer, that the profiler is installed.
///
/// # Errors
/// If it is not.
pub fn check_installed(recording: &Recording) -> Result<(), ServerError> {
    let _reader = Reader::of(&recording.user);
    if recording.folder.join(MISSING).exists() {
        return Err(ServerError::Setting(Language::Php.missing()));
    }
    Ok(())
}

/// Reads what workers have recorded, with the rights of their user.
///
/// # Errors
/// If there is nothing, or it cannot be read.
pub fn read(recording: &Recording) -> Result<String, ServerError> {
    let file = recording.folder.join("stacks");
    let _reader = Reader::of(&recording.user);
    if !file.exists() {
        let why = "its workers have recorded nothing: the application sets auto_prepend_file for its folder (.user.ini, .htaccess), \
                   or the URL is answered without PHP";
        return Err(ServerError::Setting(why.into()));
    }
    read_lossy(&file)
}
