//! Where the directives of a change go: in place of those that sections of the configuration have, since no override
//! reaches into a section, otherwise into the override.

use std::path::Path;

use super::config::{ConfigSection, DirectiveLine, Scan, split_words};
use crate::change::{Change, ConfigScope};
use crate::directive_edits::{DirectiveNames, GivenDirective, PresentDirective};
use crate::edits::Edits;

const NAMES: DirectiveNames = DirectiveNames {
    ignore_case: true,
    repeated: &[
        ("AddCharset", 1),
        ("AddEncoding", 1),
        ("AddHandler", 1),
        ("AddInputFilter", 1),
        ("AddLanguage", 1),
        ("AddOutputFilter", 1),
        ("AddOutputFilterByType", 1),
        ("AddType", 1),
        ("Alias", 1),
        ("AliasMatch", 1),
        ("Allow", 9),
        ("BalancerMember", 1),
        ("BrowserMatch", 1),
        ("CustomLog", 1),
        ("Define", 1),
        ("Deny", 9),
        ("ErrorDocument", 1),
        ("ExpiresByType", 1),
        ("Header", 2),
        ("Include", 1),
        ("IncludeOptional", 1),
        ("Listen", 1),
        ("LoadFile", 1),
        ("LoadModule", 1),
        ("LogFormat", 9),
        ("Mutex", 1),
        ("PassEnv", 1),
        ("PerlModule", 1),
        ("PerlRequire", 1),
        ("PerlSetEnv", 1),
        ("PerlSetVar", 1),
        ("php_admin_flag", 1),
        ("php_admin_value", 1),
        ("php_flag", 1),
        ("php_value", 1),
        ("ProxyPass", 1),
        ("ProxyPassMatch", 1),
        ("ProxyPassReverse", 1),
        ("Redirect", 2),
        ("RedirectMatch", 2),
        ("RequestHeader", 2),
        ("Require", 9),
        ("RewriteCond", 9),
        ("RewriteRule", 1),
        ("ScriptAlias", 1),
        ("ScriptAliasMatch", 1),
        ("ServerAlias", 9),
        ("SetEnv", 1),
        ("SetEnvIf", 9),
        ("SetEnvIfNoCase", 9),
        ("Substitute", 1),
        ("UnsetEnv", 1),
        ("Use", 9),
    ],
    between: "\n",
};

/// Directives that Apache takes in sections alone: outside of one they are for the whole file system.
const OF_FOLDERS: &[&str] = &[
    "Allow",
    "AllowOverride",
    "AllowOverrideList",
    "AuthBasicProvider",
    "AuthName",
    "AuthType",
    "AuthUserFile",
    "Deny",
    "Options",
    "Order",
    "Require",
    "RewriteBase",
    "Satisfy",
];

/// Name of the override in an included folder.
pub const OVERRIDE: &str = "zz-lastdrop.conf";

/// The places of a change's directives.
#[derive(Debug, Default)]
pub struct PlacedDirectives {
    pub edits: Edits,
    /// Lines of the override.
    pub added: Vec<String>,
}

/// Finds the places. `after` tells whether a line of the scan comes after the override.
///
/// # Errors
/// In words, if there is no such place.
pub fn place(scan: &Scan, change: &Change, after: impl Fn(usize) -> bool) -> Result<PlacedDirectives, String> {
    let mut placed = PlacedDirectives::default();
    let (given, sections) = read(change.directives.lines());
    match &change.scope {
        None => {
            for group in NAMES.by_name(&given) {
                placed.everywhere(scan, &group, &after)?;
            }
            placed.added.extend(sections);
        }
        Some(scope) => {
            let meant = meant(scan, scope)?;
            for section in &meant {
                placed.within(scan, *section, &given, &sections)?;
            }
            if meant.is_empty() {
                let lines: Vec<String> = given.into_iter().map(|d| d.text).chain(sections).collect();
                placed.added.extend(in_section(scope, lines));
            }
        }
    }
    Ok(placed)
}

/// Splits lines into directives, and sections with all that is in them.
fn read(lines: &[String]) -> (Vec<GivenDirective>, Vec<String>) {
    let (mut given, mut sections, mut depth) = (Vec::new(), Vec::new(), 0_usize);
    for line in lines {
        let closes = line.starts_with("</");
        if line.starts_with('<') || depth > 0 {
            depth = if closes { depth.saturating_sub(1) } else { depth + usize::from(line.starts_with('<')) };
            sections.push(line.clone());
            continue;
        }
        let mut words =
            split_words(line.as_bytes()).into_iter().map(|(w, ..)| String::from_utf8_lossy(&w).into_owned());
        let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { continue };
        given.push(GivenDirective { name, arguments: words.collect(), is_negated: false, text: line.clone() });
    }
    (given, sections)
}

fn in_section(scope: &ConfigScope, lines: Vec<String>) -> Vec<String> {
    let (kind, argument) = match scope {
        ConfigScope::Host(name) => ("VirtualHost", name),
        ConfigScope::Location(path) => ("Location", path),
        ConfigScope::Directory(path) => ("Directory", path),
    };
    let head = format!("<{kind} \"{argument}\">");
    std::iter::once(head).chain(lines).chain([format!("</{kind}>")]).collect()
}

