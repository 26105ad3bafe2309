//! Causal attention over made-up numbers, by the daemon that runs or by one of its own.

use faclient::{Attention, Error, Options};

fn main() -> Result<(), Error> {
    let client = Options::new().spawn().connect()?;
    let shape = [1, 512, 8, 64]; // batch, tokens, heads, dim
    let mut memory = client.buffer(4 * 4 * 512 * 8 * 64)?;
    let (mut q, mut k) = (memory.tensor::<f32>(&shape)?, memory.tensor(&shape)?);
    let (mut v, out) = (memory.tensor(&shape)?, memory.tensor(&shape)?);
    for (tensor, step) in [(&mut q, 7), (&mut k, 11), (&mut v, 13)] {
        tensor.fill_from((0..).map(|i| (i % step) as f32 / step as f32 - 0.5));
    }

    let request = client.submit(Attention::new(q, k, v, out).causal())?;
    let done = request.wait()?; // the tensors are back
    println!("{:?}", &done.out[..3]); // row 0 sees only itself: v's numbers
    assert!((done.out[1] - done.v[1]).abs() < 1e-6);
    Ok(())
}
