//! What a package leaves behind when it is unloaded: nothing that adds up.

use std::time::Duration;

use selvedge_tests::onnx_writer::{self, Element, Extent};
use serde_json::json;

use crate::host::{Host, LONG, Package, Spec, Written, tensor};

/// Rows and columns of [`heavy`]'s weights, 8 MiB.
const WEIGHTS: (usize, usize) = (2048, 1024);

/// `y = x · w` with weights that are large beside everything else of a package.
fn heavy(release: u64) -> Written {
    let (rows, columns) = WEIGHTS;
    let weights: Vec<u8> = (0..rows * columns).flat_map(|_| 1_f32.to_le_bytes()).collect();
    let weights = onnx_writer::initializer("w", Element::Float, &[rows as i64, columns as i64], &weights);
    let x = onnx_writer::value("x", Element::Float, &[Extent::Fixed(1), Extent::Fixed(rows as i64)]);
    let y = onnx_writer::value("y", Element::Float, &[Extent::Fixed(1), Extent::Fixed(columns as i64)]);
    let product = onnx_writer::node("MatMul", &["x", "w"], &["y"]);
    let model = onnx_writer::model(onnx_writer::graph([product], [weights], [x], [y]));
    let of = |name, length: usize, value: f32| {
        tensor((name, "FP32"), &[1, length as u64], json!(vec![value; length]))
    };
    let case = json!({"name": "ones",
        "inputs": [of("x", rows, 1.0)], "outputs": [of("y", columns, rows as f32)]});
    let specs: [[Spec; 1]; 2] = [[("x", "FP32", &[1, 2048])], [("y", "FP32", &[1, 1024])]];
    Package::new("heavy", release, model, (&specs[0], &specs[1]), case).write()
}

/// KiB of memory that belongs to the host alone and is no file.
fn anonymous(host: &Host) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_and_unloading_again_and_again_keeps_nothing() {
    let host = Host::start().await;
    let package = heavy(1);
    let cycle = async || {
        host.put(&package).await;
        let loaded = anonymous(&host);
        let status = host.control.unload(&package.package, LONG).await.unwrap();
        assert!(status.packages.is_empty());
        (loaded, anonymous(&host))
    };
    // The first ones fill caches that stay: the built-in module, ONNX Runtime's registries, threads.
    for _ in 0..3 {
        cycle().await;
    }
    let (loaded, before) = cycle().await;
    assert!(loaded > before + 7 * 1024, "weights of 8 MiB can be seen: {loaded} KiB, then {before} KiB");
    let mut after = Vec::new();
    for _ in 0..20 {
        after.push(cycle().await.1);
    }
    let last = after[after.len() - 1];
    assert!(last < before + 3 * 1024, "{before} KiB, then {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_release_returns_its_memory_after_each_swap() {
    let host = Host::start().await;
    let first = heavy(1);
    host.put(&first).await;
    host.control.unload(&first.package, LONG).await.unwrap();
    let host_alone = anonymous(&host);
    host.put(&first).await;
    let swap = async |release| {
        host.put(&heavy(release)).await;
        // Two such packages do not fit in: the old one is gone, and its memory too.
        let most = host_alone + 12 * 1024;
        let give_up = selvedge_tests::clock::now() + LONG;
        loop {
            let now = anonymous(&host);
            if now < most && host.status().await.packages.len() == 1 {
                break;
            }
            assert!(selvedge_tests::clock::now() < give_up, "{now} KiB and not below {most} KiB");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    for release in 2..16 {
        swap(release).await;
    }
}
