//! `peer-wasi-nn LIBRARY DIRECTORY GUEST COUNT`: what a call costs through wasmtime's own wasi-nn.
//!
//! `DIRECTORY/model.onnx` takes `x` and gives `y`, float32 of any shape of four dimensions. GUEST is a component
//! that exports `infer` and asks wasi-nn for the model `DIRECTORY`'s name. For each of two sizes, COUNT pairs in
//! turns: `Session::run` with what was made beforehand, and a call of `infer`. One line for each size:
//! elements, and the medians in microseconds of the run, of the call, and of the differences in the pairs.

use std::path::Path;
use std::time::Instant;

use anyhow::{anyhow, ensure};
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::TensorRef;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Config, Engine, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_nn::backend::onnx::OnnxBackend;
use wasmtime_wasi_nn::wit::{WasiNnCtx, WasiNnView};
use wasmtime_wasi_nn::{Backend, InMemoryRegistry};

wasmtime::component::bindgen!({
    inline: "package selvedge:peer;
        world peer { export infer: func(shape: list<u32>, data: list<u8>) -> result<list<u8>, string>; }",
    exports: { default: async },
});

const SHAPES: [[u32; 4]; 2] = [[1, 1, 1, 16], [1, 3, 224, 224]];
const WARM_UP: usize = 200;

struct State {
    table: ResourceTable,
    wasi: WasiCtx,
    nn: WasiNnCtx,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [library, directory, guest, count] = &words[..] else {
        return Err(anyhow!("usage: peer-wasi-nn LIBRARY DIRECTORY GUEST COUNT"));
    };
    ort::init_from(library).commit().map_err(|error| anyhow!("{error}"))?;
    futures(async { measure(Path::new(directory), guest, count.parse()?).await })
}

/// Nothing here waits for anything but the guest: any executor does.
fn futures<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

async fn measure(directory: &Path, guest: &str, count: usize) -> anyhow::Result<()> {
    let mut backend = OnnxBackend::default();
    let mut registry = InMemoryRegistry::new();
    registry.load(&mut backend, directory)?;
    let engine = Engine::new(&Config::new())?;
    let component = Component::from_file(&engine, guest)?;
    let mut linker = Linker::<State>::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_nn::wit::add_to_linker(&mut linker, |state: &mut State| {
        WasiNnView::new(&mut state.table, &mut state.nn)
    })?;
    let nn = WasiNnCtx::new([Backend::from(backend)], registry.into());
    let state = State { table: ResourceTable::new(), wasi: WasiCtx::builder().build(), nn };
    let mut store = Store::new(&engine, state);
    let peer = Peer::instantiate_async(&mut store, &component, &linker).await?;
    let mut session = native(&directory.join("model.onnx")).map_err(|error| anyhow!("{error}"))?;
    for shape in SHAPES {
        let elements = shape.iter().product::<u32>() as usize;
        let numbers: Vec<f32> = (0..elements).map(|index| index as f32).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let extents = shape.map(i64::from);
        let (mut runs, mut calls, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..WARM_UP + count {
            let value = TensorRef::from_array_view((&extents[..], &numbers[..]))?;
            let start = Instant::now();
            let outputs = session.run(ort::inputs!["x" => value])?;
            let length = outputs["y"].try_extract_tensor::<f32>()?.1.len();
            drop(outputs);
            let run = start.elapsed();
            let start = Instant::now();
            let answer = peer.call_infer(&mut store, &shape, &bytes).await?;
            let call = start.elapsed();
            let answer = answer.map_err(|error| anyhow!("the guest failed: {error}"))?;
            ensure!(length == elements && (turn > 0 || answer == bytes), "a wrong answer");
            if turn >= WARM_UP {
                let micros = [run, call].map(|time| time.as_secs_f64() * 1e6);
                runs.push(micros[0]);
                calls.push(micros[1]);
                added.push(micros[1] - micros[0]);
            }
        }
        let [run, call, added] = [runs, calls, added].map(median);
        println!("{elements} {run} {call} {added}");
    }
    Ok(())
}

/// One thread, without spinning, as the host has it. (wasi-nn sets neither; an `Identity` needs no other thread.)
fn native(model: &Path) -> ort::Result<Session> {
    Session::builder()?
        .with_optimization_level(GraphOptimizationLevel::Level3)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .commit_from_file(model)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