/// The sections of a scope; none if a new one does.
fn meant(scan: &Scan, scope: &ConfigScope) -> Result<Vec<usize>, String> {
    let of = |is_it: &dyn Fn(usize, &ConfigSection) -> bool| -> Vec<usize> {
        scan.sections.iter().enumerate().filter(|(i, s)| is_it(*i, s)).map(|(i, _)| i).collect()
    };
    let plain = |path: &str| if path.len() > 1 { path.trim_end_matches('/') } else { path }.to_string();
    match scope {
        ConfigScope::Host(name) => {
            let names = |section: usize| {
                let own = scan.lines.iter().filter(move |l| l.inside == Some(section));
                own.filter(|l| NAMES.is_same(&l.name, "ServerName") || NAMES.is_same(&l.name, "ServerAlias"))
                    .flat_map(|l| l.arguments.iter())
            };
            let addresses = |s: &ConfigSection| -> Vec<String> {
                s.argument.split_whitespace().map(|a| a.trim_matches('"').to_string()).collect()
            };
            let found = of(&|i, s| {
                s.kind == "virtualhost"
                    && (names(i).any(|n| n.eq_ignore_ascii_case(name)) || addresses(s).iter().any(|a| a == name))
            });
            if found.is_empty() {
                let hosts = scan.sections.iter().enumerate().filter(|(_, s)| s.kind == "virtualhost");
                let all: Vec<String> = hosts.flat_map(|(i, s)| names(i).cloned().chain(addresses(s)).next()).collect();
                let known = if all.is_empty() { "it has none".into() } else { format!("it has {}", all.join(", ")) };
                return Err(format!("the configuration has no <VirtualHost> called {name}; {known}"));
            }
            Ok(found)
        }
        ConfigScope::Location(path) => Ok(of(&|_, s| s.kind == "location" && plain(&s.argument) == plain(path))),
        ConfigScope::Directory(path) => {
            let found = of(&|_, s| s.kind == "directory" && plain(&s.argument) == plain(path));
            if found.is_empty() && !Path::new(path).is_dir() {
                return Err(format!("there is no folder {path}, and the configuration has no <Directory> for it"));
            }
            Ok(found)
        }
    }
}

/// A line as a directive that could be replaced.
fn present(line: &DirectiveLine) -> Option<PresentDirective> {
    let (first, last) = (line.words.first()?, line.words.last()?);
    Some(PresentDirective {
        name: line.name.clone(),
        arguments: line.arguments.clone(),
        source: line.source,
        at: first.at.start..last.at.end,
        is_negated: false,
    })
}

impl PlacedDirectives {
    /// Places directives of one name wherever the configuration has it, otherwise for the whole server.
    fn everywhere(
        &mut self,
        scan: &Scan,
        group: &[GivenDirective],
        after: &impl Fn(usize) -> bool,
    ) -> Result<(), String> {
        let name = &group[0].name;
        let is_it = |l: &DirectiveLine| NAMES.is_same(&l.name, name) && !l.file.ends_with(OVERRIDE);
        let lines: Vec<(usize, &DirectiveLine)> = scan.lines.iter().enumerate().filter(|(_, l)| is_it(l)).collect();
        let mut inside: Vec<usize> = lines.iter().filter_map(|(_, l)| l.inside).collect();
        inside.sort_unstable();
        inside.dedup();
        let own = |section: Option<usize>| -> Vec<PresentDirective> {
            lines.iter().filter(|(_, l)| l.inside == section).filter_map(|(_, l)| present(l)).collect()
        };
        let mut found = false;
        for section in &inside {
            found |= NAMES.replace(&mut self.edits, group, &own(Some(*section))).found;
        }
        let server: Vec<&(usize, &DirectiveLine)> = lines.iter().filter(|(_, l)| l.inside.is_none()).collect();
        let texts = || group.iter().map(|d| d.text.clone());
        match server.as_slice() {
            [] => {}
            // The last line of a directive wins, so the override does.
            [(i, line)] if group.len() == 1 && !NAMES.is_repeated(name) && !after(*i) => {
                found = true;
                if line.arguments != group[0].arguments {
                    self.added.extend(texts());
                }
            }
            _ => {
                let replaced = NAMES.replace(&mut self.edits, group, &own(None));
                if replaced.found {
                    found = true;
                    self.added.extend(replaced.missing);
                }
            }
        }
        if found {
            return Ok(());
        }
        for section in &inside {
            self.insert(scan, *section, &texts().collect::<Vec<_>>())?;
        }
        if inside.is_empty() || !server.is_empty() {
            let of_folders = OF_FOLDERS.iter().any(|known| NAMES.is_same(known, name));
            match of_folders {
                true => self.added.extend(in_section(&ConfigScope::Directory("/".into()), texts().collect())),
                false => self.added.extend(texts()),
            }
        }
        Ok(())
    }

