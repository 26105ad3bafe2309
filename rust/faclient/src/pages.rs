//! Attention over pages that the program manages, and copies of them.

use crate::attention::{numbers, score_options, BlockPattern, Scores};
use crate::client::{nanoseconds, Client, Stream};
use crate::element::{Element, Stored};
use crate::error::{check, Error, Failed, Result};
use crate::kv::Sequence;
use crate::memory::{Input, Tensor};
use crate::request::{Request, Submitted};
use crate::step::Step;
use faclient_sys as sys;
use std::mem::size_of;
use std::sync::Arc;

/// What [`PagesAttend`] appends before it attends.
#[derive(Debug)]
pub struct NewRows<T> {
    /// Keys, `[tokens, kv_heads, dim]`.
    pub k: Tensor<T>,
    /// Values, `[tokens, kv_heads, dim_v]`.
    pub v: Tensor<T>,
    /// Row i goes to token `slots[i] % page_tokens` of page `slots[i] / page_tokens`. A slot that is negative or beyond
    /// the pages is skipped.
    pub slots: Arc<Tensor<i64>>,
}

/// Attention over keys and values in pages that the program manages, as engines do. `struct fa_pages_attend` in
/// `faclient.h` describes it in full.
///
/// Shapes: q `[rows, heads, dim]`, out `[rows, heads, dim_v]`, k `[pages, page_tokens, kv_heads, dim]`, v `[pages,
/// page_tokens, kv_heads, dim_v]`, table `[batch, columns]`, lengths `[batch]`. Key j of sequence b is token `j %
/// page_tokens` of page `table[b][j / page_tokens]`. Pages have 1 to 256 tokens. k and v have q's type, or
/// [`E4m3`](crate::E4m3). Numbers out of bounds are no error: they are bounded where they are read, and no table makes
/// the daemon touch other memory than that of the tensors.
///
/// ```
/// # fn main() -> Result<(), faclient::Error> {
/// # let limit = std::time::Duration::from_secs(60);
/// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
/// use faclient::{PagesAttend, Tensor};
/// let mut memory = client.buffer(1 << 20)?;
/// let (k, mut v) = (memory.tensor::<f32>(&[8, 4, 1, 16])?, memory.tensor(&[8, 4, 1, 16])?);
/// v.fill_from((0..).map(|i| (i / 64) as f32)); // page i has the value i
/// let (q, out) = (memory.tensor::<f32>(&[1, 2, 16])?, memory.tensor(&[1, 2, 16])?);
/// let (mut table, mut lengths) = (memory.tensor::<i32>(&[1, 2])?, memory.tensor::<i32>(&[1])?);
/// table.copy_from_slice(&[5, 2]);
/// lengths[0] = 8;
/// let mut attend = PagesAttend::new(q, k, v, out, table, lengths);
/// client.pages_attend(&mut attend)?;
/// assert_eq!(attend.out[0], 3.5); // the mean of 4 fives and 4 twos
/// # Ok(()) }
/// ```
/// Pages that others read cannot be appended to:
/// ```compile_fail,E0599
/// # use faclient::{NewRows, PagesAttend, Tensor};
/// # use std::sync::Arc;
/// # fn f(q: Tensor<f32>, k: Arc<Tensor<f32>>, v: Arc<Tensor<f32>>, out: Tensor<f32>, new: NewRows<f32>,
/// #      table: Tensor<i32>, lengths: Tensor<i32>) {
/// PagesAttend::new(q, k, v, out, table, lengths).append(new);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "Client::submit_pages() or Client::pages_attend() asks for it"]
pub struct PagesAttend<T, KV = Tensor<T>> {
    /// Queries.
    pub q: Tensor<T>,
    /// Keys.
    pub k: KV,
    /// Values.
    pub v: KV,
    /// The result.
    pub out: Tensor<T>,
    /// The pages of each sequence.
    pub table: Arc<Tensor<i32>>,
    /// The keys of each sequence, with those that are appended.
    pub lengths: Arc<Tensor<i32>>,
    /// `[batch + 1]`: sequence b has the rows `cu_q[b]` to `cu_q[b + 1] - 1`; `None`: all have equally many.
    pub cu_q: Option<Arc<Tensor<i32>>>,
    /// `[batch]`: causal hides none of a sequence's first `prefix_lengths[b]` keys; `None`: all are 0.
    pub prefix_lengths: Option<Arc<Tensor<i32>>>,
    /// `[heads, rows]`, the logarithm of the softmax's denominator; `None`: not wanted.
    pub lse: Option<Tensor<f32>>,
    /// Of keys, `[kv_heads]`, with [`E4m3`](crate::E4m3): an element is code * scale.
    pub k_scales: Option<Arc<Tensor<f32>>>,
    /// Of values, likewise.
    pub v_scales: Option<Arc<Tensor<f32>>>,
    new: Option<NewRows<T>>, // only with pages that the request has to itself
    max_q: u32,
    max_k: u32,
    heads_first: bool,
    deterministic: bool,
    scores: Scores,
}

