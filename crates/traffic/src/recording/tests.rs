use std::path::Path;

use lastdrop_model::plan_file;
use lastdrop_model::request::{Body, ExtractSource};
use serde_json::{Value, json};

use super::*;

fn options() -> PlanOptions {
    PlanOptions { data_file: "plan.csv".into(), ..PlanOptions::default() }
}

/// The plan of an import.
fn planned(imported: ImportedFile) -> RecordedPlan {
    let ImportedFile { exchanges, settings, left_out } = imported;
    plan(exchanges, &PlanOptions { settings, left_out, ..options() }).expect("a plan")
}

/// The plan, parsed again.
fn read(recorded: &RecordedPlan) -> lastdrop_model::Plan {
    let read = plan_file::parse(&recorded.plan, Path::new("/f"));
    read.unwrap_or_else(|e| panic!("{e}\n{}", recorded.plan)).plan
}

fn entry(second: f64, kind: &str, request: Value, response: Value) -> Value {
    let time = format!("2026-01-31T12:00:{second:06.3}Z");
    json!({"startedDateTime": time, "time": 100.0, "_resourceType": kind, "request": request, "response": response})
}

fn html(text: &str) -> Value {
    json!({"status": 200, "headers": [], "content": {"mimeType": "text/html; charset=utf-8", "text": text}})
}

fn get(path: &str) -> Value {
    let headers = json!([{"name": ":path", "value": "/"}, {"name": "User-Agent", "value": "x"}, {"name": "Cookie", "value": "sid=secret"}]);
    json!({"method": "GET", "url": format!("http://shop.test{path}"), "headers": headers})
}

fn post(path: &str, form: &str) -> Value {
    let headers = json!([{"name": "Origin", "value": "http://shop.test"}]);
    json!({"method": "POST", "url": format!("http://shop.test{path}"), "headers": headers,
           "postData": {"mimeType": "application/x-www-form-urlencoded", "text": form}})
}

/// A login with a token, a search, and the order of an item that was found.
fn shop() -> String {
    let entries = [
        entry(
            0.0,
            "document",
            get("/login"),
            html("<title>Log in</title><form><input type=hidden name=\"csrf\" value=\"a8f3c2e19b\">"),
        ),
        entry(
            0.1,
            "stylesheet",
            get("/style.css"),
            json!({"status": 200, "headers": [], "content": {"mimeType": "text/css"}}),
        ),
        entry(
            5.1,
            "document",
            post("/login", "csrf=a8f3c2e19b&user=ann&password=hunter+2"),
            json!({"status": 302, "headers": [{"name": "Location", "value": "/home"}], "content": {}}),
        ),
        entry(5.2, "document", get("/home"), html("<title>Hello</title>")),
        entry(6.0, "script", json!({"method": "GET", "url": "https://ads.test/x.js", "headers": []}), html("")),
        entry(6.1, "xhr", json!({"method": "GET", "url": "https://ads.test/track", "headers": []}), html("")),
        entry(
            9.3,
            "document",
            get("/search?q=blue+shoes&page=1"),
            html("<a href=\"/item/4711\">first</a> <a href=\"/item/4712\">second</a>"),
        ),
        entry(12.4, "document", get("/item/4712"), html("<script>var t = \"Zx81kPq02mR7\";</script>")),
        entry(
            14.5,
            "fetch",
            json!({"method": "POST", "url": "http://shop.test/api/order", "headers": [{"name": "X-Token", "value": "Zx81kPq02mR7"}],
                     "postData": {"mimeType": "application/json", "text": "{\"item\":4712,\"note\":\"{{x}}\"}"}}),
            json!({"status": 201, "headers": [], "content": {"mimeType": "application/json", "text": "{\"order\":{\"id\":991}}"}}),
        ),
        entry(14.7, "document", get("/order/991"), html("<title>Order 991</title>")),
    ];
    json!({"log": {"version": "1.2", "entries": entries}}).to_string()
}

