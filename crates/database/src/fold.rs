//! Statements with their literals removed: literals may be secrets of the site, and without them equal statements
//! compare equal.

use lastdrop_model::DatabaseService;

/// Longer statements are cut off.
const MOST_CHARACTERS: usize = 400;

/// Returns the statement on one line, without comments, with `?` for each literal and for each list of literals.
pub(crate) fn folded(sql: &str, service: DatabaseService) -> String {
    let chars: Vec<char> = sql.chars().collect();
    let mut out = String::new();
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        let next = chars.get(i + 1).copied();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let within_word = out.chars().next_back().is_some_and(|c| is_word(c) || c == '$');
        let is_string = c == '\'' || (c == '"' && service == DatabaseService::Mysql);
        if is_string {
            // A prefix right before the quote belongs to the literal: E'…', x'…', N'…', _utf8'…'.
            let word: String = out.chars().rev().take_while(|c| is_word(*c)).collect();
            if c == '\'' && (word.len() == 1 || word.ends_with('_')) {
                out.truncate(out.len() - word.len());
            }
            i = after_quoted(&chars, i, service == DatabaseService::Mysql || word.eq_ignore_ascii_case("e"));
            out.push('?');
        } else if c == '"' || c == '`' {
            let end = after_quoted(&chars, i, false);
            out.extend(&chars[i..end]);
            i = end;
        } else if c == '$' && !within_word && service == DatabaseService::Postgresql {
            match dollar_quoted(&chars, i) {
                Some(end) => {
                    out.push('?');
                    i = end;
                }
                // $1 is a placeholder already.
                None => {
                    out.push('$');
                    i += 1;
                    while let Some(digit) = chars.get(i).filter(|c| c.is_ascii_digit()) {
                        out.push(*digit);
                        i += 1;
                    }
                }
            }
        } else if c == '/' && next == Some('*') {
            let end = chars[i + 2..].windows(2).position(|w| w == ['*', '/']);
            i = end.map_or(chars.len(), |at| i + 2 + at + 2);
            space(&mut out);
        } else if (c == '-' && next == Some('-')) || (c == '#' && service == DatabaseService::Mysql) {
            i += chars[i..].iter().position(|c| *c == '\n').unwrap_or(chars.len() - i);
        } else if (c.is_ascii_digit() || (c == '.' && next.is_some_and(|n| n.is_ascii_digit()))) && !within_word {
            i += 1;
            while let Some(c) = chars.get(i) {
                let sign = matches!(c, '+' | '-') && matches!(chars[i - 1], 'e' | 'E');
                if !is_word(*c) && *c != '.' && !sign {
                    break;
                }
                i += 1;
            }
            out.push('?');
        } else if c.is_whitespace() {
            space(&mut out);
            i += 1;
        } else {
            out.push(c);
            i += 1;
        }
    }
    let mut out = lists_folded(out.trim().trim_end_matches([';', ' ']));
    if let Some((at, _)) = out.char_indices().nth(MOST_CHARACTERS) {
        out.truncate(at);
        out.push('…');
    }
    out
}

fn space(out: &mut String) {
    if !out.ends_with(' ') {
        out.push(' ');
    }
}

/// Returns the index after a quoted text, or the length of a text that was cut off inside the quotes.
fn after_quoted(chars: &[char], start: usize, backslashes: bool) -> usize {
    let mark = chars[start];
    let mut i = start + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' if backslashes => i += 2,
            c if c == mark && chars.get(i + 1) == Some(&mark) => i += 2,
            c if c == mark => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// Returns the index after `$tag$ … $tag$`; None if no dollar quote begins here.
fn dollar_quoted(chars: &[char], start: usize) -> Option<usize> {
    let length = chars[start + 1..].iter().position(|c| *c == '$')?;
    let tag = &chars[start..start + length + 2];
    let inner = &tag[1..tag.len() - 1];
    let is_tag =
        inner.iter().all(|c| c.is_alphanumeric() || *c == '_') && !inner.first().is_some_and(char::is_ascii_digit);
    is_tag.then(|| {
        let body = start + tag.len();
        chars[body..].windows(tag.len()).position(|w| w == tag).map_or(chars.len(), |at| body + at + tag.len())
    })
}

/// Shortens `(?, ?, ?)` to `(?)`, and several of those to one.
fn lists_folded(text: &str) -> String {
    let mut out = text.to_string();
    for (long, short) in [("?,?", "?"), ("?, ?", "?"), ("(?),(?)", "(?)"), ("(?), (?)", "(?)")] {
        while out.contains(long) {
            out = out.replace(long, short);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_folded_and_names_are_kept() {
        use DatabaseService::{Mysql, Postgresql};
        for (service, sql, wanted) in [
            (Mysql, "SELECT * FROM t1 WHERE a='it''s' AND b = 1.5e-3", "SELECT * FROM t1 WHERE a=? AND b = ?"),
            (Mysql, "select \"x\\\" y\", `a 1`, 0xff, col2 from t", "select ?, `a 1`, ?, col2 from t"),
            (Mysql, "INSERT INTO t VALUES (1, 'a'), (2, 'b'),(3,'c') # why", "INSERT INTO t VALUES (?)"),
            (Mysql, "SELECT 1 /* pass=x */ + 2\n  -- the rest\n FROM t", "SELECT ? + ? FROM t"),
            (Mysql, "SET PASSWORD = 'cut off", "SET PASSWORD = ?"),
            (Mysql, "SELECT _utf8'x', N'y'", "SELECT ?"),
            (
                Postgresql,
                "SELECT \"Col\" FROM t WHERE a = E'x\\'y' AND b IN (1,2,3)",
                "SELECT \"Col\" FROM t WHERE a = ? AND b IN (?)",
            ),
            (Postgresql, "SELECT $1, $tag$ it's $ $tag$, a$b, 'c\\'", "SELECT $1, ?, a$b, ?"),
            (Postgresql, "SELECT $$open", "SELECT ?"),
            (Postgresql, "COMMIT ; ", "COMMIT"),
            (Postgresql, "", ""),
        ] {
            assert_eq!(folded(sql, service), wanted, "{sql}");
        }
        let long = format!("SELECT {} FROM t", "col, ".repeat(500));
        assert_eq!(folded(&long, Mysql).chars().count(), MOST_CHARACTERS + 1);
        // A statement that is cut off anywhere causes no panic.
        for sql in ["SELECT 'a\\'b', \"c\", `d`, $x$ e $x$ /* f */ -- g", "1e+", "$", "$1$", "'\\"] {
            let chars: Vec<char> = sql.chars().collect();
            for end in 0..=chars.len() {
                let part: String = chars[..end].iter().collect();
                let _ = (folded(&part, Mysql), folded(&part, Postgresql));
            }
        }
    }
}
