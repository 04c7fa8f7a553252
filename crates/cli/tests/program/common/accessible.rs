//! Checks the accessibility of a page: by our own rules, and by axe-core's if `./x test` could get it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::browser::Browser;

const RULES: &str = include_str!("accessible.js");
/// Widths of a telephone, a laptop and a large screen.
const WIDTHS: [u32; 3] = [400, 1280, 2560];
/// Time after which a page has adapted to a new width, on any machine.
const SETTLING: Duration = Duration::from_secs(20);

/// The faults of the current page.
pub fn faults(browser: &Browser) -> Vec<String> {
    texts(&browser.run(RULES))
}

/// The serious faults that axe-core finds; none without axe-core (`LASTDROP_AXE` is its file).
fn found_by_axe(browser: &Browser) -> Vec<String> {
    let Some(file) = std::env::var_os("LASTDROP_AXE") else { return Vec::new() };
    let axe = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    // Run it as a script of WebDriver: the page's policy forbids all others.
    let found = "return axe.run({resultTypes: ['violations']}).then((result) => result.violations
        .filter((v) => ['serious', 'critical'].includes(v.impact))
        .map((v) => 'axe: ' + v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 120)).slice(0, 3).join(' | ')))";
    texts(&browser.run(&format!("{axe};\n{found}")))
}

fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    all.iter().map(|t| t.as_str().unwrap_or_default().to_string()).collect()
}

/// Asserts that the current page is accessible, on screens of all widths, light and dark.
pub fn assert_accessible(browser: &Browser, what: &str) {
    for scheme in ["light", "dark"] {
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.devtools("Emulation.setEmulatedMedia", &feature);
        for width in WIDTHS {
            let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
            browser.devtools("Emulation.setDeviceMetricsOverride", &size);
            // Plots adapt after the browser has sent its resize event.
            let (began, mut found) = (Instant::now(), faults(browser));
            while !found.is_empty() && began.elapsed() < SETTLING {
                thread::sleep(Duration::from_millis(100));
                found = faults(browser);
            }
            assert!(found.is_empty(), "{what}, {scheme}, {width} pixels: {found:#?}");
        }
        let found = found_by_axe(browser);
        assert!(found.is_empty(), "{what}, {scheme}: {found:#?}");
    }
    browser.devtools("Emulation.clearDeviceMetricsOverride", &json!({}));
}