#[test]
fn a_path_through_a_shop_is_a_plan_that_is_short_and_true() {
    let recorded = planned(read_har(&shop()).expect("a HAR file"));
    let plan = read(&recorded);
    let urls: Vec<String> = plan.requests.iter().map(|r| format!("{} {}", r.method, r.url.path)).collect();
    assert_eq!(
        urls,
        [
            "GET /login",
            "POST /login",
            "GET /search?q=blue+shoes&page=1",
            "GET /item/{{item}}",
            "POST /api/order",
            "GET /order/{{order}}"
        ]
    );
    assert_eq!(
        plan.requests[1].body,
        Body::Form(
            [("csrf", "{{csrf}}"), ("user", "{{user_value}}"), ("password", "{{password}}")]
                .map(|(n, v)| (n.into(), v.into()))
                .to_vec()
        )
    );
    assert_eq!(recorded.data.as_deref(), Some("user_value,password\n\"ann\",\"hunter 2\"\n"));
    assert!(!recorded.plan.contains("hunter") && !recorded.plan.contains("sid="), "{}", recorded.plan);
    // Five seconds after the login page with its style sheet; the redirect is followed; ads are not included.
    assert_eq!(plan.requests[0].think.map(|t| t.mean().as_millis()), Some(4_900));
    assert!(plan.http.redirects >= 1 && plan.http.cookies && plan.page.is_some());
    assert!(recorded.notes.iter().any(|n| n.contains("ads.test")), "{:?}", recorded.notes);
    assert!(plan.requests[0].extract.iter().any(|e| matches!(&e.from, ExtractSource::Regex(r) if r.contains("csrf"))));
    assert_eq!(plan.requests[4].extract[0].from, ExtractSource::Json("/order/id".into()));
    assert_eq!(plan.requests[4].headers, [("X-Token".to_string(), "{{x_token}}".to_string())]);
    assert_eq!(plan.requests[4].body, Body::Text("{\"item\":4712,\"note\":\"{{{{x}}\"}".into()));
    assert!(recorded.plan.lines().count() < 60, "{}", recorded.plan);
}

#[test]
fn a_referer_has_the_values_of_its_page_and_is_nobody_elses() {
    let from = |path: &str, page: &str| json!({"method": "GET", "url": format!("http://shop.test{path}"), "headers": [{"name": "Referer", "value": page}]});
    let entries = [
        entry(0.0, "document", from("/", "https://search.test/?q=shop"), html("<a href=\"/item/4712\">first</a>")),
        entry(1.0, "document", from("/item/4712", "http://shop.test/"), html("")),
        entry(2.0, "document", from("/basket", "http://shop.test/item/4712"), html("")),
        entry(
            3.0,
            "document",
            from("/pay", "http://shop.test/basket?session_token=abc123def&item=4712&x={{y}}"),
            html(""),
        ),
    ];
    let har = json!({"log": {"version": "1.2", "entries": entries}}).to_string();
    let recorded = planned(read_har(&har).expect("a HAR file"));
    let referers: Vec<Option<String>> = read(&recorded)
        .requests
        .iter()
        .map(|r| r.headers.iter().find(|(n, _)| n == "Referer").map(|(_, v)| v.clone()))
        .collect();
    let page = |path: &str| Some(format!("http://shop.test{path}"));
    assert_eq!(
        referers,
        [
            None,
            page("/"),
            page("/item/{{item}}"),
            page("/basket?session_token={{session_token}}&item={{item}}&x={{{{y}}")
        ]
    );
    assert!(!recorded.plan.contains("abc123def") && !recorded.plan.contains("search.test"), "{}", recorded.plan);
}

#[test]
fn a_step_expects_where_it_led_and_what_a_stranger_does_not_get() {
    let exchanges = read_har(&shop()).expect("a HAR file").exchanges;
    let stranger = |text: &str| RecordedAnswer { status: 200, text: text.into(), ..RecordedAnswer::default() };
    let without_cookies: HashMap<String, RecordedAnswer> =
        [("http://shop.test/search?q=blue+shoes&page=1".to_string(), stranger("<a href=\"/item/4711\">first</a>"))]
            .into();
    let expected = |options: &PlanOptions| -> Vec<Vec<String>> {
        let recorded = plan(exchanges.clone(), options).expect("a plan");
        read(&recorded).requests.iter().map(|r| r.expect.iter().map(ToString::to_string).collect()).collect()
    };
    let plain = expected(&options());
    assert_eq!(plain[0], ["status=200", "url=/login", "text=<title>Log in</title>"]);
    assert_eq!(plain[1], ["status=200", "url=/home", "text=<title>Hello</title>"]);
    assert_eq!(plain[2], ["status=200", "url=/search?q&page"]);
    assert_eq!(plain[4], ["status=201", "url=/api/order"]);
    assert_eq!(plain[5], ["status=200", "url=/order/{n}"], "a title with a number is another each time");
    let asked = expected(&PlanOptions { without_cookies, ..options() });
    assert_eq!(asked[2], ["status=200", "url=/search?q&page", "text=second"]);
    assert_eq!((&asked[..2], &asked[3..]), (&plain[..2], &plain[3..]));
}

