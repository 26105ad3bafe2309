//! Errors: a number and the library's sentence.

use faclient_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::raw::c_int;

/// The numbers that [`Error::errno`] may be, as on Linux.
pub mod errno {
    #![allow(missing_docs)]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const ECHILD: i32 = 10;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const EMFILE: i32 = 24;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOSYS: i32 = 38;
    pub const EPROTO: i32 = 71;
    pub const EMSGSIZE: i32 = 90;
    pub const EPROTONOSUPPORT: i32 = 93;
    pub const ENOTSUP: i32 = 95;
    pub const ECONNRESET: i32 = 104;
    pub const ESHUTDOWN: i32 = 108;
    pub const ETIMEDOUT: i32 = 110;
    pub const ECONNREFUSED: i32 = 111;
    pub const ESTALE: i32 = 116;
    pub const EDQUOT: i32 = 122;
    pub const ECANCELED: i32 = 125;
}

/// A result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: an [`errno`] and a sentence that names the argument, the limit or the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    errno: i32,
    message: String,
}

impl Error {
    pub(crate) fn new(errno: i32, message: impl Into<String>) -> Error {
        let message = message.into();
        Error { errno, message }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(errno::EINVAL, message)
    }

    /// The number, positive: one of [`errno`].
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True if the daemon went away, and the call or request with it. Caches and sequences are as
    /// before; the next call reconnects.
    pub fn is_lost(&self) -> bool {
        self.errno == errno::ECONNRESET
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = io::Error::from_raw_os_error(error.errno).kind();
        io::Error::new(kind, error)
    }
}

/// The library's result as a `Result`. Must follow the call in the same thread at once: its sentence
/// belongs to the thread, until its next call.
pub(crate) fn check(r: c_int) -> Result<c_int> {
    if r >= 0 {
        return Ok(r);
    }
    // SAFETY: a string of this thread, valid until its next call.
    let sentence = unsafe { CStr::from_ptr(sys::fa_error()) };
    let message = match sentence.to_string_lossy() {
        text if text.is_empty() => io::Error::from_raw_os_error(-r).to_string(),
        text => text.into_owned(),
    };
    Err(Error::new(-r, message))
}

/// A request that failed: the error, and what the request was given.
///
/// `?` turns it into an [`Error`], and drops the rest.
pub struct Failed<A> {
    /// Why.
    pub error: Error,
    /// The request's tensors and options, to be used again. What the outputs hold is not known.
    pub request: A,
}

impl<A> fmt::Debug for Failed<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<A> fmt::Display for Failed<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<A> std::error::Error for Failed<A> {}

impl<A> From<Failed<A>> for Error {
    fn from(failed: Failed<A>) -> Error {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn becomes_an_error_of_io() {
        let error = io::Error::from(Error::new(errno::ETIMEDOUT, "too late"));
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "too late");
    }
}
