//! Reconstructs a master's command line from its title: the same words, joined by spaces (`ngx_master_process_cycle`).
//! The options show which words belong together, since each takes a value.

/// Prefix of a master's title.
pub const MASTER: &str = "nginx: master process ";

/// The command line in a title; `None` if the process is not a master.
pub fn command_line(shown: &[String]) -> Option<Vec<String>> {
    let title = shown.join(" ");
    let mut words = title.strip_prefix(MASTER)?.split(' ');
    let mut argv: Vec<String> = vec![words.next()?.to_string()];
    let is_option = |word: &str| {
        let mut chars = word.chars();
        chars.next() == Some('-') && chars.next().is_some_and(|c| "cpgeqtTvVsh?".contains(c))
    };
    // A value may contain spaces; paths and directives extend up to the next option.
    let mut value_begun = false;
    for word in words {
        match argv.last_mut() {
            Some(value) if value_begun && !is_option(word) => {
                value.push(' ');
                value.push_str(word);
            }
            _ => {
                value_begun = !matches!(word, "-c" | "-p" | "-g" | "-e") && argv.len() > 1;
                argv.push(word.into());
            }
        }
    }
    Some(argv)
}

/// Value of an option, written `-c FILE` or `-cFILE`.
pub fn option<'a>(argv: &'a [String], flag: &str) -> Option<&'a str> {
    let mut words = argv.iter().skip(1);
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().map(String::as_str);
        }
        if let Some(value) = word.strip_prefix(flag) {
            return Some(value);
        }
        if matches!(word.as_str(), "-c" | "-p" | "-g" | "-e") {
            words.next();
        }
    }
    None
}

/// The command line with another configuration file.
pub fn with_config(argv: &[String], file: &str) -> Vec<String> {
    let mut out: Vec<String> = argv.iter().take(1).cloned().collect();
    let mut words = argv.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-c" => drop(words.next()),
            "-p" | "-g" | "-e" => out.extend([Some(word), words.next()].into_iter().flatten().cloned()),
            word if word.starts_with("-c") => {}
            _ => out.push(word.clone()),
        }
    }
    out.extend(["-c".to_string(), file.to_string()]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_tells_the_command_line() {
        let of = |title: &str| command_line(&[title.to_string()]);
        let whole = |words: &[&str]| {
            let argv: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(of(&format!("{MASTER}{}", argv.join(" "))), Some(argv.clone()), "{words:?}");
            argv
        };
        let argv = whole(&["/usr/sbin/nginx", "-g", "daemon on; master_process on;", "-c", "/a b/n.conf", "-p", "/x"]);
        assert_eq!(option(&argv, "-g"), Some("daemon on; master_process on;"));
        assert_eq!((option(&argv, "-c"), option(&argv, "-e")), (Some("/a b/n.conf"), None));
        let other: Vec<String> = with_config(&argv, "/t");
        assert_eq!(other[1..], ["-g", "daemon on; master_process on;", "-p", "/x", "-c", "/t"]);
        let argv = whole(&["nginx", "-c/etc/n.conf", "-q", "-g", "env A=-x;"]);
        assert_eq!((option(&argv, "-c"), with_config(&argv, "/t")[1].as_str()), (Some("/etc/n.conf"), "-q"));
        assert_eq!(whole(&["nginx"]).len(), 1);
        assert_eq!(of("nginx: worker process"), None);
        assert_eq!(of("/usr/sbin/nginx -t"), None);
    }
}