#[test]
fn commands_of_curl_are_read_and_not_run() {
    let text = r#"
# Chromium, Firefox
curl 'http://h/a?x=1' -H 'accept: text/html' -b 'sid=1' --compressed
curl -X POST "http://h/b" \
  --data-raw $'name=O\'Brien&t=\u00e9' ; curl http://h/c -d '{"a":"$(touch /tmp/no)"}' -H "Content-Type: application/json" -Hx-a:b
curl -G http://h/d -d q=1 -u ann:secret
"#;
    let imported = read_curl(text).expect("commands");
    let exchanges = imported.exchanges.clone();
    let shown: Vec<String> = exchanges.iter().map(|e| format!("{} {}", e.method, e.url.path)).collect();
    assert_eq!(shown, ["GET /a?x=1", "POST /b", "POST /c", "GET /d?q=1"]);
    assert_eq!(exchanges[1].body, RequestBody::Form(vec![("name".into(), "O'Brien".into()), ("t".into(), "é".into())]));
    assert_eq!(exchanges[2].body, RequestBody::Text("{\"a\":\"$(touch /tmp/no)\"}".into()));
    let recorded = planned(imported);
    assert_eq!(
        read(&recorded).requests[3].headers,
        [("Authorization".to_string(), "Basic {{authorization}}".to_string())]
    );
    assert!(recorded.data.is_some_and(|d| d.contains("YW5uOnNlY3JldA==")));
    for (text, word) in [
        ("wget http://h/", "is not curl"),
        ("curl -d a -d @/etc/passwd http://h/", "no other file"),
        ("curl -d @- http://h/", "stdin"),
        ("curl -F 'a=<x' http://h/", "no other file"),
        ("curl 'http://h/", "not closed"),
        ("curl -H", "no value"),
        ("curl ftp://h/", "http"),
        ("curl", "no URL"),
        ("curl -b jar.txt http://h/", "no other file"),
        ("curl -K x http://h/", "no other file"),
        ("curl http://h/ --new-option 7", "--new-option is no option"),
        ("curl -H \"Authorization: Bearer $TOKEN\" http://h/", "$TOKEN is a variable"),
        ("curl http://h/ -d \"$(cat f)\"", "output of a command"),
        ("curl http://h/ -d `cat f`", "output of a command"),
        ("curl http://h/?a=1&b=2", "put the URL in quotes"),
        ("time wget http://h/", "'wget' is not curl"),
        ("curl http://h/ < x", "< reads a file"),
        ("curl 'http://h/{a'", "neither a list"),
        ("curl 'http://h/[a]'", "neither a list"),
        ("curl 'http://h/[1-99999]'", "more than 1000"),
        ("curl 'http://h/a b'", "a blank (character 11)"),
        ("curl \"http://h/\" ^\r\n  -H \"accept: */*\"\r\n", "cmd.exe"),
        ("curl ^\"http://h/^\" -H ^\"a: b^\"", "cmd.exe"),
        ("# nothing", "no curl command"),
    ] {
        let error = read_curl(text).expect_err(text);
        assert!(error.0.contains(word), "{error}");
    }
}

#[test]
fn a_path_is_about_the_host_that_it_was_sent_on_to() {
    let get = |url: &str| json!({"method": "GET", "url": url, "headers": []});
    let on = |to: &str| json!({"status": 301, "headers": [{"name": "Location", "value": to}], "content": {}});
    let har = json!({"log": {"entries": [
        entry(0.0, "document", get("http://shop.test/"), on("https://www.shop.test/")),
        entry(0.1, "document", get("https://www.shop.test/"), html("<title>Shop</title>")),
        entry(5.0, "document", get("https://www.shop.test/b"), on("https://pay.test/")),
        entry(5.1, "document", get("https://pay.test/"), html("")),
    ]}});
    let recorded = planned(read_har(&har.to_string()).expect("a HAR file"));
    let urls: Vec<String> = read(&recorded).requests.iter().map(|r| r.url.to_string()).collect();
    assert_eq!(urls, ["https://www.shop.test/", "https://www.shop.test/b"]);
}

#[test]
fn what_is_sent_several_times_is_one_header_of_the_plan() {
    let text = "curl http://h/ -H 'X-A: 1' -H 'x-a: 2' -H 'Authorization: Basic YTpi' -u c:d\n\
                curl http://h/p -H 'X-A: 1' -d 'q=1&q=2'\n";
    let recorded = planned(read_curl(text).expect("commands"));
    let requests = read(&recorded).requests;
    let get = |n: usize, name: &str| requests[n].headers.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
    assert_eq!((get(0, "X-A"), get(1, "X-A")), (Some("1, 2"), Some("1")));
    assert!(get(0, "Authorization").is_some_and(|v| v.contains("{{authorization")), "{requests:?}");
    assert!(!recorded.plan.contains("YTpi"), "{}", recorded.plan);
    assert_eq!(get(1, "Content-Type"), Some("application/x-www-form-urlencoded"));
}

