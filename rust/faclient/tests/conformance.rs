//! The cases of tests/conformance/cases.json, which clients in all languages run.

mod common;

use common::json::Json;
use faclient::*;
use std::cell::Cell;
use std::collections::HashMap;

fn element(seed: u64, index: u64) -> f32 {
    let mut z = ((seed << 32) + index + 1).wrapping_mul(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    (((z ^ (z >> 31)) >> 56) as f32 - 128.0) / 128.0
}

/// A case that runs, with tensors of T.
struct Run<'a, T> {
    case: &'a Json,
    clients: &'a [Client; 2],
    tolerance: f64,
    wrong: Cell<usize>,
    cache: Option<Cache>,
    sequences: HashMap<&'a str, Sequence>,
    /// A step is over when it is taken.
    steps: HashMap<&'a str, Option<Step>>,
    pages: HashMap<&'a str, Own<T>>,
}

/// Pages that the program manages, a tensor a layer.
struct Own<T> {
    k: Vec<Tensor<T>>,
    v: Vec<Tensor<T>>,
    heads_first: bool,
}

/// An option of a request that sets it only if the operation has it.
macro_rules! with_options {
    ($request:ident, $operation:ident) => {
        if $operation["causal"].is_true() {
            $request = $request.causal();
        }
        if $operation.has("window") {
            let side = |n: &Json| (n.number() >= 0.0).then(|| n.int() as usize);
            let sides = $operation["window"].list();
            $request = $request.window(side(&sides[0]), side(&sides[1]));
        }
        if $operation.has("scale") {
            $request = $request.scale($operation["scale"].number() as f32);
        }
        if $operation.has("softcap") {
            $request = $request.softcap($operation["softcap"].number() as f32);
        }
        if $operation.has("alibi_slopes") {
            $request = $request.alibi_slopes(floats(&$operation["alibi_slopes"]));
        }
        if $operation.has("sinks") {
            $request = $request.sinks(floats(&$operation["sinks"]));
        }
        if $operation.has("chunk_tokens") {
            $request = $request.chunk_tokens($operation["chunk_tokens"].int());
        }
        if $operation.has("pattern") {
            let n: Vec<_> = signed($operation["pattern"].list()).collect();
            $request = $request.pattern(BlockPattern {
                block_tokens: n[0] as u32,
                local_blocks: n[1] as u32,
                vert_stride: n[2] as u32,
                head_step: n[3] as i32,
                first_head: n[4] as u32,
            });
        }
    };
}

fn signed(list: &[Json]) -> impl Iterator<Item = i64> + '_ {
    list.iter().map(|n| n.number() as i64)
}

/// A tensor of integers, with its shape and values.
fn shaped(memory: &mut Buffer, numbers: &Json) -> Result<Tensor<i32>> {
    let mut tensor = memory.tensor::<i32>(&numbers["shape"].ints::<usize>())?;
    tensor.iter_mut().zip(signed(numbers["values"].list())).for_each(|(to, n)| *to = n as i32);
    Ok(tensor)
}

fn floats(list: &Json) -> Vec<f32> {
    list.list().iter().map(|n| n.number() as f32).collect()
}

impl<'a, T: Element> Run<'a, T> {
    fn random(&self, memory: &mut Buffer, random: &Json) -> Result<Tensor<T>> {
        let mut tensor = memory.tensor(&random["shape"].ints::<usize>())?;
        let seed = random["seed"].int();
        tensor.fill_from((0..).map(|i| element(seed, i)));
        Ok(tensor)
    }

    fn compare<U: Element>(&self, found: &Tensor<U>, expected: &Json) {
        assert_eq!(found.len(), expected.list().len());
        for (i, (found, expected)) in found.iter().zip(expected.list()).enumerate() {
            let found = f64::from(found.to_f32());
            let expected = match expected {
                Json::Null => f64::NEG_INFINITY,
                n => n.number(),
            };
            let same = found == expected || (found - expected).abs() <= self.tolerance;
            if !same {
                if self.wrong.get() == 0 && !self.case["wrong"].is_true() {
                    println!("number {i} is {found}; expected {expected}");
                }
                self.wrong.set(self.wrong.get() + 1);
            }
        }
    }

