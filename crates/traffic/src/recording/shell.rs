//! Splits a shell script into words without running a shell. Quotes and escapes are those of POSIX and of bash
//! (`$'…'`). Expansions (variables, commands) are refused unless they are known, because they would otherwise be sent
//! literally.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::RecordingError;

/// A command of a script.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ShellCommand {
    pub words: Vec<String>,
    /// The pipe that receives its output, which is not imported: `| jq .`.
    pub piped_to: Option<String>,
}

/// Splits a script into commands, each up to a line's end, `;`, `&`, `&&` or `||`. Assignments (`TOKEN=x`) on separate
/// lines set variables.
///
/// # Errors
/// A quote is not closed, or only a shell could expand something.
pub(super) fn commands(text: &str) -> Result<Vec<ShellCommand>, RecordingError> {
    let mut script = Script {
        chars: text.chars().peekable(),
        variables: HashMap::new(),
        all: Vec::new(),
        command: ShellCommand::default(),
        word: None,
        skips_word: false,
        pipe: None,
    };
    script.read()?;
    Ok(script.all)
}

/// Commands that run the command after them.
pub const RUNS_ANOTHER: [&str; 6] = ["sudo", "env", "time", "nohup", "command", "exec"];

struct Script<'a> {
    chars: Peekable<Chars<'a>>,
    variables: HashMap<String, String>,
    all: Vec<ShellCommand>,
    command: ShellCommand,
    word: Option<String>,
    /// The next word is the file of a redirection.
    skips_word: bool,
    /// The text after a `|`, as far as read.
    pipe: Option<String>,
}

fn unclosed() -> RecordingError {
    RecordingError("a quote is not closed".into())
}

