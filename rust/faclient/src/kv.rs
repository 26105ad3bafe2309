//! Caches and sequences.

use crate::attention::numbers;
use crate::client::{c_string, nanoseconds, pointer, Client, Dropped};
use crate::element::{Dtype, Element};
use crate::error::{check, Error, Result};
use crate::memory::Tensor;
use crate::step::{Item, Step};
use faclient_sys as sys;
use std::fmt;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

/// Whom an object with a name admits besides the same user in the same cgroup, who may do everything. Modes are
/// joined by `|`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    /// Nobody else.
    pub const OWN: Mode = Mode(0);
    /// The same user in any cgroup may read it.
    pub const READ_USER: Mode = Mode(sys::FA_MODE_READ_UID);
    /// All who may connect may read it.
    pub const READ_ALL: Mode = Mode(sys::FA_MODE_READ_ALL);
    /// The same user in any cgroup may change it.
    pub const APPEND_USER: Mode = Mode(sys::FA_MODE_APPEND_UID);
    /// All who may connect may change it.
    pub const APPEND_ALL: Mode = Mode(sys::FA_MODE_APPEND_ALL);
    /// The same user in any cgroup may fork it: sequences only.
    pub const FORK_USER: Mode = Mode(sys::FA_MODE_FORK_UID);
    /// All who may connect may fork it: sequences only.
    pub const FORK_ALL: Mode = Mode(sys::FA_MODE_FORK_ALL);
}

impl std::ops::BitOr for Mode {
    type Output = Mode;
    fn bitor(self, other: Mode) -> Mode {
        Mode(self.0 | other.0)
    }
}

/// How a cache keeps its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In the cache's dtype.
    Plain,
    /// One byte an element, fp8.
    E4m3,
    /// One byte an element, -127 to 127.
    Int8,
}

/// The shape of a cache: that of one model's layers.
#[derive(Debug, Clone)]
#[must_use = "create() creates the cache"]
pub struct CacheOptions {
    raw: sys::fa_cache_options,
    name: Option<String>,
    ttl: Option<Duration>,
    scales: Option<(Vec<f32>, Vec<f32>)>,
    states: Vec<u32>,
}

// SAFETY: its pointers are null until create() fills a copy.
unsafe impl Send for CacheOptions {}
unsafe impl Sync for CacheOptions {}

impl CacheOptions {
    /// A cache of this many layers; `head_dim` is a multiple of 8 up to 576.
    pub fn new(dtype: Dtype, layers: u32, kv_heads: u32, head_dim: u32) -> CacheOptions {
        let raw = sys::fa_cache_options {
            size: size_of::<sys::fa_cache_options>() as u32,
            dtype: dtype.raw(),
            layers,
            kv_heads,
            head_dim,
            ..Default::default()
        };
        CacheOptions { raw, name: None, ttl: None, scales: None, states: Vec::new() }
    }

    /// A cache with a name, at most 63 bytes, outlives its client, and others find it.
    pub fn name(mut self, name: impl Into<String>) -> CacheOptions {
        self.name = Some(name.into());
        self
    }

    /// Whom a cache with a name admits.
    pub fn mode(mut self, mode: Mode) -> CacheOptions {
        self.raw.mode = mode.0;
        self
    }

    /// Removes a cache with a name after this time without use and sequences; default: never.
    pub fn ttl(mut self, ttl: Duration) -> CacheOptions {
        self.ttl = Some(ttl);
        self
    }

    /// The head dim of values, a multiple of 8 up to 512; default: that of keys.
    pub fn head_dim_v(mut self, head_dim_v: u32) -> CacheOptions {
        self.raw.head_dim_v = head_dim_v;
        self
    }

    /// Tokens of a page, a power of two from 16 to 256; default: 64.
    pub fn page_tokens(mut self, page_tokens: u32) -> CacheOptions {
        self.raw.page_tokens = page_tokens;
        self
    }