    fn attention(&self, client: &Client, operation: &Json) -> Result<()> {
        let mut memory = client.buffer(1 << 20)?;
        let [q, k, v] = ["q", "k", "v"].map(|key| self.random(&mut memory, &operation[key]));
        let out = memory.tensor(&operation["out_shape"].ints::<usize>())?;
        let mut attention = Attention::new(q?, k?, v?, out);
        with_options!(attention, operation);
        if operation.has("prefix_lengths") {
            attention = attention.prefix_lengths(operation["prefix_lengths"].ints::<u32>());
        }
        if operation.has("mask") {
            attention = attention.mask(shaped(&mut memory, &operation["mask"])?);
        }
        if operation.has("block_rows") {
            attention = attention.blocks(BlockMask {
                rows: operation["block_rows"].int() as u32,
                keys: operation["block_keys"].int() as u32,
                offsets: shaped(&mut memory, &operation["block_offsets"])?.into(),
                columns: shaped(&mut memory, &operation["block_columns"])?.into(),
            });
        }
        if operation.has("lse") {
            attention = attention.lse(memory.tensor(&operation["lse_shape"].ints::<usize>())?);
        }
        if operation.has("cu_seqlens_q") {
            attention = attention.lengths(
                operation["cu_seqlens_q"].ints::<u32>(),
                operation["cu_seqlens_k"].ints::<u32>(),
            );
        }
        let attention = client.submit(attention)?.wait()?;
        self.compare(&attention.out, &operation["out"]);
        if let Some(lse) = &attention.lse {
            self.compare(lse, &operation["lse"]);
        }
        Ok(())
    }

    fn attend(&self, client: &Client, operation: &Json) -> Result<()> {
        let mut memory = client.buffer(1 << 20)?;
        let mut attend = Attend::new(operation["layer"].int() as u32);
        with_options!(attend, operation);
        if operation.has("prefix_lengths") {
            attend = attend.prefix_lengths(operation["prefix_lengths"].ints::<u32>());
        }
        if operation.has("k_new") {
            let k = self.random(&mut memory, &operation["k_new"])?;
            attend = attend.append(k, self.random(&mut memory, &operation["v_new"])?);
        }
        if operation.has("q") {
            let out = memory.tensor(&operation["out_shape"].ints::<usize>())?;
            attend = attend.query(self.random(&mut memory, &operation["q"])?, out);
        }
        let step = self.steps[operation["step"].text()].as_ref().expect("the step goes on");
        step.attend(&mut attend)?;
        if let Some(out) = &attend.out {
            self.compare(out, &operation["out"]);
        }
        Ok(())
    }

    fn create_pages(&mut self, client: &Client, operation: &'a Json) -> Result<()> {
        let mut memory = client.buffer(1 << 16)?;
        let mut side = |key: &str| -> Result<Vec<_>> {
            operation[key].list().iter().map(|x| self.random(&mut memory, x)).collect()
        };
        let (k, v) = (side("k")?, side("v")?);
        let heads_first = operation["heads_first"].is_true();
        self.pages.insert(operation["pages"].text(), Own { k, v, heads_first });
        Ok(())
    }

