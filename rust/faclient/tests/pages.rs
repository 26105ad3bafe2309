//! Pages that the program manages, against real daemons.

mod common;

use common::private;
use faclient::*;
use std::sync::Arc;

const HEADS: usize = 2;
const DIM: usize = 16;

/// Pages of 4 tokens of one KV head. All numbers of a page are the same.
fn pages(client: &Client, values: &[f32]) -> Tensor<f32> {
    let mut tensor = client.tensor(&[values.len(), 4, 1, DIM]).unwrap();
    let numbers = values.iter().flat_map(|&x| std::iter::repeat(x).take(4 * DIM));
    tensor.fill_from(numbers);
    tensor
}

fn integers<T: Stored>(client: &Client, shape: &[usize], numbers: &[T]) -> Tensor<T> {
    let mut tensor = client.tensor(shape).unwrap();
    tensor.copy_from_slice(numbers);
    tensor
}

/// A row for each sequence, whose keys all have the same score.
fn attend<KV: Pages>(
    client: &Client,
    (k, v): (KV, KV),
    table: &[i32],
    lengths: &[i32],
) -> PagesAttend<f32, KV> {
    let batch = lengths.len();
    let rows = || client.tensor(&[batch, HEADS, DIM]).unwrap();
    let table = integers(client, &[batch, table.len() / batch], table);
    PagesAttend::new(rows(), k, v, rows(), table, integers(client, &[batch], lengths))
}

#[test]
fn requests_share_pages() {
    let client = private();
    let k = Arc::new(pages(&client, &[0.0; 4]));
    let v = Arc::new(pages(&client, &[1.0, 2.0, 4.0, f32::NAN]));
    let sent: Vec<_> = (0..20)
        .map(|i| {
            let kv = (k.clone(), v.clone());
            let table = if i % 2 == 0 { [0, 1] } else { [2, 0] };
            client.submit_pages(attend(&client, kv, &table, &[8])).unwrap()
        })
        .collect();
    for (i, request) in sent.into_iter().enumerate() {
        let done = request.wait().unwrap();
        assert!(done.out.iter().all(|&x| x == if i % 2 == 0 { 1.5 } else { 2.5 }));
    }
    assert_eq!(Arc::strong_count(&k), 1);
}

#[test]
fn rows_are_appended() {
    let client = private();
    let kv = (pages(&client, &[0.0; 3]), pages(&client, &[f32::NAN, 1.0, f32::NAN]));
    let mut attend = attend(&client, kv, &[1, 2], &[5]).causal();
    let new = || client.tensor::<f32>(&[2, 1, DIM]).unwrap();
    let (k, mut v) = (new(), new());
    v.fill_from((0..).map(|i| if i < DIM { 6.0 } else { f32::NAN }));
    let slots = Arc::new(integers(&client, &[2], &[8i64, -1]));
    attend = attend.append(NewRows { k, v, slots });
    client.pages_attend(&mut attend).unwrap();
    assert!(attend.out.iter().all(|&x| x == 2.0)); // of four ones and a six
    assert_eq!(attend.v[8 * DIM], 6.0);
    assert!(attend.v[9 * DIM].is_nan());
    // The same rows again, without new ones.
    assert!(attend.new_rows().take().is_some());
    attend.out.fill(0.0);
    client.pages_attend(&mut attend).unwrap();
    assert!(attend.out.iter().all(|&x| x == 2.0));
}

#[test]
fn codes_have_scales() {
    let client = private();
    let mut v = client.tensor::<E4m3>(&[1, 4, 1, DIM]).unwrap();
    v.fill(E4m3(0x38)); // 1
    let k = client.tensor::<E4m3>(&[1, 4, 1, DIM]).unwrap();
    let mut scale = client.tensor::<f32>(&[1]).unwrap();
    scale[0] = 0.5;
    let scale = Arc::new(scale);
    let mut attend = attend(&client, (k, v), &[0], &[4]).scales(scale.clone(), scale);
    client.pages_attend(&mut attend).unwrap();
    assert!(attend.out.iter().all(|&x| x == 0.5));
}

#[test]
fn garbage_reads_the_pages_alone() {
    let client = private();
    let kv = (pages(&client, &[0.0; 2]), pages(&client, &[1.0, 1.0]));
    let mut attend = attend(&client, kv, &[0; 6], &[0; 3]);
    let mut seed = 1u32;
    for _ in 0..100 {
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed as i32
        };
        Arc::get_mut(&mut attend.table).unwrap().iter_mut().for_each(|x| *x = random());
        Arc::get_mut(&mut attend.lengths).unwrap().iter_mut().for_each(|x| *x = random());
        client.pages_attend(&mut attend).unwrap();
        assert!(attend.out.iter().all(|&x| x == 0.0 || (x - 1.0).abs() < 1e-6));
    }
}

