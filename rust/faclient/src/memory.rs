//! Memory that the daemon sees, and tensors in it.

use crate::client::Client;
use crate::element::{Element, Stored};
use crate::error::{check, Error, Result};
use faclient_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Tensors begin at multiples of it.
const ALIGNMENT: usize = 64;
const RANK_MAX: usize = 4;

/// A buffer of the library, mapped here.
struct Memory {
    client: Client,
    handle: *mut sys::fa_buffer,
    data: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the handle may be used by any thread. The bytes are reached by tensors only, of which each
// has its own.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: no tensor, and so no request either, uses the buffer any more.
        unsafe { sys::fa_buffer_free(self.handle) };
    }
}

/// Zeroed memory that this process and the daemon see; [`Buffer::tensor`] takes tensors out of it.
///
/// Each buffer holds a descriptor in both processes: put many small tensors into one. The memory is freed
/// with the buffer and the last of its tensors.
///
/// ```
/// # fn main() -> Result<(), faclient::Error> {
/// # let limit = std::time::Duration::from_secs(60);
/// # let client = faclient::Options::new().private().connect_timeout(limit).connect()?;
/// let mut buffer = client.buffer(1 << 20)?;
/// let mut q = buffer.tensor::<f32>(&[1, 4, 2, 64])?;
/// q[0] = 1.5;
/// # Ok(()) }
/// ```
pub struct Buffer {
    memory: Arc<Memory>,
    used: usize,
}

impl Buffer {
    pub(crate) fn new(client: &Client, bytes: usize) -> Result<Buffer> {
        let mut handle = std::ptr::null_mut();
        let bytes = bytes.checked_add(ALIGNMENT - 1).ok_or_else(too_large)? / ALIGNMENT * ALIGNMENT;
        // SAFETY: the handle of a client that lives, and a place for the result.
        check(unsafe { sys::fa_buffer_new(client.handle(), bytes as u64, 0, &mut handle) })?;
        // SAFETY: the handle was just made.
        let data = unsafe { sys::fa_buffer_data(handle) };
        let data = NonNull::new(data.cast::<u8>()).expect("host memory has an address");
        let memory = Memory { client: client.clone(), handle, data, bytes };
        Ok(Buffer { memory: Arc::new(memory), used: 0 })
    }

    /// Bytes that no tensor has.
    pub fn left(&self) -> usize {
        self.memory.bytes - self.used
    }

    /// Takes the next bytes as a dense tensor of zeros, outermost dimension first. They do not come back
    /// to the buffer.
    pub fn tensor<T: Stored>(&mut self, shape: &[usize]) -> Result<Tensor<T>> {
        let shape = Shape::new(shape)?;
        let bytes = shape.len.checked_mul(std::mem::size_of::<T>()).ok_or_else(too_large)?;
        if bytes > self.left() {
            return Err(Error::invalid(format!(
                "a tensor of {} bytes does not fit into the {} bytes that are left of the buffer",
                bytes,
                self.left()
            )));
        }
        let offset = self.used;
        // The buffer's size is a multiple of it, too.
        self.used = (offset + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        Ok(Tensor { memory: self.memory.clone(), offset, shape, element: PhantomData })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes left)", self.left(), self.memory.bytes)
    }
}

fn too_large() -> Error {
    Error::invalid("the shape has more elements than memory can have")
}

/// Sizes of at most four dimensions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    sizes: [usize; RANK_MAX],
    rank: usize,
    len: usize,
}

impl Shape {
    fn new(shape: &[usize]) -> Result<Shape> {
        if shape.len() > RANK_MAX {
            return Err(Error::invalid(format!(
                "shape has {} dimensions; at most {} are possible",
                shape.len(),
                RANK_MAX
            )));
        }
        let mut sizes = [0; RANK_MAX];
        sizes[..shape.len()].copy_from_slice(shape);
        let len = shape
            .iter()
            .try_fold(1usize, |len, &n| len.checked_mul(n))
            .filter(|&len| len <= isize::MAX as usize / 4)
            .ok_or_else(too_large)?;
        Ok(Shape { sizes, rank: shape.len(), len })
    }
}

/// A dense tensor in memory that the daemon sees; a slice of its elements.
///
/// A request takes its tensors by value and gives them back at its end, so nobody reads or writes one that
/// the daemon works on. Inputs that several requests read at once are `Arc<Tensor<T>>`.
pub struct Tensor<T> {
    memory: Arc<Memory>,
    offset: usize,
    shape: Shape,
    element: PhantomData<T>,
}

impl<T: Stored> Tensor<T> {
    /// Its sizes, outermost dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape.sizes[..self.shape.rank]
    }

    /// The same elements in another shape.
    pub fn reshape(mut self, shape: &[usize]) -> Result<Tensor<T>> {
        let wanted = Shape::new(shape)?;
        if wanted.len != self.shape.len {
            return Err(Error::invalid(format!(
                "shape has {} elements; expected {}, as the tensor has",
                wanted.len, self.shape.len
            )));
        }
        self.shape = wanted;
        Ok(self)
    }

    fn start(&self) -> *mut T {
        // SAFETY: the offset lies within the buffer.
        unsafe { self.memory.data.as_ptr().add(self.offset).cast::<T>() }
    }

    pub(crate) fn raw(&self) -> sys::fa_tensor {
        let mut raw = sys::fa_tensor {
            buffer: self.memory.handle,
            offset: self.offset as u64,
            dtype: T::DTYPE.raw(),
            rank: self.shape.rank as u32,
            ..Default::default()
        };
        for (to, &size) in raw.shape.iter_mut().zip(self.shape()) {
            *to = size as i64;
        }
        raw
    }

    pub(crate) fn is_of(&self, client: &Client) -> bool {
        self.memory.client.same(client)
    }
}

impl<T: Element> Tensor<T> {
    /// Sets each element to that of an iterator, rounded; stops with the shorter of both.
    pub fn fill_from(&mut self, values: impl IntoIterator<Item = f32>) {
        for (to, value) in self.iter_mut().zip(values) {
            *to = T::from_f32(value);
        }
    }

    /// All elements.
    pub fn to_f32_vec(&self) -> Vec<f32> {
        self.iter().map(|x| x.to_f32()).collect()
    }
}

impl<T: Stored> Deref for Tensor<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the bytes are this tensor's own, aligned, and every bit pattern is an element. No
        // request works on them, as it would have taken the tensor.
        unsafe { std::slice::from_raw_parts(self.start(), self.shape.len) }
    }
}

impl<T: Stored> DerefMut for Tensor<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref().
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.shape.len) }
    }
}

impl<T> fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor{:?}", &self.shape.sizes[..self.shape.rank])
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for super::Tensor<T> {}
    impl<T> Sealed for std::sync::Arc<super::Tensor<T>> {}
}

/// What a request only reads: a `Tensor<T>`, or an `Arc<Tensor<T>>` that other requests and threads read, too.
pub trait Input<T>: sealed::Sealed + Send + Sync {
    /// The tensor.
    fn tensor(&self) -> &Tensor<T>;
}

impl<T: Stored> Input<T> for Tensor<T> {
    fn tensor(&self) -> &Tensor<T> {
        self
    }
}

impl<T: Stored> Input<T> for Arc<Tensor<T>> {
    fn tensor(&self) -> &Tensor<T> {
        self
    }
}