    fn pages_attend(&mut self, client: &Client, operation: &Json) -> Result<()> {
        let mut memory = client.buffer(1 << 20)?;
        let layer = operation["layer"].int() as usize;
        let (rank, columns) = match &operation["table"].list()[0] {
            Json::List(row) => (2, row.len()),
            _ => (1, 0),
        };
        let mut shape = vec![operation["table"].list().len(), columns];
        shape.truncate(rank);
        let mut table = memory.tensor::<i32>(&shape)?;
        let rows = operation["table"].list().iter();
        let numbers: Vec<_> = rows.flat_map(|row| signed(row.list())).collect();
        table.iter_mut().zip(numbers).for_each(|(to, n)| *to = n as i32);
        let keys = ["lengths", "cu_q", "prefix_lengths"];
        let [lengths, cu_q, prefixes] = keys.map(|key| -> Result<Tensor<i32>> {
            let list = if operation.has(key) { operation[key].list() } else { &[] };
            let mut tensor = memory.tensor::<i32>(&[list.len()])?;
            tensor.iter_mut().zip(signed(list)).for_each(|(to, n)| *to = n as i32);
            Ok(tensor)
        });
        let q = self.random(&mut memory, &operation["q"])?;
        let out = memory.tensor(&operation["out_shape"].ints::<usize>())?;
        let new = if operation.has("slots") {
            let list = operation["slots"].list();
            let mut slots = memory.tensor::<i64>(&[list.len()])?;
            slots.iter_mut().zip(signed(list)).for_each(|(to, n)| *to = n);
            let [k, v] = ["k_new", "v_new"].map(|key| self.random(&mut memory, &operation[key]));
            Some(NewRows { k: k?, v: v?, slots: slots.into() })
        } else {
            None
        };
        let own = self.pages.get_mut(operation["pages"].text()).expect("there are such pages");
        let (k, v) = (own.k.remove(layer), own.v.remove(layer));
        let mut attend =
            PagesAttend::new(q, k, v, out, table, lengths?).max_k(operation["max_k"].int() as u32);
        with_options!(attend, operation);
        if own.heads_first {
            attend = attend.heads_first();
        }
        if operation.has("prefix_lengths") {
            attend = attend.prefix_lengths(prefixes?);
        }
        if operation.has("cu_q") {
            attend = attend.rows(cu_q?, operation["max_q"].int() as u32);
        }
        if operation.has("lse") {
            attend = attend.lse(memory.tensor(&operation["lse_shape"].ints::<usize>())?);
        }
        *attend.new_rows() = new;
        let sent = client.submit_pages(attend);
        let (attend, result) = match sent {
            Ok(request) => match request.wait() {
                Ok(attend) => (attend, Ok(())),
                Err(failed) => (failed.request, Err(failed.error)),
            },
            Err(failed) => (failed.request, Err(failed.error)),
        };
        own.k.insert(layer, attend.k);
        own.v.insert(layer, attend.v);
        result?;
        self.compare(&attend.out, &operation["out"]);
        if let Some(lse) = &attend.lse {
            self.compare(lse, &operation["lse"]);
        }
        Ok(())
    }

    fn copy_pages(&mut self, operation: &Json) -> Result<()> {
        let own = self.pages.get_mut(operation["pages"].text()).expect("there are such pages");
        let numbers = operation["numbers"].ints::<u32>();
        let mut range = PagesRange::new(operation["tokens"].int(), &numbers);
        range.first = operation["first"].int();
        range.page_offset = operation["page_offset"].int() as u32;
        let sequence = &self.sequences[operation["sequence"].text()];
        if operation["op"].text() == "write_pages" {
            let step = self.steps[operation["step"].text()].as_ref().expect("the step goes on");
            return step.write_pages(sequence, range, &own.k, &own.v);
        }
        sequence.read_pages(range, &mut own.k, &mut own.v)?;
        let own = &self.pages[operation["pages"].text()];
        for (side, key) in [(&own.k, "k"), (&own.v, "v")] {
            for (layer, expected) in side.iter().zip(operation[key].list()) {
                self.compare(layer, expected);
            }
        }
        Ok(())
    }

    fn create_cache(client: &Client, dtype: &str, shape: &Json) -> Result<Cache> {
        let dtype = match dtype {
            "f32" => Dtype::F32,
            "f16" => Dtype::F16,
            _ => Dtype::Bf16,
        };
        let n = |key: &str| shape[key].int() as u32;
        let mut options = CacheOptions::new(dtype, n("layers"), n("kv_heads"), n("head_dim"))
            .head_dim_v(n("head_dim_v"))
            .page_tokens(n("page_tokens"));
        if shape.has("name") {
            options = options.name(shape["name"].text());
        }
        client.create_cache(&options)
    }

    /// The case's cache, as this client finds it.
    fn cache(&self, client: &Client) -> Result<Cache> {
        let shape = &self.case["cache"];
        match shape.has("name") {
            true => client.find_cache(shape["name"].text()),
            false => Ok(self.cache.clone().expect("the case has a cache")),
        }
    }

