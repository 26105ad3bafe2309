//! Attention over tensors.

use crate::client::{nanoseconds, Client, Stream};
use crate::element::Element;
use crate::error::{check, Error, Failed, Result};
use crate::memory::{Input, Tensor};
use crate::request::{Request, Submitted};
use faclient_sys as sys;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

/// vLLM's mask of local and strided blocks, for [`Attention::pattern`]. A row at position p of its sequence sees key j
/// only if, with quotients rounded down,
/// - `p / block_tokens - j / block_tokens < local_blocks`, or
/// - `j / block_tokens + (first_head + h) * head_step + 1` is a multiple of `vert_stride`, for query head h.
///
/// `EINVAL`: `block_tokens` is no multiple of 16 or `vert_stride` is 0; or `block_tokens` is 0, which means no pattern,
/// and another number is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockPattern {
    /// Tokens of a block, a multiple of 16.
    pub block_tokens: u32,
    /// How many blocks up to its own a row sees.
    pub local_blocks: u32,
    /// Of as many blocks a row sees one; at least 1.
    pub vert_stride: u32,
    /// How far the blocks of one head are from those of the next. If it is negative, KV heads count instead: the
    /// product is then `(first_head + h) / group * -head_step`, where `group` query heads share a KV head.
    pub head_step: i32,
    /// The number of q's first head, where processes share the heads.
    pub first_head: u32,
}

impl BlockPattern {
    pub(crate) fn raw(pattern: &Option<BlockPattern>) -> sys::fa_block_pattern {
        pattern.map_or_else(Default::default, |p| sys::fa_block_pattern {
            block_tokens: p.block_tokens,
            local_blocks: p.local_blocks,
            vert_stride: p.vert_stride,
            head_step: p.head_step,
            first_head: p.first_head,
            ..Default::default()
        })
    }
}

/// A block-sparse mask in compressed rows, for [`Attention::blocks`]. Row i of a sequence is in row block `i / rows`, key
/// j in key block `j / keys`. Row block r sees the key blocks `columns[offsets[r]]` to `columns[offsets[r + 1] - 1]`,
/// which ascend. Time is in proportion to the blocks that are seen.
///
/// `EINVAL`: a tensor has another shape. `ENOTSUP`: `rows` or `keys` is neither 64 nor 128. The numbers in the tensors
/// are not checked but bounded where they are read: an offset to 0 to n, and columns that are no block of the sequence
/// or do not ascend are skipped.
#[derive(Debug, Clone)]
pub struct BlockMask {
    /// Rows of a block: 64 or 128.
    pub rows: u32,
    /// Keys of a block: 64 or 128.
    pub keys: u32,
    /// `[batch or 1, heads or 1, ceil(n_q / rows) + 1]`. A size of 1 is shared by all sequences, or heads; n_q is that
    /// of the longest sequence.
    pub offsets: Arc<Tensor<i32>>,
    /// `[batch or 1, heads or 1, n]`.
    pub columns: Arc<Tensor<i32>>,
}

/// What requests of attention have in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scores {
    pub(crate) causal: bool,
    pub(crate) window: Option<(Option<usize>, Option<usize>)>,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) alibi_slopes: Option<Vec<f32>>,
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) chunk_tokens: u64,
    pub(crate) pattern: Option<BlockPattern>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stream: Option<Stream>,
}

impl Scores {
    /// The window as the library has it: the flag, left and right.
    pub(crate) fn window(&self, flag: u32) -> (u32, i64, i64) {
        let side = |side: Option<usize>| side.map_or(-1, |n| i64::try_from(n).unwrap_or(-1));
        match self.window {
            Some((left, right)) => (flag, side(left), side(right)),
            None => (0, 0, 0),
        }
    }

