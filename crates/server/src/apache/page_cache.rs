//! Turns a cache of pages into lines of Apache's configuration (mod_cache, mod_cache_disk).
//!
//! Apache takes no `CacheEnable` in an `<If>`, and the variable `no-cache` keeps answers from being stored, but not stored
//! ones from being served. So a field decides that no visitor can send: requests that may use the cache get it, all others
//! lose it, and each stored answer varies with it. Its value is the request line, the host and the scheme, because the key
//! of mod_cache is not enough: it has the path after all rewriting, `/index.php` for each page of a front controller.
//!
//! mod_cache looks at Cache-Control, but stores what sets a cookie, and 404 with a lifetime. Such answers become private.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::config::{DirectiveLine, Scan};
use crate::edits::Edits;
use crate::execution;
use crate::page_cache::{KEPT, PageCache, is_plain, path_pattern, site_and_path};

/// The field that stored answers vary with. Backends see it.
const FIELD: &str = "X-Lastdrop-Cache";
/// Modules that the lines need, by the names of their files.
const NEEDED: [&str; 4] = ["env", "headers", "cache", "cache_disk"];
/// Modules whose workers change their user, so that no folder is theirs.
const OTHER_USERS: [&str; 2] = ["mpm_itk_module", "ruid2_module"];
/// Bytes of the largest page.
const LARGEST_PAGE: u32 = 4 << 20;
/// Values of Accept-Encoding with which a visitor's request may be answered from a cache that is kept, as browsers send
/// them. mod_cache_disk has no bound of its own: without a list each client could fill the disk. So a page has at most 30
/// copies: by these, two spellings of Host, and three versions of HTTP.
const ENCODINGS: &str = "'', 'gzip', 'gzip, deflate', 'gzip, deflate, br', 'gzip, deflate, br, zstd'";

/// What decides whether a configuration is fit for a cache.
pub struct CacheSurroundings<'a> {
    pub scan: &'a Scan,
    /// Loaded modules, such as `cache_module`.
    pub modules: &'a BTreeSet<String>,
    /// Texts of all .htaccess files that count; `None` if they are too many.
    pub overrides: Option<Vec<Vec<u8>>>,
}

