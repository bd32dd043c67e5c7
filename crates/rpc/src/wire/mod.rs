//! The wire: versioned binary frames with length-tagged fields. `docs/wire-rpc.md` describes it for
//! those who write a client in another language; `testdata/wire/rpc.txt` has examples.
//!
//! ```text
//!  0        4         5      6             8        16          16 + fields   4 + length
//!  ├─ length ┼─ version ┼ kind ┼─ fields ────┼─ call ─┼─ fields … ┼─ payload …  ┤
//!     u32        u8       u8       u16          u64
//! ```
//!
//! Numbers are little-endian. A field is a tag, a length and a value of so many bytes; unknown tags
//! and unknown kinds of frames are skipped, so that either side may be newer. Reading never panics,
//! whatever the bytes, and copies nothing.

mod fields;
mod message;

use std::fmt;

pub use fields::{Fields, put_bytes, put_int};
pub use message::{
    Failure, Goodbye, RequestHead, read_failure, read_feedback, read_goodbye, read_rejection,
    read_request, write_answer, write_cancel, write_failure, write_feedback, write_goodbye,
    write_refusal, write_report, write_request,
};

/// The version spoken here, the first byte after the length.
pub const VERSION: u8 = 1;
/// Bytes before the fields.
pub const HEADER: usize = 16;
/// Bytes that `length` does not count: itself.
const LENGTH: usize = 4;
/// The largest payload that fits a frame whatever its fields.
pub(crate) const LARGEST: usize = u32::MAX as usize - HEADER - u16::MAX as usize;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Caller: do this.
    Request = 1,
    /// Server: here is the answer.
    Answer = 2,
    /// Server: turned away by the gate; nothing was done.
    Refusal = 3,
    /// Server: the handler failed.
    Failure = 4,
    /// Server: the state of the gate, unasked.
    Feedback = 5,
    /// Caller: demand and sheds, without a request.
    Report = 6,
    /// Caller: the answer is not wanted any more.
    Cancel = 7,
    /// Either: nothing new will come from this side, and why.
    Goodbye = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Request,
            2 => Self::Answer,
            3 => Self::Refusal,
            4 => Self::Failure,
            5 => Self::Feedback,
            6 => Self::Report,
            7 => Self::Cancel,
            8 => Self::Goodbye,
            _ => return None,
        })
    }
}

/// Largest frames that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of payload. A connection may make its peer keep one frame of this size. Default
    /// 1 MiB.
    pub payload: usize,
    /// Most bytes of fields. Ours are below 200. Default 1 KiB.
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload: 1 << 20, fields: 1 << 10 }
    }
}

/// One frame, as it stands in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is, none if this version does not know it: skip it.
    pub kind: Option<Kind>,
    /// The number of the call it belongs to, 0 if to none.
    pub call: u64,
    /// What travels with it.
    pub fields: Fields<'a>,
    /// What the application sent.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads the first frame of `bytes` and tells how long it is; none if its end is not there yet.
    /// After an error the stream cannot be read any further.
    pub fn read(bytes: &'a [u8], limits: &Limits) -> Result<Option<(Self, usize)>, WireError> {
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        // Judged by the length alone, before any of it is kept.
        if length < HEADER - LENGTH {
            return Err(WireError::TooShort(length));
        }
        let most = limits.fields.saturating_add(limits.payload);
        if length > most.saturating_add(HEADER - LENGTH) {
            return Err(WireError::TooLong(length));
        }
        if let Some(version) = rest.first().filter(|version| **version != VERSION) {
            return Err(WireError::Version(*version));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let Some((&[_, kind, f0, f1, ref call @ ..], body)) = frame.split_first_chunk::<12>()
        else {
            return Err(WireError::TooShort(length));
        };
        let fields = usize::from(u16::from_le_bytes([f0, f1]));
        if fields > limits.fields {
            return Err(WireError::TooLong(fields));
        }
        let Some((fields, payload)) = body.split_at_checked(fields) else {
            return Err(WireError::Fields);
        };
        if payload.len() > limits.payload {
            return Err(WireError::TooLong(payload.len()));
        }
        let call = u64::from_le_bytes(*call);
        let fields = Fields::new(fields);
        Ok(Some((Self { kind: Kind::from_byte(kind), call, fields, payload }, LENGTH + length)))
    }
}

/// Appends a frame to `out`: `fields` writes what travels with it.
pub(crate) fn put_frame(
    out: &mut Vec<u8>,
    kind: Kind,
    call: u64,
    fields: impl FnOnce(&mut Vec<u8>),
    payload: &[u8],
) {
    let start = out.len();
    let call = call.to_le_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, VERSION, kind as u8, 0, 0]);
    out.extend_from_slice(&call);
    fields(out);
    let written = out.len() - start - HEADER;
    out.extend_from_slice(payload);
    let length = u32::try_from(out.len() - start - LENGTH).expect("payloads are below 4 GiB");
    let written = u16::try_from(written).expect("our fields are below 64 KiB");
    out[start..start + LENGTH].copy_from_slice(&length.to_le_bytes());
    out[start + 6..start + 8].copy_from_slice(&written.to_le_bytes());
}

/// Why a stream of frames cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// A frame without room for its header.
    TooShort(usize),
    /// A frame, its fields or its payload are longer than allowed.
    TooLong(usize),
    /// A version that is not spoken here.
    Version(u8),
    /// Fields that do not fit into their frame, or values that do not fit their tag.
    Fields,
    /// Calls whose numbers do not grow.
    Order,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(length) => write!(f, "a frame of {length} bytes has no header"),
            Self::TooLong(length) => write!(f, "{length} bytes are more than is allowed"),
            Self::Version(version) => {
                write!(f, "version {version} is not spoken here, only {VERSION}")
            }
            Self::Fields => f.write_str("fields that do not fit"),
            Self::Order => f.write_str("the numbers of calls must grow"),
        }
    }
}

impl std::error::Error for WireError {}
