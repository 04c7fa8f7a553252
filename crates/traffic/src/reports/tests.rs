use super::*;

fn one(text: &str) -> Report {
    let reports = read(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.into_iter().next().expect("one")
}

fn numbers(r: &Report) -> [Option<f64>; 5] {
    let whole = |x: Option<f64>| x.map(|x| (x * 1e3).round() / 1e3);
    [whole(r.rps), whole(r.p50_us), whole(r.p90_us), whole(r.p99_us), whole(r.errors)]
}

const AB: &str = "\
This is ApacheBench, Version 2.3 <$Revision: 1923142 $>
Benchmarking 127.0.0.1 (be patient).....done


Server Software:        lastdrop
Server Hostname:        127.0.0.1
Server Port:            8080

Document Path:          /x
Document Length:        12 bytes

Concurrency Level:      2
Time taken for tests:   0.107 seconds
Complete requests:      200
Failed requests:        30
   (Connect: 0, Receive: 10, Length: 20, Exceptions: 0)
Non-2xx responses:      10
Total transferred:      30000 bytes
Requests per second:    1865.32 [#/sec] (mean)
Time per request:       1.072 [ms] (mean)
Time per request:       0.536 [ms] (mean, across all concurrent requests)
Transfer rate:          273.24 [Kbytes/sec] received

Percentage of the requests served within a certain time (ms)
  50%      1
  66%      1
  90%      2
  99%     15
 100%     16 (longest request)
";

#[test]
fn ab_says_what_it_says() {
    let r = one(AB);
    assert_eq!(numbers(&r), [Some(1772.054), Some(1e3), Some(2e3), Some(15e3), Some(0.1)]);
    assert_eq!((r.tool, r.url.as_deref(), r.requests), ("ab", Some("http://127.0.0.1:8080/x"), Some(200)));
    assert!(r.limits.iter().any(|l| l.contains("20 answers of another length")), "{:?}", r.limits);
}

#[test]
fn a_time_that_is_below_what_can_be_told_is_no_time() {
    let r = one(&AB.replace("50%      1", "50%      0"));
    assert_eq!((r.p50_us, r.p90_us), (None, Some(2e3)));
    assert!(r.limits.contains(&"p50 is below what it can tell".to_string()), "{:?}", r.limits);
}

#[test]
fn reports_one_after_the_other_are_blocks() {
    assert_eq!(read(&AB.repeat(5)).expect("reports").len(), 5);
    let siege =
        "{\"transactions\":10,\"transaction_rate\":5.0,\"successful_transactions\":10,\"failed_transactions\":0}\n";
    assert_eq!(read(&siege.repeat(3)).expect("reports").len(), 3);
    // A freshly installed siege prints notes first.
    let talking = format!("New configuration template added to /root/.siege\n\n{siege}Lifting the server siege...\n");
    assert_eq!(read(&talking.repeat(2)).expect("reports").len(), 2);
    assert!(read(&format!("{siege}{{\"transactions\":")).is_err());
}

#[test]
fn siege_has_no_percentiles() {
    let text = "Transactions:\t\t        1800 hits\nAvailability:\t\t       90.00 %\nElapsed time:\t\t        9.99 secs\n\
                Data transferred:\t        0.01 MB\nResponse time:\t\t        0.00 secs\nTransaction rate:\t      180.18 trans/sec\n\
                Throughput:\t\t        0.00 MB/sec\nConcurrency:\t\t        0.99\nSuccessful transactions:        1700\n\
                Failed transactions:\t         200\nLongest transaction:\t        0.04\n";
    let r = one(text);
    assert_eq!(numbers(&r), [Some(180.18), None, None, None, Some(0.15)]);
    assert!(r.limits[0].contains("no percentiles"));
    let newer = one("Transactions:          20    hits\nTransaction rate:     17.70    trans/sec\n");
    assert_eq!(numbers(&newer), [Some(17.7), None, None, None, None]);
}

#[test]
fn wrk_has_percentiles_only_where_it_was_asked() {
    let text = "Running 2s test @ http://127.0.0.1:8080/\n  2 threads and 10 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   635.91us    0.89ms  12.92ms   93.69%\n    Req/Sec    56.20k     8.07k   62.00k    86.54%\n  Latency Distribution\n     50%  250.00us\n     75%  491.00us\n     90%    0.70ms\n     99%    1.20s \n  9990 requests in 2.00s, 17.76MB read\n  Socket errors: connect 0, read 0, write 0, timeout 10\n  Non-2xx or 3xx responses: 40\nRequests/sec:   4995.00\nTransfer/sec:    606.33MB\n";
    let r = one(text);
    assert_eq!(numbers(&r), [Some(4995.0), Some(250.0), Some(700.0), Some(1.2e6), Some(0.005)]);
    assert_eq!((r.tool, r.open_loop, r.url.as_deref()), ("wrk", false, Some("http://127.0.0.1:8080/")));
    let plain: String = text
        .lines()
        .filter(|l| !l.contains("Distribution") && !l.trim().contains("%  "))
        .map(|l| format!("{l}\n"))
        .collect();
    let r = one(&plain);
    assert_eq!((r.p50_us, r.p99_us), (None, None));
    assert!(r.limits[0].contains("--latency"));
}

#[test]
fn wrk2_is_known_by_its_histogram() {
    let text = "Running 30s test @ http://127.0.0.1:80/index.html\n  2 threads and 100 connections\n  Thread calibration: mean lat.: 9747 usec, rate sampling interval: 21 msec\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency     6.46ms    1.93ms  12.34ms   67.66%\n  Latency Distribution (HdrHistogram - Recorded Latency)\n 50.000%    6.67ms\n 75.000%    7.78ms\n 90.000%    8.67ms\n 99.000%   10.44ms\n 99.900%   11.98ms\n100.000%   12.34ms\n\n  Detailed Percentile spectrum:\n       Value   Percentile   TotalCount 1/(1-Percentile)\n\n       0.921     0.000000            1         1.00\n----------------------------------------------------------\n  60018 requests in 30.00s, 19.81MB read\nRequests/sec:   2000.28\nTransfer/sec:    676.18KB\n";
    let r = one(text);
    assert_eq!(numbers(&r), [Some(2000.28), Some(6670.0), Some(8670.0), Some(10440.0), Some(0.0)]);
    assert!(r.tool == "wrk2" && r.open_loop);
}

#[test]
fn hey_counts_errors_as_requests() {
    let text = "\nSummary:\n  Total:\t2.0000 secs\n  Slowest:\t0.0045 secs\n  Fastest:\t0.0002 secs\n  Average:\t0.0011 secs\n  Requests/sec:\t100.0000\n  \n\nResponse time histogram:\n  0.000 [1]\t|\n\n\nLatency distribution:\n  10% in 0.0002 secs\n  50% in 0.0003 secs\n  90%% in 0.0020 secs\n  99% in 0.0040 secs\n\nDetails (average, fastest, slowest):\n  DNS+dialup:\t0.0001 secs, 0.0000 secs, 0.0004 secs\n\nStatus code distribution:\n  [200]\t140 responses\n  [500]\t10 responses\n\nError distribution:\n  [50]\tGet \"http://127.0.0.1/\": EOF\n";
    let r = one(text);
    assert_eq!(numbers(&r), [Some(75.0), Some(300.0), Some(2000.0), Some(4000.0), Some(0.3)]);
}

#[test]
fn oha_is_read_without_what_it_cut_off() {
    let text = r#"{"summary":{"successRate":1.0,"total":2.0,"slowest":0.04,"fastest":0.0001,"average":0.001,"requestsPerSec":110.0,"totalData":12,"sizePerRequest":1,"sizePerSec":6.0},
        "responseTimeHistogram":{"0.1":1},"latencyPercentiles":{"p10":0.0001,"p25":0.0002,"p50":0.0003,"p75":0.0004,"p90":0.0005,"p95":0.0006,"p99":0.0125,"p99.9":0.02,"p99.99":0.03},
        "rps":{"mean":100.0,"stddev":1.0,"max":120.0,"min":90.0,"percentiles":{"p50":100.0}},"details":{"DNSDialup":{"average":0.001}},
        "statusCodeDistribution":{"200":190,"503":5},"errorDistribution":{"aborted due to deadline":20,"connection refused":5}}"#;
    assert_eq!(numbers(&one(text)), [Some(97.5), Some(300.0), Some(500.0), Some(12500.0), Some(0.05)]);
}

#[test]
fn k6_is_read_from_either_of_its_summaries() {
    let export = r#"{"root_group":{"name":""},"metrics":{"http_req_duration":{"avg":1.5,"min":0.4,"med":1.25,"max":9.9,"p(90)":2.5,"p(95)":3.0},
        "http_reqs":{"count":1000,"rate":99.5},"http_req_failed":{"passes":10,"fails":990,"value":0.01}}}"#;
    let r = one(export);
    assert_eq!(numbers(&r), [Some(99.5), Some(1250.0), Some(2500.0), None, Some(0.01)]);
    assert!(r.limits.iter().any(|l| l.contains("summaryTrendStats")));
    let handled = r#"{"options":{},"state":{},"metrics":{"http_req_duration":{"type":"trend","contains":"time","values":{"avg":1.5,"med":1.25,"p(90)":2.5,"p(99)":8}},
        "http_reqs":{"type":"counter","values":{"count":1000,"rate":99.5}},"http_req_failed":{"type":"rate","values":{"rate":0.01,"passes":10,"fails":990}}}}"#;
    assert_eq!(numbers(&one(handled)), [Some(99.5), Some(1250.0), Some(2500.0), Some(8000.0), Some(0.01)]);
}

