//! Masks of blocks and bits, and patterns of blocks, against real daemons and attention in f64.

mod common;

use common::private;
use faclient::*;
use std::sync::Arc;

const BATCH: usize = 2;
const N_Q: usize = 150;
const N_K: usize = 200;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 16;

/// Numbers from -1 to 1.
fn random(seed: u32) -> impl Iterator<Item = f32> {
    integers(seed).map(|n| n as f32 / (1u32 << 31) as f32)
}

fn integers(mut seed: u32) -> impl Iterator<Item = i32> {
    std::iter::repeat_with(move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed ^ (seed >> 16)) as i32
    })
}

fn filled(client: &Client, shape: &[usize], numbers: &[f32]) -> Tensor<f32> {
    let mut tensor = client.tensor(shape).unwrap();
    tensor.copy_from_slice(numbers);
    tensor
}

fn table(client: &Client, shape: &[usize], numbers: &[i32]) -> Arc<Tensor<i32>> {
    let mut tensor = client.tensor(shape).unwrap();
    tensor.copy_from_slice(numbers);
    tensor.into()
}

/// Random queries, keys and values of this many sequences.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Inputs {
    fn new(batch: usize) -> Inputs {
        let of = |seed, tokens, heads| random(seed).take(batch * tokens * heads * DIM).collect();
        Inputs { q: of(1, N_Q, HEADS), k: of(2, N_K, KV_HEADS), v: of(3, N_K, KV_HEADS) }
    }

    /// A request in the batch form; `shape` makes it ragged.
    fn attention(&self, client: &Client, ragged: bool) -> Attention<f32> {
        let tensor = |numbers: &[f32], tokens, heads| match ragged {
            true => filled(client, &[BATCH * tokens, heads, DIM], numbers),
            false => filled(client, &[BATCH, tokens, heads, DIM], numbers),
        };
        let (q, out) = (tensor(&self.q, N_Q, HEADS), tensor(&self.q, N_Q, HEADS));
        let (k, v) = (tensor(&self.k, N_K, KV_HEADS), tensor(&self.v, N_K, KV_HEADS));
        let attention = Attention::new(q, k, v, out);
        match ragged {
            true => attention
                .lengths([0, 1, 2].map(|b| b * N_Q as u32), [0, 1, 2].map(|b| b * N_K as u32)),
            false => attention,
        }
    }

    /// Compares a result with attention where row i of sequence b and head h sees key j if `sees(b, h, i, j)`.
    fn check(&self, out: &[f32], sees: impl Fn(usize, usize, usize, usize) -> bool) {
        let (mut hidden, mut shown) = (0, 0);
        for (row, (q, out)) in self.q.chunks(DIM).zip(out.chunks(DIM)).enumerate() {
            let (b, i, h) = (row / HEADS / N_Q, row / HEADS % N_Q, row % HEADS);
            let (mut sum, mut expected) = (0.0, [0.0; DIM]);
            for j in 0..N_K {
                if !sees(b, h, i, j) {
                    hidden += 1;
                    continue;
                }
                shown += 1;
                let at = ((b * N_K + j) * KV_HEADS + h * KV_HEADS / HEADS) * DIM;
                let (k, v) = (&self.k[at..at + DIM], &self.v[at..at + DIM]);
                let score: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                let p = (score / (DIM as f64).sqrt()).exp();
                sum += p;
                for (to, &v) in expected.iter_mut().zip(v) {
                    *to += p * f64::from(v);
                }
            }
            for (&found, numerator) in out.iter().zip(expected) {
                let expected = if sum > 0.0 { numerator / sum } else { 0.0 };
                let error = (f64::from(found) - expected).abs();
                assert!(error < 1e-4, "row {} of head {}: {} is not {}", i, h, found, expected);
            }
        }
        assert!(hidden > 0 && shown > 0);
    }
}

/// What causal alone lets a row see.
fn causal(i: usize, j: usize) -> bool {
    j <= i + N_K - N_Q
}

/// For each head and block of 64 rows, the blocks of 128 keys that it sees.
const SEEN: [[&[i32]; 3]; HEADS] =
    [[&[0], &[0, 1], &[1]], [&[], &[0], &[0, 1]], [&[0, 1], &[], &[1]], [&[1], &[1], &[0]]];

