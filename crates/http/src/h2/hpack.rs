//! Header compression of HTTP/2 (RFC 7541): a decoder with its dynamic table, and an encoder without one.
//!
//! The encoder inserts nothing, so that an encoded head means the same on each connection and at each time: it is
//! encoded once and then copied.

use std::collections::VecDeque;

use super::huffman;
use super::{ErrorCode, MOST_LIST_BYTES};

/// Size of the dynamic table that a server may use: the value that holds without a setting.
pub const TABLE_BYTES: usize = 4096;
/// What each field of a table counts beyond its bytes (RFC 7541 section 4.1).
pub const FIELD_BYTES: usize = 32;

/// The static table (RFC 7541 appendix A), numbered from 1.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Why a block cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HpackError(pub &'static str);

impl HpackError {
    /// The code that tells the peer.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        if self == TOO_LONG { ErrorCode::ENHANCE_YOUR_CALM } else { ErrorCode::COMPRESSION }
    }
}

const CUT: HpackError = HpackError("a header block that ends within a field");
const BIG: HpackError = HpackError("a number in a header block that is too large");
const TOO_LONG: HpackError = HpackError("header fields of more than 256 KB");

/// The fields of a decoded block, one after the other in memory that is used again.
#[derive(Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    /// Ends of each name and its value.
    ends: Vec<(u32, u32)>,
    /// Size of the list as HPACK counts it.
    size: usize,
}

impl Fields {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.size = 0;
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut begin = 0;
        self.ends.iter().map(move |(name_end, end)| {
            let (at, middle) = (begin, *name_end as usize);
            begin = *end as usize;
            (&self.bytes[at..middle], &self.bytes[middle..begin])
        })
    }

    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<(), HpackError> {
        self.grow(name.len() + value.len())?;
        self.bytes.extend_from_slice(name);
        let middle = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push((middle, self.bytes.len() as u32));
        Ok(())
    }

    fn grow(&mut self, bytes: usize) -> Result<(), HpackError> {
        self.size += bytes + FIELD_BYTES;
        if self.size > MOST_LIST_BYTES { Err(TOO_LONG) } else { Ok(()) }
    }
}

/// A field of the dynamic table.
#[derive(Debug)]
struct TableField {
    bytes: Box<[u8]>,
    name: usize,
}

/// Decodes the blocks of one connection, in their order.
#[derive(Debug)]
pub struct Decoder {
    /// The newest field first.
    table: VecDeque<TableField>,
    size: usize,
    most: usize,
    /// Number of changes of the table: while it is the same, equal blocks mean equal fields.
    generation: u64,
    /// The last block depends on the table, or changed its size.
    referred: bool,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { table: VecDeque::new(), size: 0, most: TABLE_BYTES, generation: 0, referred: false }
    }
}

impl Decoder {
    /// Number of changes of the table so far.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of fields in the table.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the last block referred to a field of the table, or changed the table's size. A block that did neither
    /// means the same fields under every state of the table.
    #[must_use]
    pub fn referred(&self) -> bool {
        self.referred
    }

    /// Decodes a whole block.
    ///
    /// # Errors
    /// The block breaks a rule. The table is then out of step, and the connection of no further use.
    pub fn decode(&mut self, mut block: &[u8], fields: &mut Fields) -> Result<(), HpackError> {
        fields.clear();
        self.referred = false;
        let mut may_resize = true;
        while let Some(first) = block.first().copied() {
            if first & 0xe0 == 0x20 {
                let size = read_number(&mut block, 5)?;
                if !may_resize {
                    return Err(HpackError("a change of the header table's size after a field"));
                }
                if size > TABLE_BYTES {
                    return Err(HpackError("a header table larger than was allowed"));
                }
                self.most = size;
                self.generation += 1;
                self.referred = true;
                self.evict(0);
                continue;
            }
            may_resize = false;
            if first & 0x80 != 0 {
                let index = read_number(&mut block, 7)?;
                self.referred |= index > STATIC.len();
                let (name, value) = self.field(index)?;
                fields.push(name, value)?;
            } else {
                let inserts = first & 0x40 != 0;
                let index = read_number(&mut block, if inserts { 6 } else { 4 })?;
                let begin = fields.bytes.len();
                if index == 0 {
                    read_text(&mut block, &mut fields.bytes)?;
                } else {
                    self.referred |= index > STATIC.len();
                    let (name, _) = self.field(index)?;
                    fields.bytes.extend_from_slice(name);
                }
                let middle = fields.bytes.len();
                read_text(&mut block, &mut fields.bytes)?;
                fields.grow(fields.bytes.len() - begin)?;
                fields.ends.push((middle as u32, fields.bytes.len() as u32));
                if inserts {
                    self.insert(&fields.bytes[begin..], middle - begin);
                }
            }
        }
        Ok(())
    }

