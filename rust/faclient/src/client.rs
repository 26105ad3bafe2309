//! Connections.

use crate::element::Stored;
use crate::error::{check, errno, Error, Result};
use crate::memory::{Buffer, Tensor};
use faclient_sys as sys;
use std::ffi::{CStr, CString};
use std::fmt;
use std::mem::size_of;
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::io::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Which daemon to connect to, and how.
///
/// ```no_run
/// # fn main() -> Result<(), faclient::Error> {
/// let client = faclient::Options::new().spawn().name("my program").connect()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "connect() connects"]
pub struct Options {
    flags: u32,
    socket: Option<PathBuf>,
    name: Option<String>,
    daemon: Option<PathBuf>,
    config: Option<PathBuf>,
    connect_timeout: Option<Duration>,
    reconnect_timeout: Option<Duration>,
    reply_timeout: Option<Duration>,
    spin: Option<Duration>,
}

impl Options {
    /// The daemon of `FAD_SOCKET`, the user's, or the system's; none is started.
    pub fn new() -> Options {
        Options::default()
    }

    /// Starts a daemon for this program if none answers and no socket is named.
    pub fn spawn(mut self) -> Options {
        self.flags |= sys::FA_CONNECT_SPAWN;
        self
    }

    /// Always starts one. It ends with its last client.
    pub fn private(mut self) -> Options {
        self.flags |= sys::FA_CONNECT_PRIVATE;
        self
    }

    /// Sends requests by the socket, even if the daemon offers a ring in shared memory.
    pub fn no_ring(mut self) -> Options {
        self.flags |= sys::FA_CONNECT_NO_RING;
        self
    }

    /// The path of the daemon's socket.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Options {
        self.socket = Some(path.into());
        self
    }

    /// What `factl status` shows, at most 64 bytes; default: the program's name.
    pub fn name(mut self, name: impl Into<String>) -> Options {
        self.name = Some(name.into());
        self
    }

    /// The program to start; default: `FAD_DAEMON`, else the installed one. Needs [`spawn`](Options::spawn)
    /// or [`private`](Options::private).
    pub fn daemon(mut self, path: impl Into<PathBuf>) -> Options {
        self.daemon = Some(path.into());
        self
    }

    /// The configuration of a daemon that is started.
    pub fn config(mut self, path: impl Into<PathBuf>) -> Options {
        self.config = Some(path.into());
        self
    }

    /// How long [`connect`](Options::connect) may take; default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long a call may take to reconnect after the daemon was lost; default: 5 s. `Duration::MAX`: only
    /// [`Client::reconnect`] reconnects.
    pub fn reconnect_timeout(mut self, timeout: Duration) -> Options {
        self.reconnect_timeout = Some(timeout);
        self
    }

    /// How long the daemon may take for an answer that needs no computing before it is given up; default: 60 s.
    pub fn reply_timeout(mut self, timeout: Duration) -> Options {
        self.reply_timeout = Some(timeout);
        self
    }

    /// How long a call spins before it sleeps; default: 20 us where there is a second processor.
    pub fn spin(mut self, spin: Duration) -> Options {
        self.spin = Some(spin);
        self
    }

    /// Connects.
    pub fn connect(&self) -> Result<Client> {
        let path = |path: &Option<PathBuf>, what| match path {
            Some(path) => c_string(path.as_os_str().as_bytes(), what).map(Some),
            None => Ok(None),
        };
        let socket = path(&self.socket, "socket")?;
        let daemon = path(&self.daemon, "daemon")?;
        let config = path(&self.config, "config")?;
        let name = match &self.name {
            Some(name) => Some(c_string(name.as_bytes(), "name")?),
            None => None,
        };
        let options = sys::fa_options {
            size: size_of::<sys::fa_options>() as u32,
            flags: self.flags,
            socket: pointer(&socket),
            name: pointer(&name),
            daemon: pointer(&daemon),
            config: pointer(&config),
            connect_ns: nanoseconds(self.connect_timeout),
            reconnect_ns: nanoseconds(self.reconnect_timeout),
            reply_ns: nanoseconds(self.reply_timeout),
            spin_ns: nanoseconds(self.spin),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the strings live until the end of the call, which copies what it keeps.
        check(unsafe { sys::fa_connect(&options, &mut handle) })?;
        Ok(Client { inner: Arc::new(Inner { handle, dropped: Mutex::default() }) })
    }
}

