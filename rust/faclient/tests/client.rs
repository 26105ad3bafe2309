//! Connections, memory and requests against real daemons.

mod common;

use common::json::Json;
use common::{eventually, private, Supervised};
use faclient::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn tensors(client: &Client, shape: &[usize]) -> Attention<f32> {
    let mut memory = client.buffer(4 * 4 * shape.iter().product::<usize>() + 4096).unwrap();
    let mut tensor = || memory.tensor::<f32>(shape).unwrap();
    let (mut q, mut k, mut v) = (tensor(), tensor(), tensor());
    q.fill_from((0..).map(|i| (i % 7) as f32 / 7.0));
    k.fill_from((0..).map(|i| (i % 11) as f32 / 11.0));
    v.fill_from((0..).map(|i| (i % 13) as f32 / 13.0));
    Attention::new(q, k, v, tensor())
}

/// One that takes seconds.
fn long(client: &Client) -> Attention<f32> {
    tensors(client, &[1, 8192, 8, 128])
}

/// A number of this session in the daemon's status.
fn status(client: &Client, key: &str) -> u64 {
    let session = client.info().unwrap().session;
    let status = Json::parse(&client.status().unwrap().replace("\\/", "/"));
    let sessions = status["sessions"].list();
    let own = sessions.iter().find(|own| own["session"].int() == session).unwrap();
    own[key].int()
}

#[test]
fn all_threads_may_use_it() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Client>();
    is_shared::<Tensor<f32>>();
    is_shared::<Request<Attention<f32>>>();
    is_shared::<Cache>();
    is_shared::<Sequence>();
    is_shared::<Step>();
    is_shared::<Error>();
    is_shared::<Options>();
    is_shared::<CacheOptions>();
}

#[test]
fn a_request_gives_its_tensors_back() {
    let client = private();
    let mut first = tensors(&client, &[1, 5, 2, 16]);
    client.attention(&mut first).unwrap();
    assert!(first.out.iter().any(|&x| x != 0.0));
    let expected = first.out.to_vec();
    first.out.fill(0.0);
    let request = client.submit(first).unwrap();
    assert!(request.ended(Duration::MAX));
    let times = request.times().unwrap();
    assert!(times.queued <= times.started && times.started <= times.finished);
    let again = request.wait().unwrap();
    assert_eq!(again.out.to_vec(), expected);
    let again = client.submit(again).unwrap().wait().unwrap();
    assert_eq!(again.q[3], 3.0 / 7.0);
    assert_eq!(status(&client, "buffers"), 1);
    drop(again);
    eventually("the buffer is freed", || status(&client, "buffers") == 0);
}

#[test]
fn a_dropped_request_is_cancelled_and_waited_for() {
    let client = private();
    let stream = client.stream(0).unwrap();
    let first = client.submit(long(&client).stream(&stream)).unwrap();
    drop(stream);
    assert_eq!(status(&client, "streams"), 2);
    drop(first);
    // A stream is only freed if no request of it is in flight.
    assert_eq!(status(&client, "streams"), 1);

    let first = client.submit(long(&client)).unwrap();
    let second = client.submit(tensors(&client, &[1, 5, 2, 16])).unwrap();
    assert!(!second.ended(Duration::ZERO), "it is behind one that takes seconds");
    assert!(second.times().is_none());
    drop(first);
    eventually("the status has it", || status(&client, "cancelled") >= 2);
    drop(second);
}

#[test]
fn cancel_and_timeout_are_errors_with_the_tensors() {
    let client = private();
    let request = client.submit(long(&client)).unwrap();
    assert!(request.cancel().unwrap());
    let failed = request.wait().unwrap_err();
    assert_eq!(failed.error.errno(), errno::ECANCELED);
    let start = Instant::now();
    let failed = client
        .submit(failed.request.timeout(Duration::from_millis(10)))
        .unwrap()
        .wait()
        .unwrap_err();
    assert_eq!(failed.error.errno(), errno::ETIMEDOUT);
    assert!(start.elapsed() >= Duration::from_millis(10));
    assert_eq!(failed.request.q[3], 3.0 / 7.0);
    let ended = client.submit(tensors(&client, &[1, 1, 1, 8])).unwrap();
    assert!(ended.ended(Duration::MAX));
    assert!(!ended.cancel().unwrap());
}

#[test]
fn inputs_are_shared() {
    let client = private();
    let made = tensors(&client, &[1, 40, 2, 16]);
    let (k, v) = (Arc::new(made.k), Arc::new(made.v));
    let mut expected = None;
    let requests: Vec<_> = (0..8)
        .map(|_| {
            let (q, out) =
                (client.tensor(&[1, 1, 2, 16]).unwrap(), client.tensor(&[1, 1, 2, 16]).unwrap());
            let stream = client.stream(0).unwrap();
            client.submit(Attention::new(q, k.clone(), v.clone(), out).stream(&stream)).unwrap()
        })
        .collect();
    assert_eq!(k[5], 5.0 / 11.0); // readable meanwhile
    for request in requests {
        let out = request.wait().unwrap().out.to_vec();
        assert_eq!(*expected.get_or_insert_with(|| out.clone()), out);
    }
    assert_eq!(Arc::try_unwrap(v).unwrap().shape(), [1, 40, 2, 16]);
}

