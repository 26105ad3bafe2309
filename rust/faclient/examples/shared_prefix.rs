//! One prompt for several processes: the first writes it, two others continue it without a copy.
//!
//! Queries and keys are zero, so that attention is the mean of the values that a token sees, and token i of the
//! prompt has the value i: each result can be checked.

use faclient::{Attend, Bf16, CacheOptions, Client, Dtype, Element, Error, Item, Mode};
use faclient::{Options, Sequence};
use std::env;
use std::process::Command;

const DIM: usize = 64;

/// Appends tokens with these values. Returns the last one's attention.
fn append(client: &Client, sequence: &Sequence, values: &[f32]) -> Result<f32, Error> {
    let tensor = || client.tensor::<Bf16>(&[values.len(), 1, DIM]);
    let mut v = tensor()?;
    v.fill_from(values.iter().flat_map(|&value| [value; DIM]));
    let step = client.step(&[Item::new(sequence, values.len() as u32)])?;
    let mut layer = Attend::new(0).append(tensor()?, v).query(tensor()?, tensor()?).causal();
    step.attend(&mut layer)?; // a model with more layers does so for each
    step.commit()?; // from here on the tokens outlive the daemon
    Ok(layer.out.expect("it was given")[(values.len() - 1) * DIM].to_f32())
}

fn check(what: &str, mean: f32, expected: f32) {
    println!("{what}: the mean is {mean}, expected {expected}");
    assert!((mean - expected).abs() <= 0.005 * expected);
}

/// What the other processes do: ten tokens behind the prompt's first ones.
fn go_on(client: &Client, name: &str, tokens: u64, value: f32, expected: f32) -> Result<(), Error> {
    let prompt = client.find_sequence(name)?;
    let fork = prompt.fork_at(tokens)?; // shares the pages
    let mut mean = 0.0;
    for _ in 0..10 {
        mean = append(client, &fork, &[value])?;
    }
    check(&format!("fork of {tokens} tokens"), mean, expected);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [socket, name, tokens, value, expected] = &arguments[..] {
        let client = Options::new().socket(socket).connect()?;
        go_on(&client, name, tokens.parse()?, value.parse()?, expected.parse()?)?;
        return Ok(());
    }

    let client = Options::new().spawn().connect()?;
    let name = format!("example-rust-{}", std::process::id());
    let cache =
        client.create_cache(&CacheOptions::new(Dtype::Bf16, 1, 1, DIM as u32).name(&name))?;
    let mut prompt = cache.sequence()?;
    let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
    check("prompt", append(&client, &prompt, &values)?, 49.5);
    prompt.set_name(&name, Mode::OWN, None)?; // others find it

    for (tokens, value, expected) in [("100", "105", "54.5454545"), ("50", "200", "53.75")] {
        let other = Command::new(env::current_exe()?)
            .arg(client.socket_path())
            .args([&name, tokens, value, expected])
            .status()?;
        assert!(other.success());
    }
    cache.remove()?; // what has a name is removed by name; sequences go with their cache
    Ok(())
}