    /// The bytes of each state of linear layers, which [checkpoints](crate::Item::checkpoint) hold. Those after
    /// multiples of `checkpoint_tokens` are kept; 0: only the newest of each sequence is.
    pub fn states(mut self, bytes: impl Into<Vec<u32>>, checkpoint_tokens: u32) -> CacheOptions {
        self.states = bytes.into();
        self.raw.checkpoint_tokens = checkpoint_tokens;
        self
    }

    /// At most this many pages in all sequences; default: the pool's limit.
    pub fn max_pages(mut self, max_pages: u64) -> CacheOptions {
        self.raw.max_pages = max_pages;
        self
    }

    /// Values are the front of keys and not kept.
    pub fn v_in_k(mut self) -> CacheOptions {
        self.raw.flags |= sys::FA_CACHE_V_IN_K;
        self
    }

    /// Keeps codes of one byte; each token and head gets scales of its own.
    pub fn store(mut self, store: Store) -> CacheOptions {
        self.scales = None;
        self.set_store(store);
        if store != Store::Plain {
            self.raw.flags |= sys::FA_CACHE_TOKEN_SCALES;
        }
        self
    }

    /// Keeps codes of one byte, with these scales, `[layers][kv_heads]`; those of values are empty with `v_in_k()`.
    pub fn store_scaled(
        mut self,
        store: Store,
        k_scales: Vec<f32>,
        v_scales: Vec<f32>,
    ) -> CacheOptions {
        self.scales = Some((k_scales, v_scales));
        self.set_store(store);
        self
    }

    fn set_store(&mut self, store: Store) {
        self.raw.flags &= !sys::FA_CACHE_TOKEN_SCALES;
        self.raw.store = match store {
            Store::Plain => sys::FA_STORE_PLAIN,
            Store::E4m3 => sys::FA_STORE_E4M3,
            Store::Int8 => sys::FA_STORE_INT8,
        };
    }
}

/// What a cache is and has: the fields of `struct fa_cache_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct CacheInfo {
    pub dtype: Dtype,
    pub layers: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub head_dim_v: u32,
    pub page_tokens: u32,
    pub sequences: u32,
    /// Of one page, all layers.
    pub page_bytes: u64,
    /// 0: no limit but the pool's.
    pub max_pages: u64,
    /// In sequences and steps.
    pub used_pages: u64,
    /// Published, and in no sequence.
    pub idle_pages: u64,
    /// The user whose cache it is.
    pub uid: u32,
}

struct CacheInner {
    client: Client,
    number: u64,
    owned: bool,
}

impl Drop for CacheInner {
    fn drop(&mut self) {
        if self.owned {
            self.client.remove(Dropped::Cache(self.number));
        }
    }
}

/// Pages of keys and values of one model's layers, in the daemon.
///
/// Clones are the same cache. One without a name is removed with the last clone and sequence; one with a name
/// stays until [`remove`](Cache::remove).
///
/// Processes share one by its name, and what it holds by the tokens:
/// ```
/// # fn main() -> Result<(), faclient::Error> {
/// # let limit = std::time::Duration::from_secs(60);
/// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
/// use faclient::{errno, CacheOptions, Dtype, Prefix};
/// let shape = CacheOptions::new(Dtype::Bf16, 32, 8, 128).name("llama-8b");
/// let cache = match client.find_cache("llama-8b") {
///     Err(error) if error.errno() == errno::ENOENT => client.create_cache(&shape)?,
///     found => found?,
/// };
/// let tokens = [1, 4711, 42];
/// let (sequence, found) = cache.attach(&Prefix::new(&tokens))?; // what anybody published
/// assert_eq!(found, 0);
/// // ... steps over the tokens from `found` on; then sequence.publish() for the others
/// # drop(sequence);
/// # cache.remove()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cache {
    inner: Arc<CacheInner>,
}

