use super::*;

fn text(value: Option<&[u8]>) -> String {
    value.map_or("-".into(), |v| String::from_utf8_lossy(v).into_owned())
}

/// A line in its parts, `method target status bytes client agent server upstream time`.
fn read(format: &str, line: &str) -> String {
    let format = Arc::new(format.parse::<Format>().unwrap_or_else(|e| panic!("{e}")));
    read_by(&format, line)
}

fn read_by(format: &Arc<Format>, line: &str) -> String {
    let mut entry = LogEntry { line: line.as_bytes().to_vec(), ..LogEntry::default() };
    match format.read(&mut entry) {
        LineOutcome::Request => {}
        LineOutcome::Nothing => return "nothing".into(),
        LineOutcome::Rejected(misread) => return format.explain(misread),
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
    let format =
        recognise(std::iter::once(line.as_bytes())).unwrap_or_else(|e| panic!("not recognised: {line}: {e:?}"));
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
        let mut entry = LogEntry { line, ..LogEntry::default() };
        assert_eq!(format.read(&mut entry), LineOutcome::Request);
        assert_eq!((entry.path(), entry.bytes, entry.status), (Some(&b"/caf\xe9\xff\" x.html"[..]), None, 200));
    }
}

#[test]
fn what_does_not_fit_says_where() {
    for (format, line, why) in [
        ("combined", "10.0.0.7 - - [10/Okt/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5", "%t expected at byte 13"),
        ("common", "rubbish", "%h expected at byte 1"),
        ("common", &(r#"h - - [10/Oct/2000:13:55:36 -0700] "#.to_string() + &"\"".repeat(60_000)), "%>s expected"),
        ("json", r#"{"time":"2000-10-10T20:55:36Z","status":200}"#, "it has no request: none of request"),
        ("json", r#"{"uri":"/","status":200}"#, "it has no time: none of time"),
        ("json", r#"{"time":"noon","uri":"/","status":200}"#, "what stands at byte 10 is no time"),
        (
            "json",
            r#"{"time":"2000-10-10T20:55:36Z","path":"/var/log/x"}"#,
            "it has a path, but neither a method nor a status",
        ),
        ("json", r#"{"time":"2000-10-10T20:55:36Z","uri":"/"#, "no whole JSON object"),
        ("json", &"[".repeat(10_000), "no whole JSON object"),
    ] {
        let got = read(format, line);
        assert!(got.contains(why), "{why}: {got}");
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
    let mut entry = LogEntry { line: line.as_bytes().to_vec(), ..LogEntry::default() };
    assert_eq!(format.read(&mut entry), LineOutcome::Request);
    let by = |key: &str| text(entry.key(&key.parse().expect("a key")));
    assert_eq!((by("address"), by("cookie:sid"), by("cookie:no")), ("10.0.0.7".into(), "abc".into(), "-".into()));
    assert_eq!((by("field:3"), by("field:6"), by("field:7")), ("GET / HTTP/1.1".into(), "tail".into(), "-".into()));
    assert!("field:0".parse::<crate::SessionKey>().is_err());
    // An empty cookie identifies nobody.
    let line = r#"10.0.0.7 [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" "-" "sid=; b=2; sid=x" tail"#;
    let mut entry = LogEntry { line: line.as_bytes().to_vec(), ..LogEntry::default() };
    assert_eq!(format.read(&mut entry), LineOutcome::Request);
    assert_eq!((text(entry.cookie("sid")), entry.cookie("c")), ("x".into(), None));
}

/// The client of a recognised line, or why it is not recognised.
fn client_of(line: &str) -> String {
    match recognise(std::iter::once(line.as_bytes())) {
        Ok(format) => {
            let mut entry = LogEntry { line: line.as_bytes().to_vec(), ..LogEntry::default() };
            assert_eq!(format.read(&mut entry), LineOutcome::Request, "{line}");
            text(entry.client())
        }
        Err(unrecognised) => unrecognised.nearest.unwrap_or_default(),
    }
}

const TAIL: &str = r#"[10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 5"#;

#[test]
fn what_stands_before_a_line_is_no_client() {
    let combined = format!(r#"203.0.113.7 - - {TAIL} "-" "curl""#);
    let json = r#"{"time":"2000-10-10T20:55:36Z","remote_addr":"203.0.113.7","request":"GET / HTTP/1.1","status":200}"#;
    let haproxy = r#"203.0.113.7:33317 [06/Feb/2009:12:14:14.655] in be/s 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1""#;
    for line in [&combined[..], json, haproxy] {
        for before in [
            "2026-05-13T10:00:00.123456789Z stdout F ",
            "2026-05-13T10:00:00.123456789+02:00 stderr F ",
            "May 13 10:00:00 web1 nginx: ",
            "May  3 10:00:00 web1 nginx[77]: ",
            "Wed May 13 10:00:00 web1 nginx[77]: ",
            "<134>May 13 10:00:00 web1 nginx[77]: ",
            "<134>May 13 10:00:00 nginx: ",
            "2026-05-13T10:00:00+00:00 web1 nginx[77]:  ",
            "2026-05-13T10:00:00.123456+00:00 app[web.1]: ",
            "<134>1 2026-05-13T10:00:00.123Z lb1 haproxy 9 - - ",
            "<134>1 2026-05-13T10:00:00.123Z lb1 haproxy 9 ID [x@1 a=\"b ] c\\\"\"][y] ",
            "<134>1 - - haproxy - - - \u{feff}",
            "web-1  | ",
            "[pod/web-7d9/nginx] ",
            "2026-05-13T10:00:00.123456789Z ",
            "I, [2026-05-13T10:00:00.123456 #77]  INFO -- : ",
            "",
        ] {
            assert_eq!(client_of(&format!("{before}{line}")), "203.0.113.7", "{before}{line}");
        }
        let quoted = serde_json::to_string(&format!("{line}\n")).expect("a text");
        for wrapped in [
            format!(r#"{{"log":{quoted},"stream":"stdout","time":"2026-05-13T10:00:00.1Z"}}"#),
            format!(r#"{{"_HOSTNAME":"web1","MESSAGE":{quoted},"PRIORITY":"6"}}"#),
            format!(
                r#"{{"@timestamp":"2026-05-13T10:00:00.1Z","path":"/var/log/nginx/access.log","message":{quoted}}}"#
            ),
        ] {
            assert_eq!(client_of(&wrapped), "203.0.113.7", "{wrapped}");
        }
        for before in ["2026-05-13T10:00:00Z stdout P ", "prod web1 ", "prod 13 web1 nginx: ", "a b c d: "] {
            let got = client_of(&format!("{before}{line}"));
            assert!(got.contains(" expected at byte ") || got.contains("stops being one"), "{before}{line}: {got}");
        }
    }
}

#[test]
fn a_line_with_a_field_more_has_its_client_or_is_refused_with_the_place() {
    for (line, client) in [
        (format!("shop.example 203.0.113.7 - - {TAIL}"), "203.0.113.7"),
        (format!(r#"shop.example 203.0.113.7 - frank {TAIL} "-" "curl" more"#), "203.0.113.7"),
        (format!("shop.example ::1 - - {TAIL}"), "::1"),
        (format!("shop.example:443 203.0.113.7 - - {TAIL} \"-\" \"-\""), "203.0.113.7"),
        (format!("203.0.113.7:51234 - - {TAIL}"), "203.0.113.7"),
        (format!("[2001:db8::7]:51234 - - {TAIL}"), "2001:db8::7"),
        (format!("2001:db8::7 - - {TAIL}"), "2001:db8::7"),
        (format!("203.0.113.7, 10.0.0.1 - - {TAIL} \"-\" \"-\""), "203.0.113.7"),
        (format!("host.example - Ann Lee {TAIL}"), "host.example"),
        (format!("203.0.113.7 shop.example - {TAIL} \"-\" \"-\""), "203.0.113.7"),
        (
            format!(
                "203.0.113.7 - [203.0.113.7] - - {TAIL} \"-\" \"curl\" 321 0.012 [shop-80] 10.0.0.1:80 5 0.012 200"
            ),
            "203.0.113.7",
        ),
        (
            "1286536308.779    180 192.168.0.224 TCP_MISS/200 411 GET http://h/x - DIRECT/88.80.16.72 text/html".into(),
            "192.168.0.224",
        ),
        ("1286536308.779  12180 ::1 TCP_MISS/200 411 CONNECT h:443 ann HIER_DIRECT/88.80.16.72 -".into(), "::1"),
    ] {
        assert_eq!(client_of(&line), client, "{line}");
    }
    for (line, place) in [
        (format!("198.51.100.1 203.0.113.7 - - {TAIL}"), "%l expected at byte 13"),
        (format!("203.0.113.7 - - - {TAIL}"), "%u expected at byte 14"),
        (format!("13 - - {TAIL}"), "%03tu expected at byte 3"),
        (
            r#"203.0.113.7 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 0.005 200 5"#.into(),
            "%>s expected at byte 61",
        ),
        (r#"203.0.113.7 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 0.005 5"#.into(), " expected at byte 66"),
        (r#"203.0.113.7 - - [2000-10-10T20:55:36Z] "GET / HTTP/1.1" 200 5"#.into(), "%t expected at byte 16"),
    ] {
        let got = client_of(&line);
        assert!(got.contains(place), "{line}: {got}");
    }
}

#[test]
fn the_parts_of_a_line_that_nginx_repeats_for_each_upstream_are_lists() {
    let head =
        r#"203.0.113.7 - - [10/Oct/2000:20:55:36 +0000] "GET /a HTTP/1.1" 200 1173 "-" "curl" 321 0.047 [shop-80] []"#;
    for (rest, upstream_us) in [
        ("10.0.0.1:80, 10.0.0.2:80 0, 1173 0.010, 0.036 502, 200 4ac9", "46000"),
        ("10.0.0.1:80, 10.0.0.2:80 : 10.0.0.3:80 0, 0 : 1173 0.010, 0.030 : 0.006 502, 502 : 200 4ac9", "46000"),
        ("10.0.0.1:80, [2001:db8::1]:80 -, 1173 -, 0.036 504, 200 4ac9", "36000"),
        ("unix:/run/app.sock 1173 0.036 200 4ac9", "36000"),
        ("- - - - 4ac9", "-"),
    ] {
        let line = format!("{head} {rest}");
        let parts = format!("GET /a 200 1173 203.0.113.7 curl 47000 {upstream_us} 971211336000000");
        assert_eq!(recognised(&line), ("ingress-nginx".into(), parts.clone()), "{line}");
        assert_eq!(read(INGRESS_NGINX, &line), parts, "{line}");
    }
    // Without the length of the answer, and with an additional field.
    let without = format!("{head} 10.0.0.1:80 0.036 200 4ac9");
    let (name, parts) = recognised(&without);
    assert_eq!((&name[..], &parts[..]), ("combined and more", "GET /a 200 1173 203.0.113.7 curl - - 971211336000000"));
    let why = read(INGRESS_NGINX, &without);
    assert!(why.starts_with("$upstream_response_length expected at byte 118: whole numbers"), "{why}");
    let own = r#"$remote_addr - $remote_user [$time_local] "$request" $status $upstream_addr $upstream_response_time $upstream_status"#;
    let line = |rest: &str| format!(r#"203.0.113.7 - - [10/Oct/2000:20:55:36 +0000] "GET /a HTTP/1.1" 200 {rest}"#);
    assert!(read(own, &line("10.0.0.1:80 0.036 200")).ends_with("- 36000 971211336000000"));
    assert!(read(own, &line("10.0.0.1:80 1173 0.036 200")).starts_with("$upstream_response_time expected"));
    assert!(read(own, &line("10.0.0.1:80 0.036 200 more")).contains(" expected at byte "));
}

#[test]
fn a_line_fits_a_format_of_the_user_whole() {
    let common = |rest: &str| format!("{rest} [10/Oct/2000:20:55:36 +0000]");
    for (format, line, parts) in [
        (
            r#"$remote_addr:$remote_port - [$time_local] "$request" $status"#,
            r#"2001:db8::1:51234 - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200"#.to_string(),
            "GET / 200 - 2001:db8::1 - - - 971211336000000",
        ),
        (
            r#"$remote_addr [$time_local] $request $http_host $status"#,
            common("203.0.113.7") + " GET /a?b=1 HTTP/1.1 shop.example 200",
            "GET /a?b=1 200 - 203.0.113.7 - - - 971211336000000",
        ),
        (
            r#"%{X-Forwarded-For}i %l %u %t "%r" %>s %b"#,
            common("203.0.113.7, 10.0.0.1 - -") + r#" "GET / HTTP/1.1" 200 5"#,
            "GET / 200 5 203.0.113.7 - - - 971211336000000",
        ),
        (
            r#"%h [%{%d/%b/%Y:%T}t.%{msec_frac}t %{%z}t] "%r" %>s"#,
            r#"203.0.113.7 [10/Oct/2000:13:55:36.250 -0700] "GET / HTTP/1.1" 200"#.to_string(),
            "GET / 200 - 203.0.113.7 - - - 971211336250000",
        ),
        (
            r#"%{%F}t %{%T}t %h "%r" %>s"#,
            r#"2000-10-10 20:55:36 203.0.113.7 "GET / HTTP/1.1" 200"#.to_string(),
            "GET / 200 - 203.0.113.7 - - - 971211336000000",
        ),
        (
            "%{sec}t %D %h \"%r\" %>s",
            "971211336      12 203.0.113.7 \"GET / HTTP/1.1\"  200".to_string(),
            "GET / 200 - 203.0.113.7 - 12 - 971211336000000",
        ),
        (
            r#"log-format "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r""#,
            r#"203.0.113.7:5 [10/Oct/2000:20:55:36.250] in~ be/s1 10/0/30/69/+3002 200 +2750 - - ---- 1/1/1/1/+1 0/0 {shop.example|a b} {} "GET /a HTTP/1.1""#.to_string(),
            "GET /a 200 2750 203.0.113.7 - 3002000 69000 971211336250000",
        ),
        (
            r#"%[src] [%t] %HM %HU %ST %Ta"#,
            r#"203.0.113.7 [10/Oct/2000:20:55:36.250] GET /a?b=1 200 12"#.to_string(),
            "GET /a?b=1 200 - 203.0.113.7 - 12000 - 971211336250000",
        ),
    ] {
        assert_eq!(read(format, &line), parts, "{format}");
    }
    for (format, line, why) in [
        (
            r#"$remote_addr [$time_local] $request $http_host $status"#,
            common("203.0.113.7") + " GET /a shop.example 200",
            "$request expected",
        ),
        (r#"%h %t "%r" %>s %b %D"#, common("203.0.113.7") + r#" "GET / HTTP/1.1" 200 5"#, "%b expected"),
        (r#"%h %t "%r" %>s %b"#, common("203.0.113.7") + r#" "GET / HTTP/1.1" 200 5 12"#, "%b expected"),
        (r#"%h %t "%r" %>s %b %{x}e"#, common("203.0.113.7") + r#" "GET / HTTP/1.1" - - 200 5"#, ""),
    ] {
        let got = read(format, &line);
        assert!(got.starts_with(why) && (why.is_empty() || got.contains(" expected at byte ")), "{format}: {got}");
    }
    let error = r#"%{%T}t %h "%r""#.parse::<Format>().expect_err("a time without a day");
    assert!(error.contains("its time has no year"), "{error}");
}

#[test]
fn haproxy_says_what_is_not_over_yet_and_what_it_captured() {
    for (line, parts) in [
        (
            r#"203.0.113.7:5 [10/Oct/2000:20:55:36.250] in be/s1 3/0/0/7/+3002 200 +24 - - ---- 1/1/1/1/0 0/0 "GET /a HTTP/1.1""#,
            "GET /a 200 24 203.0.113.7 - 3002000 7000 971211336250000",
        ),
        (
            r#"203.0.113.7:5 [10/Oct/2000:20:55:36.250] in be/<NOSRV> -1/-1/-1/-1/0 503 0 - - SC-- 1/1/0/0/+1 0/0 {shop.example|Mozilla/5.0 (X)} {||} "GET /a HTTP/1.1""#,
            "GET /a 503 0 203.0.113.7 - 0 - 971211336250000",
        ),
        (
            r#"203.0.113.7:5 [10/Oct/2000:20:55:36.250] in~ be/s1 3/0/0/7/12 200 24 - - ---- 1/1/1/1/0 0/0 {a} "GET /a HTTP/2.0" 0/0/0/0/0 -/TLSv1.3/TLS_AES"#,
            "GET /a 200 24 203.0.113.7 - 12000 7000 971211336250000",
        ),
    ] {
        assert_eq!(recognised(line), ("haproxy".into(), parts.into()), "{line}");
    }
}

#[test]
fn a_duration_counts_only_where_its_unit_is_known() {
    let with =
        |more: &str| format!(r#"{{"time":"2000-10-10T20:55:36.500Z","method":"GET","path":"/a","status":200,{more}}}"#);
    let read_as = |format: &str, more: &str| {
        let format = Arc::new(format.parse::<Format>().expect("a format"));
        let mut entry = LogEntry { line: with(more).into_bytes(), ..LogEntry::default() };
        assert_eq!(format.read(&mut entry), LineOutcome::Request, "{more}");
        (entry.server_us, entry.time_us - 971_211_336_500_000, String::from_utf8(entry.unitless).expect("a key"))
    };
    let none = |key: &str| (None, 0, key.to_string());
    let known = |us: u64, moved_us: i64| (Some(us), moved_us, String::new());
    for (more, expected) in [
        (r#""duration":26"#, none("duration")),
        (r#""duration":26.5"#, none("duration")),
        (r#""latency":26"#, none("latency")),
        (r#""response_time":"26""#, none("response_time")),
        (r#""http.elapsed":26"#, none("http.elapsed")),
        (r#""duration":0"#, known(0, 0)),
        (r#""duration":26,"controller":"Home","action":"index","view":20.1"#, known(26_000, -26_000)),
        (r#""duration":26.25,"action":"index","controller":"Home""#, known(26_250, -26_000)),
        (r#""duration":26,"response_flags":"-","upstream_service_time":"20""#, known(26_000, -26_000)),
        (r#""req":{"method":"GET","url":"/"},"responseTime":26"#, known(26_000, -26_000)),
        (r#""duration":0.026,"request":{"remote_ip":"::1","proto":"HTTP/1.1"}"#, known(26_000, -26_000)),
        (r#""duration":9.2e-05,"request":{"remote_ip":"::1","proto":"HTTP/1.1"}"#, known(92, 0)),
        (r#""duration":"26ms""#, known(26_000, -26_000)),
        (r#""latency":"1m2.5s""#, known(62_500_000, -62_500_000)),
        (r#""elapsed":"350µs""#, known(350, 0)),
        (r#""duration_ms":26"#, known(26_000, -26_000)),
        (r#""durationMs":26"#, known(26_000, -26_000)),
        (r#""elapsed_us":26000"#, known(26_000, -26_000)),
        (r#""time_taken_ms":26"#, known(26_000, -26_000)),
        (r#""responseTimeMillis":26"#, known(26_000, -26_000)),
        (r#""latency_seconds":0.026"#, known(26_000, -26_000)),
        (r#""event":{"duration":26000000}"#, known(26_000, -26_000)),
        (r#""request_time":0.026"#, known(26_000, -26_000)),
        (r#""request_time":"0.026""#, known(26_000, -26_000)),
        (r#""request_time":26"#, none("request_time")),
        (r#""request_time":2,"body_bytes_sent":5"#, known(2_000_000, -2_000_000)),
        (r#""duration":26,"duration_ms":26"#, known(26_000, -26_000)),
    ] {
        assert_eq!(read_as("json", more), expected, "{more}");
    }
    assert_eq!(read_as("json,duration:ms", r#""duration":26"#), known(26_000, -26_000));
    assert_eq!(read_as("json,http.took:us,latency:s", r#""http":{"took":26000}"#), known(26_000, -26_000));
    for (format, word) in
        [("json,duration", "KEY:UNIT"), ("json,duration:days", "KEY:UNIT"), ("json,what=x", "KEY:UNIT")]
    {
        assert!(format.parse::<Format>().expect_err(format).contains(word));
    }
    let own = r#"{"when":"2000-10-10T20:55:36Z","verb":"GET","route":"/x","from":"203.0.113.7","n":7}"#;
    assert_eq!(
        read("json,time=when,path=route,client=from,bytes=n", own),
        "GET /x 0 7 203.0.113.7 - - - 971211336000000"
    );
}

#[test]
fn lines_of_lograge_take_the_time_of_what_wraps_them() {
    let line = r#"{"method":"GET","path":"/a","format":"html","controller":"Home","action":"index","status":200,"duration":26.0}"#;
    for before in ["2000-10-10T20:55:36.500Z stdout F ", "I, [2000-10-10T20:55:36.500000 #7]  INFO -- : "] {
        assert_eq!(recognised(&format!("{before}{line}")).1, "GET /a 200 - - - 26000 - 971211336474000");
    }
    assert!(client_of(line).contains("it has no time"), "{}", client_of(line));
    // Logstash's version of a combined line: the target alone, and the file's path.
    let parsed = r#"{"@timestamp":"2000-10-10T20:55:36.000Z","path":"/var/log/x","clientip":"203.0.113.7","verb":"GET","request":"/a","response":"200","bytes":"5","message":"x"}"#;
    assert_eq!(recognised(parsed).1, "GET /a 200 5 203.0.113.7 - - - 971211336000000");
}

#[test]
fn a_format_of_the_user_is_found_in_an_envelope() {
    let format = Arc::new(r#"%h %t "%r" %>s"#.parse::<Format>().expect("a format"));
    let line = r#"May 13 10:00:00 web1 httpd: 203.0.113.7 [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200"#;
    let fitted = format.fitted(std::iter::once(line.as_bytes()));
    assert!(read_by(&fitted, line).contains(" 203.0.113.7 "), "{}", read_by(&fitted, line));
    assert!(read_by(&fitted, "rubbish").starts_with("syslog's head (time, host, program) expected at byte 1"));
}

#[test]
fn lines_of_keys_and_values_are_read_whole_or_refused_with_the_place() {
    for (line, name, parts) in [
        // Heroku's router.
        (
            r#"2000-10-10T20:55:36.500000+00:00 heroku[router]: at=info method=GET path="/a?b=1" host=h.example request_id=8601 fwd="203.0.113.7, 10.0.0.1" dyno=web.1 connect=1ms service=18ms status=200 bytes=13 protocol=https"#,
            "logfmt behind syslog's head",
            "GET /a?b=1 200 13 203.0.113.7 - 18000 - 971211336482000",
        ),
        // lograge, as it is without a formatter.
        (
            "I, [2000-10-10T20:55:36.500000 #7]  INFO -- : method=GET path=/a?b=1 format=html controller=Home action=index status=200 duration=26.00 view=20.10 db=1.00",
            "logfmt behind Ruby's logger",
            "GET /a?b=1 200 - - - 26000 - 971211336474000",
        ),
        // Grafana.
        (
            r#"logger=context userId=1 t=2000-10-10T20:55:36.500Z level=info msg="Request Completed" method=GET path=/api/x status=302 remote_addr=203.0.113.7 time_ms=3 duration=3.2ms size=29 referer= handler=/api/x"#,
            "logfmt",
            "GET /api/x 302 29 203.0.113.7 - 3000 - 971211336497000",
        ),
        // Docker's registry.
        (
            r#"time="2000-10-10T20:55:36.500Z" level=info msg="response completed" http.request.host=h http.request.method=GET http.request.remoteaddr="203.0.113.7:4711" http.request.uri="/v2/" http.request.useragent="docker/24 (x; \"y\")" http.response.duration=2ms http.response.status=200 http.response.written=2"#,
            "logfmt",
            r#"GET /v2/ 200 2 203.0.113.7 docker/24 (x; "y") 2000 - 971211336498000"#,
        ),
        (
            r#"time="2000-10-10 20:55:36" request="GET /a\tb HTTP/1.1" status=200"#,
            "logfmt",
            "GET /a\tb 200 - - - - - 971211336000000",
        ),
        (
            r"time=2000-10-10T20:55:36Z method=GET path=/a\tb=c status=200",
            "logfmt",
            r"GET /a\tb=c 200 - - - - - 971211336000000",
        ),
    ] {
        assert_eq!(recognised(line), (name.to_string(), parts.to_string()));
    }
    let with = |rest: &str| format!("time=2000-10-10T20:55:36Z method=GET {rest}");
    // A key longer than any known one.
    let long = with(&format!("{}=1 path=/a status=200", "k".repeat(200)));
    assert_eq!(recognised(&long), ("logfmt".to_string(), "GET /a 200 - - - - - 971211336000000".to_string()));
    for (line, why) in [
        (with("path=/a b status=200"), "key=value expected at byte 46"),
        (with("path=/a\"b\" status=200"), "key=value expected at byte 45"),
        (with("path=\"/a\"b status=200"), "key=value expected at byte 47"),
        (with("path=\"/a status=200"), "key=value expected at byte 57"),
        (with("=/a status=200"), "key=value expected at byte 38"),
        (with("status=200"), "it has no request: none of request"),
        ("method=GET path=/a status=200".into(), "(--format logfmt,time=KEY says which key it is)"),
    ] {
        let got = read("logfmt", &line);
        assert!(got.contains(why), "{line}: {got}");
        assert!(client_of(&line).contains(why), "{line}: {}", client_of(&line));
    }
    assert_eq!(
        read("logfmt,took:us,client=from", "ts=971211336 method=GET uri=/a status=200 took=2000 from=203.0.113.7"),
        "GET /a 200 - 203.0.113.7 - 2000 - 971211336000000"
    );
}

#[test]
fn squids_logformat_is_taken_as_it_is_configured() {
    for (format, line, parts) in [
        (
            "logformat squid %ts.%03tu %6tr %>a %Ss/%03>Hs %<st %rm %ru %[un %Sh/%<a %mt",
            "971211336.500    180 203.0.113.7 TCP_MISS/200 411 GET http://h/x - DIRECT/88.80.16.72 text/html",
            "GET http://h/x 200 411 203.0.113.7 - 180000 - 971211336320000",
        ),
        (
            r#"logformat combined   %>a %[ui %[un [%tl] "%rm %ru HTTP/%rv" %>Hs %<st "%{Referer}>h" "%{User-Agent}>h" %Ss:%Sh"#,
            r#"203.0.113.7 - ann [10/Oct/2000:20:55:36 +0000] "GET http://h/x HTTP/1.1" 200 411 "-" "curl/7 (x y)" TCP_MISS:HIER_DIRECT"#,
            "GET http://h/x 200 411 203.0.113.7 curl/7 (x y) - - 971211336000000",
        ),
        (
            r#"%tS %tr %-15>a:%>p %http::>rm %<pt "%<h{Location}" %ru %03>Hs %ssl::>sni %#{X-Request-Id}>h"#,
            r#"971211336.250 20 203.0.113.7:4711 GET 18 "https://h/login?a b" https://h/x 302 h.example 4f"#,
            "GET https://h/x 302 - 203.0.113.7 - 20000 18000 971211336250000",
        ),
    ] {
        assert_eq!(read(format, line), parts, "{format}");
    }
    let short = "%ts.%03tu %>a %>Hs %rm %ru";
    for (line, why) in [
        ("971211336.500 203.0.113.7 TCP_MISS GET http://h/x", "%>Hs expected at byte 26: a status of three digits"),
        ("971211336 203.0.113.7 200 GET http://h/x", "%03tu expected at byte "),
    ] {
        let got = read(short, line);
        assert!(got.contains(why), "{line}: {got}");
    }
    for (format, why) in [
        ("%ts.%03tu %>a %xyz %ru", "%xyz is no code of Squid's logformat"),
        ("%ts.%03tu %>a %{Referer>h %ru", "a brace is not closed"),
        ("%>a %Ss %ru", "it has no time"),
    ] {
        let error = format.parse::<Format>().expect_err(format);
        assert!(error.contains(why), "{error}");
    }
}