impl Script<'_> {
    fn wrong(&self, what: &str) -> RecordingError {
        RecordingError(format!("command {}: {what}", self.all.len() + 1))
    }

    fn push(&mut self, c: char) {
        match &mut self.pipe {
            Some(pipe) => pipe.push(c),
            None => self.word.get_or_insert_default().push(c),
        }
    }

    /// Quotes begin a word, even an empty one.
    fn begin_word(&mut self) {
        if self.pipe.is_none() {
            self.word.get_or_insert_default();
        }
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take()
            && !std::mem::take(&mut self.skips_word)
        {
            self.command.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.command.piped_to = self.pipe.take().map(|pipe| pipe.trim().to_string());
        let mut command = std::mem::take(&mut self.command);
        // The prompt in an example.
        if command.words.len() > 1 && matches!(command.words[0].as_str(), "$" | "%") {
            command.words.remove(0);
        }
        let is_assignment = |word: &String| {
            let name = word.split_once('=').map_or("", |(name, _)| name);
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        // Skip assignments and commands that run another one.
        while command.words.len() > 1
            && !command.words.iter().all(is_assignment)
            && (is_assignment(&command.words[0]) || RUNS_ANOTHER.contains(&command.words[0].as_str()))
        {
            command.words.remove(0);
        }
        let words = if command.words.first().is_some_and(|word| word == "export") {
            &command.words[1..]
        } else {
            &command.words[..]
        };
        if !words.is_empty() && words.iter().all(is_assignment) {
            let pairs = words.iter().filter_map(|word| word.split_once('='));
            self.variables.extend(pairs.map(|(name, value)| (name.to_string(), value.to_string())));
        } else if !command.words.is_empty() {
            self.all.push(command);
        }
    }

    fn read(&mut self) -> Result<(), RecordingError> {
        while let Some(c) = self.chars.next() {
            match c {
                '\\' => self.escape(),
                '\'' => {
                    self.begin_word();
                    loop {
                        match self.chars.next().ok_or_else(unclosed)? {
                            '\'' => break,
                            c => self.push(c),
                        }
                    }
                }
                '"' => self.double_quoted()?,
                '$' => self.dollar(false)?,
                '`' => return Err(self.wrong("`…` is the output of a command, which is not run: put it there")),
                '\n' | ';' => self.end_command(),
                '&' => self.ampersand()?,
                '|' if self.chars.next_if_eq(&'|').is_some() => self.end_command(),
                '|' => {
                    self.end_word();
                    self.pipe = Some(self.pipe.take().map_or(String::new(), |pipe| pipe + "|"));
                }
                '<' | '>' if self.pipe.is_none() => self.redirection(c)?,
                // cmd.exe's escape, at the end of a line and before its quotes.
                '^' if matches!(self.chars.peek(), Some('\n' | '\r' | '"')) => {
                    return Err(RecordingError(
                        "it is quoted for cmd.exe (^), which is not understood: \"copy as cURL (bash)\" is".into(),
                    ));
                }
                '#' if self.word.is_none() && self.pipe.is_none() => {
                    while self.chars.peek().is_some_and(|c| *c != '\n') {
                        self.chars.next();
                    }
                }
                c if c.is_whitespace() && self.pipe.is_none() => self.end_word(),
                c => self.push(c),
            }
        }
        self.end_command();
        Ok(())
    }

    fn escape(&mut self) {
        match self.chars.next() {
            Some('\n') => self.next_line(),
            Some('\r') if self.chars.next_if_eq(&'\n').is_some() => self.next_line(),
            Some(c) => self.push(c),
            None => {}
        }
    }

    /// Skips the shell's second prompt on a continued line of an example.
    fn next_line(&mut self) {
        let mut ahead = self.chars.clone();
        if ahead.next() == Some('>') && ahead.next() == Some(' ') {
            self.chars = ahead;
        }
    }

    fn ampersand(&mut self) -> Result<(), RecordingError> {
        if self.chars.next_if_eq(&'&').is_some() {
            self.end_command();
            return Ok(());
        }
        if self.chars.peek() == Some(&'>') && self.pipe.is_none() {
            self.chars.next();
            return self.redirection('>');
        }
        let goes_on = self.chars.peek().is_some_and(|c| !c.is_whitespace());
        if goes_on && self.word.is_some() {
            return Err(
                self.wrong("an & that is not in quotes ends a command: put the URL in quotes ('http://…?a=1&b=2')")
            );
        }
        self.end_command();
        Ok(())
    }

    /// Skips `> out.json`, `2>/dev/null`, `2>&1`: redirections of output do not affect requests.
    fn redirection(&mut self, c: char) -> Result<(), RecordingError> {
        if c == '<' {
            return Err(self
                .wrong("< reads a file that is not opened here: put its content there, or write --data-binary @FILE"));
        }
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        self.chars.next_if(|c| matches!(c, '>' | '|'));
        self.skips_word = true;
        if self.chars.next_if_eq(&'&').is_some() {
            // The target `&1` is not a file.
            self.word.get_or_insert_default();
        }
        Ok(())
    }

    fn double_quoted(&mut self) -> Result<(), RecordingError> {
        self.begin_word();
        loop {
            match self.chars.next().ok_or_else(unclosed)? {
                '"' => return Ok(()),
                '\\' => match self.chars.next().ok_or_else(unclosed)? {
                    '\n' => {}
                    c @ ('"' | '\\' | '$' | '`') => self.push(c),
                    c => {
                        self.push('\\');
                        self.push(c);
                    }
                },
                '$' => self.dollar(true)?,
                '`' => return Err(self.wrong("`…` is the output of a command, which is not run: put it there")),
                c => self.push(c),
            }
        }
    }

    fn dollar(&mut self, is_quoted: bool) -> Result<(), RecordingError> {
        let in_pipe = self.pipe.is_some();
        match self.chars.peek().copied() {
            Some('\'') if !is_quoted => {
                self.chars.next();
                let mut word = String::new();
                loop {
                    match self.chars.next().ok_or_else(unclosed)? {
                        '\'' => break,
                        '\\' => ansi(&mut self.chars, &mut word).ok_or_else(unclosed)?,
                        c => word.push(c),
                    }
                }
                self.begin_word();
                word.chars().for_each(|c| self.push(c));
                Ok(())
            }
            Some('(') if !in_pipe => Err(self.wrong("$(…) is the output of a command, which is not run: put it there")),
            Some(c) if !in_pipe && (c == '{' || c == '_' || c.is_ascii_alphanumeric()) => {
                let braces = self.chars.next_if_eq(&'{').is_some();
                let mut name = String::new();
                while let Some(c) = self.chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                let is_whole = !braces || self.chars.next_if_eq(&'}').is_some();
                match self.variables.get(&name).filter(|_| is_whole).cloned() {
                    Some(value) => {
                        self.begin_word();
                        value.chars().for_each(|c| self.push(c));
                        Ok(())
                    }
                    None => Err(self.wrong(&format!(
                        "${name} is a variable of a shell, which is not known here: put its value there, or {name}=VALUE on a line before it"
                    ))),
                }
            }
            _ => {
                self.push('$');
                Ok(())
            }
        }
    }
}

/// Decodes an escape of `$'…'`.
fn ansi(chars: &mut Peekable<Chars>, word: &mut String) -> Option<()> {
    let c = chars.next()?;
    let c = match c {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'e' | 'E' => '\u{1b}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        'x' => character(digits(chars, 16, 2, 0)),
        'u' => {
            let first = digits(chars, 16, 4, 0);
            // Chromium writes characters beyond 16 bits as two escapes.
            let mut ahead = chars.clone();
            let second = ((0xd800..0xdc00).contains(&first) && ahead.next() == Some('\\') && ahead.next() == Some('u'))
                .then(|| digits(&mut ahead, 16, 4, 0))
                .filter(|second| (0xdc00..0xe000).contains(second));
            match second {
                Some(second) => {
                    *chars = ahead;
                    character(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
                }
                None => character(first),
            }
        }
        'U' => character(digits(chars, 16, 8, 0)),
        c @ '0'..='7' => character(digits(chars, 8, 2, c as u32 - '0' as u32)),
        c => c,
    };
    word.push(c);
    Some(())
}

fn character(n: u32) -> char {
    char::from_u32(n).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Reads up to `most` digits and appends them to `n`.
fn digits(chars: &mut Peekable<Chars>, base: u32, most: usize, mut n: u32) -> u32 {
    for _ in 0..most {
        let Some(digit) = chars.peek().and_then(|c| c.to_digit(base)) else { break };
        n = n.wrapping_mul(base) + digit;
        chars.next();
    }
    n
}
