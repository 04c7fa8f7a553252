use super::*;

fn text(value: Option<&[u8]>) -> String {
    value.map_or("-".into(), |v| String::from_utf8_lossy(v).into_owned())
}

/// A line as its parts, `method target status bytes client agent server upstream time`.
fn read(format: &str, line: &str) -> String {
    let format = Arc::new(format.parse::<Format>().unwrap_or_else(|e| panic!("{e}")));
    read_by(&format, line)
}

fn read_by(format: &Arc<Format>, line: &str) -> String {
    let mut entry = Entry { line: line.as_bytes().to_vec(), ..Entry::default() };
    match format.read(&mut entry) {
        Outcome::Request => {}
        Outcome::Nothing => return "nothing".into(),
        Outcome::Rejected(misread) => return format.explain(misread),
    }
    let number = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    format!(
        "{} {} {} {} {} {} {} {} {}",
        text(entry.method()),
        text(entry.target().as_deref()),
        entry.status,
        number(entry.bytes),
        text(entry.client()),
        text(entry.agent()),
        number(entry.server_us),
        number(entry.upstream_us),
        entry.time_us,
    )
}

fn recognised(line: &str) -> (String, String) {
    let format = recognise(std::iter::once(line.as_bytes())).unwrap_or_else(|| panic!("not recognised: {line}"));
    (format.name().into(), read_by(&format, line))
}

const COMBINED_LINE: &str = r#"10.0.0.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1.1" 200 2326 "http://h/" "Mozilla/5.0 (X; \"y\")""#;