impl<T: Element, KV: Pages> PagesAttend<T, KV> {
    /// Of as many rows of q for each sequence.
    pub fn new(
        q: Tensor<T>,
        k: KV,
        v: KV,
        out: Tensor<T>,
        table: impl Into<Arc<Tensor<i32>>>,
        lengths: impl Into<Arc<Tensor<i32>>>,
    ) -> Self {
        PagesAttend {
            q,
            k,
            v,
            out,
            table: table.into(),
            lengths: lengths.into(),
            cu_q: None,
            prefix_lengths: None,
            new: None,
            lse: None,
            k_scales: None,
            v_scales: None,
            max_q: 0,
            max_k: 0,
            heads_first: false,
            deterministic: false,
            scores: Scores::default(),
        }
    }

    score_options!();

    /// Each sequence has rows of its own number, of which the longest has `max_q`.
    pub fn rows(mut self, cu_q: impl Into<Arc<Tensor<i32>>>, max_q: u32) -> Self {
        self.cu_q = Some(cu_q.into());
        self.max_q = max_q;
        self
    }

    /// One for each sequence: `causal` hides none of its first `prefix_lengths[b]` keys from any row.
    pub fn prefix_lengths(mut self, prefix_lengths: impl Into<Arc<Tensor<i32>>>) -> Self {
        self.prefix_lengths = Some(prefix_lengths.into());
        self
    }

    /// Keys of the longest sequence, or more; default: as many as the table has room for.
    pub fn max_k(mut self, max_k: u32) -> Self {
        self.max_k = max_k;
        self
    }

    /// k and v have heads before tokens: `[pages, kv_heads, page_tokens, dim]`.
    pub fn heads_first(mut self) -> Self {
        self.heads_first = true;
        self
    }

    /// Also computes the logarithm of the softmax's denominator, `[heads, rows]`.
    pub fn lse(mut self, lse: Tensor<f32>) -> Self {
        self.lse = Some(lse);
        self
    }

    /// A scale for each KV head, of keys and of values.
    pub fn scales(
        mut self,
        k: impl Into<Arc<Tensor<f32>>>,
        v: impl Into<Arc<Tensor<f32>>>,
    ) -> Self {
        self.k_scales = Some(k.into());
        self.v_scales = Some(v.into());
        self
    }

    /// A sequence's results have the same bits whatever other sequences there are.
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }

    fn raw(&self, client: &Client) -> Result<sys::fa_pages_attend> {
        let mut own = Own { client, all: true };
        let (k, v) = (self.k.pages(&mut own), self.v.pages(&mut own));
        let mut raw = sys::fa_pages_attend {
            size: size_of::<sys::fa_pages_attend>() as u32,
            stream: Stream::number(&self.scores.stream, client)?,
            max_q: self.max_q,
            max_k: self.max_k,
            q: own.raw(&self.q),
            out: own.raw(&self.out),
            k: layout(k, self.heads_first),
            v: layout(v, self.heads_first),
            table: own.raw(&self.table),
            lengths: own.raw(&self.lengths),
            scale: self.scores.scale,
            softcap: self.scores.softcap,
            alibi_slopes: numbers(&self.scores.alibi_slopes),
            sinks: numbers(&self.scores.sinks),
            timeout_ns: nanoseconds(self.scores.timeout),
            chunk_tokens: self.scores.chunk_tokens,
            pattern: BlockPattern::raw(&self.scores.pattern),
            ..Default::default()
        };
        if let Some(prefix_lengths) = &self.prefix_lengths {
            raw.prefix_lengths = own.raw(prefix_lengths);
        }
        if let Some(cu_q) = &self.cu_q {
            raw.cu_q = own.raw(cu_q);
        }
        if let Some(new) = &self.new {
            raw.k_new = own.raw(&new.k);
            raw.v_new = own.raw(&new.v);
            raw.slots = own.raw(&new.slots);
        }
        if let Some(lse) = &self.lse {
            raw.lse = own.raw(lse);
        }
        if let Some(scales) = &self.k_scales {
            raw.k_scales = own.raw(scales);
        }
        if let Some(scales) = &self.v_scales {
            raw.v_scales = own.raw(scales);
        }
        if !own.all {
            return Err(Error::invalid("a tensor is of another client"));
        }
        let q = self.q.shape();
        self.scores.check_heads(q.len().checked_sub(2).map(|at| q[at]))?;
        let (window, left, right) = self.scores.window(sys::FA_PAGES_WINDOW);
        raw.flags = window;
        for (is_set, flag) in [
            (self.scores.causal, sys::FA_PAGES_CAUSAL),
            (self.deterministic, sys::FA_PAGES_DETERMINISTIC),
        ] {
            raw.flags |= if is_set { flag } else { 0 };
        }
        raw.window_left = left;
        raw.window_right = right;
        Ok(raw)
    }
}