/// Two results of "copy as cURL (bash)", of Chromium and of Firefox.
const COPIED: &str = r#"curl 'http://shop.test/api/order?x=1' \
  -H 'Accept: application/json, text/plain, */*' \
  -H 'Accept-Language: en-US,en;q=0.9' \
  -H 'Content-Type: application/json' \
  -b 'sid=s3cr3t; theme=dark' \
  -H 'User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36' \
  -H 'sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"' \
  --data-raw $'{"note":"it\'s \u0021 \u00e9 \ud83d\ude00","n":1}' \
  --compressed \
  --insecure ;
curl 'http://shop.test/search' --compressed -sSL -X POST -H 'Content-Type: application/x-www-form-urlencoded' -H 'Cookie: sid=s3cr3t; theme=dark' --data-raw 'q=a%20b&empty='
"#;

#[test]
fn what_browsers_copy_is_what_they_sent() {
    let imported = read_curl(COPIED).expect("commands");
    let exchanges = imported.exchanges.clone();
    assert_eq!(exchanges[0].body, RequestBody::Text("{\"note\":\"it's ! é 😀\",\"n\":1}".into()));
    assert_eq!(exchanges[1].body, RequestBody::Form(vec![("q".into(), "a b".into()), ("empty".into(), String::new())]));
    let recorded = planned(imported);
    let plan = read(&recorded);
    let methods: Vec<&str> = plan.requests.iter().map(|r| r.method.as_str()).collect();
    assert_eq!((methods, plan.http.cookies), (vec!["POST", "POST"], false));
    // The cookie is all that identifies the user: it is in the data file, and only there.
    assert!(!recorded.plan.contains("s3cr3t"), "{}", recorded.plan);
    assert_eq!(recorded.data.as_deref(), Some("cookie\n\"sid=s3cr3t; theme=dark\"\n"));
    assert!(plan.requests.iter().all(|r| r.headers.contains(&("Cookie".into(), "{{cookie}}".into()))), "{plan:?}");
}

#[test]
fn a_query_after_an_id_is_found_whatever_the_id_is() {
    let entries = [
        entry(0.0, "document", get("/"), html("<a href=\"/item/4711?rev=17&amp;v=x\">first</a>")),
        entry(1.0, "document", get("/item/4711?rev=17&v=x"), html("x")),
    ];
    let har = json!({"log": {"entries": entries}}).to_string();
    let recorded = planned(read_har(&har).expect("a HAR file"));
    assert_eq!(read(&recorded).requests[1].url.path, "/item/{{item}}?rev={{rev}}&v=x");
    assert!(!recorded.plan.contains("4711"), "{}", recorded.plan);
}

