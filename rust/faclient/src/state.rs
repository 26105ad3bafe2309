//! States of linear layers, in checkpoints of sequences.

use crate::element::Stored;
use crate::error::{check, Error, Result};
use crate::kv::Sequence;
use crate::memory::Tensor;
use crate::step::Step;
use crate::Client;
use faclient_sys as sys;
use std::mem::size_of;

fn raw<T: Stored>(
    client: &Client,
    sequence: &Sequence,
    state: u32,
    tokens: u64,
    data: &Tensor<T>,
) -> Result<sys::fa_sequence_state> {
    if !data.is_of(client) {
        return Err(Error::invalid("the tensor is of another client"));
    }
    Ok(sys::fa_sequence_state {
        size: size_of::<sys::fa_sequence_state>() as u32,
        sequence: sequence.number(),
        tokens,
        state,
        data: data.raw(),
        ..Default::default()
    })
}

impl Sequence {
    /// Copies a state of linear layers from the checkpoint after `tokens` tokens (0: the newest). `data` has one
    /// dimension and as many bytes as the state. `ENOENT`: there is no such checkpoint.
    ///
    /// ```
    /// # fn main() -> Result<(), faclient::Error> {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
    /// use faclient::{CacheOptions, Dtype, Item};
    /// let options = CacheOptions::new(Dtype::F32, 2, 1, 64).states(vec![400, 64], 128);
    /// let sequence = client.create_cache(&options)?.sequence()?;
    /// let (mut first, mut second) = (client.tensor::<f32>(&[100])?, client.tensor::<f32>(&[16])?);
    /// first.fill_from((0..100).map(|i| i as f32));
    /// let step = client.step(&[Item::new(&sequence, 5).checkpoint()])?;
    /// step.write_state(&sequence, 0, &first)?;
    /// step.write_state(&sequence, 1, &second)?;
    /// step.commit()?;
    /// let mut got = client.tensor::<f32>(&[100])?;
    /// sequence.read_state(0, 0, &mut got)?;
    /// sequence.read_state(1, 5, &mut second)?;
    /// assert_eq!(got[..], first[..]);
    /// assert_eq!(sequence.truncate_to(4)?, 0); // the last checkpoint before
    /// # Ok(()) }
    /// ```
    pub fn read_state<T: Stored>(
        &self,
        state: u32,
        tokens: u64,
        data: &mut Tensor<T>,
    ) -> Result<()> {
        let client = self.client();
        let raw = raw(client, self, state, tokens, data)?;
        // SAFETY: the request ends within the call, which has the tensor to itself.
        check(unsafe { sys::fa_sequence_read_state(client.handle(), &raw, std::ptr::null_mut()) })
            .map(drop)
    }

    /// As [`truncate`](Sequence::truncate), and returns how many tokens are left: fewer in a cache with states, up to
    /// the last checkpoint.
    pub fn truncate_to(&self, tokens: u64) -> Result<u64> {
        let mut left = 0;
        let handle = self.client().handle();
        // SAFETY: the client lives.
        check(unsafe { sys::fa_sequence_truncate_to(handle, self.number(), tokens, &mut left) })?;
        Ok(left)
    }
}

impl Step {
    /// Copies a state into the checkpoint that this step writes of the sequence ([`Item::checkpoint`]). The commit
    /// fails unless all states were written.
    ///
    /// [`Item::checkpoint`]: crate::Item::checkpoint
    pub fn write_state<T: Stored>(
        &self,
        sequence: &Sequence,
        state: u32,
        data: &Tensor<T>,
    ) -> Result<()> {
        let client = self.client();
        if !sequence.is_of(client) {
            return Err(Error::invalid("the sequence is of another client"));
        }
        let raw = raw(client, sequence, state, 0, data)?;
        // SAFETY: as in read_state(); the tensor is only read.
        check(unsafe { sys::fa_sequence_write_state(client.handle(), &raw, std::ptr::null_mut()) })
            .map(drop)
    }
}
