//! Attention and KV caches of **fad**, a daemon that several processes share. This crate is the safe interface
//! of its client library, libfaclient.
//!
//! ```
//! # fn main() -> Result<(), faclient::Error> {
//! use faclient::{Attention, Options};
//! let client = Options::new().spawn().connect()?; // the daemon that runs, or one of its own
//! let tensor = || client.tensor::<f32>(&[1, 512, 8, 64]); // batch, tokens, heads, dim
//! let request = client.submit(Attention::new(tensor()?, tensor()?, tensor()?, tensor()?).causal())?;
//! println!("{:?}", &request.wait()?.out[..3]);
//! # Ok(()) }
//! ```
//!
//! - [`Client`] is a connection; clones are the same one, and all threads may use it.
//! - [`Tensor`]s lie in memory that the daemon sees. A [`Request`] takes its tensors by value and gives them back
//!   at its end. One that is dropped is cancelled, and waited for.
//! - [`Cache`], [`Sequence`] and [`Step`] are the KV cache. Other processes find what has a name, and published
//!   tokens by their [`Prefix`].
//! - [`PagesAttend`] attends to pages that the program manages itself, and [`Sequence::read_pages`] and
//!   [`Step::write_pages`] copy between these and the daemon's.
//! - Every [`Error`] has an [`errno`] and a sentence.
//!
//! # When the daemon dies
//! Requests and steps in flight fail with an error that [is lost](Error::is_lost). Caches and sequences keep their
//! committed tokens, if the daemon has a keeper (`fad.service`, `fad --supervise`): repeat the step.
//!
//! # What is trusted
//! The daemon writes to outputs of requests in flight, and to nothing else; this crate cannot verify that. After a
//! lost connection a daemon that still runs may write to the outputs of its last requests for a moment.
//!
//! # What it lacks
//! Memory of GPUs, imported memory, strided tensors and timelines: use [`faclient_sys`], which has all of the
//! library.
#![warn(missing_docs)]
// A request that failed gives back its tensors, which are as large in the other case.
#![allow(unknown_lints, clippy::result_large_err)]

mod attention;
mod client;
mod element;
mod error;
mod kv;
mod memory;
mod pages;
mod request;
mod state;
mod step;

pub use attention::{Attention, BlockMask, BlockPattern};
pub use client::{Client, Info, Options, Stream};
pub use element::{Bf16, Dtype, E4m3, Element, Stored, F16};
pub use error::{errno, Error, Failed, Result};
pub use kv::{Cache, CacheInfo, CacheOptions, Mode, Prefix, Sequence, SequenceInfo, Store};
pub use memory::{Buffer, Input, Tensor};
pub use pages::{NewRows, Pages, PagesAttend, PagesRange};
pub use request::{Request, Submitted, Times};
pub use step::{Attend, Item, Rotary, Step};
