//! Caches, sequences and steps against real daemons, and several processes.

mod common;

use common::{eventually, other, private, run_other, Supervised};
use faclient::*;
use std::time::Duration;

const LAYERS: u32 = 2;
const DIM: usize = 16;

fn shape() -> CacheOptions {
    CacheOptions::new(Dtype::F32, LAYERS, 1, DIM as u32).page_tokens(16)
}

fn rows(client: &Client, values: &[f32]) -> Tensor<f32> {
    let mut tensor = client.tensor(&[values.len(), 1, DIM]).unwrap();
    tensor.fill_from(values.iter().flat_map(|&value| [value; DIM]));
    tensor
}

/// Appends tokens with these values, whose keys and queries are zero: attention is the mean of the values. Returns
/// the last token's.
fn append(client: &Client, sequence: &Sequence, values: &[f32]) -> Result<f32> {
    let zero = || rows(client, &vec![0.0; values.len()]);
    let step = client.step(&[Item::new(sequence, values.len() as u32)])?;
    let mut mean = 0.0;
    for layer in 0..LAYERS {
        let mut attend =
            Attend::new(layer).append(zero(), rows(client, values)).query(zero(), zero()).causal();
        step.attend(&mut attend)?;
        mean = attend.out.unwrap()[(values.len() - 1) * DIM];
    }
    step.commit()?;
    Ok(mean)
}

fn near(found: f32, expected: f32) {
    assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
}

fn counting(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn dropping_frees_what_has_no_name() {
    let client = private();
    let cache = client.create_cache(&shape()).unwrap();
    let sequence = cache.sequence().unwrap();
    append(&client, &sequence, &counting(40)).unwrap();
    let fork = sequence.fork_at(20).unwrap();
    assert_eq!(cache.info().unwrap().sequences, 2);
    drop(sequence);
    drop(fork);
    let info = cache.info().unwrap();
    assert_eq!((info.sequences, info.used_pages), (0, 0));
    drop(cache);
    assert!(
        client.status().unwrap().contains("\"caches\": []")
            || client.status().unwrap().contains("\"caches\":[]")
    );
}

#[test]
fn a_dropped_step_is_aborted() {
    let client = private();
    let cache = client.create_cache(&shape()).unwrap();
    let sequence = cache.sequence().unwrap();
    append(&client, &sequence, &counting(3)).unwrap();
    let step = cache.step(&[(&sequence, 2)]).unwrap();
    let append_only = Attend::new(0).append(rows(&client, &[0.0; 2]), rows(&client, &[9.0; 2]));
    let request = step.submit(append_only).unwrap();
    drop(step);
    let _ = request.wait();
    assert_eq!(sequence.length().unwrap(), 3);
    near(append(&client, &sequence, &[3.0]).unwrap(), 1.5);
}

#[test]
fn some_tokens_are_kept() {
    let client = private();
    let cache = client.create_cache(&shape()).unwrap();
    let sequence = cache.sequence().unwrap();
    append(&client, &sequence, &[4.0]).unwrap();
    // Two guesses, 1 and 2, which both follow the first token and do not see each other.
    let step = client.step(&[Item::new(&sequence, 2).tree(&[0b01, 0b10])]).unwrap();
    for layer in 0..LAYERS {
        let zero = || rows(&client, &[0.0; 2]);
        let mut attend =
            Attend::new(layer).append(zero(), rows(&client, &[1.0, 2.0])).query(zero(), zero());
        step.attend(&mut attend).unwrap();
        let out = attend.out.unwrap();
        near(out[0], 2.5);
        near(out[DIM], 3.0);
    }
    assert_eq!(step.n_new(), 2);
    step.commit_only(&[&[1]]).unwrap();
    assert_eq!(sequence.length().unwrap(), 2);
    near(append(&client, &sequence, &[0.0]).unwrap(), 2.0);
}

#[test]
fn pages_are_read_and_written() {
    let client = private();
    let cache = client.create_cache(&shape()).unwrap();
    let sequence = cache.sequence().unwrap();
    let step = cache.step(&[(&sequence, 3)]).unwrap();
    for layer in 0..LAYERS {
        let k = rows(&client, &[1.0, 2.0, layer as f32]);
        step.write(&sequence, layer, 0, &k, Some(&rows(&client, &[5.0, 6.0, 7.0]))).unwrap();
    }
    let number = step.number();
    step.commit().unwrap();
    assert_eq!(sequence.info().unwrap().step, number);
    let (mut k, mut v) = (rows(&client, &[0.0; 2]), rows(&client, &[0.0; 2]));
    sequence.read(1, 1, Some(&mut k), Some(&mut v)).unwrap();
    assert_eq!((k[0], k[DIM], v[0], v[DIM]), (2.0, 1.0, 6.0, 7.0));
}

#[test]
fn rotary_turns_keys_and_queries() {
    let client = private();
    let cache = client.create_cache(&shape()).unwrap();
    let attend = |positions: Vec<u32>| {
        let sequence = cache.sequence().unwrap();
        let step = cache.step(&[(&sequence, 2)]).unwrap();
        let one = || rows(&client, &[1.0; 2]);
        let rotary = Rotary { dim: DIM as u32, positions: Some(positions), ..Rotary::default() };
        let mut attend = Attend::new(0)
            .append(one(), rows(&client, &[0.0, 1.0]))
            .query(one(), one())
            .causal()
            .rotary(rotary);
        step.attend(&mut attend)?;
        Ok::<f32, Error>(attend.out.unwrap()[DIM])
    };
    // Scores depend on the distance alone: that of equal positions is the largest for both keys.
    near(attend(vec![7, 7]).unwrap(), 0.5);
    let apart = attend(vec![0, 3]).unwrap();
    assert!(apart > 0.51, "{apart}");
    near(attend(vec![10, 13]).unwrap(), apart);
    let error = attend(vec![1]).unwrap_err();
    assert!(error.message().contains("positions has 1"), "{error}");
}

#[test]
fn wrong_use_says_so() {
    let client = private();
    let stranger = Options::new().socket(client.socket_path()).connect().unwrap();
    let cache = client.create_cache(&shape()).unwrap();
    let sequence = cache.sequence().unwrap();
    let says = |error: Error, errno: i32, part: &str| {
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.message().contains(part), "{error}");
    };
    says(
        stranger.step(&[Item::new(&sequence, 1)]).unwrap_err(),
        errno::EINVAL,
        "of another client",
    );
    says(
        client.step(&[Item::new(&sequence, 2).tree(&[1])]).unwrap_err(),
        errno::EINVAL,
        "tree has 1",
    );
    let scaled = shape().store_scaled(Store::Int8, vec![1.0], vec![1.0, 1.0]);
    says(client.create_cache(&scaled).unwrap_err(), errno::EINVAL, "k_scales has 1");
    let step = cache.step(&[(&sequence, 2)]).unwrap();
    says(step.attend(&mut Attend::<f32>::new(0)).unwrap_err(), errno::EINVAL, "nothing is asked");
    let append = || Attend::new(0).append(rows(&client, &[0.0; 2]), rows(&client, &[0.0; 2]));
    says(step.attend(&mut append().sinks([0.0])).unwrap_err(), errno::EINVAL, "sinks has 1");
    let foreign = Attend::new(0).append(rows(&stranger, &[0.0; 2]), rows(&client, &[0.0; 2]));
    says(step.submit(foreign).unwrap_err().into(), errno::EINVAL, "of another client");
    let half = client.tensor::<F16>(&[2, 1, DIM]).unwrap();
    let halves = Attend::new(0).append(half, client.tensor(&[2, 1, DIM]).unwrap());
    says(step.submit(halves).unwrap().wait().unwrap_err().into(), errno::ENOTSUP, "dtype");
    says(step.commit().unwrap_err(), errno::ECANCELED, " ");
    let step = cache.step(&[(&sequence, 2)]).unwrap();
    says(step.commit_only(&[]).unwrap_err(), errno::EINVAL, "keep has 0");
    assert_eq!(sequence.length().unwrap(), 0);
}

