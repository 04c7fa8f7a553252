//! Splits a recorded answer into its parts for display.

use lastdrop_http::ResponseParser;

/// An answer's head with its empty line, and its body without framing, in the pieces in which it was framed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AnswerParts {
    pub head: Vec<u8>,
    pub pieces: Vec<Vec<u8>>,
    /// Bytes of the empty line that ends a chunked body.
    pub footer_bytes: usize,
}

/// Splits an answer into its parts; if it is not HTTP, all of it is head.
#[must_use]
pub fn answer_parts(raw: &[u8]) -> AnswerParts {
    let mut parser = ResponseParser::default();
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let fed = parser.feed(raw, &mut |piece: &[u8]| pieces.push(piece.to_vec()));
    if fed.is_err() || !parser.has_head() {
        return AnswerParts { head: raw.to_vec(), ..AnswerParts::default() };
    }
    let head = parser.head_bytes() as usize;
    let body: usize = pieces.iter().map(Vec::len).sum();
    let framing = raw.len().saturating_sub(head + body);
    AnswerParts { head: raw[..head].to_vec(), pieces, footer_bytes: if framing > 0 { 2 } else { 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_pieces() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let parts = answer_parts(format!("{head}3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").as_bytes());
        assert_eq!(parts.head, head.as_bytes());
        assert_eq!((parts.pieces, parts.footer_bytes), (vec![b"abc".to_vec(), b"de".to_vec()], 2));
        let parts = answer_parts(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!((parts.pieces, parts.footer_bytes), (vec![b"ok".to_vec()], 0));
        assert_eq!(answer_parts(b"\x00garbage").head, b"\x00garbage");
    }
}
