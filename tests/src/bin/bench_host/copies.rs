//! Part `call`, too: what 602 kB of binary data cost a request beyond ONNX Runtime, from the first frame of its body to
//! the last piece of its answer, counted in copies of as many bytes. No socket is between: what the system's own
//! copies cost depends on it alone. The small request that is taken off has everything but the bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::Request;
use futures_util::stream;
use selvedge_host::runtime::Loaded;
use selvedge_host::serve::Serving;
use selvedge_host::serve::front::Front;
use selvedge_host::serve::reserve;
use selvedge_host::serve::served::Served;
use selvedge_tests::clock::now;
use selvedge_tests::report::Report;
use selvedge_tests::spread::quantile;
use serde_json::json;

use super::native::Native;

const MOST: f64 = 2.0;
const ROUNDS: usize = 4_000;
const WARM_UP: usize = 400;
/// As hyper reads a body.
const FRAME: usize = 64 << 10;
const MEMORY_MIB: u32 = 64;

/// One size.
struct Asked {
    body: Bytes,
    json: usize,
    native: Native,
}

impl Asked {
    fn new(shape: &[u64], native: Native) -> Self {
        let size = 4 * shape.iter().product::<u64>() as usize;
        let json = json!({
            "inputs": [{"name": "x", "datatype": "FP32", "shape": shape,
                        "parameters": {"binary_data_size": size}}],
            "parameters": {"binary_data_output": true},
        });
        let mut body = json.to_string().into_bytes();
        let json = body.len();
        body.resize(json + size, 0);
        Self { body: body.into(), json, native }
    }

    /// Microseconds from its first frame to the last piece of its answer.
    async fn ask(&self, front: &Front) -> anyhow::Result<f64> {
        let frames: Vec<Result<Bytes, std::io::Error>> = (0..self.body.len())
            .step_by(FRAME)
            .map(|at| Ok(self.body.slice(at..self.body.len().min(at + FRAME))))
            .collect();
        let request = Request::post("/v2/models/model/infer")
            .header("content-length", self.body.len())
            .header("inference-header-content-length", self.json)
            .body(Body::from_stream(stream::iter(frames)))?;
        let start = now();
        let response = front.answer(request).await;
        let status = response.status();
        let (mut body, mut length) = (response.into_body(), 0);
        while let Some(frame) =
            std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
        {
            length += frame?.into_data().map_or(0, |piece| piece.len());
        }
        let took = now() - start;
        anyhow::ensure!(status == 200 && length > self.body.len() - self.json, "{status}, {length} bytes");
        Ok(took.as_secs_f64() * 1e6)
    }
}

/// Measures with a package whose model gives back what it gets.
pub fn measure(
    report: &mut Report,
    loaded: Arc<Loaded>,
    natives: [(&[u64], Native); 2],
) -> anyhow::Result<()> {
    let (executor, _reserve) = reserve::threads()?;
    let [mut small, mut large] = natives.map(|(shape, native)| Asked::new(shape, native));
    let serving = Serving::new(MEMORY_MIB);
    let served = Served::new(loaded, BTreeMap::new(), 0);
    serving.table.stage(Arc::clone(&served));
    serving.table.activate(&served.reference()).context("the package is not there")?;
    serving.announce();
    let front = Front::new(serving);
    // On a thread that serves, as requests are.
    let measured = executor.spawn(async move {
        let mut times: [Vec<f64>; 5] = Default::default();
        let (from, mut to) = (large.body.clone(), vec![0_u8; large.body.len() - large.json]);
        for turn in 0..WARM_UP + ROUNDS {
            let start = now();
            to.copy_from_slice(std::hint::black_box(&from[large.json..]));
            std::hint::black_box(&mut to);
            let copy = (now() - start).as_secs_f64() * 1e6;
            let all = [
                copy,
                small.ask(&front).await?,
                small.native.run()?,
                large.ask(&front).await?,
                large.native.run()?,
            ];
            if turn >= WARM_UP {
                times.iter_mut().zip(all).for_each(|(times, time)| times.push(time));
            }
        }
        anyhow::Ok(times.map(|mut times| quantile(&mut times, 0.5)))
    });
    let [copy, small, small_run, large, large_run] = executor.block_on(measured)??;
    let copies = ((large - large_run) - (small - small_run)) / copy;
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "binary request", "1 copy", "64 B", "its run", "602 kB", "its run", "copies"
    );
    println!(
        "{:<22} {copy:>9.2} {small:>9.2} {small_run:>9.2} {large:>9.2} {large_run:>9.2} {copies:>9.2}",
        "frames to pieces"
    );
    for (name, value) in [
        ("copy_us", copy),
        ("binary_small_us", small),
        ("binary_large_us", large),
        ("binary_large_run_us", large_run),
    ] {
        report.figure(name, value);
    }
    report.at_most("a binary tensor of 602 kB beyond ONNX Runtime, in copies of it", copies, MOST);
    Ok(())
}