    fn operate(&mut self, operation: &'a Json) -> Result<()> {
        let at = if operation.has("client") { operation["client"].int() as usize } else { 0 };
        let client = &self.clients[at];
        let key = || operation["sequence"].text();
        let tokens = || operation["tokens"].ints::<u32>();
        let expect = || operation["expect"].int();
        match operation["op"].text() {
            "attention" => self.attention(client, operation)?,
            "pages" => self.create_pages(client, operation)?,
            "pages_attend" => self.pages_attend(client, operation)?,
            "read_pages" | "write_pages" => self.copy_pages(operation)?,
            "cache" => {
                let own = operation.has("cache");
                let shape = if own { &operation["cache"] } else { &self.case["cache"] };
                Self::create_cache(client, self.case["dtype"].text(), shape)?;
            }
            "create" => {
                let sequence = self.cache(client)?.sequence()?;
                self.sequences.insert(key(), sequence);
            }
            "begin" => {
                let items = operation["items"].list().iter();
                let items: Vec<_> = items
                    .map(|item| {
                        let item = item.list();
                        Item::new(&self.sequences[item[0].text()], item[1].int() as u32)
                    })
                    .collect();
                let step = client.step(&items)?;
                self.steps.insert(operation["step"].text(), Some(step));
            }
            "attend" => self.attend(client, operation)?,
            "commit" => self.take_step(operation).commit()?,
            "abort" => self.take_step(operation).abort()?,
            "length" => {
                let info = self.sequences[key()].info()?;
                assert_eq!((info.length, info.first), (expect(), operation["first"].int()));
            }
            "fork" => {
                let sequence = &self.sequences[key()];
                let fork = match operation.has("tokens") {
                    true => sequence.fork_at(operation["tokens"].int())?,
                    false => sequence.fork()?,
                };
                self.sequences.insert(operation["to"].text(), fork);
            }
            "truncate" => self.sequences[key()].truncate(operation["tokens"].int())?,
            "drop" => {
                let first = self.sequences[key()].drop_before(operation["before"].int())?;
                assert_eq!(first, expect());
            }
            "remove" => self.sequences.remove(key()).unwrap().remove()?,
            "name" => {
                let sequence = self.sequences.get_mut(key()).unwrap();
                sequence.set_name(operation["name"].text(), Mode::OWN, None)?;
            }
            "sequence" => {
                let sequence = client.find_sequence(operation["name"].text())?;
                self.sequences.insert(key(), sequence);
            }
            "publish" => {
                assert_eq!(self.sequences[key()].publish(&Prefix::new(&tokens()))?, expect());
            }
            "attach" => {
                assert_eq!(self.sequences[key()].attach(&Prefix::new(&tokens()))?, expect());
            }
            "find" => {
                assert_eq!(self.cache(client)?.find(&Prefix::new(&tokens()))?, expect());
            }
            op => panic!("unknown operation {op}"),
        }
        Ok(())
    }

    fn take_step(&mut self, operation: &Json) -> Step {
        let step = self.steps.get_mut(operation["step"].text()).expect("the step was begun");
        step.take().expect("it has not ended")
    }
}

fn run<T: Element>(file: &Json, case: &Json, clients: &[Client; 2]) {
    println!("{}", case["name"].text());
    let mut run = Run::<T> {
        case,
        clients,
        tolerance: file["tolerance"][case["dtype"].text()].number(),
        wrong: Cell::new(0),
        cache: None,
        sequences: HashMap::new(),
        steps: HashMap::new(),
        pages: HashMap::new(),
    };
    if case.has("cache") {
        let made = Run::<T>::create_cache(&clients[0], case["dtype"].text(), &case["cache"]);
        run.cache = Some(made.unwrap());
    }
    for operation in case["operations"].list() {
        let result = run.operate(operation);
        match (result, operation.has("error")) {
            (Ok(()), false) => {}
            (Ok(()), true) => panic!("{operation:?} succeeds"),
            (Err(error), true) => {
                let expected = file["errno"][operation["error"].text()].int();
                assert_eq!(error.errno() as u64, expected, "{operation:?}: {error}");
                assert!(error.message().contains(' '), "{operation:?} fails without a sentence");
            }
            (Err(error), false) => panic!("{operation:?}: {error}"),
        }
    }
    assert_eq!(run.wrong.get() > 0, case["wrong"].is_true());
    let named = case.has("cache") && case["cache"].has("name");
    drop(run.steps);
    drop(run.sequences);
    if named {
        run.cache.unwrap().remove().unwrap();
    }
}

#[test]
fn all_cases() {
    let path = std::env::var_os("FACLIENT_CONFORMANCE").unwrap_or_else(|| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance/cases.json").into()
    });
    let file = Json::parse(&std::fs::read_to_string(path).unwrap());
    assert_eq!(file["version"].int(), 1);
    let first = common::private();
    let second = Options::new().socket(first.socket_path()).connect().unwrap();
    let clients = [first, second];
    let cases = file["cases"].list();
    assert!(cases.len() >= 50);
    for case in cases {
        match case["dtype"].text() {
            "f32" => run::<f32>(&file, case, &clients),
            "f16" => run::<F16>(&file, case, &clients),
            "bf16" => run::<Bf16>(&file, case, &clients),
            dtype => panic!("unknown dtype {dtype}"),
        }
    }
}
