//! Nodes whose settings differ from others of their kind, one line each.

use lastdrop_model::documents::{NodeDifference, NodeDifferenceKind};
use lastdrop_model::printable::line;
use lastdrop_model::units::show_bytes;
use serde_json::Value;

/// Returns lines such as `web-2/apache differs: MaxRequestWorkers is 20, on the others 10`.
#[must_use]
pub fn differing_lines(all: &[NodeDifference]) -> Vec<String> {
    all.iter().map(|d| line(&difference_text(d))).collect()
}

fn difference_text(d: &NodeDifference) -> String {
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    let (server, name) = (&d.server, &d.name);
    match d.what {
        NodeDifferenceKind::Settings => {
            format!("{server} differs: {name} is {}, on the others {}", shown(&d.value), shown(&d.others))
        }
        NodeDifferenceKind::Memory => {
            let bytes = |v: &Value| show_bytes(v.as_u64().unwrap_or(0));
            format!("{server} differs: it uses {} of memory, the others {}", bytes(&d.value), bytes(&d.others))
        }
        NodeDifferenceKind::Rate => {
            format!("{server} differs: {:.1} requests a second, the others {:.1}", number(&d.value), number(&d.others))
        }
        NodeDifferenceKind::Errors => {
            format!("{server} differs: {name} {}, the others {}", shown(&d.value), number(&d.others))
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not set".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_that_differs_is_told_in_a_line() {
        let d = |what, name: &str, value, others| NodeDifference {
            server: "b/x\u{1b}".into(),
            what,
            name: name.into(),
            value,
            others,
        };
        let all = [
            d(NodeDifferenceKind::Settings, "pm", json!("static"), json!(null)),
            d(NodeDifferenceKind::Memory, "real_memory_bytes", json!(209_715_200), json!(104_857_600)),
            d(NodeDifferenceKind::Rate, "requests_rps", json!(10.04), json!(20.0)),
            d(NodeDifferenceKind::Errors, "ListenOverflows", json!(3), json!(0.0)),
        ];
        let lines = differing_lines(&all).join("\n");
        let wanted = [
            "differs: pm is static, on the others not set",
            "differs: it uses 200",
            "differs: 10.0 requests a second, the others 20.0",
            "differs: ListenOverflows 3, the others 0",
        ];
        assert!(wanted.iter().all(|w| lines.contains(w)) && !lines.contains('\u{1b}'), "{lines}");
    }
}