fn blocks(client: &Client) -> BlockMask {
    let (mut offsets, mut columns) = ([0; HEADS * 4], [0; HEADS * 6]);
    for (h, rows) in SEEN.iter().enumerate() {
        let mut n = 0;
        for (r, list) in rows.iter().enumerate() {
            columns[h * 6 + n..][..list.len()].copy_from_slice(list);
            n += list.len();
            offsets[h * 4 + r + 1] = n as i32;
        }
    }
    BlockMask {
        rows: 64,
        keys: 128,
        offsets: table(client, &[1, HEADS, 4], &offsets),
        columns: table(client, &[1, HEADS, 6], &columns),
    }
}

fn blocks_see(h: usize, i: usize, j: usize) -> bool {
    SEEN[h][i / 64].contains(&((j / 128) as i32))
}

/// Words of the mask of bits; the keys from 192 on are hidden.
const WORDS: usize = 6;

/// Random bits for each sequence, which all heads share.
fn bits(client: &Client) -> Arc<Tensor<i32>> {
    let words: Vec<_> = integers(9).take(BATCH * N_Q * WORDS).collect();
    table(client, &[BATCH, 1, N_Q, WORDS], &words)
}

fn bits_see(mask: &[i32], b: usize, i: usize, j: usize) -> bool {
    j / 32 < WORDS && mask[(b * N_Q + i) * WORDS + j / 32] >> (j % 32) & 1 == 1
}

const PATTERNS: [BlockPattern; 2] = [
    BlockPattern { block_tokens: 16, local_blocks: 2, vert_stride: 4, head_step: 1, first_head: 0 },
    BlockPattern {
        block_tokens: 32,
        local_blocks: 1,
        vert_stride: 3,
        head_step: -2,
        first_head: 4,
    },
];

/// What a pattern and causal let row i see.
fn pattern_sees(p: &BlockPattern, h: usize, i: usize, j: usize) -> bool {
    let (position, head) = ((i + N_K - N_Q) as i32, (p.first_head as usize + h) as i32);
    let (tokens, j_block) = (p.block_tokens as i32, (j / p.block_tokens as usize) as i32);
    let step = match p.head_step < 0 {
        true => head / (HEADS / KV_HEADS) as i32 * -p.head_step,
        false => head * p.head_step,
    };
    let is_local = position / tokens - j_block < p.local_blocks as i32;
    causal(i, j) && (is_local || (j_block + step + 1) % p.vert_stride as i32 == 0)
}

#[test]
fn blocks_hide_keys() {
    let (client, inputs) = (private(), Inputs::new(BATCH));
    let mut attention = inputs.attention(&client, false).blocks(blocks(&client));
    client.attention(&mut attention).unwrap();
    inputs.check(&attention.out, |_, h, i, j| blocks_see(h, i, j));
    let done = client.submit(attention.causal()).unwrap().wait().unwrap();
    inputs.check(&done.out, |_, h, i, j| blocks_see(h, i, j) && causal(i, j));
}

#[test]
fn bits_hide_keys() {
    let (client, inputs) = (private(), Inputs::new(BATCH));
    let mask = bits(&client);
    let mut attention = inputs.attention(&client, false).mask(mask.clone());
    client.attention(&mut attention).unwrap();
    inputs.check(&attention.out, |b, _, i, j| bits_see(&mask, b, i, j));
    let window = attention.blocks(blocks(&client)).window(Some(70), Some(5));
    let done = client.submit(window).unwrap().wait().unwrap();
    inputs.check(&done.out, |b, h, i, j| {
        let at = i + N_K - N_Q;
        bits_see(&mask, b, i, j) && blocks_see(h, i, j) && j + 70 >= at && j <= at + 5
    });
    drop(done);
    assert_eq!(Arc::strong_count(&mask), 1);
}

#[test]
fn ragged_batches_have_masks() {
    let (client, inputs) = (private(), Inputs::new(BATCH));
    let mask = bits(&client);
    let mut attention = inputs.attention(&client, true).mask(mask.clone()).blocks(blocks(&client));
    client.attention(&mut attention).unwrap();
    inputs.check(&attention.out, |b, h, i, j| bits_see(&mask, b, i, j) && blocks_see(h, i, j));
}

#[test]
fn patterns_hide_keys() {
    let (client, inputs) = (private(), Inputs::new(BATCH));
    for p in PATTERNS {
        let mut attention = inputs.attention(&client, false).causal().pattern(p);
        client.attention(&mut attention).unwrap();
        inputs.check(&attention.out, |_, h, i, j| pattern_sees(&p, h, i, j));
    }
}

