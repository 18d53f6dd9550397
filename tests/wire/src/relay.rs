//! Bodies on their way through: streamed as they come, counted, the first bytes readable beforehand.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use crate::ledger::{Direction, Record};

/// How many bytes of a body are read to classify or match a request; the rest is never held in memory.
pub const PEEK: usize = 64 * 1024;

/// A body: frames that were read already, then what is still to come.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    read: VecDeque<Frame<Bytes>>,
    rest: Option<Incoming>,
    meter: Option<(Arc<Record>, Direction)>,
}

impl Relay {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { rest: Some(body), ..Self::default() }
    }

    pub(crate) fn full(body: Bytes) -> Self {
        Self { read: VecDeque::from([Frame::data(body)]), ..Self::default() }
    }

    /// Counts the bytes that pass from here on in the record of their request.
    pub(crate) fn metered(mut self, record: &Arc<Record>, direction: Direction) -> Self {
        self.meter = Some((Arc::clone(record), direction));
        self
    }

    /// Reads until the body ends or [`PEEK`] bytes are there. Reading twice reads nothing more.
    pub(crate) async fn peek(&mut self) -> hyper::Result<()> {
        let mut length = self.read_data().map(Bytes::len).sum::<usize>();
        while length < PEEK
            && let Some(rest) = &mut self.rest
        {
            match rest.frame().await {
                Some(frame) => {
                    let frame = frame?;
                    length += frame.data_ref().map_or(0, Bytes::len);
                    self.read.push_back(frame);
                }
                None => self.rest = None,
            }
        }
        Ok(())
    }

    /// What [`peek`](Self::peek) has read, at most [`PEEK`] bytes of it.
    pub(crate) fn peeked(&self) -> Bytes {
        let mut data = self.read_data();
        let Some(first) = data.next() else { return Bytes::new() };
        // One frame is the usual case and needs no copy.
        let mut all = match data.next() {
            None => first.clone(),
            Some(second) => [first, second].into_iter().chain(data).flatten().copied().collect(),
        };
        all.truncate(PEEK);
        all
    }

    fn read_data(&self) -> impl Iterator<Item = &Bytes> {
        self.read.iter().filter_map(Frame::data_ref)
    }

    /// Reads the body to its end and forgets it.
    pub(crate) async fn discard(mut self) -> hyper::Result<()> {
        while let Some(frame) = self.frame().await {
            frame?;
        }
        Ok(())
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = match (this.read.pop_front(), &mut this.rest) {
            (Some(frame), _) => Poll::Ready(Some(Ok(frame))),
            (None, Some(rest)) => Pin::new(rest).poll_frame(context),
            (None, None) => Poll::Ready(None),
        };
        if let (Poll::Ready(Some(Ok(frame))), Some((record, direction))) = (&frame, &this.meter) {
            record.add_bytes(*direction, frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read_data().map(|data| data.len() as u64).sum::<u64>();
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(read + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(read + upper);
        }
        hint
    }
}