impl Client {
    /// Creates a cache. `EEXIST`: this user has one with that name.
    pub fn create_cache(&self, options: &CacheOptions) -> Result<Cache> {
        let name = match &options.name {
            Some(name) => Some(c_string(name.as_bytes(), "name")?),
            None => None,
        };
        let mut raw = options.raw;
        raw.name = pointer(&name);
        raw.ttl_ns = nanoseconds(options.ttl);
        if let Some((k, v)) = &options.scales {
            // The library reads as many as the shape says.
            let wanted = raw.layers as usize * raw.kv_heads as usize;
            let v_in_k = raw.flags & sys::FA_CACHE_V_IN_K != 0;
            let wanted_v = if v_in_k { 0 } else { wanted };
            for (scales, wanted, which) in [(k, wanted, "k_scales"), (v, wanted_v, "v_scales")] {
                if scales.len() != wanted {
                    return Err(Error::invalid(format!(
                        "{} has {} numbers; expected {}, one for each head of each layer",
                        which,
                        scales.len(),
                        wanted
                    )));
                }
            }
            raw.k_scales = k.as_ptr();
            raw.v_scales = if v_in_k { std::ptr::null() } else { v.as_ptr() };
        }
        if !options.states.is_empty() {
            raw.state_bytes = options.states.as_ptr();
            raw.n_states = options.states.len() as u32;
        }
        let mut number = 0;
        // SAFETY: name, scales and states live until the end of the call, which copies them.
        check(unsafe { sys::fa_cache_create(self.handle(), &raw, &mut number) })?;
        Ok(Cache::new(self, number, options.name.is_none()))
    }

    /// Finds a cache of this user by its name. `ENOENT`: there is none.
    pub fn find_cache(&self, name: &str) -> Result<Cache> {
        let name = c_string(name.as_bytes(), "name")?;
        let mut number = 0;
        // SAFETY: the name lives until the end of the call.
        check(unsafe { sys::fa_cache_find(self.handle(), name.as_ptr(), &mut number) })?;
        Ok(Cache::new(self, number, false))
    }

    /// Finds another user's cache, which that user can change and remove.
    pub fn find_cache_of(&self, uid: u32, name: &str) -> Result<Cache> {
        let name = c_string(name.as_bytes(), "name")?;
        let mut number = 0;
        // SAFETY: as above.
        check(unsafe { sys::fa_cache_find_of(self.handle(), uid, name.as_ptr(), &mut number) })?;
        Ok(Cache::new(self, number, false))
    }

    /// Finds a sequence of this user by its name. `ENOENT`: there is none.
    pub fn find_sequence(&self, name: &str) -> Result<Sequence> {
        let name = c_string(name.as_bytes(), "name")?;
        let mut number = 0;
        // SAFETY: as above.
        check(unsafe { sys::fa_sequence_find(self.handle(), name.as_ptr(), &mut number) })?;
        Ok(Sequence::new(self, number, None, false))
    }

    /// Finds another user's sequence, which that user can change and remove.
    pub fn find_sequence_of(&self, uid: u32, name: &str) -> Result<Sequence> {
        let name = c_string(name.as_bytes(), "name")?;
        let mut number = 0;
        // SAFETY: as above.
        check(unsafe { sys::fa_sequence_find_of(self.handle(), uid, name.as_ptr(), &mut number) })?;
        Ok(Sequence::new(self, number, None, false))
    }

    /// Begins a step over sequences of any caches.
    pub fn step(&self, items: &[Item<'_>]) -> Result<Step> {
        Step::begin(self, items)
    }
}

impl Cache {
    fn new(client: &Client, number: u64, owned: bool) -> Cache {
        client.remove_dropped();
        Cache { inner: Arc::new(CacheInner { client: client.clone(), number, owned }) }
    }

    pub(crate) fn number(&self) -> u64 {
        self.inner.number
    }

    fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Its shape, and its pages now.
    pub fn info(&self) -> Result<CacheInfo> {
        let mut raw = sys::fa_cache_info {
            size: size_of::<sys::fa_cache_info>() as u32,
            ..Default::default()
        };
        // SAFETY: a struct with its size.
        check(unsafe { sys::fa_cache_info(self.client().handle(), self.number(), &mut raw) })?;
        Ok(CacheInfo {
            dtype: Dtype::of_raw(raw.dtype).ok_or_else(|| {
                Error::invalid(format!("the cache's dtype {} is unknown", raw.dtype))
            })?,
            layers: raw.layers,
            kv_heads: raw.kv_heads,
            head_dim: raw.head_dim,
            head_dim_v: raw.head_dim_v,
            page_tokens: raw.page_tokens,
            sequences: raw.sequences,
            page_bytes: raw.page_bytes,
            max_pages: raw.max_pages,
            used_pages: raw.used_pages,
            idle_pages: raw.idle_pages,
            uid: raw.uid,
        })
    }

    /// Removes the cache with all its sequences, for all processes.
    pub fn remove(self) -> Result<()> {
        // SAFETY: the client lives. Clones fail with ESTALE from here on.
        check(unsafe { sys::fa_cache_remove(self.client().handle(), self.number()) }).map(drop)
    }

    /// A new, empty sequence.
    pub fn sequence(&self) -> Result<Sequence> {
        let mut number = 0;
        // SAFETY: the client lives.
        check(unsafe {
            sys::fa_sequence_create(self.client().handle(), self.number(), &mut number)
        })?;
        Ok(Sequence::new(self.client(), number, Some(self), true))
    }

    /// A new sequence of the longest prefix of these tokens that any process published, in whole pages, and its
    /// length, which may be 0.
    pub fn attach(&self, prefix: &Prefix<'_>) -> Result<(Sequence, u64)> {
        let sequence = self.sequence()?;
        let tokens = sequence.attach(prefix)?;
        Ok((sequence, tokens))
    }

    /// How many leading tokens [`attach`](Cache::attach) would find now. Changes nothing.
    pub fn find(&self, prefix: &Prefix<'_>) -> Result<u64> {
        let mut tokens = 0;
        // SAFETY: the prefix lives until the end of the call.
        check(unsafe {
            sys::fa_prefix_find(self.client().handle(), self.number(), &prefix.raw(), &mut tokens)
        })?;
        Ok(tokens)
    }

    /// Begins a step that appends this many tokens to each sequence.
    pub fn step(&self, items: &[(&Sequence, u32)]) -> Result<Step> {
        let items: Vec<_> =
            items.iter().map(|&(sequence, n_new)| Item::new(sequence, n_new)).collect();
        self.client().step(&items)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({})", self.number())
    }
}

/// The first tokens of a sequence, by which its pages are found. `&[u32]` is one.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    tokens: &'a [u32],
    extra: &'a [u8],
    shared: bool,
}

impl<'a> Prefix<'a> {
    /// These tokens.
    pub fn new(tokens: &'a [u32]) -> Prefix<'a> {
        Prefix { tokens, extra: &[], shared: false }
    }

    /// What else keys and values depend on, such as an adapter or an image; at most 256 bytes.
    pub fn extra(mut self, extra: &'a [u8]) -> Prefix<'a> {
        self.extra = extra;
        self
    }

    /// Finds what all tenants have published that set this, too.
    pub fn shared(mut self) -> Prefix<'a> {
        self.shared = true;
        self
    }

    fn raw(&self) -> sys::fa_prefix {
        sys::fa_prefix {
            size: size_of::<sys::fa_prefix>() as u32,
            flags: if self.shared { sys::FA_PREFIX_SHARED } else { 0 },
            tokens: self.tokens.as_ptr(),
            n_tokens: self.tokens.len() as u64,
            extra: if self.extra.is_empty() {
                std::ptr::null()
            } else {
                self.extra.as_ptr().cast()
            },
            extra_bytes: self.extra.len() as u64,
        }
    }
}

impl<'a> From<&'a [u32]> for Prefix<'a> {
    fn from(tokens: &'a [u32]) -> Prefix<'a> {
        Prefix::new(tokens)
    }
}

/// What a sequence has: the fields of `struct fa_sequence_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceInfo {
    /// Committed tokens, which outlive the daemon.
    pub length: u64,
    /// Length with the tokens of steps in progress.
    pub planned: u64,
    /// Tokens before it were dropped.
    pub first: u64,
    /// [`Step::number`] of the last committed step; 0: none.
    pub step: u64,
    /// The user whose sequence it is.
    pub uid: u32,
    /// Tokens before the newest checkpoint; 0: there is none.
    pub checkpoint: u64,
    /// How many checkpoints there are.
    pub checkpoints: u32,
}