#[test]
fn pages_and_steps_have_patterns() {
    let (client, inputs) = (private(), Inputs::new(1));
    let rows = |numbers: &[f32], heads| {
        filled(&client, &[numbers.len() / DIM / heads, heads, DIM], numbers)
    };
    let cache = client.create_cache(&CacheOptions::new(Dtype::F32, 1, KV_HEADS as u32, DIM as u32));
    let cache = cache.unwrap();
    for p in PATTERNS {
        let pages = |numbers: &[f32]| filled(&client, &[N_K / 8, 8, KV_HEADS, DIM], numbers);
        let order: Vec<_> = (0..N_K as i32 / 8).collect();
        let (order, lengths) =
            (table(&client, &[1, N_K / 8], &order), table(&client, &[1], &[N_K as i32]));
        let (q, out) = (rows(&inputs.q, HEADS), rows(&inputs.q, HEADS));
        let attend = PagesAttend::new(q, pages(&inputs.k), pages(&inputs.v), out, order, lengths);
        let mut attend = attend.causal().pattern(p);
        client.pages_attend(&mut attend).unwrap();
        inputs.check(&attend.out, |_, h, i, j| pattern_sees(&p, h, i, j));

        let sequence = cache.sequence().unwrap();
        let (k_old, k_new) = inputs.k.split_at((N_K - N_Q) * KV_HEADS * DIM);
        let (v_old, v_new) = inputs.v.split_at((N_K - N_Q) * KV_HEADS * DIM);
        let step = cache.step(&[(&sequence, (N_K - N_Q) as u32)]).unwrap();
        let mut append = Attend::new(0).append(rows(k_old, KV_HEADS), rows(v_old, KV_HEADS));
        step.attend(&mut append).unwrap();
        step.commit().unwrap();
        let step = cache.step(&[(&sequence, N_Q as u32)]).unwrap();
        let attend = Attend::new(0)
            .append(rows(k_new, KV_HEADS), rows(v_new, KV_HEADS))
            .query(rows(&inputs.q, HEADS), rows(&inputs.q, HEADS))
            .causal()
            .pattern(p);
        let done = step.submit(attend).unwrap().wait().unwrap();
        step.commit().unwrap();
        inputs.check(done.out.as_ref().unwrap(), |_, h, i, j| pattern_sees(&p, h, i, j));
    }
}

#[test]
fn wrong_masks_come_back() {
    let (client, other, inputs) = (private(), private(), Inputs::new(BATCH));
    let good = blocks(&client);
    let fails = |attention: Attention<f32>, errno, part: &str| {
        let mut attention = attention;
        let error = client.attention(&mut attention).unwrap_err();
        assert_eq!(error.errno(), errno, "{}", error);
        assert!(error.message().contains(part), "{} lacks '{}'", error, part);
    };
    let plain = || inputs.attention(&client, false);
    let sized = |rows, keys| BlockMask { rows, keys, ..good.clone() };
    fails(plain().blocks(sized(0, 0)), errno::EINVAL, "rows and keys of blocks are 0");
    let part = "block_rows is 64 and block_keys 96; expected 64 or 128";
    fails(plain().blocks(sized(64, 96)), errno::ENOTSUP, part);
    fails(plain().blocks(sized(128, 128)), errno::EINVAL, "block_offsets");
    let flat = BlockMask { columns: table(&client, &[2], &[0, 1]), ..good.clone() };
    fails(plain().blocks(flat), errno::EINVAL, "block_columns.rank is 1; expected 3");
    fails(plain().blocks(blocks(&other)), errno::EINVAL, "another client");
    fails(plain().mask(bits(&other)), errno::EINVAL, "another client");
    let mask = table(&client, &[N_Q, 1], &[0; N_Q]);
    fails(plain().mask(mask), errno::EINVAL, "mask.rank is 2; expected 4");
    fails(plain().mask(table(&client, &[1, 1, 1, 7], &[0; 7])), errno::EINVAL, "mask");
    let changed = |change: fn(&mut BlockPattern)| {
        let mut pattern = PATTERNS[0];
        change(&mut pattern);
        plain().pattern(pattern)
    };
    let part = "pattern.block_tokens is 24; expected a multiple of 16";
    fails(changed(|p| p.block_tokens = 24), errno::EINVAL, part);
    let part = "pattern.vert_stride is 0; expected at least 1";
    fails(changed(|p| p.vert_stride = 0), errno::EINVAL, part);
    fails(changed(|p| p.block_tokens = 0), errno::EINVAL, "no effect as block_tokens is 0");
}