    fn field(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        const NONE: HpackError = HpackError("a header field with a number that no table has");
        let index = index.checked_sub(1).ok_or(NONE)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let f = self.table.get(index - STATIC.len()).ok_or(NONE)?;
        Ok(f.bytes.split_at(f.name))
    }

    fn insert(&mut self, bytes: &[u8], name: usize) {
        self.generation += 1;
        let size = bytes.len() + FIELD_BYTES;
        // A field larger than the table empties it (RFC 7541 section 4.4).
        self.evict(size);
        if size <= self.most {
            self.size += size;
            self.table.push_front(TableField { bytes: bytes.into(), name });
        }
    }

    /// Drops the oldest fields until one of this size fits.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.most
            && let Some(oldest) = self.table.pop_back()
        {
            self.size -= oldest.bytes.len() + FIELD_BYTES;
        }
    }
}

fn read_number(block: &mut &[u8], bits: u32) -> Result<usize, HpackError> {
    let most = (1usize << bits) - 1;
    let (first, mut rest) = block.split_first().ok_or(CUT)?;
    let mut n = usize::from(*first) & most;
    if n == most {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first().ok_or(CUT)?;
            rest = after;
            // Four bytes are 2^28, more than any length or number here.
            if shift > 21 {
                return Err(BIG);
            }
            n += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(n)
}

fn read_text(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let coded = block.first().ok_or(CUT)? & 0x80 != 0;
    let length = read_number(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(CUT)?;
    *block = rest;
    if coded {
        return huffman::decode(text, MOST_LIST_BYTES, out).ok_or(HpackError("a text in a wrong Huffman code"));
    }
    out.extend_from_slice(text);
    Ok(())
}

fn write_number(out: &mut Vec<u8>, pattern: u8, bits: u32, n: usize) {
    let most = (1usize << bits) - 1;
    if n < most {
        return out.push(pattern | n as u8);
    }
    out.push(pattern | most as u8);
    let mut rest = n - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let coded = huffman::encoded_length(text);
    if coded < text.len() {
        write_number(out, 0x80, 7, coded);
        huffman::encode(text, out);
    } else {
        write_number(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// Appends a field whose name is in lower case. `secret`: no one on the way may put it in a table (RFC 7541 section
/// 7.1.3).
pub fn encode(out: &mut Vec<u8>, name: &[u8], value: &[u8], secret: bool) {
    let same = STATIC.iter().position(|(n, v)| n.as_bytes() == name && v.as_bytes() == value && !value.is_empty());
    if let Some(at) = same {
        return write_number(out, 0x80, 7, at + 1);
    }
    let pattern = if secret { 0x10 } else { 0 };
    match STATIC.iter().position(|(n, _)| n.as_bytes() == name) {
        Some(at) => write_number(out, pattern, 4, at + 1),
        None => {
            out.push(pattern);
            write_text(out, name);
        }
    }
    write_text(out, value);
}

/// The first bytes of a block that tell the decoder that our table is empty and stays so.
pub const EMPTY_TABLE: &[u8] = &[0x20];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("text"), 16).expect("hex")).collect()
    }

    fn texts(fields: &Fields) -> Vec<String> {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        fields.iter().map(|(n, v)| format!("{}={}", text(n), text(v))).collect()
    }

    #[test]
    fn the_requests_of_appendix_c_4_decode() {
        let (mut decoder, mut fields) = (Decoder::default(), Fields::default());
        let blocks = [
            ("828684418cf1e3c2e5f23a6ba0ab90f4ff", 57),
            ("828684be5886a8eb10649cbf", 110),
            ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", 164),
        ];
        let mut last = Vec::new();
        for (block, size) in blocks {
            decoder.decode(&hex(block), &mut fields).expect("valid");
            assert_eq!(decoder.size, size);
            last = texts(&fields);
        }
        let want = [":method=GET", ":scheme=https", ":path=/index.html", ":authority=www.example.com"];
        assert_eq!(last, [&want[..], &["custom-key=custom-value"]].concat());
    }

    #[test]
    fn the_answers_of_appendix_c_6_decode_and_evict() {
        let (mut decoder, mut fields) = (Decoder::default(), Fields::default());
        // The appendix has a table of 256 bytes.
        decoder.most = 256;
        let blocks = [
            (
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
                222,
            ),
            ("4883640effc1c0bf", 222),
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                215,
            ),
        ];
        for (block, size) in blocks {
            decoder.decode(&hex(block), &mut fields).expect("valid");
            assert_eq!(decoder.size, size);
        }
        let want = [
            ":status=200",
            "cache-control=private",
            "date=Mon, 21 Oct 2013 20:13:22 GMT",
            "location=https://www.example.com",
            "content-encoding=gzip",
            "set-cookie=foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ];
        assert_eq!(texts(&fields), want);
    }

    #[test]
    fn what_is_encoded_decodes_and_leaves_the_table_alone() {
        let given: [(&str, &str, bool); 6] = [
            (":method", "GET", false),
            (":path", "/a?b=c", false),
            (":authority", "h:80", false),
            ("authorization", "Basic eDp5", true),
            ("x-own", "\u{e4}\u{1}", false),
            ("accept", "", false),
        ];
        let mut block = EMPTY_TABLE.to_vec();
        given.iter().for_each(|(n, v, secret)| encode(&mut block, n.as_bytes(), v.as_bytes(), *secret));
        let (mut decoder, mut fields) = (Decoder::default(), Fields::default());
        decoder.decode(&block, &mut fields).expect("valid");
        assert_eq!(texts(&fields), given.map(|(n, v, _)| format!("{n}={v}")));
        assert!(decoder.table.is_empty());
    }

    #[test]
    fn numbers_of_any_size_come_back_and_longer_ones_are_refused() {
        for n in [0, 1, 30, 31, 32, 127, 128, 1337, 16_384, 1 << 20] {
            let mut out = Vec::new();
            write_number(&mut out, 0x20, 5, n);
            assert_eq!(read_number(&mut &out[..], 5), Ok(n));
        }
        assert_eq!(read_number(&mut &[0x1f, 0x80, 0x80, 0x80, 0x80, 0x00][..], 5), Err(BIG));
        assert_eq!(read_number(&mut &[0x1f, 0x80][..], 5), Err(CUT));
    }

    #[test]
    fn blocks_that_break_a_rule_are_refused() {
        let error = |block: &[u8]| Decoder::default().decode(block, &mut Fields::default()).expect_err("wrong").code();
        for block in [
            // No field has the number 0, nor 62 while the table is empty.
            &[0x80][..],
            &[0xbe],
            &[0x7e, 0x00],
            // A size above the limit, and one after a field.
            &[0x3f, 0xe2, 0x1f],
            &[0x82, 0x20],
            // Cut off.
            &[0x40, 0x05, b'a'],
            &[0x00],
            // Wrong Huffman code.
            &[0x00, 0x81, 0x00, 0x00],
        ] {
            assert_eq!(error(block), ErrorCode::COMPRESSION, "{block:?}");
        }
    }

    #[test]
    fn a_small_block_cannot_become_a_long_list() {
        // One field of 4,000 bytes in the table, named again and again.
        let mut block = vec![0x40, 0x01, b'a'];
        write_number(&mut block, 0, 7, 4000);
        block.resize(block.len() + 4000, b'x');
        block.resize(block.len() + 1000, 0xbe);
        let (mut decoder, mut fields) = (Decoder::default(), Fields::default());
        assert_eq!(decoder.decode(&block, &mut fields), Err(TOO_LONG));
        assert!(fields.bytes.len() <= MOST_LIST_BYTES);
    }

    #[test]
    fn the_generation_changes_with_the_table_alone() {
        let (mut decoder, mut fields) = (Decoder::default(), Fields::default());
        let mut after = |block: &[u8]| {
            decoder.decode(block, &mut fields).expect("valid");
            decoder.generation()
        };
        assert_eq!(after(&[0x88]), 0);
        assert_eq!(after(&[0x40, 0x01, b'a', 0x01, b'b']), 1);
        assert_eq!((after(&[0xbe]), after(&[0x20])), (1, 2));
    }
}