impl CacheSurroundings<'_> {
    /// Returns the edits that put a cache at the end of the main file, where no section is open.
    ///
    /// # Errors
    /// In words, if the configuration has something that such a cache must not meet.
    pub fn edits(&self, cache: &PageCache) -> Result<Edits, String> {
        let folder = cache.folder.as_deref().ok_or("the cache has no folder")?;
        let lines = self.lines(cache, folder)?;
        let text = &self.scan.sources.first().ok_or("there is no file to change")?.text;
        let begins = if text.is_empty() || text.ends_with(b"\n") { "" } else { "\n" };
        let mut edits = Edits::default();
        edits.replace(0, text.len()..text.len(), format!("{begins}{}\n", lines.join("\n")));
        Ok(edits)
    }

    /// Returns the lines of a cache for all visitors of these pages. Without a folder of its own it stores pages in one in
    /// `home`. One that is only shown says why it could not be kept.
    pub fn kept_lines(&self, cache: &PageCache, home: &Path) -> Result<Vec<String>, String> {
        let cache = PageCache { token: None, ..cache.clone() };
        if let Some(folder) = &cache.folder {
            return self.lines(&cache, folder);
        }
        self.check()?;
        self.modules_to_load()?;
        Ok(self
            .lines(&cache, &home.join("pages"))
            .unwrap_or_else(|why| vec![format!("# none for all visitors: {why}")]))
    }

    fn lines(&self, cache: &PageCache, folder: &Path) -> Result<Vec<String>, String> {
        self.check()?;
        let condition = match cache.checked_token()? {
            Some(token) => condition_of_trial(token, cache.named()?)?,
            None => self.condition_of_visitors(cache.named()?)?,
        };
        let folder = folder.to_str().filter(|text| is_plain(text)).ok_or("the cache's folder cannot be quoted")?;
        let mut lines: Vec<String> = cache.token.is_none().then(|| KEPT.to_string()).into_iter().collect();
        lines.extend(self.modules_to_load()?);
        let lifetime = cache.lifetime_s;
        lines.extend([
            "CacheQuickHandler off".into(),
            "CacheEnable disk /".into(),
            format!("CacheRoot {folder}"),
            format!("CacheMaxFileSize {LARGEST_PAGE}"),
            format!("CacheDefaultExpire {lifetime}"),
            format!("CacheMinExpire {lifetime}"),
            format!("CacheMaxExpire {lifetime}"),
            "CacheIgnoreNoLastMod On".into(),
            // The field has the query.
            "CacheIgnoreQueryString On".into(),
            "CacheIgnoreHeaders Set-Cookie".into(),
            "CacheStaleOnError Off".into(),
            format!("<If \"{condition}\">"),
            format!("    RequestHeader set {FIELD} \"expr=%{{REQUEST_SCHEME}} %{{HTTP_HOST}} %{{THE_REQUEST}}\""),
            format!("    Header merge Vary {FIELD}"),
            format!("    Header always merge Cache-Control private \"expr={}\"", not_stored(cache.token.is_none())),
            "</If>".into(),
            "<Else>".into(),
            format!("    RequestHeader unset {FIELD}"),
            "    SetEnv no-cache 1".into(),
            "</Else>".into(),
        ]);
        Ok(lines)
    }

    /// Refuses what the cache must not meet, with the place.
    fn check(&self) -> Result<(), String> {
        if let Some(problem) = self.scan.problems.first() {
            return Err(problem.clone());
        }
        if let Some(module) = OTHER_USERS.iter().find(|module| self.modules.contains(**module)) {
            return Err(format!("{module} is loaded: its workers change their user"));
        }
        if let Some(line) = self.scan.lines.iter().find(|line| self.is_in_the_way(line)) {
            return Err(format!(
                "{} at {}:{} is about a cache, or about users, already",
                line.name,
                line.file.display(),
                line.number
            ));
        }
        let texts =
            self.overrides.as_ref().ok_or("too many folders may have .htaccess files that are about a cache")?;
        let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !self.has(name)).collect();
        let asks_for = |text: &str, name: &str| {
            text.contains(&format!("mod_{name}.c")) || text.contains(&format!("{name}_module"))
        };
        for text in texts {
            let text = String::from_utf8_lossy(text).to_ascii_lowercase();
            if text.contains("cacheenable") || text.contains("cachedisable") {
                return Err("a .htaccess file is about a cache already".into());
            }
            if text.contains("<if ") && text.contains("vary") {
                return Err("a .htaccess file changes Vary in an <If>".into());
            }
            if let Some(name) = missing.iter().find(|name| asks_for(&text, name)) {
                return Err(format!(
                    "a .htaccess file asks for mod_{name}, which is not loaded: visitors would get other answers with it (a2enmod {name})"
                ));
            }
        }
        Ok(())
    }

    /// True if the line is about a cache, tells users apart below HTTP, or takes the field out of Vary.
    fn is_in_the_way(&self, line: &DirectiveLine) -> bool {
        let (name, first) = (line.name.to_ascii_lowercase(), line.arguments.first().map_or("", String::as_str));
        let says = |word: &str| line.arguments.iter().any(|argument| argument.eq_ignore_ascii_case(word));
        let kind = line.inside.and_then(|section| Some(self.scan.sections.get(section)?.kind.as_str()));
        let is_conditional = kind.is_some_and(|kind| ["if", "elseif", "else"].contains(&kind));
        match name.as_str() {
            "cachenegotiateddocs" => false,
            "sslverifyclient" => !first.eq_ignore_ascii_case("none"),
            "header" => says("Vary") && (first.eq_ignore_ascii_case("always") || is_conditional),
            name => name.starts_with("cache"),
        }
    }

    fn has(&self, module: &str) -> bool {
        self.modules.contains(&format!("{module}_module"))
    }

    /// Returns a LoadModule line for each module that is missing, from a folder of the server's other modules.
    fn modules_to_load(&self) -> Result<Vec<String>, String> {
        let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !self.has(name)).collect();
        let own = self.scan.lines.iter().filter(|line| line.name.eq_ignore_ascii_case("LoadModule"));
        let mut folders: Vec<PathBuf> = Vec::new();
        for file in own.filter_map(|line| line.arguments.get(1)) {
            let file = self.scan.root.join(file);
            folders.extend(file.parent().map(Path::to_path_buf).filter(|folder| !folders.contains(folder)));
        }
        missing.into_iter().map(|name| load(name, &folders)).collect()
    }

    /// Returns the condition under which a visitor's request may be answered from the cache.
    ///
    /// # Errors
    /// If Apache could not tell by which port a request came. A client may write any port into Host.
    fn condition_of_visitors(&self, pages: &[String]) -> Result<String, String> {
        let ports = self.ports();
        let of_page = |page: &String| {
            let (site, path) = site_and_path(page)?;
            let (host, port) = site.rsplit_once(':').ok_or_else(|| format!("the site {site} has no port"))?;
            let scheme = self.scheme_of(port, &ports)?;
            let hosts = match port {
                "80" | "443" => format!("'{host}', '{site}'"),
                _ => format!("'{site}'"),
            };
            Ok(format!(
                "({scheme}req_novary('Host') in {{{hosts}}} && %{{THE_REQUEST}} =~ m#^GET {} HTTP/(1[.][01]|2[.]0)$#)",
                path_pattern(path)?
            ))
        };
        let pages = pages.iter().map(of_page).collect::<Result<Vec<_>, String>>()?.join(" || ");
        let encodings = format!("req_novary('Accept-Encoding') in {{{ENCODINGS}}}");
        Ok(format!("{} && {encodings} && ({pages})", of_nobody()))
    }

    fn ports(&self) -> BTreeSet<String> {
        let listens = self.scan.lines.iter().filter(|line| line.name.eq_ignore_ascii_case("Listen"));
        let port = |line: &DirectiveLine| line.arguments.first()?.rsplit(':').next().map(str::to_string);
        listens.filter_map(port).collect()
    }

    /// Returns the part of a condition that tells a port from the others.
    fn scheme_of(&self, port: &str, ports: &BTreeSet<String>) -> Result<&'static str, String> {
        let known: Vec<&str> = ports.iter().map(String::as_str).collect();
        match (port, known.as_slice()) {
            (port, [only]) if *only == port => Ok(""),
            ("80", ["443", "80"]) if self.is_tls_alone("443") => Ok("%{REQUEST_SCHEME} == 'http' && "),
            ("443", ["443", "80"]) if self.is_tls_alone("443") => Ok("%{REQUEST_SCHEME} == 'https' && "),
            _ => Err(format!(
                "it listens at {}, and its cache does not know by which of these ports a visitor came",
                known.join(", ")
            )),
        }
    }

    /// True if a virtual host takes all requests of this port, and all of its virtual hosts have TLS.
    fn is_tls_alone(&self, port: &str) -> bool {
        let sections = self.scan.sections.iter().enumerate().filter(|(_, section)| section.kind == "virtualhost");
        let addresses = |argument: &str| -> Vec<String> {
            argument.split_whitespace().map(|address| address.trim_matches('"').to_ascii_lowercase()).collect()
        };
        let of_port = |argument: &str| {
            let all = addresses(argument);
            all.iter().any(|address| address.rsplit(':').next().is_some_and(|own| own == port || own == "*"))
        };
        let has_tls = |index: usize| {
            let mut own = self.scan.lines.iter().filter(|line| line.inside == Some(index));
            own.any(|line| {
                line.name.eq_ignore_ascii_case("SSLEngine")
                    && line.arguments.first().is_some_and(|first| first.eq_ignore_ascii_case("on"))
            })
        };
        let mut takes_all = false;
        for (index, section) in sections.filter(|(_, section)| of_port(&section.argument)) {
            if !has_tls(index) {
                return false;
            }
            let any = [format!("*:{port}"), format!("_default_:{port}")];
            takes_all |= addresses(&section.argument).iter().any(|address| any.contains(address));
        }
        takes_all
    }
}