#[test]
fn other_processes_go_on() {
    if let Some(client) = other() {
        let prompt = client.find_sequence("rust prompt").unwrap();
        assert_eq!(prompt.length().unwrap(), 40);
        let fork = prompt.fork_at(33).unwrap();
        near(append(&client, &fork, &[16.0]).unwrap(), 16.0);
        let cache = client.find_cache("rust shared").unwrap();
        let tokens: Vec<u32> = (0..50).collect();
        assert_eq!(cache.find(&Prefix::new(&tokens).extra(b"other")).unwrap(), 0);
        let (attached, found) = cache.attach(&Prefix::new(&tokens)).unwrap();
        assert_eq!((found, attached.length().unwrap()), (32, 32));
        near(append(&client, &attached, &[15.5]).unwrap(), 15.5);
        return;
    }
    let client = private();
    let cache = client
        .create_cache(&shape().name("rust shared").mode(Mode::READ_USER | Mode::APPEND_USER))
        .unwrap();
    let mut prompt = cache.sequence().unwrap();
    near(append(&client, &prompt, &counting(40)).unwrap(), 19.5);
    prompt.set_name("rust prompt", Mode::OWN, Some(Duration::from_secs(600))).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    assert_eq!(prompt.publish(&Prefix::from(&tokens[..])).unwrap(), 2);
    run_other("other_processes_go_on", &client.socket_path());
    assert_eq!(prompt.length().unwrap(), 40);
    assert_eq!(cache.info().unwrap().sequences, 1, "the other process's ended with it");
    drop(prompt); // has a name, and stays
    let prompt = client.find_sequence("rust prompt").unwrap();
    cache.remove().unwrap();
    assert_eq!(prompt.length().unwrap_err().errno(), errno::ESTALE);
}

#[test]
fn what_is_dropped_without_a_daemon_is_removed_later() {
    let daemon = Supervised::start("lost-drop");
    let client = daemon.options().connect().unwrap();
    let cache = client.create_cache(&shape()).unwrap();
    let first = cache.sequence().unwrap();
    daemon.kill();
    eventually("the loss is noticed", || !client.is_connected());
    drop(first);
    assert!(!client.is_connected(), "dropping does not wait for another daemon");
    let second = cache.sequence().unwrap();
    assert_eq!(cache.info().unwrap().sequences, 1);
    drop(second);
}

#[test]
fn tokens_outlive_the_daemon() {
    let daemon = Supervised::start("lost-kv");
    let client = daemon.options().connect().unwrap();
    let cache = client.create_cache(&shape()).unwrap();
    let sequence = cache.sequence().unwrap();
    near(append(&client, &sequence, &counting(20)).unwrap(), 9.5);

    // Killed between steps: nobody sees it.
    daemon.kill();
    near(append(&client, &sequence, &[9.5]).unwrap(), 9.5);

    // Killed within a step: the step is lost, and its tokens.
    let step = cache.step(&[(&sequence, 1)]).unwrap();
    let append_one = || Attend::new(0).append(rows(&client, &[0.0]), rows(&client, &[1.0]));
    step.attend(&mut append_one()).unwrap();
    daemon.kill();
    let error = step.commit().unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(sequence.length().unwrap(), 21);
    near(append(&client, &sequence, &[9.5]).unwrap(), 9.5);
    let info = client.info().unwrap();
    assert_eq!((info.reconnects, info.resumed), (2, 2));
}