/// A sequence of tokens in a cache.
///
/// One without a name is removed when it is dropped. One with a name, or found by its name, stays until
/// [`remove`](Sequence::remove).
///
/// ```
/// # fn main() -> Result<(), faclient::Error> {
/// # let limit = std::time::Duration::from_secs(60);
/// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
/// # use faclient::{CacheOptions, Dtype, Mode};
/// # let cache = client.create_cache(&CacheOptions::new(Dtype::F32, 1, 1, 64).name("model"))?;
/// let mut prompt = cache.sequence()?;
/// prompt.set_name("prompt", Mode::OWN, None)?; // another process finds it
/// let found = client.find_sequence("prompt")?;
/// let own = found.fork()?; // shares its pages, and goes its own way
/// assert_eq!(own.length()?, 0);
/// found.remove()?;
/// # Ok(()) }
/// ```
/// What was removed is not used any more:
/// ```compile_fail,E0382
/// # fn f(sequence: faclient::Sequence) -> Result<u64, faclient::Error> {
/// sequence.remove()?;
/// sequence.length()
/// # }
/// ```
pub struct Sequence {
    client: Client,
    number: u64,
    cache: Option<Cache>, // keeps the cache until this sequence ends
    owned: bool,
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if self.owned {
            self.client.remove(Dropped::Sequence(self.number));
        }
    }
}

