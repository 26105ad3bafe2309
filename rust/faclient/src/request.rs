//! Requests in flight.

use crate::client::{Client, Stream};
use crate::error::{check, errno, Failed, Result};
use faclient_sys as sys;
use std::fmt;
use std::mem::size_of;
use std::time::Duration;

/// A request in flight. It has the tensors that it was given until [`wait`](Request::wait) gives them back.
///
/// Dropping it cancels the request and waits until the daemon has let go of the tensors.
#[must_use = "a request that is dropped is cancelled"]
pub struct Request<A> {
    client: Client,
    ticket: sys::fa_ticket,
    operands: Option<A>, // None: it was given back
    _stream: Option<Stream>,
}

impl<A> Request<A> {
    pub(crate) fn new(
        client: &Client,
        ticket: sys::fa_ticket,
        operands: A,
        stream: Option<Stream>,
    ) -> Request<A> {
        Request { client: client.clone(), ticket, operands: Some(operands), _stream: stream }
    }

    /// Waits for its end, and gives back what the request was given, outputs filled.
    pub fn wait(mut self) -> Result<A, Failed<A>> {
        let result = self.end();
        let request = self.operands.take().expect("it is given back once");
        match result {
            Ok(()) => Ok(request),
            Err(error) => Err(Failed { error, request }),
        }
    }

    /// Waits for its end, but at most this long. True: it has ended, and [`wait`](Request::wait) returns at once.
    pub fn ended(&self, timeout: Duration) -> bool {
        self.poll(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX), None) != -errno::EAGAIN
    }

    /// Asks the daemon to end it early, with `ECANCELED`. False: it had already ended.
    pub fn cancel(&self) -> Result<bool> {
        // SAFETY: the client lives.
        match check(unsafe { sys::fa_cancel(self.client.handle(), &self.ticket) }) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == errno::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// When it was queued, started and finished, by CLOCK_MONOTONIC; `None`: it has not ended. A time of zero:
    /// that point was never reached.
    pub fn times(&self) -> Option<Times> {
        let mut raw = sys::fa_completion {
            size: size_of::<sys::fa_completion>() as u32,
            ..Default::default()
        };
        if self.poll(0, Some(&mut raw)) == -errno::EAGAIN || raw.queued_ns == 0 {
            return None;
        }
        Some(Times {
            queued: Duration::from_nanos(raw.queued_ns),
            started: Duration::from_nanos(raw.started_ns),
            finished: Duration::from_nanos(raw.finished_ns),
        })
    }

    fn poll(&self, timeout_ns: u64, completion: Option<&mut sys::fa_completion>) -> i32 {
        let completion = completion.map_or(std::ptr::null_mut(), |c| c as *mut _);
        // SAFETY: the client lives; the struct has its size.
        unsafe { sys::fa_wait(self.client.handle(), &self.ticket, timeout_ns, completion) }
    }

    /// Every result but EAGAIN says that the request has ended.
    fn end(&self) -> Result<()> {
        loop {
            match check(self.poll(u64::MAX, None)) {
                Err(error) if error.errno() == errno::EAGAIN => {}
                result => return result.map(drop),
            }
        }
    }
}

impl<A> Drop for Request<A> {
    fn drop(&mut self) {
        if self.operands.is_some() {
            let _ = self.cancel();
            let _ = self.end();
        }
    }
}

impl<A> fmt::Debug for Request<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({})", self.ticket.value)
    }
}

/// A request in flight; or why it was not sent, with what it was given.
pub type Submitted<A> = Result<Request<A>, Failed<A>>;

/// When a request was queued, started and finished, by CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Times {
    pub queued: Duration,
    pub started: Duration,
    pub finished: Duration,
}