#[test]
fn har_files_of_all_programs_are_read() {
    let ok = json!({"status": 200, "headers": [], "content": {"mimeType": "text/html", "text": "eA==", "encoding": "base64"}});
    let one = |time: &str, request: Value, response: Value, more: Value| {
        let mut entry = json!({"startedDateTime": time, "time": null, "timings": null, "cache": null, "request": request, "response": response});
        for (name, value) in more.as_object().into_iter().flatten() {
            entry[name] = value.clone();
        }
        entry
    };
    let get = |path: &str| json!({"method": "GET", "url": format!("http://h{path}"), "headers": null, "cookies": null, "postData": null});
    let post = |path: &str, data: Value| json!({"method": "POST", "url": format!("http://h{path}"), "postData": data, "bodySize": 9});
    let entries = [
        // In the order of their ends, with zones and fractions of all lengths: Firefox, Charles, Fiddler.
        one("2026-01-31T13:00:03.500+01:00", get("/second#part"), ok.clone(), json!({"_initiator": {"type": "other"}})),
        one("2026-01-31T12:00:01.1234567Z", get("/first"), ok.clone(), json!({})),
        one(
            "2026-01-31T12:00:04Z",
            get("/blocked.html"),
            json!({"status": 0, "_error": "net::ERR_BLOCKED_BY_CLIENT"}),
            json!({}),
        ),
        one("2026-01-31T12:00:05Z", get("/socket"), json!({"status": 101}), json!({"_resourceType": "websocket"})),
        one("2026-01-31T12:00:05Z", get("/events"), ok.clone(), json!({"_resourceType": "eventsource"})),
        one("2026-01-31T12:00:05Z", get("/cached"), ok.clone(), json!({"_fromCache": "disk"})),
        one(
            "2026-01-31T12:00:06Z",
            post("/text", json!({"mimeType": "application/json", "text": "eyJhIjoxfQ==", "encoding": "base64"})),
            json!({"status": "201"}),
            json!({}),
        ),
        one(
            "2026-01-31T12:00:07Z",
            post(
                "/form",
                json!({"mimeType": "application/x-www-form-urlencoded", "params": [{"name": "a", "value": null}], "text": ""}),
            ),
            json!({"status": 302, "redirectURL": "/there"}),
            json!({}),
        ),
        one("2026-01-31T12:00:07.2Z", get("/there"), json!({"status": 304, "content": null}), json!({})),
        one(
            "2026-01-31T12:00:08Z",
            post(
                "/old",
                json!({"mimeType": "application/x-www-form-urlencoded", "text": "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\nb=c"}),
            ),
            ok.clone(),
            json!({}),
        ),
        one(
            "2026-01-31T12:00:09Z",
            post("/binary", json!({"mimeType": "application/octet-stream", "text": "/wD/", "encoding": "base64"})),
            ok.clone(),
            json!({}),
        ),
        json!({"request": {"method": "CONNECT", "url": "http://h:443/"}}),
        json!(null),
    ];
    let text = format!("\u{feff}{}", json!({"log": {"entries": entries, "pages": null}}));
    let recorded = planned(read_har(&text).expect("a HAR file"));
    let plan = read(&recorded);
    let shown: Vec<String> = plan.requests.iter().map(|r| format!("{} {}", r.method, r.url.path)).collect();
    assert_eq!(shown, ["GET /first", "GET /second", "POST /text", "POST /form", "POST /old", "POST /binary"]);
    assert_eq!(plan.requests[2].body, Body::Text("{\"a\":1}".into()));
    let form = |n: &str, v: &str| Body::Form(vec![(n.into(), v.into())]);
    assert_eq!((&plan.requests[3].body, &plan.requests[4].body), (&form("a", ""), &form("b", "c")));
    assert!(recorded.plan.contains("\"status=201\"") && !recorded.plan.contains("304"), "{}", recorded.plan);
    assert!(recorded.notes.iter().any(|n| n.starts_with("step 6: what was sent is no text")), "{:?}", recorded.notes);
    assert_eq!(plan.requests[0].think.map(|t| t.mean().as_millis()), Some(2_400));
}

#[test]
fn workloads_of_httperf_and_siege_are_plans() {
    let server = "http://127.0.0.1:8080/".parse().expect("a URL");
    let all = read_wlog("/a\0/b?c=d\0", &server).expect("a wlog");
    let recorded = plan(all, &PlanOptions { independent: true, ..options() }).expect("a plan");
    assert_eq!(read(&recorded).requests[1].url.in_full(), "http://127.0.0.1:8080/b?c=d");
    let text = "# two sessions\n/ think=2.0\n\t/x.png\n/login method=POST contents='a=1&b=2'\n\n/other\n";
    let plan_of = read(&plan(read_wsesslog(text, &server).expect("sessions"), &options()).expect("a plan"));
    let last: Vec<bool> = plan_of.requests.iter().map(|r| r.last).collect();
    assert_eq!(last, [false, false, true, true]);
    assert_eq!(plan_of.requests[1].think.map(|t| t.mean().as_secs()), Some(2));
    assert!(read_wsesslog("/ what=1\n", &server).expect_err("a word").0.contains("line 1"));
    let siege = read_siege("HOST=h.test\nhttp://$(HOST)/a\nhttp://o.test/b POST x=1\n").expect("URLs");
    let recorded = plan(siege, &PlanOptions { independent: true, ..options() }).expect("a plan");
    let plan = read(&recorded);
    assert_eq!((plan.requests.len(), &plan.requests[1].url.host[..]), (2, "o.test"));
    let refused = read_siege("http://h.test/c PUT </etc/passwd\n").expect_err("a file");
    assert!(refused.0.contains("no other file"), "{refused}");
    assert!(read_siege("http://$(HOME)/\n").is_err(), "the environment is nobody's business");
}

#[test]
fn what_is_no_recording_is_told() {
    for text in ["", "{}", "[]", "{\"log\":{}}", "\u{feff}nonsense"] {
        assert!(read_har(text).expect_err(text).0.contains("no HAR file"));
    }
    let empty =
        json!({"log": {"entries": [{"request": {"method": "GET", "url": "data:text/plain,x"}}, 7]}}).to_string();
    assert!(plan(read_har(&empty).expect("a HAR file").exchanges, &options()).is_err());
}

#[test]
fn texts_of_any_kind_survive_the_plan() {
    let body = "quotes \" ' \\ and\nlines {{not}} \u{7}é";
    let exchange = RecordedExchange {
        body: RequestBody::Text(body.into()),
        ..RecordedExchange::of("PUT", "http://h/%7B%7Bx".parse().expect("a URL"))
    };
    let recorded = plan(vec![exchange], &options()).expect("a plan");
    assert_eq!(read(&recorded).requests[0].body, Body::Text(body.replace("{{", "{{{{")));
}

