//! One connection as it is read: what its frames mean to the gate.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::{CallerId, Context, Instant, Sender, Span};
use tidegate_driver::{Names, context};

use super::bounds::Bounds;
use super::conn::Conn;
use super::reader::Settings;
use super::table::Waiting;
use crate::wire::{self, Frame, Kind, WireError};

/// What has been read and goes to the gate.
pub(super) enum Input {
    Request(Waiting),
    /// A connection has begun to speak for a caller.
    Register(CallerId, Arc<Conn>),
    Report(Context),
    Cancel(Arc<Conn>, u64),
    /// A connection has ended, or said that it will send nothing new.
    Gone(CallerId, Arc<Conn>),
    /// Its requests are to be given up too.
    Dead(Arc<Conn>),
    /// How long a message to a caller and back takes.
    RoundTrip(Span),
    Malformed,
    Accepted,
}

/// A connection as its reader sees it.
pub(super) struct Half {
    pub(super) conn: Arc<Conn>,
    /// The beginning of a frame, and how many of its bytes are counted as kept.
    pub(super) partial: Vec<u8>,
    pub(super) counted: usize,
    /// When that began.
    pub(super) begun: Instant,
    pub(super) caller: CallerId,
    /// Who that is by more than its own word.
    sender: Sender,
    /// The last call's number.
    call: Option<u64>,
    /// Whether it is on the list of those to be read, and since when.
    pub(super) listed: Option<Instant>,
    /// Whether it is on the list of those that are not to be read.
    pub(super) parked: bool,
    /// Whether the peer has closed its side: there is no event any more, so it is read to the end.
    pub(super) ending: bool,
    /// Whether the peer has said goodbye.
    pub(super) left: bool,
    pub(super) heard: Instant,
}

impl Half {
    pub(super) fn new(conn: Arc<Conn>, sender: Sender, now: Instant) -> Self {
        Self {
            conn,
            partial: Vec::new(),
            counted: 0,
            begun: now,
            caller: CallerId::UNKNOWN,
            sender,
            call: None,
            listed: None,
            parked: false,
            ending: false,
            left: false,
            heard: now,
        }
    }

    /// Whether it has so much open, or to be written, that it is not to be read.
    pub(super) fn is_full(&self, bounds: &Bounds) -> bool {
        let full = self.conn.is_full() || self.conn.lock().open() >= bounds.open;
        full && !self.conn.is_gone()
    }

    /// Whether a frame takes longer than it may, and not because it is not read.
    pub(super) fn lags(&self, now: Instant, frame_time: Span) -> bool {
        let read = self.listed.is_none() && !self.parked;
        read && !self.partial.is_empty() && now.since(self.begun) > frame_time
    }

    /// Reads all frames of `bytes` and returns how many bytes they were.
    pub(super) fn parse(
        &mut self,
        bytes: &[u8],
        arrived: Instant,
        settings: &Settings,
        names: &Names,
        inputs: &mut Vec<Input>,
    ) -> Result<usize, WireError> {
        let (mut used, names) = (0, &names.of(self.sender));
        while let Some((frame, length)) = Frame::read(&bytes[used..], &settings.limits)? {
            used += length;
            self.take(&frame, arrived, settings.trust, names, inputs)?;
        }
        Ok(used)
    }

    fn take(
        &mut self,
        frame: &Frame<'_>,
        arrived: Instant,
        trust: bool,
        names: &Names,
        inputs: &mut Vec<Input>,
    ) -> Result<(), WireError> {
        match frame.kind {
            Some(Kind::Request) => {
                if self.call.is_some_and(|last| frame.call <= last) {
                    return Err(WireError::Order);
                }
                self.call = Some(frame.call);
                let mut head = wire::read_request(frame.fields, arrived, names)?;
                if !trust {
                    let deadline = head.context.deadline;
                    head.context = Context { deadline, ..Context::default() };
                }
                head.context.sender = self.sender;
                self.speaks_for(head.context.caller, inputs);
                inputs.push(Input::Request(Waiting {
                    conn: Arc::clone(&self.conn),
                    call: frame.call,
                    method: head.method,
                    context: context::draw(head.context),
                    payload: Bytes::copy_from_slice(frame.payload),
                    arrived,
                }));
            }
            Some(Kind::Report) if trust => {
                let told = wire::read_request(frame.fields, arrived, names)?.context;
                let context = Context { sender: self.sender, ..told };
                self.speaks_for(context.caller, inputs);
                inputs.push(Input::Report(context));
            }
            Some(Kind::Cancel) => inputs.push(Input::Cancel(Arc::clone(&self.conn), frame.call)),
            Some(Kind::Goodbye) => {
                inputs.push(Input::Gone(self.caller, Arc::clone(&self.conn)));
                self.caller = CallerId::UNKNOWN;
                self.left = true;
            }
            // What only servers send, what strangers say of themselves, and what a later version may
            // send: nothing to us.
            Some(Kind::Answer | Kind::Refusal | Kind::Failure | Kind::Feedback | Kind::Report)
            | None => {}
        }
        Ok(())
    }

    /// A connection speaks for one caller. Another id moves it.
    fn speaks_for(&mut self, caller: CallerId, inputs: &mut Vec<Input>) {
        if caller == self.caller || caller == CallerId::UNKNOWN {
            return;
        }
        if self.caller != CallerId::UNKNOWN {
            inputs.push(Input::Gone(self.caller, Arc::clone(&self.conn)));
        }
        self.caller = caller;
        inputs.push(Input::Register(caller, Arc::clone(&self.conn)));
    }
}