#[test]
fn vegeta_tells_nanoseconds() {
    let text = r#"{"latencies":{"total":1000000000,"mean":1000000,"50th":900000,"90th":1500000,"95th":2000000,"99th":5000000,"max":9000000,"min":100000},
        "bytes_in":{"total":100,"mean":1},"bytes_out":{"total":0,"mean":0},"earliest":"2026-01-01T00:00:00Z","latest":"2026-01-01T00:00:10Z","end":"2026-01-01T00:00:10Z",
        "duration":9900000000,"wait":100000000,"requests":1000,"rate":100.1,"throughput":90.0,"success":0.9,"status_codes":{"0":20,"200":900,"500":80},"errors":["EOF"]}"#;
    let r = one(text);
    assert_eq!(numbers(&r), [Some(98.0), Some(900.0), Some(1500.0), Some(5000.0), Some(0.1)]);
    assert!(r.open_loop);
}

#[test]
fn what_is_no_report_is_said() {
    for text in ["", "hello", "{}", "[1]", "{\"metrics\":{}}", "{\"latencies\":", "Transactions: many", "Running away"]
    {
        assert!(read(text).is_err(), "{text}");
    }
    // Impossible numbers.
    assert!(
        read("Transaction rate: NaN\nTransactions: 3 hits\nTransaction rate: 1e999 trans/sec\n")
            .is_ok_and(|r| r[0].rps.is_none())
    );
}

