//! Steps: one pass of a model over new tokens of some sequences.

use crate::attention::{check_prefixes, numbers, score_options, BlockPattern, Scores};
use crate::client::{nanoseconds, Client, Stream};
use crate::element::Element;
use crate::error::{check, Error, Failed, Result};
use crate::kv::{positions, Cache, Sequence};
use crate::memory::Tensor;
use crate::request::{Request, Submitted};
use faclient_sys as sys;
use std::fmt;
use std::mem::size_of;

/// A sequence of a step, and how many tokens it gets.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    sequence: &'a Sequence,
    n_new: u32,
    tree: Option<&'a [u32]>,
    checkpoint: bool,
}

impl<'a> Item<'a> {
    /// `n_new` 0: the sequence is only read.
    pub fn new(sequence: &'a Sequence, n_new: u32) -> Item<'a> {
        Item { sequence, n_new, tree: None, checkpoint: false }
    }

    /// The new tokens are a tree of guesses: new token i sees new token j if bit `j % 32` of word `j / 32` of row i is
    /// set. There are `n_new` rows of `(n_new + 31) / 32` words.
    pub fn tree(mut self, mask: &'a [u32]) -> Item<'a> {
        self.tree = Some(mask);
        self
    }

    /// The step writes a checkpoint, of the states of linear layers after the new tokens
    /// ([`Step::write_state`]). There may be no new tokens.
    pub fn checkpoint(mut self) -> Item<'a> {
        self.checkpoint = true;
        self
    }
}

/// Reserved room for new tokens of some sequences. [`attend`](Step::attend) appends and computes a layer;
/// [`commit`](Step::commit) makes the tokens part of their sequences, from when on they outlive the daemon.
///
/// A step that is dropped is aborted: its sequences are as before.
///
/// ```
/// # fn main() -> Result<(), faclient::Error> {
/// # let limit = std::time::Duration::from_secs(60);
/// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
/// use faclient::{Attend, CacheOptions, Dtype};
/// let cache = client.create_cache(&CacheOptions::new(Dtype::F32, 2, 1, 64))?;
/// let sequence = cache.sequence()?;
/// let step = cache.step(&[(&sequence, 5)])?;
/// for layer in 0..2 {
///     let (q, out) = (client.tensor::<f32>(&[5, 4, 64])?, client.tensor(&[5, 4, 64])?);
///     let (k, v) = (client.tensor(&[5, 1, 64])?, client.tensor(&[5, 1, 64])?);
///     step.attend(&mut Attend::new(layer).append(k, v).query(q, out).causal())?;
/// }
/// step.commit()?;
/// assert_eq!(sequence.length()?, 5);
/// # Ok(()) }
/// ```
///
/// A step that was committed is over:
/// ```compile_fail,E0382
/// # use faclient::{Attend, Error, Step};
/// # fn f(step: Step, mut attend: Attend<f32>) -> Result<(), Error> {
/// step.commit()?;
/// step.attend(&mut attend)
/// # }
/// ```
#[must_use = "a step that is dropped is aborted"]
pub struct Step {
    client: Client,
    handle: *mut sys::fa_step,
    number: u64,
    n_new: Vec<u32>,
}

// SAFETY: any number of threads may use a step at once; commit(), abort() and drop have it to themselves.
unsafe impl Send for Step {}
unsafe impl Sync for Step {}

impl Step {
    pub(crate) fn begin(client: &Client, items: &[Item<'_>]) -> Result<Step> {
        let mut raw = Vec::with_capacity(items.len());
        let (mut trees, mut starts) = (Vec::new(), Vec::with_capacity(items.len()));
        for item in items {
            if !item.sequence.is_of(client) {
                return Err(Error::invalid("a sequence is of another client: find it by its name"));
            }
            raw.push(sys::fa_step_item {
                sequence: item.sequence.number(),
                n_new: item.n_new,
                flags: if item.checkpoint { sys::FA_STEP_CHECKPOINT } else { 0 },
            });
            match item.tree {
                None => starts.push(sys::FA_STEP_NO_TREE),
                Some(mask) => {
                    let words = item.n_new as usize * ((item.n_new as usize + 31) / 32);
                    if mask.len() != words {
                        return Err(Error::invalid(format!(
                            "tree has {} words; expected {} for {} new tokens",
                            mask.len(),
                            words,
                            item.n_new
                        )));
                    }
                    starts.push(trees.len() as u32);
                    trees.extend_from_slice(mask);
                }
            }
        }
        let has_trees = !trees.is_empty();
        let options = sys::fa_step_options {
            size: size_of::<sys::fa_step_options>() as u32,
            n_items: raw.len() as u32,
            items: raw.as_ptr(),
            tree: if has_trees { trees.as_ptr() } else { std::ptr::null() },
            tree_start: if has_trees { starts.as_ptr() } else { std::ptr::null() },
        };
        client.remove_dropped(); // their pages may be needed
        let mut handle = std::ptr::null_mut();
        // SAFETY: the vectors live until the end of the call, which copies them.
        check(unsafe { sys::fa_step_begin(client.handle(), &options, &mut handle) })?;
        client.remove_dropped();
        // SAFETY: the step was just begun.
        let number = unsafe { sys::fa_step_number(handle) };
        let n_new = items.iter().map(|item| item.n_new).collect();
        Ok(Step { client: client.clone(), handle, number, n_new })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// [`SequenceInfo::step`](crate::SequenceInfo::step) of its sequences once it is committed: tells after a lost
    /// connection whether it was.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// New tokens of all items: the rows of q, k and v.
    pub fn n_new(&self) -> usize {
        self.n_new.iter().map(|&n| n as usize).sum()
    }

    /// Asks for a layer and waits for it. An error from this call leaves the step as it was; one from the daemon
    /// makes its commit fail with `ECANCELED`.
    pub fn attend<T: Element>(&self, attend: &mut Attend<T>) -> Result<()> {
        let raw = attend.raw(&self.client, self.n_new.len())?;
        // SAFETY: the struct's vectors are copied; the request ends within the call, which has the outputs to itself.
        check(unsafe { sys::fa_step_attend(self.handle, &raw, std::ptr::null_mut()) }).map(drop)
    }

    /// Asks for a layer and returns at once.
    pub fn submit<T: Element>(&self, attend: Attend<T>) -> Submitted<Attend<T>> {
        let mut ticket = sys::fa_ticket::default();
        // SAFETY: as in attend(); the request has the tensors until its end.
        let sent = attend
            .raw(&self.client, self.n_new.len())
            .and_then(|raw| check(unsafe { sys::fa_step_attend(self.handle, &raw, &mut ticket) }));
        match sent {
            Ok(_) => {
                let stream = attend.scores.stream.clone();
                Ok(Request::new(&self.client, ticket, attend, stream))
            }
            Err(error) => Err(Failed { error, request: attend }),
        }
    }

    /// Writes keys and values of new tokens without computing: `[tokens, kv_heads, head_dim]`, from token `first` of the
    /// sequence on.
    pub fn write<T: Element>(
        &self,
        sequence: &Sequence,
        layer: u32,
        first: u64,
        k: &Tensor<T>,
        v: Option<&Tensor<T>>,
    ) -> Result<()> {
        let others = v.map_or(false, |v| !v.is_of(&self.client));
        if others || !k.is_of(&self.client) || !sequence.is_of(&self.client) {
            return Err(Error::invalid("a tensor or the sequence is of another client"));
        }
        let raw = sys::fa_sequence_copy {
            size: size_of::<sys::fa_sequence_copy>() as u32,
            sequence: sequence.number(),
            first,
            layer,
            k: k.raw(),
            v: v.map_or_else(Default::default, |v| v.raw()),
            ..Default::default()
        };
        // SAFETY: the request ends within the call, which only reads the tensors.
        check(unsafe { sys::fa_sequence_write(self.client.handle(), &raw, std::ptr::null_mut()) })
            .map(drop)
    }

    /// Ends the step after its requests: its tokens then belong to their sequences.
    ///
    /// `ECANCELED`: a layer was not computed. After an error that [is lost](Error::is_lost) it may have happened:
    /// compare [`number`](Step::number).
    pub fn commit(self) -> Result<()> {
        self.end(&sys::fa_step_commit {
            size: size_of::<sys::fa_step_commit>() as u32,
            ..Default::default()
        })
    }

    /// Ends the step, but keeps only some new tokens of each item: those of these numbers, ascending, counted from
    /// the item's first new token.
    pub fn commit_only(self, keep: &[&[u32]]) -> Result<()> {
        if keep.len() != self.n_new.len() {
            return Err(Error::invalid(format!(
                "keep has {} entries; expected {}, as the step has items",
                keep.len(),
                self.n_new.len()
            )));
        }
        let all: Vec<u32> = keep.concat();
        let mut cu_keep = vec![0u32];
        for of_item in keep {
            cu_keep.push(cu_keep[cu_keep.len() - 1] + of_item.len() as u32);
        }
        self.end(&sys::fa_step_commit {
            size: size_of::<sys::fa_step_commit>() as u32,
            keep: all.as_ptr(),
            cu_keep: cu_keep.as_ptr(),
            ..Default::default()
        })
    }

    fn end(self, commit: &sys::fa_step_commit) -> Result<()> {
        // SAFETY: the struct's vectors live until the end of the call, which copies them.
        check(unsafe { sys::fa_step_commit(self.handle, commit, std::ptr::null_mut()) }).map(drop)
    }

    /// Ends the step; its sequences are as before. Waits for its requests.
    pub fn abort(self) -> Result<()> {
        // SAFETY: the step has not ended.
        check(unsafe { sys::fa_step_abort(self.handle, 0, std::ptr::null_mut()) }).map(drop)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        // SAFETY: nobody else uses the step. It is aborted unless it has ended.
        unsafe { sys::fa_step_free(self.handle) };
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({})", self.number)
    }
}

/// Rotary embedding of queries and new keys.
#[derive(Debug, Clone, Default)]
pub struct Rotary {
    /// Elements of each head that are rotated.
    pub dim: u32,
    /// The first of them, a multiple of 8: 512 of 576 for MLA.
    pub first: u32,
    /// 0: 10000.
    pub base: f64,
    /// Of positions; 0: 1.
    pub scale: f64,
    /// Pairs are 2i and 2i + 1; else i and i + dim / 2.
    pub interleaved: bool,
    /// Of each new token; `None`: its number in its sequence.
    pub positions: Option<Vec<u32>>,
}

/// One layer of a step: keys and values that are appended, queries over all tokens, or both.
///
/// Shapes: q `[new, heads, head_dim]`, k_new `[new, kv_heads, head_dim]`, v_new `[new, kv_heads, head_dim_v]`, out `[new,
/// heads, head_dim_v]`, where new is the number of new tokens of all items, in their order.
#[derive(Debug)]
#[must_use = "Step::attend() or Step::submit() asks for it"]
pub struct Attend<T> {
    /// The layer, from 0.
    pub layer: u32,
    /// Queries.
    pub q: Option<Tensor<T>>,
    /// New keys.
    pub k_new: Option<Tensor<T>>,
    /// New values.
    pub v_new: Option<Tensor<T>>,
    /// The result.
    pub out: Option<Tensor<T>>,
    /// `[heads, new]`, the logarithm of the softmax's denominator.
    pub lse: Option<Tensor<f32>>,
    cache: u64,
    deterministic: bool,
    rotary: Rotary,
    scores: Scores,
    prefix_lengths: Option<Vec<u32>>,
}

impl<T: Element> Attend<T> {
    /// A request for this layer; `append` and `query` say what it does.
    pub fn new(layer: u32) -> Attend<T> {
        Attend {
            layer,
            q: None,
            k_new: None,
            v_new: None,
            out: None,
            lse: None,
            cache: 0,
            deterministic: false,
            rotary: Rotary::default(),
            scores: Scores::default(),
            prefix_lengths: None,
        }
    }

    /// Appends these keys and values.
    pub fn append(mut self, k_new: Tensor<T>, v_new: Tensor<T>) -> Attend<T> {
        self.k_new = Some(k_new);
        self.v_new = Some(v_new);
        self
    }

    /// Appends these keys to a cache whose values are the front of keys.
    pub fn append_keys(mut self, k_new: Tensor<T>) -> Attend<T> {
        self.k_new = Some(k_new);
        self.v_new = None;
        self
    }

    /// Computes the attention of these queries.
    pub fn query(mut self, q: Tensor<T>, out: Tensor<T>) -> Attend<T> {
        self.q = Some(q);
        self.out = Some(out);
        self
    }

    score_options!();

    /// Also computes the logarithm of the softmax's denominator, `[heads, new]`.
    pub fn lse(mut self, lse: Tensor<f32>) -> Attend<T> {
        self.lse = Some(lse);
        self
    }

    /// The cache, where the step has sequences of several.
    pub fn cache(mut self, cache: &Cache) -> Attend<T> {
        self.cache = cache.number();
        self
    }

    /// Results have the same bits whatever other sequences the step has.
    pub fn deterministic(mut self) -> Attend<T> {
        self.deterministic = true;
        self
    }

    /// One for each item of the step, in their order: `causal`, without which they have no effect, hides none of an
    /// item's first `prefix_lengths[i]` keys from any row.
    pub fn prefix_lengths(mut self, prefix_lengths: impl Into<Vec<u32>>) -> Attend<T> {
        self.prefix_lengths = Some(prefix_lengths.into());
        self
    }

    /// Rotates queries and new keys.
    pub fn rotary(mut self, rotary: Rotary) -> Attend<T> {
        self.rotary = rotary;
        self
    }

    fn raw(&self, client: &Client, items: usize) -> Result<sys::fa_step_attend> {
        let given = [&self.q, &self.k_new, &self.v_new, &self.out];
        let lse_is_own = self.lse.as_ref().map_or(true, |lse| lse.is_of(client));
        if !lse_is_own || given.iter().any(|x| x.as_ref().map_or(false, |x| !x.is_of(client))) {
            return Err(Error::invalid("a tensor is of another client"));
        }
        let size =
            |x: &Option<Tensor<T>>, at: usize| x.as_ref().and_then(|x| x.shape().get(at).copied());
        self.scores.check_heads(size(&self.q, 1))?;
        check_prefixes(&self.prefix_lengths, items)?;
        let positions =
            positions(&self.rotary.positions, &[size(&self.q, 0), size(&self.k_new, 0)])?;
        let (window, window_left, window_right) = self.scores.window(sys::FA_STEP_WINDOW);
        let mut flags = window;
        for (is_set, flag) in [
            (self.scores.causal, sys::FA_STEP_CAUSAL),
            (self.deterministic, sys::FA_STEP_DETERMINISTIC),
            (self.rotary.interleaved, sys::FA_STEP_ROTARY_INTERLEAVED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let raw = |x: &Option<Tensor<T>>| x.as_ref().map_or_else(Default::default, |x| x.raw());
        Ok(sys::fa_step_attend {
            size: size_of::<sys::fa_step_attend>() as u32,
            flags,
            stream: Stream::number(&self.scores.stream, client)?,
            layer: self.layer,
            cache: self.cache,
            q: raw(&self.q),
            k_new: raw(&self.k_new),
            v_new: raw(&self.v_new),
            out: raw(&self.out),
            lse: self.lse.as_ref().map_or_else(Default::default, |lse| lse.raw()),
            scale: self.scores.scale,
            softcap: self.scores.softcap,
            window_left,
            window_right,
            alibi_slopes: numbers(&self.scores.alibi_slopes),
            sinks: numbers(&self.scores.sinks),
            rotary_dim: self.rotary.dim,
            rotary_first: self.rotary.first,
            rotary_base: self.rotary.base,
            rotary_scale: self.rotary.scale,
            positions,
            timeout_ns: nanoseconds(self.scores.timeout),
            chunk_tokens: self.scores.chunk_tokens,
            pattern: BlockPattern::raw(&self.scores.pattern),
            prefix_lengths: numbers(&self.prefix_lengths),
            ..Default::default()
        })
    }
}