/// To the library 0 means the default, so a time of 0 becomes a nanosecond.
pub(crate) fn nanoseconds(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1))
}

pub(crate) fn c_string(bytes: &[u8], what: &str) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::invalid(format!("{} contains a zero byte", what)))
}

pub(crate) fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

struct Inner {
    handle: *mut sys::fa_client,
    dropped: Mutex<Vec<Dropped>>,
}

/// What ends with its object, in the daemon.
pub(crate) enum Dropped {
    Cache(u64),
    Sequence(u64),
}

// SAFETY: any number of threads may use a client at once.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: everything that uses the client held it.
        unsafe { sys::fa_disconnect(self.handle) };
    }
}

/// A connection to a daemon. Clones are the same connection, and any number of threads may use it at once. It
/// ends when the last clone, buffer, cache, sequence, step and request is dropped.
///
/// When the daemon dies, requests in flight fail with an error that [is lost](Error::is_lost). The next call
/// reconnects to its successor; buffers keep their contents, caches and sequences their committed tokens. A
/// child process that was forked connects anew: there every call fails with `ECHILD`.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to the daemon that runs: of `FAD_SOCKET`, of this user, or of the system.
    pub fn connect() -> Result<Client> {
        Options::new().connect()
    }

    pub(crate) fn handle(&self) -> *mut sys::fa_client {
        self.inner.handle
    }

    /// Removes something in the daemon; later, if the connection is lost: what is dropped must not wait for
    /// another daemon.
    pub(crate) fn remove(&self, dropped: Dropped) {
        self.inner.dropped.lock().unwrap_or_else(|e| e.into_inner()).push(dropped);
        self.remove_dropped();
    }

    /// Called where objects are made, as these calls reconnect.
    pub(crate) fn remove_dropped(&self) {
        loop {
            let mut list = self.inner.dropped.lock().unwrap_or_else(|e| e.into_inner());
            if list.is_empty() || !self.is_connected() {
                return;
            }
            let next = list.pop();
            drop(list);
            // SAFETY: the client lives. An error says that it is gone already.
            match next {
                Some(Dropped::Cache(number)) => unsafe {
                    sys::fa_cache_remove(self.handle(), number)
                },
                Some(Dropped::Sequence(number)) => unsafe {
                    sys::fa_sequence_remove(self.handle(), number)
                },
                None => return,
            };
        }
    }

    pub(crate) fn same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// What the daemon said when this client connected to it.
    pub fn info(&self) -> Result<Info> {
        let mut raw = sys::fa_info { size: size_of::<sys::fa_info>() as u32, ..Default::default() };
        // SAFETY: a struct with its size.
        check(unsafe { sys::fa_info(self.handle(), &mut raw) })?;
        Ok(Info {
            daemon_version: text(&raw.daemon_version),
            backend: text(&raw.backend),
            device_name: text(&raw.device_name),
            pid: raw.pid,
            generation: raw.generation,
            session: raw.session,
            reconnects: raw.reconnects,
            resumed: raw.resumed,
            max_buffers: raw.max_buffers,
            max_buffer_bytes: raw.max_buffer_bytes,
            max_streams: raw.max_streams,
            max_requests: raw.max_requests,
            spawned: raw.origin == sys::FA_DAEMON_SPAWNED,
        })
    }

    /// One empty round trip.
    pub fn ping(&self) -> Result<()> {
        // SAFETY: the client lives.
        check(unsafe { sys::fa_ping(self.handle()) }).map(drop)
    }

    /// The daemon's state as JSON: what `factl status --json` prints. `faclient.h` has the keys.
    pub fn status(&self) -> Result<String> {
        let mut json = std::ptr::null_mut();
        // SAFETY: the text is ours, and ends with a zero.
        unsafe {
            check(sys::fa_status(self.handle(), &mut json))?;
            let text = CStr::from_ptr(json).to_string_lossy().into_owned();
            sys::fa_free(json.cast());
            Ok(text)
        }
    }

    /// The path of the daemon's socket, for other processes.
    pub fn socket_path(&self) -> PathBuf {
        // SAFETY: the path is valid as long as the client.
        let path = unsafe { sys::fa_socket_path(self.handle()) };
        if path.is_null() {
            return PathBuf::new(); // of the parent of a forked process
        }
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        Path::new(std::ffi::OsStr::from_bytes(bytes)).to_path_buf()
    }

    /// False if the daemon was lost: the next call that needs it reconnects. Never waits.
    pub fn is_connected(&self) -> bool {
        // SAFETY: the client lives.
        unsafe { sys::fa_client_state(self.handle()) == sys::FA_CLIENT_CONNECTED }
    }

    /// Reconnects now, if the connection is lost.
    pub fn reconnect(&self) -> Result<()> {
        // SAFETY: the client lives.
        check(unsafe { sys::fa_reconnect(self.handle()) }).map(drop)
    }

    /// A descriptor for event loops: readable when requests have ended, or the connection was lost. Then call
    /// [`dispatch`](Client::dispatch), and [`Request::ended`](crate::Request::ended) without a time.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: the descriptor lives as long as the client.
        unsafe { Ok(BorrowedFd::borrow_raw(check(sys::fa_fd(self.handle()))?)) }
    }

    /// Takes in what the daemon has said. Never waits.
    pub fn dispatch(&self) -> Result<()> {
        // SAFETY: the client lives.
        check(unsafe { sys::fa_dispatch(self.handle()) }).map(drop)
    }

    /// Zeroed memory for several tensors.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        Buffer::new(self, bytes)
    }

    /// A tensor of zeros in a buffer of its own.
    pub fn tensor<T: Stored>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        let bytes = shape.iter().try_fold(size_of::<T>(), |bytes, &n| bytes.checked_mul(n));
        let bytes = bytes
            .ok_or_else(|| Error::invalid("the shape has more elements than memory can have"))?;
        self.buffer(bytes.max(1))?.tensor(shape)
    }

    /// A stream: requests of one stream run in order, those of different streams at the same time. One of
    /// `priority` > 0 goes before others.
    pub fn stream(&self, priority: i32) -> Result<Stream> {
        let mut number = 0;
        // SAFETY: the client lives.
        check(unsafe { sys::fa_stream_new(self.handle(), priority, &mut number) })?;
        Ok(Stream(Arc::new(StreamInner { client: self.clone(), number })))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.socket_path().display())
    }
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What the daemon said at the last connect. The fields are those of `struct fa_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Info {
    pub daemon_version: String,
    /// `cpu` or `cuda`.
    pub backend: String,
    pub device_name: String,
    /// Of the daemon, in its own namespace; 0: unknown.
    pub pid: u32,
    /// Changes when the daemon is restarted.
    pub generation: u64,
    pub session: u64,
    /// How often this client has reconnected.
    pub reconnects: u64,
    /// How often that lost no cache or sequence.
    pub resumed: u64,
    pub max_buffers: u64,
    pub max_buffer_bytes: u64,
    pub max_streams: u64,
    /// Requests in flight, of one client.
    pub max_requests: u64,
    /// True if this client started the daemon.
    pub spawned: bool,
}

struct StreamInner {
    client: Client,
    number: u32,
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // SAFETY: the client lives. Requests hold their stream, so none is in flight.
        unsafe { sys::fa_stream_free(self.client.handle(), self.number) };
    }
}

/// An order of requests. Clones are the same stream; it is freed with the last clone and request.
#[derive(Clone)]
pub struct Stream(Arc<StreamInner>);

impl Stream {
    /// The number for the library, if a client may use the stream.
    pub(crate) fn number(stream: &Option<Stream>, client: &Client) -> Result<u32> {
        match stream {
            None => Ok(0),
            Some(stream) if stream.0.client.same(client) => Ok(stream.0.number),
            Some(_) => Err(Error::new(errno::EINVAL, "the stream is of another client")),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.0.number)
    }
}