#[test]
fn formats_that_everybody_has_are_recognised() {
    for (line, name, parts) in [
        (COMBINED_LINE, "combined", r#"GET /a?b=1 200 2326 10.0.0.7 Mozilla/5.0 (X; "y") - - 971211336000000"#),
        // The trace of NASA, July 1995.
        (
            r#"199.72.81.55 - - [01/Jul/1995:00:00:01 -0400] "GET /history/apollo/ HTTP/1.0" 200 6245"#,
            "common",
            "GET /history/apollo/ 200 6245 199.72.81.55 - - - 804571201000000",
        ),
        // And that of the EPA, August 1995.
        (
            r#"141.243.1.172 [29:23:53:25] "GET /Software.html HTTP/1.0" 200 1497"#,
            "epa",
            "GET /Software.html 200 1497 141.243.1.172 - - - 809740405000000",
        ),
        (
            r#"www.example.org:443 ::1 - - [10/Oct/2000:13:55:36 -0700] "POST /x HTTP/2.0" 302 - "-" "-""#,
            "vhost_combined",
            "POST /x 302 - ::1 - - - 971211336000000",
        ),
        (
            r#"10.0.0.7 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" "10.1.1.1" 0.005"#,
            "combined and more",
            "GET / 200 5 10.0.0.7 curl - - 971211336000000",
        ),
        (
            r#"10.0.0.7 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 5 1234"#,
            "common and more",
            "GET / 200 5 10.0.0.7 - - - 971211336000000",
        ),
        (
            r#"Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#,
            "haproxy",
            "GET /index.html 200 2750 10.0.1.2 - 109000 69000 1233922454655000",
        ),
        (
            r#"2001:db8::7:4711 [06/Feb/2009:12:14:14.655] in~ be/<NOSRV> -1/-1/-1/-1/2 400 0 - - PR-- 1/1/0/0/0 0/0 "<BADREQ>""#,
            "haproxy",
            "- - 400 0 2001:db8::7 - 2000 - 1233922454655000",
        ),
        (
            r#"{"time":"2000-10-10T20:55:36+00:00","remote_addr":"10.0.0.7","request":"GET /a\"b HTTP/1.1","status":"200","body_bytes_sent":5,"request_time":0.25,"upstream_response_time":"0.2","http_user_agent":"caf\u00e9"}"#,
            "json",
            "GET /a\"b 200 5 10.0.0.7 café 250000 200000 971211336000000",
        ),
        // Caddy's.
        (
            r#"{"level":"info","ts":971211336.5,"logger":"x","request":{"remote_ip":"127.0.0.1","proto":"HTTP/2.0","method":"GET","host":"h","uri":"/x?y=1","headers":{"User-Agent":["curl/7"],"Accept":["*/*"]}},"user_id":"","duration":0.000929675,"size":10900,"status":200}"#,
            "json",
            "GET /x?y=1 200 10900 127.0.0.1 curl/7 930 - 971211336500000",
        ),
        // Traefik's.
        (
            r#"{"ClientHost":"10.0.0.7","Duration":1500000,"OriginDuration":1200000,"RequestMethod":"GET","RequestPath":"/x","DownstreamStatus":404,"DownstreamContentSize":7,"StartUTC":"2000-10-10T20:55:36.123456789Z","time":"2000-10-10T20:55:37Z"}"#,
            "json",
            "GET /x 404 7 10.0.0.7 - 1500 1200 971211336123456",
        ),
    ] {
        assert_eq!(recognised(line), (name.to_string(), parts.to_string()));
    }
}

#[test]
fn formats_of_apache_and_nginx_are_taken_as_they_are_configured() {
    for (format, line, parts) in [
        (
            r#"LogFormat "%a %l %u %t \"%r\" %>s %b %D" timed"#,
            r#"10.0.0.7 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 - 1234"#,
            "GET / 200 - 10.0.0.7 - 1234 - 971211336000000",
        ),
        (
            r#"%{%Y-%m-%d %H:%M:%S}t.%{usec_frac}t %h "%m %U%q %H" %>s %{ms}T"#,
            r#"2000-10-10 20:55:36.012345 h "GET /x?y=z HTTP/1.1" 404 12"#,
            "GET /x?y=z 404 - h - 12000 - 971211336012345",
        ),
        (
            r#"%{sec}t %{msec_frac}t "%{Host}i" "%r" %!200,304{Referer}i %s %T"#,
            r#"971211336 250 "shop" "GET / HTTP/1.0" - 200 2"#,
            "GET / 200 - - - 2000000 - 971211336250000",
        ),
        (
            "log_format main '$remote_addr - $remote_user [$time_local] \"$request\" '\n  '$status $body_bytes_sent \"$http_user_agent\" $request_time $upstream_response_time';",
            r#"10.0.0.7 - - [10/Oct/2000:20:55:38 +0000] "GET /\x22x HTTP/1.1" 200 5 "curl" 1.500 0.500, 0.250"#,
            "GET /\"x 200 5 10.0.0.7 curl 1500000 750000 971211337000000",
        ),
        (
            r#"$msec|$remote_addr|$request_method|$uri$is_args$args|$status|$request_time"#,
            r"971211336.500|10.0.0.7|GET|/x?y=1|200|0.100",
            "GET /x?y=1 200 - 10.0.0.7 - 100000 - 971211336400000",
        ),
        (
            r#"log_format j escape=json '{"t":"$time_iso8601","who":"$remote_addr","what":"$request","s":$status}';"#,
            r#"{"t":"2000-10-10T20:55:36+00:00","who":"10.0.0.7","what":"GET /\u00e9 HTTP/1.1","s":200}"#,
            "GET /é 200 - 10.0.0.7 - - - 971211336000000",
        ),
    ] {
        assert_eq!(read(format, line), parts, "{format}");
    }
}

#[test]
fn lines_of_the_nineties_are_requests_too() {
    let line = |request: &str, rest: &str| format!("h - - [01/Jul/1995:00:00:01 -0400] \"{request}\" {rest}");
    for (request, rest, parts) in [
        ("GET /htbin/wais.com?\"foo\" HTTP/1.0", "200 12", "GET /htbin/wais.com?\"foo\" 200 12"),
        ("GET /old.html", "304 0", "GET /old.html 304 0"),
        ("GET /a b.html HTTP/1.0", "404 -", "GET /a b.html 404 -"),
        ("", "400 -", "- - 400 -"),
        ("\\x16\\x03\\x01", "400 226", "- - 400 226"),
        ("GET /\u{fffd}\" 200 x\" HTTP/1.0", "200 1", "GET /\u{fffd}\" 200 x\" 200 1"),
    ] {
        let got = read("common", &line(request, rest));
        assert!(got.starts_with(&format!("{parts} h ")), "{got}");
        let epa = read("epa", &format!("h [29:23:53:25] \"{request}\" {rest}"));
        assert!(epa.starts_with(&format!("{parts} h ")) && epa.ends_with("809740405000000"), "{epa}");
    }
}

#[test]
fn bytes_that_are_no_text_come_through_as_they_are() {
    for (name, before) in [("common", "h - - [01/Jul/1995:00:00:01 -0400]"), ("epa", "h [30:00:00:01]")] {
        let line = [before.as_bytes(), b" \"GET /caf\xe9\xff\" x.html HTTP/1.0\" 200 -"].concat();
        let format = Arc::new(name.parse::<Format>().expect("a format"));
        let mut entry = Entry { line, ..Entry::default() };
        assert_eq!(format.read(&mut entry), Outcome::Request);
        assert_eq!((entry.path(), entry.bytes, entry.status), (Some(&b"/caf\xe9\xff\" x.html"[..]), None, 200));
    }
}

#[test]
fn what_does_not_fit_says_where() {
    for (format, line, why) in [
        ("combined", "10.0.0.7 - - [10/Okt/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5", "%t expected at byte 14"),
        ("common", "rubbish", "%h expected at byte 1"),
        ("common", &(r#"h - - [10/Oct/2000:13:55:36 -0700] "#.to_string() + &"\"".repeat(60_000)), "%r expected"),
        ("json", r#"{"time":"2000-10-10T20:55:36Z","status":200}"#, "no JSON object with a time and a request"),
        ("json", r#"{"time":"2000-10-10T20:55:36Z","uri":"/"#, "no JSON object"),
        ("json", &"[".repeat(10_000), "no JSON object"),
    ] {
        let got = read(format, line);
        assert!(got.starts_with(why) || got.contains(" expected at byte "), "{got}");
    }
    assert_eq!(
        read("haproxy", "x haproxy[1]: 10.0.0.1:5 [06/Feb/2009:12:12:51.443] f b/s 0/0/7 212 -- 0/0/0/0/3 0/0"),
        "nothing"
    );
    assert_eq!(read("combined", "# a comment"), "nothing");
}

#[test]
fn formats_that_cannot_be_read_back_are_refused() {
    for (format, word) in [
        ("nonsense", "combined"),
        ("%h %>s", "no time"),
        ("%h %t %>s", "no request"),
        ("%h%u %t %r", "nothing stands between %h and %u"),
        ("%t %r %{x", "no letter"),
        ("%{%Q}t %r", "%Q"),
        ("$time_local $request ${x", "without the name"),
    ] {
        let error = format.parse::<Format>().expect_err(format);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn users_are_told_apart_by_address_cookie_and_field() {
    let format = Arc::new(r#"%h %t "%r" "%{sid}C" "%{Cookie}i" %{x}e"#.parse::<Format>().expect("a format"));
    let line = r#"10.0.0.7 [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" "-" "a=1; sid=abc; b=2" tail"#;
    let mut entry = Entry { line: line.as_bytes().to_vec(), ..Entry::default() };
    assert_eq!(format.read(&mut entry), Outcome::Request);
    let by = |key: &str| text(entry.key(&key.parse().expect("a key")));
    assert_eq!((by("address"), by("cookie:sid"), by("cookie:no")), ("10.0.0.7".into(), "abc".into(), "-".into()));
    assert_eq!((by("field:3"), by("field:6"), by("field:7")), ("GET / HTTP/1.1".into(), "tail".into(), "-".into()));
    assert!("field:0".parse::<crate::Key>().is_err());
    // An empty cookie knows nobody.
    let line = r#"10.0.0.7 [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" "-" "sid=; b=2; sid=x" tail"#;
    let mut entry = Entry { line: line.as_bytes().to_vec(), ..Entry::default() };
    assert_eq!(format.read(&mut entry), Outcome::Request);
    assert_eq!((text(entry.cookie("sid")), entry.cookie("c")), ("x".into(), None));
}