    /// Places directives in one section.
    fn within(
        &mut self,
        scan: &Scan,
        section: usize,
        given: &[GivenDirective],
        sections: &[String],
    ) -> Result<(), String> {
        let own: Vec<PresentDirective> =
            scan.lines.iter().filter(|l| l.inside == Some(section)).filter_map(present).collect();
        let replaced = NAMES.replace(&mut self.edits, given, &own);
        let new: Vec<String> = replaced.missing.into_iter().chain(sections.iter().cloned()).collect();
        if new.is_empty() { Ok(()) } else { self.insert(scan, section, &new) }
    }

    /// Adds lines at the end of a section.
    fn insert(&mut self, scan: &Scan, section: usize, lines: &[String]) -> Result<(), String> {
        let section = &scan.sections[section];
        let source = &scan.sources[section.source];
        let Some(end) = section.end else {
            return Err(format!("<{} {}> in {} has no end", section.kind, section.argument, source.name.display()));
        };
        let from = source.text[..end].iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        let indent = String::from_utf8_lossy(&source.text[from..end]).into_owned();
        let new: String = lines.iter().map(|line| format!("    {line}\n{indent}")).collect();
        self.edits.replace(section.source, end..end, new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::scan_of;
    use super::*;
    use crate::change::Directives;

    const SITE: &str = "Timeout 5\nHeader set A 1\n<Directory />\n    AllowOverride None\n</Directory>\n<VirtualHost *:80>\n  \
        ServerName shop\n  <Directory \"/srv/\">\n    AllowOverride AuthConfig\n  </Directory>\n  HostnameLookups Off\n\
        </VirtualHost>\n<Location /app>\n</Location>\n";

    /// The configuration after the edits, and the override.
    fn placed(text: &str, lines: &str, scope: Option<&str>) -> Result<(String, Vec<String>), String> {
        let (_dir, scan) = scan_of(text);
        let scope = scope.map(|s| s.parse().expect("a scope"));
        let change = Change { scope, ..Change::from(Directives::read(lines)) };
        let placed = place(&scan, &change, |_| false)?;
        let new = placed.edits.apply(0, text.as_bytes(), 0..text.len());
        Ok((String::from_utf8(new).expect("text"), placed.added))
    }

    #[test]
    fn without_a_scope_a_directive_goes_where_the_configuration_has_it() {
        let (new, added) = placed(SITE, "AllowOverride All", None).expect("placed");
        let expected = SITE.replace("AllowOverride None", "AllowOverride All");
        assert_eq!((new, added.len()), (expected.replace("AuthConfig", "All"), 0));
        let (new, added) = placed(SITE, "HostnameLookups On; Timeout 9", None).expect("placed");
        assert_eq!((new, added), (SITE.replace("Lookups Off", "Lookups On"), vec!["Timeout 9".to_string()]));
        let (new, added) = placed(SITE, "timeout 5", None).expect("placed");
        assert_eq!((new.as_str(), added.len()), (SITE, 0));
        let (new, added) = placed(SITE, "Header set A 2; EnableMMAP Off", None).expect("placed");
        assert_eq!((new, added), (SITE.replace("set A 1", "set A 2"), vec!["EnableMMAP Off".to_string()]));
    }

    #[test]
    fn what_apache_takes_in_sections_alone_gets_one() {
        let (_, added) = placed("Timeout 5\n", "AllowOverride All", None).expect("placed");
        assert_eq!(added, ["<Directory \"/\">", "AllowOverride All", "</Directory>"]);
        // As it is given, a section is one of the override.
        let text = "<Directory />; AllowOverride All; </Directory>";
        let (new, added) = placed(SITE, text, None).expect("placed");
        assert_eq!((new.as_str(), added.join("; ").as_str()), (SITE, text));
    }

    #[test]
    fn with_a_scope_it_goes_there_and_nowhere_else() {
        let (new, added) = placed(SITE, "AllowOverride All", Some("directory:/srv")).expect("placed");
        assert_eq!((new, added.len()), (SITE.replace("AuthConfig", "All"), 0));
        let (new, _) = placed(SITE, "Timeout 9; HostnameLookups On", Some("vhost:shop")).expect("placed");
        assert_eq!(
            new,
            SITE.replace("Lookups Off", "Lookups On").replace("</VirtualHost>", "    Timeout 9\n</VirtualHost>")
        );
        let (new, _) = placed(SITE, "SetHandler none", Some("location:/app")).expect("placed");
        assert_eq!(new, SITE.replace("</Location>", "    SetHandler none\n</Location>"));
        let (new, added) = placed(SITE, "SetHandler none", Some("location:/other")).expect("placed");
        assert_eq!((new.as_str(), added.len()), (SITE, 3));
        let refused = placed(SITE, "Timeout 9", Some("vhost:other")).expect_err("not there");
        assert!(refused.contains("other") && refused.contains("shop"), "{refused}");
        let refused = placed(SITE, "AllowOverride All", Some("directory:/no/such")).expect_err("not there");
        assert!(refused.contains("/no/such"), "{refused}");
    }
}