#[test]
fn a_number_that_a_redirect_or_a_hidden_field_gave_is_taken_there() {
    let moved = json!({"status": 303, "headers": [{"name": "Location", "value": "/thing.php?id=17"}], "content": {}});
    let entries = [
        entry(0.0, "document", get("/new.php"), html("<input type='hidden' name='draft' value='4321'>")),
        entry(1.0, "document", post("/new.php", "draft=4321&name=hat"), moved),
        entry(1.1, "document", get("/thing.php?id=17"), html("<form method=post><input name=price>")),
        entry(2.0, "document", post("/thing.php?id=17", "price=12"), html("saved")),
    ];
    let text = json!({"log": {"version": "1.2", "entries": entries}}).to_string();
    let recorded = planned(read_har(&text).expect("a HAR file"));
    let plan = read(&recorded);
    assert_eq!(plan.requests.len(), 3);
    assert_eq!(plan.requests[1].extract[0].from, ExtractSource::Url(r"thing\.php\?id=([^/?&\#]+)".into()));
    assert_eq!(plan.requests[2].url.path, "/thing.php?id={{id}}");
    assert!(matches!(&plan.requests[1].body, Body::Form(f) if f[0] == ("draft".to_string(), "{{draft}}".to_string())));
}

#[test]
fn a_body_that_is_sent_as_a_form_and_is_none_stays_as_it_is() {
    let of = |text: &str| RequestBody::of("application/x-www-form-urlencoded", text.into());
    for text in ["<?xml version=\"1.0\"?><id>7</id>", "{\"a\":\"b=c\"}", "a=b c"] {
        assert_eq!(of(text), RequestBody::Text(text.into()));
    }
    assert_eq!(of("a=b+c&d=%3C"), RequestBody::Form(vec![("a".into(), "b c".into()), ("d".into(), "<".into())]));
}

/// The one request that a command becomes, and the notes on it.
fn imported(command: &str) -> (lastdrop_model::Plan, lastdrop_model::RequestSpec, Vec<String>) {
    let recorded = planned(read_curl(command).unwrap_or_else(|e| panic!("{command}: {e}")));
    let plan = read(&recorded);
    for note in &recorded.notes {
        let shown = note.lines().next().unwrap_or_default();
        assert!(recorded.plan.contains(&format!("# {shown}")), "{note} is no comment of {}", recorded.plan);
    }
    let request = plan.requests[0].clone();
    (plan, request, recorded.notes)
}

#[test]
fn what_a_command_says_of_its_request_is_in_the_plan() {
    let form = "application/x-www-form-urlencoded";
    for (options, method, url, headers) in [
        ("-H 'Host: shop.example' http://10.0.0.1/", "GET", "http://10.0.0.1/", vec![("Host", "shop.example")]),
        ("-d '{\"a\":\"b=c\"}' http://h/", "POST", "http://h/", vec![("Content-Type", form)]),
        ("-d x http://h/", "POST", "http://h/", vec![("Content-Type", form)]),
        ("-d x -H 'Content-Type: text/csv' http://h/", "POST", "http://h/", vec![("Content-Type", "text/csv")]),
        ("-d x -H 'Content-Type:' http://h/", "POST", "http://h/", vec![]),
        (
            "--json '{\"a\":1}' http://h/",
            "POST",
            "http://h/",
            vec![("Accept", "application/json"), ("Content-Type", "application/json")],
        ),
        ("-A me -e http://p/ http://h/", "GET", "http://h/", vec![("Referer", "http://p/"), ("User-Agent", "me")]),
        (
            "-H 'Accept-Language: de' -H 'Accept:' http://h/",
            "GET",
            "http://h/",
            vec![("Accept", ""), ("Accept-Language", "de")],
        ),
        ("-r 0-99 h/x", "GET", "http://h/x", vec![("Range", "bytes=0-99")]),
        ("-X DELETE http://h/", "DELETE", "http://h/", vec![]),
        ("-I http://h/", "HEAD", "http://h/", vec![]),
        ("-G -d a=1 --data-urlencode 'q=b c' http://h", "GET", "http://h/?a=1&q=b%20c", vec![]),
        ("--url-query a=1 'http://h/?b=2'", "GET", "http://h/?b=2&a=1", vec![]),
        (
            "--resolve shop.example:80:10.0.0.1 http://shop.example/",
            "GET",
            "http://10.0.0.1/",
            vec![("Host", "shop.example")],
        ),
        (
            "--connect-to ::10.0.0.1:81 http://shop.example/",
            "GET",
            "http://10.0.0.1:81/",
            vec![("Host", "shop.example")],
        ),
        ("-g 'http://h/{a}'", "GET", "http://h/{a}", vec![]),
        ("-sSLo out.json http://h/ > out.json 2>&1", "GET", "http://h/", vec![]),
        ("http://h/ 2>/dev/null &", "GET", "http://h/", vec![]),
    ] {
        let (_, request, notes) = imported(&format!("$ curl {options}\n"));
        assert_eq!((request.method.as_str(), request.url.in_full().as_str()), (method, url), "{options}");
        let got: Vec<(&str, &str)> = request.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(got, headers, "{options}");
        assert!(notes.is_empty(), "{options}: {notes:?}");
    }
}

