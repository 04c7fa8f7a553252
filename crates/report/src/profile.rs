//! Where a server's CPU goes: text and a flame graph.

use std::fmt::Write as _;

use lastdrop_model::documents::ProfileDocument;
use lastdrop_model::printable::{line, xml};

use crate::profile_memory::memory_text;
use crate::table::aligned;

const MOST_ROWS: usize = 25;

/// The report of `profile`.
#[must_use]
pub fn profile_text(d: &ProfileDocument) -> String {
    if let Some(memory) = &d.memory {
        return memory_text(d, memory);
    }
    if d.language.is_some() {
        return code_text(d);
    }
    let mut out = format!("{}   {:.1} s, {} samples by {}\n", line(&d.server), d.seconds, d.samples, d.how);
    let per_request = d.us_per_request.map_or(String::new(), |us| format!(", {us:.0} µs a request"));
    let requests = d.requests.map_or(String::new(), |n| format!("; {n} requests"));
    let _ = writeln!(out, "{:.2} s of CPU{per_request}{requests}\n", d.cpu_s);
    let us = |us: Option<f64>| us.map_or("-".to_string(), |us| format!("{us:.1}"));
    if !d.functions.is_empty() {
        let rows: Vec<Vec<String>> = d
            .functions
            .iter()
            .filter(|f| f.self_share > 0.0)
            .take(MOST_ROWS)
            .map(|f| {
                vec![
                    format!("{:.1}", f.self_share * 100.0),
                    format!("{:.1}", f.total_share * 100.0),
                    us(f.us_per_request),
                    f.function.clone(),
                    f.library.clone(),
                ]
            })
            .collect();
        out.push_str(&aligned(&["self %", "with callees %", "µs a request", "function", "in"], &rows));
        out.push('\n');
    }
    let title = if d.functions.is_empty() { "where its processes were" } else { "program or library" };
    let rows: Vec<Vec<String>> = d
        .libraries
        .iter()
        .take(MOST_ROWS)
        .map(|l| vec![format!("{:.1}", l.share * 100.0), us(l.us_per_request), l.name.clone()])
        .collect();
    out.push_str(&aligned(&["%", "µs a request", title], &rows));
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

/// The report about functions of a language: a table as dprofpp's, and who calls whom.
fn code_text(d: &ProfileDocument) -> String {
    let language = d.language.as_deref().unwrap_or_default();
    let counted = d.counted();
    let mut out =
        format!("{}   {language}, {:.1} s, {} {counted} by {}\n", line(&d.server), d.seconds, d.samples, d.how);
    let requests = d.requests.map_or(String::new(), |n| format!("{n} requests"));
    let per_request =
        d.us_per_request.map_or(String::new(), |us| format!(", {us:.0} µs of CPU a request without the profiler"));
    let overhead = d.overhead.map_or(String::new(), |share| format!("; it added {:.0} %", share * 100.0));
    let _ = writeln!(out, "{requests}{per_request}{overhead}");
    if let Some((f, code)) = d.functions.iter().find_map(|f| Some((f, f.code.as_ref()?))) {
        let _ = writeln!(
            out,
            "Look at {} first ({}): {:.0} % of the time in {language} is its own\n",
            line(&code.name),
            line(if f.library.is_empty() { "not written in this language" } else { &f.library }),
            code.exclusive_share * 100.0
        );
    }
    let all = d.functions_s.unwrap_or(0.0);
    let has_calls = counted == "calls";
    let rows: Vec<Vec<String>> = d
        .functions
        .iter()
        .filter_map(|f| Some((f, f.code.as_ref()?)))
        .filter(|(_, code)| code.exclusive_share > 0.0)
        .take(MOST_ROWS)
        .map(|(f, code)| {
            let mut row = vec![
                format!("{:.1}", code.exclusive_share * 100.0),
                format!("{:.3}", code.exclusive_share * all),
                format!("{:.3}", code.cumulative_share * all),
            ];
            if has_calls {
                let calls = code.calls.unwrap_or(0);
                row.push(calls.to_string());
                row.push(format!("{:.1}", code.exclusive_share * all * 1e6 / calls.max(1) as f64));
            }
            row.extend([
                f.us_per_request.map_or("–".to_string(), |us| format!("{us:.1}")),
                code.name.clone(),
                f.library.clone(),
            ]);
            row
        })
        .collect();
    let mut heading = vec!["%", "exclusive s", "cumulative s"];
    if has_calls {
        heading.extend(["calls", "µs a call"]);
    }
    heading.extend(["µs a request", "function", "file:line"]);
    out.push_str(&aligned(&heading, &rows));
    out.push_str("\nwho calls whom (% of the time, with callees)\n");
    let mut root = Node::default();
    for (stack, weight) in &d.stacks {
        root.add(stack, *weight);
    }
    let mut left = MOST_CALLERS;
    tree(&mut out, &root, 1, root.samples as f64, &mut left);
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

/// Lines of the tree of calls, its depth, and the smallest share in it.
const MOST_CALLERS: usize = 40;
const DEEPEST: usize = 24;
const SMALLEST: f64 = 0.02;

fn tree(out: &mut String, node: &Node, depth: usize, all: f64, left: &mut usize) {
    let mut children: Vec<&(String, Node)> = node.children.iter().collect();
    children.sort_by(|a, b| b.1.samples.cmp(&a.1.samples).then_with(|| a.0.cmp(&b.0)));
    for (name, child) in children {
        let share = child.samples as f64 / all.max(1.0);
        if share < SMALLEST || *left == 0 || depth > DEEPEST {
            continue;
        }
        *left -= 1;
        let _ = writeln!(out, "{:>6.1}  {}{}", share * 100.0, "  ".repeat(depth - 1), line(name));
        tree(out, child, depth + 1, all, left);
    }
}

/// A node of the tree of calls.
#[derive(Default)]
struct Node {
    samples: u64,
    children: Vec<(String, Node)>,
}

impl Node {
    fn add(&mut self, stack: &[String], samples: u64) {
        self.samples += samples;
        if let Some((first, rest)) = stack.split_first() {
            let at = self.children.iter().position(|(name, _)| name == first).unwrap_or_else(|| {
                self.children.push((first.clone(), Node::default()));
                self.children.len() - 1
            });
            self.children[at].1.add(rest, samples);
        }
    }

    fn depth(&self) -> usize {
        1 + self.children.iter().map(|(_, n)| n.depth()).max().unwrap_or(0)
    }
}

const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
/// Narrower boxes are not visible.
const NARROWEST: f64 = 0.3;
const LETTER: f64 = 7.0;

/// Renders a flame graph (Gregg, "The Flame Graph", CACM 59(6), 2016) as one SVG file. Each function is a box
/// above its caller, as wide as its share of the samples; hovering shows its numbers. In `stacks`, the
/// outermost caller comes first. `unit` is that of their numbers: samples, or µs.
#[must_use]
pub fn flame_graph(title: &str, stacks: &[(Vec<String>, u64)], unit: &str) -> String {
    let mut root = Node::default();
    for (stack, samples) in stacks {
        root.add(stack, *samples);
    }
    let height = (root.depth() as f64 + 2.0) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf5\"/>\n<text x=\"6\" y=\"13\" font-size=\"13\">{}</text>\n",
        xml(title)
    );
    let total = root.samples.max(1) as f64;
    draw(&mut out, ("all", &root), (0.0, height - ROW), total, unit);
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, (name, node): (&str, &Node), (x, y): (f64, f64), total: f64, unit: &str) {
    let width = node.samples as f64 / total * WIDTH;
    if width < NARROWEST {
        return;
    }
    // The colour depends on the name only, so a function looks the same in every graph.
    let hue = name.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into())) % 50;
    let share = node.samples as f64 / total * 100.0;
    // Make the label visible, cut it, then escape it: cutting an escaped label could leave half an entity.
    let label: String = line(name).chars().take((width / LETTER) as usize).collect();
    let _ = writeln!(
        out,
        "<g><title>{} ({} {unit}, {share:.2} %)</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{}\" \
         fill=\"hsl({hue},85%,62%)\" stroke=\"#fffdf5\"/>{}</g>",
        xml(name),
        node.samples,
        ROW - 1.0,
        if label.chars().count() > 2 {
            format!("<text x=\"{:.1}\" y=\"{:.1}\">{}</text>", x + 2.0, y + 12.0, xml(&label))
        } else {
            String::new()
        }
    );
    let mut children: Vec<&(String, Node)> = node.children.iter().collect();
    children.sort_by(|a, b| a.0.cmp(&b.0));
    let mut at = x;
    for (name, child) in children {
        draw(out, (name, child), (at, y - ROW), total, unit);
        at += child.samples as f64 / total * WIDTH;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flame_graph_has_boxes_as_wide_as_their_share() {
        let stack = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let svg = flame_graph("a & b", &[(stack(&["main", "f<int>"]), 3), (stack(&["main", "g"]), 1)], "samples");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &amp; b") && svg.contains("f&lt;int&gt; (3 samples, 75.00 %)"), "{svg}");
        assert!(svg.contains("width=\"900.0\"") && svg.contains("width=\"300.0\""), "{svg}");
        assert!(flame_graph("", &[], "µs").contains("<svg"));
    }

    #[test]
    fn functions_of_a_language_are_a_table_and_a_tree() {
        use lastdrop_model::documents::{CodeFunction, ProfileFunction};
        let function = |name: &str, own: f64, total: f64, calls: u64| ProfileFunction {
            function: name.into(),
            library: format!("/srv/{name}.pm:7"),
            self_share: own,
            us_per_request: Some(own * 500.0),
            total_share: total,
            code: Some(CodeFunction {
                name: name.into(),
                file: format!("/srv/{name}.pm"),
                line: 7,
                exclusive_share: own,
                cumulative_share: total,
                calls: Some(calls),
            }),
        };
        let stack = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let document = ProfileDocument {
            server: "apache".into(),
            how: "Devel::NYTProf (CPU time)".into(),
            language: Some("perl".into()),
            samples: 300,
            requests: Some(100),
            us_per_request: Some(500.0),
            overhead: Some(0.07),
            functions_s: Some(2.0),
            functions: vec![function("Shop::price", 0.75, 0.75, 200), function("Shop::page", 0.25, 1.0, 100)],
            stacks: vec![(stack(&["Shop::page", "Shop::price"]), 1_500_000), (stack(&["Shop::page"]), 500_000)],
            ..ProfileDocument::default()
        };
        let text = profile_text(&document);
        for part in [
            "100 requests, 500 µs of CPU a request without the profiler; it added 7 %",
            "Look at Shop::price first (/srv/Shop::price.pm:7): 75 % of the time in perl is its own",
            " 100.0  Shop::page\n  75.0    Shop::price\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let row = text.lines().find(|l| l.ends_with("/srv/Shop::price.pm:7")).expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..6], ["75.0", "1.500", "1.500", "200", "7500.0", "375.0"], "{text}");
    }

    #[test]
    fn whatever_a_symbol_is_called_the_graph_is_well_formed() {
        // All characters that XML forbids, and those that would be markup.
        let evil: String =
            (0..=0x1f).chain(0x7f..=0x9f).chain([0x202e, 0xfffe, 0xffff]).filter_map(char::from_u32).collect();
        let names = [evil.as_str(), "\x1b]0;x\x07", "<script>&\"'", "]]>", "a\nb"].map(String::from);
        let stacks: Vec<(Vec<String>, u64)> = names.iter().map(|n| (vec![n.clone(), "f".into()], 10)).collect();
        let svg = flame_graph(&evil, &stacks, "samples");
        assert!(svg.chars().all(|c| matches!(c, '\n' | ' '..='~')), "{svg:?}");
        let markup = svg.replace("</svg>", "").replace("<svg ", "");
        assert!(
            !markup.contains("<script") && svg.contains("&lt;script&gt;") && svg.contains("\\x1b]0;x\\x07"),
            "{svg}"
        );
    }
}
