//! Frames of HTTP/2 (RFC 9113 section 4 and 6): their heads, and the few kinds that a client sends.

use super::ErrorCode;

/// Bytes before the payload of every frame.
pub const HEAD_BYTES: usize = 9;

/// Kinds of frames.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 32;
}

/// Numbers of settings.
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of the payload.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    /// Number of the stream; 0 is the connection.
    pub stream: u32,
}

impl FrameHead {
    /// Reads a head; `None` if `bytes` are too few.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<FrameHead> {
        let b: &[u8; HEAD_BYTES] = bytes.get(..HEAD_BYTES)?.try_into().ok()?;
        Some(FrameHead {
            length: usize::from(b[0]) << 16 | usize::from(b[1]) << 8 | usize::from(b[2]),
            kind: b[3],
            flags: b[4],
            stream: number(&b[5..]) & 0x7fff_ffff,
        })
    }

    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        let length = self.length as u32;
        out.extend_from_slice(&[(length >> 16) as u8, (length >> 8) as u8, length as u8, self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }
}

/// Reads the first four bytes as a number; missing bytes count as 0.
#[must_use]
pub fn number(bytes: &[u8]) -> u32 {
    (0..4).fold(0, |n, i| n << 8 | u32::from(bytes.get(i).copied().unwrap_or(0)))
}

/// Removes the padding of a DATA or HEADERS payload, and the priority of HEADERS.
///
/// # Errors
/// FRAME_SIZE_ERROR: the payload is too short for its flags. PROTOCOL_ERROR: the padding is longer than the rest.
pub fn unpadded<'a>(head: &FrameHead, payload: &'a [u8]) -> Result<&'a [u8], ErrorCode> {
    let mut rest = payload;
    let mut padding = 0;
    if head.has(flag::PADDED) {
        let (first, after) = rest.split_first().ok_or(ErrorCode::FRAME_SIZE)?;
        padding = usize::from(*first);
        rest = after;
    }
    if head.kind == kind::HEADERS && head.has(flag::PRIORITY) {
        rest = rest.get(5..).ok_or(ErrorCode::FRAME_SIZE)?;
    }
    let length = rest.len().checked_sub(padding).ok_or(ErrorCode::PROTOCOL)?;
    Ok(&rest[..length])
}

/// Writes a frame of any kind.
pub fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    FrameHead { length: payload.len(), kind, flags, stream }.write(out);
    out.extend_from_slice(payload);
}

/// Returns a frame of any kind: a server's, or one that breaks the rules.
#[must_use]
pub fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + payload.len());
    write(&mut out, kind, flags, stream, payload);
    out
}

pub fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    FrameHead { length: settings.len() * 6, kind: kind::SETTINGS, flags: 0, stream: 0 }.write(out);
    for (name, value) in settings {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub fn write_settings_ack(out: &mut Vec<u8>) {
    write(out, kind::SETTINGS, flag::ACK, 0, &[]);
}

pub fn write_ping_ack(out: &mut Vec<u8>, payload: &[u8]) {
    write(out, kind::PING, flag::ACK, 0, payload);
}

pub fn write_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    write(out, kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
}

pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write(out, kind::RST_STREAM, 0, stream, &code.0.to_be_bytes());
}

/// Says that the connection ends. The server began no streams, so the last one that we processed is 0.
pub fn write_goaway(out: &mut Vec<u8>, code: ErrorCode) {
    FrameHead { length: 8, kind: kind::GOAWAY, flags: 0, stream: 0 }.write(out);
    out.extend_from_slice(&0u32.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Writes a header block, in as many frames as the peer's limit asks for.
pub fn write_headers(out: &mut Vec<u8>, stream: u32, block: &[u8], ends: bool, most: usize) {
    let end_stream = if ends { flag::END_STREAM } else { 0 };
    let mut pieces = block.chunks(most.max(1)).peekable();
    let mut first = true;
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
        let (kind, flags) = if first { (kind::HEADERS, end_stream | last) } else { (kind::CONTINUATION, last) };
        write(out, kind, flags, stream, piece);
        first = false;
    }
}

pub fn write_data(out: &mut Vec<u8>, stream: u32, bytes: &[u8], ends: bool) {
    let flags = if ends { flag::END_STREAM } else { 0 };
    write(out, kind::DATA, flags, stream, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_what_it_wrote() {
        let head = FrameHead { length: 0x01_02_03, kind: kind::DATA, flags: 9, stream: 0x7fff_ffff };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(FrameHead::read(&bytes), Some(head));
        assert_eq!(FrameHead::read(&bytes[..8]), None);
        // The first bit of the number is reserved, and ignored.
        bytes[5] |= 0x80;
        assert_eq!(FrameHead::read(&bytes), Some(head));
    }

    #[test]
    fn padding_longer_than_its_frame_is_refused() {
        let head = |kind, flags| FrameHead { length: 0, kind, flags, stream: 1 };
        let padded = head(kind::DATA, flag::PADDED);
        assert_eq!(unpadded(&padded, b"\x02abxx"), Ok(&b"ab"[..]));
        assert_eq!(unpadded(&padded, b"\x05abxx"), Err(ErrorCode::PROTOCOL));
        assert_eq!(unpadded(&padded, b""), Err(ErrorCode::FRAME_SIZE));
        assert_eq!(unpadded(&head(kind::HEADERS, flag::PRIORITY), b"12345block"), Ok(&b"block"[..]));
        assert_eq!(unpadded(&head(kind::HEADERS, flag::PRIORITY), b"1234"), Err(ErrorCode::FRAME_SIZE));
    }

    #[test]
    fn a_long_block_continues() {
        let mut out = Vec::new();
        write_headers(&mut out, 5, &[7; 25], true, 10);
        let mut rest = &out[..];
        let mut seen = Vec::new();
        while let Some(head) = FrameHead::read(rest) {
            seen.push((head.kind, head.flags, head.length));
            rest = &rest[HEAD_BYTES + head.length..];
        }
        assert_eq!(seen, [(kind::HEADERS, 1, 10), (kind::CONTINUATION, 0, 10), (kind::CONTINUATION, 4, 5)]);
    }
}