/// Returns the LoadModule line of a module, whose file is in one of these folders.
fn load(name: &str, folders: &[PathBuf]) -> Result<String, String> {
    let advice = "a2enmod env headers cache cache_disk";
    let file = folders.iter().map(|folder| folder.join(format!("mod_{name}.so"))).find(|file| file.is_file());
    let file = file.ok_or_else(|| {
        format!(
            "mod_{name} is not loaded, and it is not beside the modules that are: install it, and load it ({advice})"
        )
    })?;
    execution::check_roots(&file).map_err(|why| format!("mod_{name} is not loaded, and {why} ({advice})"))?;
    let text = file.to_str().filter(|text| is_plain(text));
    Ok(format!("LoadModule {name}_module {}", text.ok_or("the folder of its modules cannot be quoted")?))
}

/// The condition that a request names no user, and asks for a whole page. `req_novary` leaves the answer's Vary as it is.
fn of_nobody() -> String {
    ["Cookie", "Authorization", "Range"].map(|field| format!("req_novary('{field}') == ''")).join(" && ")
}

fn condition_of_trial(token: &str, paths: &[String]) -> Result<String, String> {
    let paths = paths.iter().map(|path| path_pattern(path)).collect::<Result<Vec<_>, _>>()?.join("|");
    Ok(format!(
        "req_novary('{}') == '{token}' && {} && %{{THE_REQUEST}} =~ m#^GET ({paths})([?][^ ]{{0,999}})? HTTP/#",
        PageCache::HEADER,
        of_nobody()
    ))
}