#[test]
fn what_a_command_says_of_its_connection_is_in_the_plan() {
    let (plan, _, notes) = imported(
        "curl -k -L --compressed -0 -m 2.5 --cacert ca.pem --cert me.pem --key me.key -x proxy.example:3128 -c jar -4 https://h/",
    );
    assert!(notes.is_empty(), "{notes:?}");
    assert!(plan.tls.insecure && plan.http.compressed && plan.http.is_http10() && plan.http.cookies, "{plan:?}");
    assert_eq!((plan.http.redirects, plan.timeout.as_millis()), (50, 2_500));
    assert!(plan.network.proxy.is_some(), "{plan:?}");
    let (plan, _, _) = imported("curl http://h/ -L --max-redirs 3");
    assert_eq!(
        (plan.http.redirects, plan.http.compressed, plan.http.cookies, plan.tls.insecure),
        (3, false, false, false)
    );
    let nowhere = read_curl("curl http://h/ --resolve :::0h8:1").expect_err("it is no address").to_string();
    assert!(nowhere.contains("leads to \":0h8:1\""), "{nowhere}");
    let (plan, request, _) = imported("curl --resolve shop.example:443:10.0.0.1 https://shop.example/");
    assert_eq!((request.url.host.as_str(), plan.tls.server_name.as_deref()), ("10.0.0.1", Some("shop.example")));
}

#[test]
fn what_a_plan_has_nothing_like_is_named() {
    for (command, word) in [
        ("curl http://h/ --http2", "--http2"),
        ("curl http://h/ -X delete", "small letters of the method delete"),
        ("curl http://h/ --limit-rate 10k", "--limit-rate 10k"),
        ("curl http://h/ --connect-timeout 5", "--connect-timeout 5"),
        ("curl http://h/ --digest -u a:b", "--digest"),
        ("curl http://h/ -x socks5://p:1", "-x"),
        ("curl http://h/ | jq '.a' | sort", "piped to: jq .a | sort"),
        ("curl http://h/ -d @body.json", "body.json is read when the plan runs"),
        ("curl http://h/ -H 'X-Empty;'", "X-Empty"),
        ("curl https://h/ --key k.pem", "--key k.pem, there is no --cert"),
        ("curl https://h/ --cert c.pem:hidden", "the password of --cert"),
        ("curl http://h/ --unix-socket s -x p:1", "beside --unix-socket"),
        ("curl http://h/ --cacert a.pem; curl http://h/ --cacert b.pem", "b.pem, the plan has a.pem"),
    ] {
        let (_, _, notes) = imported(command);
        assert!(notes.iter().any(|note| note.contains(word)), "{command}: {notes:?}");
    }
    let (_, _, notes) = imported("curl http://h/ --proxy-pass hidden");
    assert!(!notes.is_empty() && !notes.iter().any(|n| n.contains("hidden")), "{notes:?}");
}