#[test]
fn threads_share_a_client() {
    let client = private();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let client = client.clone();
            scope.spawn(move || {
                let mut own = tensors(&client, &[1, 3, 2, 16]);
                for _ in 0..200 {
                    own = client.submit(own).unwrap().wait().unwrap();
                }
                // Each thread has its own sentence.
                let name = format!("nobody's {i}");
                let error = client.find_cache(&name).unwrap_err();
                assert_eq!(error.errno(), errno::ENOENT);
                assert!(error.message().contains(&name), "{error}");
            });
        }
    });
}

#[test]
fn memory_outlives_the_clients_handle() {
    let client = private();
    let mut tensor = client.tensor::<f32>(&[4]).unwrap();
    let path = client.socket_path();
    drop(client);
    tensor[3] = 2.0;
    assert_eq!(tensor.to_vec(), [0.0, 0.0, 0.0, 2.0]);
    assert!(Options::new().socket(&path).connect().is_ok());
    drop(tensor);
    eventually("the daemon ends with its last client", || {
        Options::new().socket(&path).connect().is_err()
    });
}

#[test]
fn wrong_use_says_so() {
    let client = private();
    let other = private();
    let says = |error: Error, errno: i32, part: &str| {
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.message().contains(part), "{error}");
    };
    let made = || tensors(&client, &[1, 4, 2, 16]);

    says(
        client.submit(made().alibi_slopes([1.0])).unwrap_err().into(),
        errno::EINVAL,
        "alibi_slopes has 1",
    );
    says(client.submit(made().sinks([1.0; 3])).unwrap_err().into(), errno::EINVAL, "sinks has 3");
    says(
        client.submit(made().lengths([0, 4], [0])).unwrap_err().into(),
        errno::EINVAL,
        "lengths has 2",
    );
    says(other.submit(made()).unwrap_err().into(), errno::EINVAL, "of another client");
    let stream = other.stream(0).unwrap();
    says(
        client.submit(made().stream(&stream)).unwrap_err().into(),
        errno::EINVAL,
        "of another client",
    );
    let mut flat = made();
    flat.q = flat.q.reshape(&[4, 32]).unwrap();
    says(client.submit(flat).unwrap_err().into(), errno::EINVAL, "q");
    says(made().out.reshape(&[5]).unwrap_err(), errno::EINVAL, "expected 128");

    says(client.tensor::<f32>(&[usize::MAX, 2]).unwrap_err(), errno::EINVAL, "more elements");
    says(client.tensor::<f32>(&[1; 5]).unwrap_err(), errno::EINVAL, "5 dimensions");
    let mut buffer = client.buffer(256).unwrap();
    buffer.tensor::<Bf16>(&[64]).unwrap();
    says(buffer.tensor::<f32>(&[33]).unwrap_err(), errno::EINVAL, "128 bytes");
    says(client.buffer(0).unwrap_err(), errno::EINVAL, " ");
    says(client.find_cache("a\0b").unwrap_err(), errno::EINVAL, "zero byte");
    let absent = Options::new().socket("/nowhere/fad.sock").connect();
    says(absent.unwrap_err(), errno::ENOENT, "/nowhere/fad.sock");
}

#[test]
fn empty_tensors() {
    let client = private();
    let empty = tensors(&client, &[0, 4, 2, 16]);
    let empty = client.submit(empty).unwrap().wait().unwrap();
    assert!(empty.out.is_empty());
}

#[test]
fn a_lost_daemon_is_reconnected_to() {
    let daemon = Supervised::start("lost-client");
    let client = daemon.options().connect().unwrap();
    let mut attention = tensors(&client, &[1, 4, 2, 16]);
    client.attention(&mut attention).unwrap();
    let expected = attention.out.to_vec();

    let stream = client.stream(1).unwrap();
    let in_flight = client.submit(long(&client).stream(&stream)).unwrap();
    daemon.kill();
    let failed = in_flight.wait().unwrap_err();
    assert!(failed.error.is_lost(), "{}", failed.error);
    assert!(!client.is_connected());

    attention.out.fill(0.0);
    client.attention(&mut attention).unwrap(); // reconnects; buffers have their contents
    assert_eq!(attention.out.to_vec(), expected);
    let again = client.submit(attention.stream(&stream)).unwrap().wait().unwrap();
    assert_eq!(again.out.to_vec(), expected);
    assert_eq!(client.info().unwrap().reconnects, 1);
}

#[test]
fn events() {
    use std::os::unix::io::AsRawFd;
    let client = private();
    let request = client.submit(tensors(&client, &[1, 40, 2, 16])).unwrap();
    // poll() would need more than std.
    let fd = client.event_fd().unwrap().as_raw_fd();
    assert!(std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok());
    eventually("the request ends", || {
        client.dispatch().unwrap();
        request.ended(Duration::ZERO)
    });
}