impl Sequence {
    fn new(client: &Client, number: u64, cache: Option<&Cache>, owned: bool) -> Sequence {
        client.remove_dropped();
        Sequence { client: client.clone(), number, cache: cache.cloned(), owned }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is_of(&self, client: &Client) -> bool {
        self.client.same(client)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Its length, and more.
    pub fn info(&self) -> Result<SequenceInfo> {
        let mut raw = sys::fa_sequence_info {
            size: size_of::<sys::fa_sequence_info>() as u32,
            ..Default::default()
        };
        // SAFETY: a struct with its size.
        check(unsafe { sys::fa_sequence_info(self.client.handle(), self.number, &mut raw) })?;
        Ok(SequenceInfo {
            length: raw.length,
            planned: raw.planned,
            first: raw.first,
            step: raw.step,
            uid: raw.uid,
            checkpoint: raw.checkpoint,
            checkpoints: raw.checkpoints,
        })
    }

    /// Committed tokens.
    pub fn length(&self) -> Result<u64> {
        self.info().map(|info| info.length)
    }

    /// A new sequence of all its tokens. Nothing is copied, and changes of one do not affect the other.
    pub fn fork(&self) -> Result<Sequence> {
        self.fork_at(u64::MAX)
    }

    /// A new sequence of its first tokens.
    pub fn fork_at(&self, tokens: u64) -> Result<Sequence> {
        let mut number = 0;
        // SAFETY: the client lives.
        check(unsafe {
            sys::fa_sequence_fork(self.client.handle(), self.number, tokens, &mut number)
        })?;
        Ok(Sequence::new(&self.client, number, self.cache.as_ref(), true))
    }

    /// Removes all tokens from this number on. `EBUSY`: steps append to it.
    pub fn truncate(&self, tokens: u64) -> Result<()> {
        // SAFETY: the client lives.
        check(unsafe { sys::fa_sequence_truncate(self.client.handle(), self.number, tokens) })
            .map(drop)
    }

    /// Drops leading tokens, in whole pages. Returns the first token left.
    pub fn drop_before(&self, first: u64) -> Result<u64> {
        let mut left = 0;
        // SAFETY: the client lives.
        check(unsafe {
            sys::fa_sequence_drop_before(self.client.handle(), self.number, first, &mut left)
        })?;
        Ok(left)
    }

    /// Says which tokens the sequence holds, so that others find its full pages. Returns how many pages are new.
    /// Nothing is verified: wrong tokens corrupt other readers' results.
    pub fn publish(&self, prefix: &Prefix<'_>) -> Result<u64> {
        let mut pages = 0;
        // SAFETY: the prefix lives until the end of the call.
        check(unsafe {
            sys::fa_sequence_publish(self.client.handle(), self.number, &prefix.raw(), &mut pages)
        })?;
        Ok(pages)
    }

    /// Fills an empty sequence with the longest published prefix of these tokens. Returns its length.
    pub fn attach(&self, prefix: &Prefix<'_>) -> Result<u64> {
        let mut tokens = 0;
        // SAFETY: as in publish().
        check(unsafe {
            sys::fa_sequence_attach(self.client.handle(), self.number, &prefix.raw(), &mut tokens)
        })?;
        Ok(tokens)
    }

    /// Gives the sequence a name of at most 63 bytes, by which others find it; it then outlives this process. Its
    /// cache must have a name, too. With a time to live it is removed after that time without use. Called again
    /// with the same name, this changes mode and time.
    pub fn set_name(&mut self, name: &str, mode: Mode, ttl: Option<Duration>) -> Result<()> {
        let name = c_string(name.as_bytes(), "name")?;
        // SAFETY: the name lives until the end of the call.
        check(unsafe {
            sys::fa_sequence_set_name(
                self.client.handle(),
                self.number,
                name.as_ptr(),
                mode.0,
                nanoseconds(ttl),
            )
        })?;
        self.owned = false;
        Ok(())
    }

    /// Removes the sequence, for all processes. Forks keep what they share with it.
    pub fn remove(mut self) -> Result<()> {
        self.owned = false;
        // SAFETY: the client lives.
        check(unsafe { sys::fa_sequence_remove(self.client.handle(), self.number) }).map(drop)
    }

    /// Copies committed keys and values of a layer into tensors `[tokens, kv_heads, head_dim]`, beginning with token
    /// `first`. One of the two may be left out.
    pub fn read<T: Element>(
        &self,
        layer: u32,
        first: u64,
        k: Option<&mut Tensor<T>>,
        v: Option<&mut Tensor<T>>,
    ) -> Result<()> {
        let mut raw = sys::fa_sequence_copy {
            size: size_of::<sys::fa_sequence_copy>() as u32,
            sequence: self.number,
            first,
            layer,
            ..Default::default()
        };
        for (tensor, to) in [(k, &mut raw.k), (v, &mut raw.v)] {
            if let Some(tensor) = tensor {
                if !tensor.is_of(&self.client) {
                    return Err(Error::invalid("a tensor is of another client"));
                }
                *to = tensor.raw();
            }
        }
        // SAFETY: the request ends within the call, which has the tensors to itself.
        check(unsafe { sys::fa_sequence_read(self.client.handle(), &raw, std::ptr::null_mut()) })
            .map(drop)
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequence({})", self.number)
    }
}

/// Checks positions, of which the library reads one for each new token.
pub(crate) fn positions(given: &Option<Vec<u32>>, tokens: &[Option<usize>]) -> Result<*const u32> {
    if let Some(given) = given {
        if let Some(&n) = tokens.iter().flatten().find(|&&n| n != given.len()) {
            return Err(Error::invalid(format!(
                "positions has {} numbers; expected {}, one for each new token",
                given.len(),
                n
            )));
        }
    }
    Ok(numbers(given))
}