    /// The library reads as many numbers as there are heads.
    pub(crate) fn check_heads(&self, heads: Option<usize>) -> Result<()> {
        for (numbers, name) in [(&self.alibi_slopes, "alibi_slopes"), (&self.sinks, "sinks")] {
            if let Some(numbers) = numbers {
                if Some(numbers.len()) != heads {
                    return Err(Error::invalid(format!(
                        "{} has {} numbers; expected {}, the heads of q",
                        name,
                        numbers.len(),
                        heads.unwrap_or(0)
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The library reads as many prefixes as there are sequences.
pub(crate) fn check_prefixes(prefixes: &Option<Vec<u32>>, sequences: usize) -> Result<()> {
    match prefixes {
        Some(prefixes) if prefixes.len() != sequences => Err(Error::invalid(format!(
            "prefix_lengths has {} numbers; expected {}, one for each sequence",
            prefixes.len(),
            sequences
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn numbers<T>(numbers: &Option<Vec<T>>) -> *const T {
    numbers.as_ref().map_or(std::ptr::null(), |numbers| numbers.as_ptr())
}

/// The options that [`Attention`] and [`Attend`](crate::Attend) share.
macro_rules! score_options {
    () => {
        /// Row i sees only keys up to its own.
        pub fn causal(mut self) -> Self {
            self.scores.causal = true;
            self
        }

        /// Row i sees only this many keys before and after its own; `None`: all.
        pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
            self.scores.window = Some((left, right));
            self
        }

        /// The factor of q·k; default: 1/sqrt(head dim).
        pub fn scale(mut self, scale: f32) -> Self {
            self.scores.scale = scale;
            self
        }

        /// Scores become `softcap * tanh(score / softcap)`; 0: they stay.
        pub fn softcap(mut self, softcap: f32) -> Self {
            self.scores.softcap = softcap;
            self
        }

        /// A slope for each head of q: its scores fall by it with each key of distance.
        pub fn alibi_slopes(mut self, slopes: impl Into<Vec<f32>>) -> Self {
            self.scores.alibi_slopes = Some(slopes.into());
            self
        }

        /// A score for each head of q that takes its share of the softmax and has no value.
        pub fn sinks(mut self, sinks: impl Into<Vec<f32>>) -> Self {
            self.scores.sinks = Some(sinks.into());
            self
        }

        /// Rows see keys of their own chunk alone, of chunks of so many tokens; 0: of all.
        pub fn chunk_tokens(mut self, tokens: u64) -> Self {
            self.scores.chunk_tokens = tokens;
            self
        }

        /// Rows see only keys of vLLM's local and strided blocks. `ENOTSUP`, on a GPU: no kernel has the pattern, as
        /// over pages that the program manages.
        pub fn pattern(mut self, pattern: $crate::BlockPattern) -> Self {
            self.scores.pattern = Some(pattern);
            self
        }

        /// The request ends with `ETIMEDOUT` if it has not ended by then.
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.scores.timeout = Some(timeout);
            self
        }

        /// The stream of the request; default: the one that always exists.
        pub fn stream(mut self, stream: &$crate::Stream) -> Self {
            self.scores.stream = Some(stream.clone());
            self
        }
    };
}
pub(crate) use score_options;

/// Attention: `out = softmax(scale * q kT) v`, the softmax in fp32. `struct fa_attention` in `faclient.h` has the
/// formula in full.
///
/// Shapes: q `[batch, n_q, heads, dim]`, k `[batch, n_k, kv_heads, dim]`, v `[batch, n_k, kv_heads, dim_v]`, out
/// `[batch, n_q, heads, dim_v]`. heads is a multiple of kv_heads. With [`lengths`](Attention::lengths) all without
/// the batch.
///
/// ```
/// # fn main() -> Result<(), faclient::Error> {
/// # let limit = std::time::Duration::from_secs(60);
/// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
/// use faclient::Attention;
/// let mut memory = client.buffer(1 << 20)?;
/// let shape = [1, 16, 2, 64];
/// let (q, k) = (memory.tensor::<f32>(&shape)?, memory.tensor(&shape)?);
/// let (mut v, out) = (memory.tensor(&shape)?, memory.tensor(&shape)?);
/// v.fill_from((0..).map(|i| (i / 128) as f32)); // token i has the value i
/// let request = client.submit(Attention::new(q, k, v, out).causal())?;
/// // ... other work; q, k, v and out belong to the request ...
/// let done = request.wait()?;
/// assert_eq!(done.out[15 * 128], 7.5); // the mean of 0 to 15
/// # Ok(()) }
/// ```
///
/// A tensor that was given to a request is not there until the request gives it back:
/// ```compile_fail,E0382
/// # use faclient::{Attention, Client, Error, Tensor};
/// # fn f(client: Client, q: Tensor<f32>, k: Tensor<f32>, v: Tensor<f32>, out: Tensor<f32>) -> Result<(), Error> {
/// let request = client.submit(Attention::new(q, k, v, out))?;
/// println!("{}", out[0]); // the daemon may be writing it
/// # drop(request); Ok(()) }
/// ```
/// All tensors have one dtype:
/// ```compile_fail,E0308
/// # use faclient::{Attention, Bf16, Tensor};
/// # fn f(q: Tensor<f32>, k: Tensor<Bf16>, v: Tensor<Bf16>, out: Tensor<f32>) {
/// Attention::<f32>::new(q, k, v, out);
/// # }
/// ```
/// What is shared can be read, not written:
/// ```compile_fail,E0308
/// # use faclient::{Attention, Tensor};
/// # use std::sync::Arc;
/// # fn f(q: Tensor<f32>, k: Arc<Tensor<f32>>, v: Arc<Tensor<f32>>, out: Arc<Tensor<f32>>) {
/// Attention::new(q, k, v, out);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "Client::submit() or Client::attention() asks for it"]
pub struct Attention<T, Q = Tensor<T>, KV = Tensor<T>> {
    /// Queries.
    pub q: Q,
    /// Keys.
    pub k: KV,
    /// Values.
    pub v: KV,
    /// The result.
    pub out: Tensor<T>,
    /// `[batch, heads, n_q]`, the logarithm of the softmax's denominator; `None`: not wanted.
    pub lse: Option<Tensor<f32>>,
    scores: Scores,
    lengths: Option<(Vec<u32>, Vec<u32>)>,
    prefix_lengths: Option<Vec<u32>>,
    blocks: Option<BlockMask>,
    mask: Option<Arc<Tensor<i32>>>,
}

impl<T: Element, Q: Input<T>, KV: Input<T>> Attention<T, Q, KV> {
    /// Attention of every query over every key.
    pub fn new(q: Q, k: KV, v: KV, out: Tensor<T>) -> Self {
        Attention {
            q,
            k,
            v,
            out,
            lse: None,
            scores: Scores::default(),
            lengths: None,
            prefix_lengths: None,
            blocks: None,
            mask: None,
        }
    }

    score_options!();

    /// Also computes the logarithm of the softmax's denominator, `[batch, heads, n_q]`.
    pub fn lse(mut self, lse: Tensor<f32>) -> Self {
        self.lse = Some(lse);
        self
    }

    /// A ragged batch: sequence b has the rows `q[b]` to `q[b + 1] - 1` of q and out, and `k[b]` to `k[b + 1] - 1` of k
    /// and v. Both begin with 0.
    pub fn lengths(mut self, q: impl Into<Vec<u32>>, k: impl Into<Vec<u32>>) -> Self {
        self.lengths = Some((q.into(), k.into()));
        self
    }

    /// One for each sequence: [`causal`](Attention::causal), without which they have no effect, hides none of a
    /// sequence's first `prefix_lengths[b]` keys from any row.
    pub fn prefix_lengths(mut self, prefix_lengths: impl Into<Vec<u32>>) -> Self {
        self.prefix_lengths = Some(prefix_lengths.into());
        self
    }

    /// Rows see only keys of these blocks, and of them those that all else lets them see. The request shares the mask's
    /// tensors until its end. `ENOTSUP`, on a GPU: the elements do not have 16 bits.
    ///
    /// ```
    /// # fn main() -> Result<(), faclient::Error> {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
    /// use faclient::{Attention, BlockMask};
    /// let tensor = || client.tensor::<f32>(&[1, 128, 2, 64]);
    /// let (q, k, mut v, out) = (tensor()?, tensor()?, tensor()?, tensor()?);
    /// v.fill_from((0..).map(|i| (i / 128) as f32)); // token i has the value i
    /// let (mut offsets, mut columns) = (client.tensor(&[1, 1, 3])?, client.tensor(&[1, 1, 2])?);
    /// offsets.copy_from_slice(&[0, 1, 2]);
    /// columns.copy_from_slice(&[1, 0]); // each half of the rows sees the other half of the keys
    /// let mask = BlockMask { rows: 64, keys: 64, offsets: offsets.into(), columns: columns.into() };
    /// let mut attention = Attention::new(q, k, v, out).blocks(mask);
    /// client.attention(&mut attention)?;
    /// assert!((attention.out[0] - 95.5).abs() < 1e-3); // the mean of 64 to 127
    /// # Ok(()) }
    /// ```
    pub fn blocks(mut self, blocks: BlockMask) -> Self {
        self.blocks = Some(blocks);
        self
    }

    /// A bit for each row and key, `[batch or 1, heads or 1, n_q, words]`: row i sees key j only if bit `j % 32` of word
    /// `j / 32` is set. Keys behind the words are hidden. The request shares the tensor until its end. `ENOTSUP`, on a
    /// GPU: the elements do not have 16 bits.
    pub fn mask(mut self, mask: impl Into<Arc<Tensor<i32>>>) -> Self {
        self.mask = Some(mask.into());
        self
    }

    /// The library's struct, which points into this one.
    fn raw(&self, client: &Client) -> Result<sys::fa_attention> {
        let own = [self.q.tensor(), self.k.tensor(), self.v.tensor(), &self.out];
        let lse_is_own = self.lse.as_ref().map_or(true, |lse| lse.is_of(client));
        let masks = self.blocks.iter().flat_map(|b| [&b.offsets, &b.columns]).chain(&self.mask);
        let masks_are_own = masks.into_iter().all(|mask| mask.is_of(client));
        if !lse_is_own || !masks_are_own || own.iter().any(|tensor| !tensor.is_of(client)) {
            return Err(Error::invalid("a tensor is of another client"));
        }
        let q = own[0].shape();
        self.scores.check_heads(q.len().checked_sub(2).map(|at| q[at]))?;
        let (window, window_left, window_right) = self.scores.window(sys::FA_ATTENTION_WINDOW);
        let mut raw = sys::fa_attention {
            size: size_of::<sys::fa_attention>() as u32,
            flags: window | if self.scores.causal { sys::FA_ATTENTION_CAUSAL } else { 0 },
            stream: Stream::number(&self.scores.stream, client)?,
            q: own[0].raw(),
            k: own[1].raw(),
            v: own[2].raw(),
            out: own[3].raw(),
            scale: self.scores.scale,
            softcap: self.scores.softcap,
            window_left,
            window_right,
            alibi_slopes: numbers(&self.scores.alibi_slopes),
            sinks: numbers(&self.scores.sinks),
            timeout_ns: nanoseconds(self.scores.timeout),
            chunk_tokens: self.scores.chunk_tokens,
            prefix_lengths: numbers(&self.prefix_lengths),
            pattern: BlockPattern::raw(&self.scores.pattern),
            ..Default::default()
        };
        if let Some(lse) = &self.lse {
            raw.lse = lse.raw();
        }
        if let Some(blocks) = &self.blocks {
            if blocks.rows == 0 && blocks.keys == 0 {
                return Err(Error::invalid("rows and keys of blocks are 0; expected 64 or 128"));
            }
            raw.block_rows = blocks.rows;
            raw.block_keys = blocks.keys;
            raw.block_offsets = blocks.offsets.raw();
            raw.block_columns = blocks.columns.raw();
        }
        if let Some(mask) = &self.mask {
            raw.mask = mask.raw();
        }
        if let Some((q, k)) = &self.lengths {
            if q.len() != k.len() || q.len() < 2 {
                return Err(Error::invalid(format!(
                    "lengths has {} numbers for q and {} for k; expected as many, and one more than sequences",
                    q.len(),
                    k.len()
                )));
            }
            raw.batch = u32::try_from(q.len() - 1).unwrap_or(u32::MAX);
            raw.cu_seqlens_q = q.as_ptr();
            raw.cu_seqlens_k = k.as_ptr();
        }
        let sequences = match &self.lengths {
            Some((q, _)) => q.len() - 1,
            None => q.first().copied().unwrap_or(0),
        };
        check_prefixes(&self.prefix_lengths, sequences)?;
        Ok(raw)
    }
}

impl Client {
    /// Asks for attention and returns at once.
    ///
    /// `EAGAIN`: [`max_requests`](crate::Info::max_requests) are in flight. Errors that only the daemon finds come
    /// with [`Request::wait`].
    pub fn submit<T: Element, Q: Input<T>, KV: Input<T>>(
        &self,
        attention: Attention<T, Q, KV>,
    ) -> Submitted<Attention<T, Q, KV>> {
        let mut ticket = sys::fa_ticket::default();
        // SAFETY: the struct's vectors are copied by the call; the request has the tensors until its end.
        let sent = attention
            .raw(self)
            .and_then(|raw| check(unsafe { sys::fa_attention(self.handle(), &raw, &mut ticket) }));
        match sent {
            Ok(_) => {
                let stream = attention.scores.stream.clone();
                Ok(Request::new(self, ticket, attention, stream))
            }
            Err(error) => Err(Failed { error, request: attention }),
        }
    }

    /// Asks for attention and waits for it.
    pub fn attention<T: Element, Q: Input<T>, KV: Input<T>>(
        &self,
        attention: &mut Attention<T, Q, KV>,
    ) -> Result<()> {
        let raw = attention.raw(self)?;
        // SAFETY: as in submit(); the request ends within the call, which has the outputs to itself.
        check(unsafe { sys::fa_attention(self.handle(), &raw, std::ptr::null_mut()) }).map(drop)
    }
}