impl<T: Element, S: Stored> PagesAttend<T, Tensor<S>> {
    /// First writes these rows to their pages.
    pub fn append(mut self, new: NewRows<T>) -> Self {
        self.new = Some(new);
        self
    }

    /// The rows that are written first: for the next request, or to be used elsewhere.
    pub fn new_rows(&mut self) -> &mut Option<NewRows<T>> {
        &mut self.new
    }
}

/// The library's views of tensors, and whether all are of one client.
pub struct Own<'a> {
    client: &'a Client,
    all: bool,
}

impl Own<'_> {
    fn raw<T: Stored>(&mut self, tensor: &Tensor<T>) -> sys::fa_tensor {
        self.all &= tensor.is_of(self.client);
        tensor.raw()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for super::Tensor<T> {}
    impl<T> Sealed for std::sync::Arc<super::Tensor<T>> {}
}

/// Pages of keys or values: a `Tensor`, or an `Arc<Tensor>` that other requests and threads read, too.
pub trait Pages: sealed::Sealed + Send + Sync {
    #[doc(hidden)]
    fn pages(&self, own: &mut Own<'_>) -> sys::fa_tensor;
}

impl<T: Stored> Pages for Tensor<T> {
    fn pages(&self, own: &mut Own<'_>) -> sys::fa_tensor {
        own.raw(self.tensor())
    }
}

impl<T: Stored> Pages for Arc<Tensor<T>> {
    fn pages(&self, own: &mut Own<'_>) -> sys::fa_tensor {
        own.raw(self.tensor())
    }
}

/// A view with tokens before heads of pages that have heads first.
fn layout(stored: sys::fa_tensor, heads_first: bool) -> sys::fa_tensor {
    let mut raw = stored;
    if heads_first && raw.rank == 4 {
        let [_, heads, tokens, dim] = stored.shape;
        raw.shape = [stored.shape[0], tokens, heads, dim];
        // Saturated strides are refused by the library, as they leave the buffer.
        let page = heads.saturating_mul(tokens).saturating_mul(dim);
        raw.strides = [page, dim, tokens.saturating_mul(dim), 1];
    }
    raw
}

impl Client {
    /// Asks for attention over pages and returns at once. Errors as of [`submit`](Client::submit).
    pub fn submit_pages<T: Element, KV: Pages>(
        &self,
        attend: PagesAttend<T, KV>,
    ) -> Submitted<PagesAttend<T, KV>> {
        let mut ticket = sys::fa_ticket::default();
        // SAFETY: the struct's vectors are copied by the call; the request has the tensors until its end.
        let sent = attend.raw(self).and_then(|raw| {
            check(unsafe { sys::fa_pages_attend(self.handle(), &raw, &mut ticket) })
        });
        match sent {
            Ok(_) => {
                let stream = attend.scores.stream.clone();
                Ok(Request::new(self, ticket, attend, stream))
            }
            Err(error) => Err(Failed { error, request: attend }),
        }
    }

    /// Asks for attention over pages and waits for it.
    pub fn pages_attend<T: Element, KV: Pages>(
        &self,
        attend: &mut PagesAttend<T, KV>,
    ) -> Result<()> {
        let raw = attend.raw(self)?;
        // SAFETY: as in submit_pages(); the request ends within the call, which has what is written to itself.
        check(unsafe { sys::fa_pages_attend(self.handle(), &raw, std::ptr::null_mut()) }).map(drop)
    }
}

/// Which tokens of a sequence are copied, and to or from which pages.
#[derive(Debug, Clone, Copy)]
pub struct PagesRange<'a> {
    /// The first layer; there are as many as tensors.
    pub layer: u32,
    /// The first token.
    pub first: u64,
    /// How many.
    pub n_tokens: u64,
    /// Pages of the tensors, in the order of the tokens: as many as these need.
    pub pages: &'a [u32],
    /// The first token's place in its page.
    pub page_offset: u32,
    /// Tensors have heads before tokens.
    pub heads_first: bool,
}

