//! Where a server's CPU goes: text and a flame graph.

use std::fmt::Write as _;

use lastdrop_model::documents::ProfileDocument;
use lastdrop_model::printable::{line, xml};

use crate::table::aligned;

const MOST_ROWS: usize = 25;

/// The report of `profile`.
#[must_use]
pub fn profile_text(d: &ProfileDocument) -> String {
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
/// outermost caller comes first.
#[must_use]
pub fn flame_graph(title: &str, stacks: &[(Vec<String>, u64)]) -> String {
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
    draw(&mut out, "all", &root, 0.0, height - ROW, total);
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, name: &str, node: &Node, x: f64, y: f64, total: f64) {
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
        "<g><title>{} ({} samples, {share:.2} %)</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{}\" \
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
        draw(out, name, child, at, y - ROW, total);
        at += child.samples as f64 / total * WIDTH;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flame_graph_has_boxes_as_wide_as_their_share() {
        let stack = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let svg = flame_graph("a & b", &[(stack(&["main", "f<int>"]), 3), (stack(&["main", "g"]), 1)]);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &amp; b") && svg.contains("f&lt;int&gt; (3 samples, 75.00 %)"), "{svg}");
        assert!(svg.contains("width=\"900.0\"") && svg.contains("width=\"300.0\""), "{svg}");
        assert!(flame_graph("", &[]).contains("<svg"));
    }

    #[test]
    fn whatever_a_symbol_is_called_the_graph_is_well_formed() {
        // All characters that XML forbids, and those that would be markup.
        let evil: String =
            (0..=0x1f).chain(0x7f..=0x9f).chain([0x202e, 0xfffe, 0xffff]).filter_map(char::from_u32).collect();
        let names = [evil.as_str(), "\x1b]0;x\x07", "<script>&\"'", "]]>", "a\nb"].map(String::from);
        let stacks: Vec<(Vec<String>, u64)> = names.iter().map(|n| (vec![n.clone(), "f".into()], 10)).collect();
        let svg = flame_graph(&evil, &stacks);
        assert!(svg.chars().all(|c| matches!(c, '\n' | ' '..='~')), "{svg:?}");
        let markup = svg.replace("</svg>", "").replace("<svg ", "");
        assert!(
            !markup.contains("<script") && svg.contains("&lt;script&gt;") && svg.contains("\\x1b]0;x\\x07"),
            "{svg}"
        );
    }
}
