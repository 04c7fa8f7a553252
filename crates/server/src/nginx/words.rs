//! Splits nginx's configuration language into words with their byte ranges.

use crate::edits::ConfigWord;

#[derive(Debug)]
pub enum Token {
    Word(ConfigWord),
    /// Positions of `;`, `{` and `}`.
    End(usize),
    Open(usize),
    Close(usize),
    EndOfText(usize),
}

pub struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// True after a quoted word.
    wants_space: bool,
}

fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\r' | b'\n')
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a [u8]) -> Lexer<'a> {
        Lexer { text, at: 0, wants_space: false }
    }

    pub fn go_on_at(&mut self, at: usize) {
        (self.at, self.wants_space) = (at, false);
    }

    /// The next token; an error has a position and a message.
    pub fn token(&mut self) -> Result<Token, (usize, String)> {
        if std::mem::take(&mut self.wants_space)
            && let Some(c) = self.text.get(self.at).filter(|c| !is_space(**c) && !b";{)".contains(c))
        {
            return Err((self.at, format!("unexpected \"{}\"", char::from(*c))));
        }
        loop {
            let at = self.at;
            let Some(c) = self.text.get(at) else { return Ok(Token::EndOfText(at)) };
            self.at += 1;
            match c {
                c if is_space(*c) => {}
                b'#' => {
                    let rest = &self.text[at..];
                    self.at = at + rest.iter().position(|c| *c == b'\n').unwrap_or(rest.len());
                }
                b';' => return Ok(Token::End(at)),
                b'{' => return Ok(Token::Open(at)),
                b'}' => return Ok(Token::Close(at)),
                b'"' | b'\'' => return self.quoted(at, *c),
                _ => return self.plain(at),
            }
        }
    }

    fn quoted(&mut self, start: usize, quote: u8) -> Result<Token, (usize, String)> {
        while let Some(c) = self.text.get(self.at) {
            self.at += 1;
            if *c == b'\\' {
                self.at += 1;
            } else if *c == quote {
                self.wants_space = true;
                let text = unescaped(&self.text[start + 1..self.at - 1]);
                return Ok(Token::Word(ConfigWord { text, at: start..self.at }));
            }
        }
        Err((start, "unexpected end of file, a quote is not closed".into()))
    }

    fn plain(&mut self, start: usize) -> Result<Token, (usize, String)> {
        self.at = start;
        let mut variable = false;
        while let Some(c) = self.text.get(self.at) {
            if is_space(*c) || *c == b';' || *c == b'{' && !variable {
                break;
            }
            variable = *c == b'$' || *c == b'{' && variable;
            self.at += if *c == b'\\' { 2 } else { 1 };
        }
        self.at = self.at.min(self.text.len());
        Ok(Token::Word(ConfigWord { text: unescaped(&self.text[start..self.at]), at: start..self.at }))
    }
}

/// A backslash is literal except before quotes, another backslash, and the letters of white space.
fn unescaped(raw: &[u8]) -> String {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw.iter();
    while let Some(c) = rest.next() {
        if *c != b'\\' {
            out.push(*c);
            continue;
        }
        match rest.as_slice().first() {
            Some(c @ (b'"' | b'\'' | b'\\')) => out.push(*c),
            Some(b't') => out.push(b'\t'),
            Some(b'r') => out.push(b'\r'),
            Some(b'n') => out.push(b'\n'),
            Some(other) => out.extend([b'\\', *other]),
            None => out.push(b'\\'),
        }
        rest.next();
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Position of the brace that closes a Lua block beginning at `from`; braces in strings and comments do not count.
pub fn lua_end(text: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = from;
    loop {
        let rest = text.get(at..)?;
        match rest {
            [b'-', b'-', more @ ..] => {
                at += match long_bracket(more) {
                    Some(length) => 2 + length?,
                    None => rest.iter().position(|c| *c == b'\n')?,
                };
            }
            [b'[', ..] => {
                at += match long_bracket(rest) {
                    Some(length) => length?,
                    None => 1,
                };
            }
            [quote @ (b'"' | b'\''), ..] => {
                at += 1;
                while *text.get(at)? != *quote {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            [b'}', ..] if depth == 0 => return Some(at),
            [c, ..] => {
                match c {
                    b'{' => depth += 1,
                    b'}' => depth -= 1,
                    _ => {}
                }
                at += 1;
            }
            [] => return None,
        }
    }
}

/// Length of the `[[ … ]]` or `[=[ … ]=]` at the start of a text; `Some(None)` if it is not closed.
fn long_bracket(text: &[u8]) -> Option<Option<usize>> {
    let level = text.strip_prefix(b"[")?.iter().take_while(|c| **c == b'=').count();
    if text.get(1 + level) != Some(&b'[') {
        return None;
    }
    let close: Vec<u8> = [b"]".as_slice(), &vec![b'='; level], b"]"].concat();
    let begins = level + 2;
    Some(text[begins..].windows(close.len()).position(|w| w == close).map(|at| begins + at + close.len()))
}