#[test]
fn one_line_may_be_many_requests() {
    let urls = |command: &str| {
        let imported = read_curl(command).unwrap_or_else(|e| panic!("{command}: {e}"));
        imported.exchanges.iter().map(|e| format!("{} {}", e.method, e.url.path)).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(urls("curl 'http://h/{one,two}/[9-10]'"), "GET /one/9, GET /one/10, GET /two/9, GET /two/10");
    assert_eq!(urls("curl 'http://h/[01-05:2]' 'http://h/[a-c]'"), "GET /01, GET /03, GET /05, GET /a, GET /b, GET /c");
    assert_eq!(urls("curl 'http://[::1]/x' http://h/a http://h/b -d x"), "POST /x, POST /a, POST /b");
    assert_eq!(urls("curl http://h/a -d x --next http://h/b -: http://h/c"), "POST /a, GET /b, GET /c");
    assert_eq!(urls("curl http://h/a && curl http://h/b || /usr/bin/curl http://h/c"), "GET /a, GET /b, GET /c");
    assert_eq!(urls("ID=7\nexport T=x\ncurl \"http://h/$ID/${T}\""), "GET /7/x");
    assert_eq!(urls("TOKEN=x sudo curl http://h/a\ntime curl http://h/b"), "GET /a, GET /b");
    assert_eq!(urls("$ curl http://h/a \\\n> -X PUT \\\n> -d x"), "PUT /a");
    assert_eq!(urls("curl http://ann:secret@h/a#part"), "GET /a");
}

#[test]
fn an_uploaded_file_keeps_its_name_its_type_and_what_is_in_it() {
    let body = "--b\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nhello\r\n--b\r\nContent-Disposition: form-data; name=\"doc\"; filename=\"a.csv\"\r\nContent-Type: text/csv\r\n\r\nid,n\r\n1,2\r\n\r\n--b\r\nContent-Disposition: form-data; filename=\"b.png\"; name=\"pic\"\r\nContent-Type: image/png\r\n\r\n\u{fffd}PNG\r\n--b--\r\n";
    let har = |post: Value| {
        let request = json!({"method": "POST", "url": "http://h/up", "headers": [], "postData": post});
        let text = json!({"log": {"entries": [entry(0.0, "document", request, html("ok"))]}}).to_string();
        let recorded = planned(read_har(&text).expect("a HAR file"));
        let Body::Multipart(parts) = read(&recorded).requests[0].body.clone() else { panic!("{}", recorded.plan) };
        let text =
            |p: &lastdrop_model::request::FormPart| format!("{:?} {:?} {:?}", p.content, p.file_name, p.content_type);
        (parts.iter().map(text).collect::<Vec<_>>(), recorded.notes)
    };
    let (parts, notes) = har(json!({"mimeType": "multipart/form-data; boundary=b", "text": body}));
    assert_eq!(
        parts,
        [
            r#"Text("hello") None None"#,
            r#"Text("id,n\r\n1,2\r\n") Some("a.csv") Some("text/csv")"#,
            r#"Text("") Some("b.png") Some("image/png")"#,
        ]
    );
    assert!(notes.iter().any(|n| n.contains("what was in a file that was sent is not known")), "{notes:?}");
    let params = json!([{"name": "doc", "fileName": "a.csv", "contentType": "text/csv", "value": "1,2"}]);
    let (parts, _) = har(json!({"mimeType": "multipart/form-data; boundary=b", "params": params, "text": ""}));
    assert_eq!(parts, [r#"Text("1,2") Some("a.csv") Some("text/csv")"#]);
    let (plan, request, notes) =
        imported("curl -F 'doc=@in/a.csv;type=text/csv' -F n=1 -F 'j={};type=application/json' http://h/");
    let Body::Multipart(parts) = &request.body else { panic!("{plan:?}") };
    let kinds: Vec<_> = parts.iter().map(|p| (p.name.as_str(), p.content_type.as_deref())).collect();
    assert_eq!(kinds, [("doc", Some("text/csv")), ("n", None), ("j", Some("application/json"))]);
    assert!(notes.iter().any(|n| n.contains("in/a.csv is read when the plan runs")), "{notes:?}");
}

#[test]
fn entries_of_a_har_file_are_kept_or_counted_with_the_reason() {
    let get = |url: &str| json!({"method": "GET", "url": url, "headers": [{"name": "Host", "value": "shop.test"}, {"name": "Accept-Language", "value": "de"}]});
    let entries = [
        entry(0.0, "document", get("http://shop.test/a b?q=c d"), html("")),
        entry(1.0, "document", get("/next page"), html("")),
        entry(2.0, "document", get("data:text/plain,x"), html("")),
        entry(2.0, "document", get("data:text/plain,y"), html("")),
        entry(3.0, "document", get("http://[broken/"), html("")),
        entry(4.0, "document", get("/blocked"), json!({"status": 0})),
        entry(5.0, "websocket", get("/socket"), json!({"status": 101})),
    ];
    let recorded = planned(read_har(&json!({"log": {"entries": entries}}).to_string()).expect("a HAR file"));
    let urls: Vec<String> = read(&recorded).requests.iter().map(|r| r.url.in_full()).collect();
    assert_eq!(urls, ["http://shop.test/a%20b?q=c%20d", "http://shop.test/next%20page"]);
    for note in [
        "2 entries are left out: data: is not HTTP",
        "1 entry is left out: 'http://[broken/' is not a URL",
        "1 entry is left out: no answer, blocked or given up",
        "1 entry is left out: WebSockets",
        "headers of the browser's own are left out: accept-language",
    ] {
        assert!(recorded.notes.iter().any(|n| n.starts_with(note)), "{note}: {:?}", recorded.notes);
        assert!(recorded.plan.contains(&format!("\n# {note}")), "{note}: {}", recorded.plan);
    }
}