const VEGETA: &str = "Requests      [total, rate, throughput]  1000, 100.10, 90.00\nDuration      [total, attack, wait]      10s, 9.9s, 100ms\nLatencies     [min, mean, 50, 90, 95, 99, max]  100µs, 1ms, 900µs, 1.5ms, 2ms, 5ms, 9ms\nBytes In      [total, mean]  100, 0.10\nBytes Out     [total, mean]  0, 0.00\nSuccess       [ratio]  90.00%\nStatus Codes  [code:count]  0:20  200:900  500:80\nError Set:\nEOF\n";

#[test]
fn text_of_vegeta_and_of_oha_says_the_same_as_their_json() {
    assert_eq!(numbers(&one(VEGETA)), [Some(98.0), Some(900.0), Some(1500.0), Some(5000.0), Some(0.1)]);
    let old =
        VEGETA.replace("10s, 9.9s", "1m40s, 1m39.9s").replace("50, 90, 95", "50, 95").replace("1.5ms, 2ms", "2ms");
    assert_eq!(numbers(&one(&old)), [Some(9.8), Some(900.0), None, Some(5000.0), Some(0.1)]);
    let oha = "Summary:\n  Success rate:\t97.50%\n  Total:\t2000.0000 ms\n  Slowest:\t0.0400 sec\n  Requests/sec:\t110.0\n\nResponse time distribution:\n  10.00% in 0.1000 ms\n  50.00% in 0.3000 ms\n  90.00% in 0.5000 ms\n  99.00% in 0.0125 sec\n\nStatus code distribution:\n  [200] 190 responses\n  [503] 5 responses\n\nError distribution:\n  [20] aborted due to deadline\n  [5] connection refused\n";
    let r = one(oha);
    assert_eq!((r.tool, numbers(&r)), ("oha", [Some(97.5), Some(300.0), Some(500.0), Some(12500.0), Some(0.05)]));
}

#[test]
fn refused_connections_are_no_answers() {
    let oha = r#"{"summary":{"successRate":0.0,"total":0.0032,"slowest":null,"requestsPerSec":62231.0},"latencyPercentiles":{"p50":null,"p99":0.001},
        "statusCodeDistribution":{},"errorDistribution":{"Connection refused (os error 111)":200}}"#;
    let hey = "\nSummary:\n  Total:\t0.0100 secs\n  Requests/sec:\t20000.0\n\nStatus code distribution:\n\nError distribution:\n  [200]\tGet \"http://127.0.0.1/\": connection refused\n";
    let vegeta = VEGETA.replace("0:20  200:900  500:80", "0:1000").replace("90.00%", "0.00%");
    let k6 = r#"{"metrics":{"http_req_duration":{"med":0,"p(90)":0},"http_reqs":{"count":200,"rate":9000},"http_req_failed":{"value":1},"data_received":{"count":0,"rate":0}}}"#;
    for text in [oha, hey, &vegeta, k6] {
        let r = one(text);
        assert_eq!((r.rps, r.errors), (Some(0.0), Some(1.0)), "{r:?}");
        assert_eq!((r.p50_us, r.p99_us), (None, None), "{r:?}");
    }
    let ab = AB
        .replace("Receive: 10, Length: 20", "Receive: 200, Length: 0")
        .replace("requests:        30", "requests:        200");
    assert_eq!(one(&ab).rps, Some(0.0));
}

#[test]
fn a_report_that_is_not_read_is_named() {
    for (text, word) in [
        (
            "     http_req_duration..............: avg=1ms\n     http_reqs......................: 10  5/s\n",
            "--summary-export",
        ),
        ("finished in 1.00s, 500.00 req/s, 1MB/s\nrequests: 500 total\n", "h2load"),
        ("Bombarding http://h/ with 10 requests\n", "bombardier"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.to_string().contains(word), "{error}");
    }
}