/// The condition under which an answer is not stored. 304 confirms what is stored.
fn not_stored(is_kept: bool) -> String {
    let mut all = "-n resp('Set-Cookie') || ! (%{REQUEST_STATUS} in {'200', '304'}) || resp('Cache-Control') =~ /private|no-store|no-cache/i"
        .to_string();
    if is_kept {
        // Each value of another field would be one more file.
        let known = PageCache::BOUNDED_FIELDS.join("|");
        all.push_str(&format!(" || (-n resp('Vary') && ! (resp('Vary') =~ /^ *({known})( *, *({known}))* *$/i))"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::config::scan_of;
    use super::*;

    const SITE: &str =
        "Listen 80\nLoadModule php_module /usr/lib/apache2/modules/libphp.so\n<VirtualHost *:80>\n</VirtualHost>";
    const TLS: &str = "Listen 80\nListen [::]:443 https\n<VirtualHost *:80>\n</VirtualHost>\n<VirtualHost *:443>\nSSLEngine on\n</VirtualHost>\n";

    fn cache() -> PageCache {
        PageCache {
            token: Some("0123456789abcdef".into()),
            paths: vec!["/a.php".into(), "/b+c/".into()],
            pages: vec!["www.Example.com:80/a.php".into()],
            lifetime_s: 10,
            folder: Some("/var/cache/apache2/lastdrop-cache-0".into()),
        }
    }

    fn modules(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| format!("{name}_module")).collect()
    }

    /// The configuration after the edits.
    fn changed_with(text: &str, loaded: &[&str], overrides: &[&str], cache: &PageCache) -> Result<String, String> {
        let (_dir, scan) = scan_of(text);
        let overrides = Some(overrides.iter().map(|text| text.as_bytes().to_vec()).collect());
        let edits = CacheSurroundings { scan: &scan, modules: &modules(loaded), overrides }.edits(cache)?;
        Ok(String::from_utf8(edits.apply(0, text.as_bytes(), 0..text.len())).expect("text"))
    }

    fn changed(text: &str, cache: &PageCache) -> Result<String, String> {
        changed_with(text, &NEEDED, &[], cache)
    }

    #[test]
    fn a_cache_is_for_requests_of_ours_that_name_no_user_and_for_these_pages_alone() {
        let new = changed(SITE, &cache()).expect("placed");
        let added = new.strip_prefix(&format!("{SITE}\n")).expect("nothing else is changed");
        for line in [
            "CacheQuickHandler off",
            "CacheRoot /var/cache/apache2/lastdrop-cache-0",
            "CacheDefaultExpire 10",
            "<If \"req_novary('X-Lastdrop-Trial') == '0123456789abcdef' && req_novary('Cookie') == '' && req_novary('Authorization') == '' && req_novary('Range') == '' && %{THE_REQUEST} =~ m#^GET (/a[.]php|/b[+]c/)([?][^ ]{0,999})? HTTP/#\">",
            "    RequestHeader set X-Lastdrop-Cache \"expr=%{REQUEST_SCHEME} %{HTTP_HOST} %{THE_REQUEST}\"",
            "    Header merge Vary X-Lastdrop-Cache",
            "    Header always merge Cache-Control private \"expr=-n resp('Set-Cookie') || ! (%{REQUEST_STATUS} in {'200', '304'}) || resp('Cache-Control') =~ /private|no-store|no-cache/i\"",
            "    RequestHeader unset X-Lastdrop-Cache",
            "    SetEnv no-cache 1",
        ] {
            assert!(added.lines().any(|own| own == line), "{line}: {added}");
        }
        assert!(!added.contains("LoadModule") && !added.contains("keeps"), "{added}");
    }

    #[test]
    fn a_kept_cache_is_for_visitors_of_these_names_and_ports_without_a_query() {
        let kept = PageCache { token: None, ..cache() };
        let new = changed(SITE, &kept).expect("placed");
        for part in [
            KEPT,
            "req_novary('Accept-Encoding') in {'', 'gzip', ",
            " && ((req_novary('Host') in {'www.example.com', 'www.example.com:80'} && %{THE_REQUEST} =~ m#^GET /a[.]php HTTP/(1[.][01]|2[.]0)$#))\">",
            " || (-n resp('Vary') && ! (resp('Vary') =~ /^ *(accept-encoding|cookie|authorization)( *, *(accept-encoding|cookie|authorization))* *$/i))\"",
        ] {
            assert!(new.contains(part), "{part}: {new}");
        }
        assert!(!new.contains("Trial"), "{new}");
        // The scheme tells the port where TLS is on one of two.
        let of_http = changed(TLS, &kept).expect("placed");
        assert!(of_http.contains("(%{REQUEST_SCHEME} == 'http' && req_novary('Host')"), "{of_http}");
        let pages = vec!["[::1]:443/a.php".to_string()];
        let of_tls = changed(TLS, &PageCache { pages, ..kept.clone() }).expect("placed");
        assert!(
            of_tls.contains("(%{REQUEST_SCHEME} == 'https' && req_novary('Host') in {'[::1]', '[::1]:443'}"),
            "{of_tls}"
        );
        // A client may write another port into Host than the one to which it came.
        for text in [
            "Listen 80\nListen 8080\n",
            "Listen 8080\n",
            &TLS.replace("SSLEngine on\n", ""),
            &TLS.replace("<VirtualHost *:443>", "<VirtualHost 10.0.0.1:443>"),
        ] {
            let refused = changed(text, &kept).expect_err("the port is not known");
            assert!(refused.contains("does not know by which of these ports"), "{text}: {refused}");
            assert!(changed(text, &cache()).is_ok(), "on trial the port does not matter: {text}");
        }
    }

    #[test]
    fn what_the_cache_must_not_meet_is_refused_with_its_place() {
        for line in [
            "CacheEnable disk /x",
            "cacheroot /x",
            "<Location /x>\nCacheDisable on\n</Location>",
            "SSLVerifyClient optional",
            "Header always set Vary X",
            "<If true>\nHeader unset vary\n</If>",
        ] {
            let refused = changed(&format!("{SITE}\n{line}\n"), &cache()).expect_err("in the way");
            assert!(refused.contains("main.conf:5") || refused.contains("main.conf:6"), "{line}: {refused}");
        }
        for line in ["CacheNegotiatedDocs On", "SSLVerifyClient none", "Header merge Vary Accept"] {
            assert!(changed(&format!("{SITE}\n{line}\n"), &cache()).is_ok(), "{line}");
        }
        let by_override = |text: &str, loaded: &[&str]| changed_with(SITE, loaded, &[text], &cache());
        for text in ["CacheEnable disk", "<If true>\nHeader unset Vary\n</If>"] {
            assert!(by_override(text, &NEEDED).is_err_and(|e| e.contains(".htaccess")), "{text}");
        }
        let asks = "<IfModule mod_headers.c>\nHeader set A b\n</IfModule>";
        assert!(by_override(asks, &NEEDED).is_ok());
        assert!(by_override(asks, &["env", "cache", "cache_disk"]).is_err_and(|e| e.contains("a2enmod headers")));
        let own_users: Vec<&str> = NEEDED.into_iter().chain(["mpm_itk"]).collect();
        assert!(changed_with(SITE, &own_users, &[], &cache()).is_err_and(|e| e.contains("mpm_itk_module")));
    }

    #[test]
    fn a_module_that_is_missing_comes_from_the_folder_of_the_others_or_is_named() {
        let refused = changed_with("LoadModule a_module /no/such/mod_a.so\n", &["env"], &[], &cache());
        assert!(
            refused.is_err_and(|e| e.contains("mod_headers") && e.contains("a2enmod env headers cache cache_disk"))
        );
        let dir = tempfile::tempdir().expect("a folder");
        let text = format!("LoadModule a_module {}/mod_a.so\n", dir.path().display());
        std::fs::write(dir.path().join("mod_cache_disk.so"), "").expect("written");
        let loaded = changed_with(&text, &["env", "headers", "cache"], &[], &cache());
        // Only root may have written it.
        match loaded {
            Ok(new) => {
                let line = format!("\nLoadModule cache_disk_module {}/mod_cache_disk.so\n", dir.path().display());
                assert!(new.contains(&line), "{new}");
            }
            Err(why) => assert!(why.contains("can be changed by others than root"), "{why}"),
        }
    }

    #[test]
    fn a_path_site_or_token_that_could_be_more_than_itself_is_refused() {
        for path in ["a", "/a\"b", "/a;b", "/a$b", "/a\\b", "/a b", "/a{", "/\u{e4}", "/a|/b", "/a'b", "/a#b"] {
            assert!(changed(SITE, &PageCache { paths: vec![path.into()], ..cache() }).is_err(), "{path}");
        }
        for token in ["", "a b", "a'"] {
            assert!(changed(SITE, &PageCache { token: Some(token.into()), ..cache() }).is_err(), "{token}");
        }
        for page in ["", "/a", "a b:80/", "a':80/", "(.*):80/", "a:80", "a/x", "a:80/$"] {
            let kept = PageCache { token: None, pages: vec![page.into()], ..cache() };
            assert!(changed(SITE, &kept).is_err(), "{page}");
        }
        assert!(changed(SITE, &PageCache { folder: Some("/a b".into()), ..cache() }).is_err());
        assert!(changed(SITE, &PageCache { folder: None, ..cache() }).is_err());
    }
}
