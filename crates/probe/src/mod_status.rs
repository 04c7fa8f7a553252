//! The table of mod_status: one row per slot of the scoreboard, with the latest client and request. It needs
//! ExtendedStatus On, which is the default if mod_status is loaded.

/// One slot of the scoreboard.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreboardSlot {
    /// The child and its generation, such as `0-1`; the child alone names the process slot.
    pub slot: String,
    /// None if the slot has no process now.
    pub pid: Option<i32>,
    /// Requests on the present connection, of the present process, and of the slot since the server started.
    pub of_connection: u64,
    pub of_process: u64,
    pub of_slot: u64,
    /// A letter of the scoreboard.
    pub mode: char,
    /// Seconds since the present or last request began.
    pub request_s: Option<f64>,
    /// How long the latest complete request took.
    pub took_ms: Option<f64>,
    /// Client of the present or last request, and the request line, cut to 63 characters.
    pub client: String,
    pub request: String,
}

/// Reads the rows by the names of their columns. None without such a table.
#[must_use]
pub fn rows(html: &str) -> Option<Vec<ScoreboardSlot>> {
    let table = html.split("<table").find(|t| t.contains(">PID<") && t.contains(">Acc<"))?;
    let mut lines = table.split("<tr").skip(1);
    let names: Vec<String> = lines.next()?.split("<th").skip(1).map(|c| plain(&format!("<th{c}"))).collect();
    let column = |name: &str| names.iter().position(|n| n == name);
    let (slot, pid, acc, mode, since) = (column("Srv")?, column("PID")?, column("Acc")?, column("M")?, column("SS")?);
    let (client, request, took) = (column("Client"), column("Request"), column("Req"));
    let row = |line: &str| {
        let cells: Vec<String> = line.split("<td").skip(1).map(|c| plain(&format!("<td{c}"))).collect();
        let cell = |at: usize| cells.get(at).map(String::as_str).unwrap_or_default();
        let of = |at: usize| cell(acc).split('/').nth(at).and_then(|n| n.parse().ok()).unwrap_or(0);
        let text = |at: Option<usize>| at.map(|at| cell(at).to_string()).unwrap_or_default();
        ScoreboardSlot {
            slot: cell(slot).to_string(),
            pid: cell(pid).parse().ok(),
            of_connection: of(0),
            of_process: of(1),
            of_slot: of(2),
            mode: cell(mode).chars().next().unwrap_or('?'),
            request_s: cell(since).parse().ok(),
            took_ms: took.and_then(|at| cell(at).parse().ok()),
            client: text(client),
            request: text(request),
        }
    };
    // The text after the table explains it.
    Some(lines.filter(|l| l.contains("<td")).map(row).collect())
}

/// Returns the text of a cell.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in cell.chars() {
        match c {
            '<' => inside = true,
            '>' => inside = false,
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text.trim().replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_who_asked_for_what() {
        let html = "<table border=\"0\"><tr><th>Srv</th><th>PID</th><th>Acc</th><th>M</th><th>CPU\n</th><th>SS</th><th>Client</th>\
            <th>Request</th></tr>\n<tr><td><b>0-1</b></td><td>-</td><td>0/0/8</td><td>.\n</td><td>0.1</td><td>5</td><td>127.0.0.1</td>\
            <td nowrap>OPTIONS * HTTP/1.0</td></tr>\n<tr><td><b>1-1</b></td><td>12</td><td>3/4/5</td><td><b>W</b>\n</td><td>0.1</td>\
            <td>2</td><td>::1</td><td nowrap>GET /a?b=1&amp;c=2 HTTP/1.1</td></tr></table><table><tr><th>Srv</th><td>x</td></tr></table>";
        let rows = rows(html).expect("the table");
        assert_eq!(rows.len(), 2);
        let (dead, busy) = (&rows[0], &rows[1]);
        assert_eq!((dead.pid, dead.of_slot, dead.mode, dead.request.as_str()), (None, 8, '.', "OPTIONS * HTTP/1.0"));
        assert_eq!((busy.pid, busy.of_connection, busy.of_process, busy.of_slot), (Some(12), 3, 4, 5));
        assert_eq!((busy.client.as_str(), busy.request.as_str()), ("::1", "GET /a?b=1&c=2 HTTP/1.1"));
        assert_eq!(super::rows("<html>no table</html>"), None);
    }
}