impl<'a> PagesRange<'a> {
    /// The sequence's first tokens, of layers from 0 on, at the beginning of these pages.
    pub fn new(n_tokens: u64, pages: &'a [u32]) -> PagesRange<'a> {
        PagesRange { layer: 0, first: 0, n_tokens, pages, page_offset: 0, heads_first: false }
    }

    fn raw(
        &self,
        sequence: &Sequence,
        k: &[sys::fa_tensor],
        v: &[sys::fa_tensor],
    ) -> Result<sys::fa_sequence_pages> {
        let n_layers = k.len().max(v.len());
        if !k.is_empty() && !v.is_empty() && k.len() != v.len() {
            return Err(Error::invalid(format!("v has {} layers, and k {}", v.len(), k.len())));
        }
        let list = |x: &[sys::fa_tensor]| match x.is_empty() {
            true => std::ptr::null(),
            false => x.as_ptr(),
        };
        Ok(sys::fa_sequence_pages {
            size: size_of::<sys::fa_sequence_pages>() as u32,
            sequence: sequence.number(),
            first: self.first,
            n_tokens: self.n_tokens,
            layer: self.layer,
            n_layers: u32::try_from(n_layers).unwrap_or(u32::MAX),
            k: list(k),
            v: list(v),
            pages: self.pages.as_ptr(),
            n_pages: u32::try_from(self.pages.len()).unwrap_or(u32::MAX),
            page_offset: self.page_offset,
            ..Default::default()
        })
    }

    fn tensors<T: Element>(
        &self,
        client: &Client,
        tensors: &[Tensor<T>],
    ) -> Result<Vec<sys::fa_tensor>> {
        let mut own = Own { client, all: true };
        let raw = tensors.iter().map(|tensor| layout(own.raw(tensor), self.heads_first)).collect();
        match own.all {
            true => Ok(raw),
            false => Err(Error::invalid("a tensor is of another client")),
        }
    }
}

impl Sequence {
    /// Copies committed tokens of several layers to pages that the program manages, by one request. k and v have a
    /// tensor a layer, `[pages, page_tokens, kv_heads, head_dim]`; one of the two may be empty. No page is named twice.
    ///
    /// ```
    /// # fn main() -> Result<(), faclient::Error> {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
    /// use faclient::{CacheOptions, Dtype, PagesRange, Tensor};
    /// let cache = client.create_cache(&CacheOptions::new(Dtype::F32, 2, 1, 64))?;
    /// let sequence = cache.sequence()?;
    /// let layers = || (0..2).map(|_| client.tensor::<f32>(&[3, 8, 1, 64])).collect::<Result<Vec<_>, _>>();
    /// let (mut k, mut v) = (layers()?, layers()?);
    /// let range = PagesRange::new(20, &[2, 0, 1]); // 20 tokens in three pages of 8
    /// let step = cache.step(&[(&sequence, 20)])?;
    /// step.write_pages(&sequence, range, &k, &v)?;
    /// step.commit()?;
    /// sequence.read_pages(range, &mut k, &mut v)?;
    /// # Ok(()) }
    /// ```
    pub fn read_pages<T: Element>(
        &self,
        range: PagesRange<'_>,
        k: &mut [Tensor<T>],
        v: &mut [Tensor<T>],
    ) -> Result<()> {
        let client = self.client();
        let (k, v) = (range.tensors(client, k)?, range.tensors(client, v)?);
        let raw = range.raw(self, &k, &v)?;
        // SAFETY: the vectors are copied; the request ends within the call, which has the tensors to itself.
        check(unsafe { sys::fa_sequence_read_pages(client.handle(), &raw, std::ptr::null_mut()) })
            .map(drop)
    }
}

impl Step {
    /// Copies pages that the program manages into tokens that the step has reserved, of several layers by one request.
    /// As [`Sequence::read_pages`]; a page may be named twice.
    pub fn write_pages<T: Element>(
        &self,
        sequence: &Sequence,
        range: PagesRange<'_>,
        k: &[Tensor<T>],
        v: &[Tensor<T>],
    ) -> Result<()> {
        let client = self.client();
        if !sequence.is_of(client) {
            return Err(Error::invalid("the sequence is of another client"));
        }
        let (k, v) = (range.tensors(client, k)?, range.tensors(client, v)?);
        let raw = range.raw(sequence, &k, &v)?;
        // SAFETY: as in read_pages(); the tensors are only read.
        check(unsafe { sys::fa_sequence_write_pages(client.handle(), &raw, std::ptr::null_mut()) })
            .map(drop)
    }
}