#[test]
fn what_is_wrong_comes_back() {
    let (client, other) = (private(), private());
    let kv = || (pages(&client, &[0.0; 2]), pages(&client, &[1.0; 2]));
    let strange = (pages(&other, &[0.0; 2]), pages(&other, &[1.0; 2]));
    let failed = client.submit_pages(attend(&client, strange, &[0], &[4])).unwrap_err();
    assert!(failed.error.message().contains("another client"));
    assert_eq!(failed.request.v[0], 1.0);
    let failed =
        client.submit_pages(attend(&client, kv(), &[0], &[4]).sinks([0.0; 3])).unwrap_err();
    assert_eq!(failed.error.message(), "sinks has 3 numbers; expected 2, the heads of q");
    let mut wrong = attend(&client, kv(), &[0], &[4]).rows(integers(&client, &[1], &[0]), 1);
    let error = client.pages_attend(&mut wrong).unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL);
    wrong.cu_q = None;
    let mut flat = wrong;
    flat.table = Arc::new(integers(&client, &[1], &[0]));
    let error = client.pages_attend(&mut flat).unwrap_err();
    assert!(error.message().contains("table.rank is 1; expected 2"), "{}", error);
}

#[test]
fn heads_may_come_first() {
    let client = private();
    let mut v = client.tensor::<f32>(&[1, 2, 4, DIM]).unwrap(); // page, head, token
    v.fill_from((0..).map(|i| if i < 4 * DIM { 1.0 } else { 2.0 }));
    let k = client.tensor(&[1, 2, 4, DIM]).unwrap();
    let mut attend = attend(&client, (k, v), &[0], &[4]).heads_first();
    client.pages_attend(&mut attend).unwrap();
    assert_eq!((attend.out[0], attend.out[DIM]), (1.0, 2.0));
}

#[test]
fn layers_go_to_pages_and_back() {
    let (client, other) = (private(), private());
    let cache = client.create_cache(&CacheOptions::new(Dtype::Bf16, 3, 2, 64)).unwrap();
    let sequence = cache.sequence().unwrap();
    let layers = |client: &Client, shape: &[usize], first: usize| -> Vec<Tensor<Bf16>> {
        (0..3)
            .map(|layer| {
                let mut tensor = client.tensor(shape).unwrap();
                tensor.fill_from((0..).map(|i| ((first + layer + i) % 200) as f32));
                tensor
            })
            .collect()
    };
    // 40 tokens in three pages of 16, from the third place on.
    let (k, v) = (layers(&client, &[4, 16, 2, 64], 0), layers(&client, &[4, 16, 2, 64], 50));
    let mut range = PagesRange::new(40, &[3, 0, 2]);
    range.page_offset = 2;
    let step = cache.step(&[(&sequence, 40)]).unwrap();
    step.write_pages(&sequence, range, &k, &v).unwrap();
    step.commit().unwrap();
    // Two layers of 10 of them, heads first, in pages of 8.
    let mut back = layers(&client, &[2, 2, 8, 64], 0);
    back.remove(0);
    let back_range = PagesRange {
        layer: 1,
        first: 20,
        n_tokens: 10,
        pages: &[1, 0],
        page_offset: 3,
        heads_first: true,
    };
    sequence.read_pages(back_range, &mut [], &mut back).unwrap();
    for (layer, found) in back.iter().enumerate() {
        for i in 0..10 {
            let (at, from) = (3 + i, 2 + 20 + i);
            for head in 0..2 {
                let to = (([1, 0][at / 8] * 2 + head) * 8 + at % 8) * 64;
                let of = (([3, 0, 2][from / 16] * 16 + from % 16) * 2 + head) * 64;
                assert_eq!(found[to..to + 64], v[layer + 1][of..of + 64]);
            }
        }
    }

    let twice = PagesRange::new(40, &[0, 0, 1]);
    let mut own = layers(&client, &[4, 16, 2, 64], 0);
    let error = sequence.read_pages(twice, &mut own, &mut []).unwrap_err();
    assert!(error.message().contains("each page once"), "{}", error);
    let error = sequence.read_pages(range, &mut own[..2], &mut back).unwrap_err();
    assert_ne!(error.errno(), 0);
    let error = sequence.read_pages(range, &mut own, &mut back[..1]).unwrap_err();
    assert_eq!(error.message(), "v has 1 layers, and k 3");
    let mut strange = layers(&other, &[4, 16, 2, 64], 0);
    let error = sequence.read_pages(range, &mut strange, &mut []).unwrap_err();
    assert!(error.message().contains("another client"));
    let error = sequence.read_pages::<Bf16>(range, &mut [], &mut []).unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL);
}
