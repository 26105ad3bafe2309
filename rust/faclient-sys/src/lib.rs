//! The functions, structs and constants of libfaclient, the client library of fad, as they are in C.
//!
//! `faclient.h` and the headers that it includes document them: who owns what, errors, units, threads. The
//! crate `faclient` is safe and built on this one.
#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod bindings;

pub use bindings::*;
