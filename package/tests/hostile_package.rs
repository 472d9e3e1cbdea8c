//! Packages that are not what they say: changed bytes, manifests that break rules, files that are
//! missing, extra, twice, or outside. None becomes a `Bundle`, and nothing panics.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use selvedge_package::bundle::{Builder, Built, Bundle, BundleError};
use selvedge_package::chunks::{CHUNK, ChunkIndex, ChunkIndexer, Indexed};
use selvedge_package::digest::Digest;
use selvedge_package::draft::Draft;
use selvedge_package::manifest::Manifest;
use selvedge_package::oci;
use serde_json::{Value, json};

fn manifest() -> Manifest {
    let text = r#"
        name = "file-type"
        version = "1.0.0"
        release = 1
        files = ["labels.txt", "cases/a.bin"]
        [module]
        component = "module.wasm"
        [[models]]
        name = "magika"
        file = "model.onnx"
        external-data = ["model.onnx.data"]
        [[inputs]]
        name = "bytes"
        datatype = "BYTES"
        shape = [1]
        [[outputs]]
        name = "label"
        datatype = "BYTES"
        shape = [1]
        [acceptance]
        cases = ["cases/a.json"]
    "#;
    Draft::from_toml(text).unwrap().finish().unwrap()
}

fn contents() -> BTreeMap<&'static str, Vec<u8>> {
    let large: Vec<u8> = (0..200_000u32).map(|n| (n % 253) as u8).collect();
    BTreeMap::from([
        ("model.onnx", vec![8; 1000]),
        ("model.onnx.data", large),
        ("module.wasm", vec![7; 65536]),
        ("cases/a.json", b"{}".to_vec()),
        ("cases/a.bin", Vec::new()),
        ("labels.txt", b"pdf\n".to_vec()),
    ])
}

fn build(manifest: Manifest, contents: &BTreeMap<&'static str, Vec<u8>>) -> Result<Built, BundleError> {
    let mut builder = Builder::new(manifest);
    for (path, bytes) in contents {
        builder.bytes(path.parse().unwrap(), bytes)?;
    }
    builder.build()
}

fn good() -> &'static Built {
    static GOOD: LazyLock<Built> = LazyLock::new(|| build(manifest(), &contents()).unwrap());
    &GOOD
}

fn config(built: &Built) -> Vec<u8> {
    built.blobs[0].1.clone()
}

/// Parses after `change` to the OCI manifest and the config, whose descriptor is made to fit.
fn changed(change: impl FnOnce(&mut Value, &mut Value)) -> Result<Bundle, BundleError> {
    let built = good();
    let mut oci: Value = serde_json::from_slice(&built.manifest).unwrap();
    let mut manifest: Value = serde_json::from_slice(&config(built)).unwrap();
    change(&mut oci, &mut manifest);
    let config = serde_json::to_vec(&manifest).unwrap();
    oci["config"]["digest"] = json!(Digest::of(&config).to_string());
    oci["config"]["size"] = json!(config.len());
    Bundle::parse(&serde_json::to_vec(&oci).unwrap(), &config)
}

fn words(error: &BundleError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn check(expected: &str, change: impl FnOnce(&mut Value, &mut Value)) {
    let text = words(&changed(change).unwrap_err());
    assert!(text.contains(expected), "{text:?} lacks {expected:?}");
}

fn check_manifest(expected: &str, change: impl FnOnce(&mut Value)) {
    check(expected, |_, manifest| change(manifest));
}

#[test]
fn a_good_package_reads_back() {
    let built = good();
    let bundle = Bundle::parse(&built.manifest, &config(built)).unwrap();
    assert_eq!(bundle, built.bundle);
    assert_eq!(bundle.digest(), Digest::of(&built.manifest));
    let contents = contents();
    assert_eq!(bundle.files().count(), contents.len());
    for file in bundle.files() {
        let bytes = &contents[file.path.as_str()];
        assert_eq!((file.digest, file.size), (Digest::of(bytes), bytes.len() as u64));
        assert_eq!(bundle.index_of(&file.digest).is_some(), file.size > CHUNK, "{}", file.path);
    }
    // The config first, and an index before what it covers.
    let order: Vec<Digest> = bundle.blobs().iter().map(|layer| layer.digest).collect();
    assert_eq!(order[0], bundle.oci().config.digest);
    let place = |digest: Digest| order.iter().position(|d| *d == digest).unwrap();
    let data = Digest::of(&contents["model.onnx.data"]);
    assert!(place(bundle.index_of(&data).unwrap().digest) < place(data));
    assert_eq!(order.len(), 1 + 6 + 1);
    // Built twice, the bytes are the same.
    assert_eq!(build(manifest(), &contents).unwrap().manifest, built.manifest);
}

#[test]
fn equal_files_are_one_blob() {
    let mut contents = contents();
    let large = contents["model.onnx.data"].clone();
    contents.insert("labels.txt", large);
    let built = build(manifest(), &contents).unwrap();
    assert_eq!(built.bundle.blobs().len(), 1 + 5 + 1);
}

#[test]
fn sizes_beyond_their_limits_are_refused_before_reading() {
    let built = good();
    let padded = |bytes: &[u8]| [bytes, &vec![b' '; 65537 - bytes.len()]].concat();
    for (manifest, config) in
        [(padded(&built.manifest), config(built)), (built.manifest.clone(), padded(&config(built)))]
    {
        let error = Bundle::parse(&manifest, &config).unwrap_err();
        assert!(matches!(error, BundleError::TooLarge { found: 65537, .. }), "{error}");
    }
    check("at most 2147483648", |oci, _| oci["layers"][0]["size"] = json!((2u64 << 30) + 1));
    check("at most", |oci, _| oci["layers"][0]["size"] = json!(u64::MAX));
    check("not what this program reads", |oci, _| oci["layers"][0]["size"] = json!(-1));
    check("not what this program reads", |oci, _| oci["layers"][0]["size"] = json!(1e3));
    for bytes in [&b""[..], b"null", b"{}", b"[[[[", &[0xff; 100], "[".repeat(60_000).as_bytes()] {
        assert!(Bundle::parse(bytes, &config(built)).is_err());
        assert!(Bundle::parse(&built.manifest, bytes).is_err());
    }
}

#[test]
fn unknown_and_repeated_fields_are_refused() {
    check("unknown field `evil`", |oci, _| oci["evil"] = json!(1));
    check("unknown field `evil`", |oci, _| oci["layers"][0]["evil"] = json!(1));
    check("unknown field `urls`", |oci, _| oci["config"]["urls"] = json!(["http://x"]));
    for place in ["", "/module", "/models/0", "/acceptance", "/activation", "/requires", "/inputs/0"] {
        check_manifest("unknown field `evil`", |m| m.pointer_mut(place).unwrap()["evil"] = json!(1));
    }
    let built = good();
    let text = String::from_utf8(config(built)).unwrap();
    let twice = text.replacen("\"release\":1", "\"release\":1,\"release\":2", 1);
    let mut oci: Value = serde_json::from_slice(&built.manifest).unwrap();
    oci["config"]["digest"] = json!(Digest::of(twice.as_bytes()).to_string());
    oci["config"]["size"] = json!(twice.len());
    let error = Bundle::parse(oci.to_string().as_bytes(), twice.as_bytes()).unwrap_err();
    assert!(words(&error).contains("duplicate field `release`"), "{}", words(&error));
}

#[test]
fn the_outer_shape_is_fixed() {
    check("`schemaVersion` is `1`", |oci, _| oci["schemaVersion"] = json!(1));
    check("`mediaType`", |oci, _| oci["mediaType"] = json!("application/json"));
    check("`artifactType`", |oci, _| oci["artifactType"] = json!("x"));
    check("`config.mediaType`", |oci, _| oci["config"]["mediaType"] = json!("x"));
    check("no layer has: `evil`", |oci, _| oci["layers"][0]["annotations"]["evil"] = json!("x"));
    check("has media type", |oci, _| {
        for layer in oci["layers"].as_array_mut().unwrap() {
            if layer["mediaType"] == oci::COMPONENT {
                layer["mediaType"] = json!(oci::FILE);
            }
        }
    });
}

#[test]
fn paths_that_escape_are_refused() {
    for path in ["../../etc/passwd", "/etc/passwd", "a/../../b", "a\\b", ".ssh/id", "a//b", ""] {
        check("path of a file", |oci, _| oci["layers"][0]["annotations"][oci::TITLE] = json!(path));
        check_manifest("path of a file", |m| m["models"][0]["file"] = json!(path));
        check_manifest("path of a file", |m| m["module"]["component"] = json!(path));
        check_manifest("path of a file", |m| m["acceptance"]["cases"] = json!([path]));
    }
    check("no usable path", |oci, _| oci["layers"][0]["annotations"] = json!({}));
    check_manifest("a name that Selvedge keeps", |m| m["files"] = json!(["package.json"]));
    check_manifest("a name that Selvedge keeps", |m| m["files"] = json!(["manifest.json"]));
    check_manifest("both a file and the folder", |m| m["files"] = json!(["labels.txt", "labels.txt/a"]));
}

#[test]
fn duplicates_are_refused() {
    check("two layers have the path", |oci, _| {
        let layer = oci["layers"][0].clone();
        oci["layers"].as_array_mut().unwrap().push(layer);
    });
    let twice = |m: &mut Value, list: &str| {
        let first = m[list][0].clone();
        m[list].as_array_mut().unwrap().push(first);
    };
    check_manifest("`inputs` has `bytes` twice", |m| twice(m, "inputs"));
    check_manifest("`outputs` has `label` twice", |m| twice(m, "outputs"));
    check_manifest("is named twice", |m| twice(m, "files"));
    check_manifest("`models.name` has `magika` twice", |m| twice(m, "models"));
    check_manifest("is named twice: in `models.file` and in `files`", |m| {
        m["files"] = json!(["model.onnx"]);
    });
    check_manifest("twice", |m| m["module"]["capabilities"] = json!(["clocks", "clocks"]));
}

#[test]
fn files_and_list_must_agree() {
    check("lists `labels.txt`, but the package does not have it", |oci, _| {
        let layers = oci["layers"].as_array_mut().unwrap();
        layers.retain(|layer| layer["annotations"][oci::TITLE] != "labels.txt");
    });
    check("has `labels.txt`, but its manifest does not list it", |_, m| {
        m["files"] = json!(["cases/a.bin"]);
    });
    let mut contents = contents();
    contents.remove("model.onnx");
    assert!(matches!(build(manifest(), &contents), Err(BundleError::Absent { .. })));
    contents.insert("extra", vec![]);
    assert!(matches!(build(manifest(), &contents), Err(BundleError::Unlisted { .. })));
}

#[test]
fn indexes_that_are_missing_superfluous_or_misfit_are_refused() {
    let with_index = |change: fn(&mut Value)| {
        move |oci: &mut Value, _: &mut Value| {
            let layers = oci["layers"].as_array_mut().unwrap();
            let at = layers.iter().position(|l| l["mediaType"] == oci::CHUNK_INDEX).unwrap();
            let mut index = layers.remove(at);
            change(&mut index);
            layers.push(index);
        }
    };
    check("has no chunk index", |oci, _| {
        oci["layers"].as_array_mut().unwrap().retain(|l| l["mediaType"] != oci::CHUNK_INDEX);
    });
    check("instead of 144", with_index(|index| index["size"] = json!(143)));
    let other = Digest::of(b"other").to_string();
    check(
        "no chunk index",
        with_index(|index| index["annotations"][oci::INDEXES] = json!(Digest::of(b"other").to_string())),
    );
    check("needs none", |oci, _| {
        let mut index =
            json!({"mediaType": oci::CHUNK_INDEX, "digest": other, "size": 36, "annotations": {}});
        index["annotations"][oci::INDEXES] = json!(Digest::of(&[8; 1000]).to_string());
        oci["layers"].as_array_mut().unwrap().push(index);
    });
    check("two chunk indexes", |oci, _| {
        let layers = oci["layers"].as_array_mut().unwrap();
        let mut index = layers.iter().find(|l| l["mediaType"] == oci::CHUNK_INDEX).unwrap().clone();
        index["digest"] = json!(Digest::of(b"x").to_string());
        layers.push(index);
    });
    check("with 1000 bytes and with 999 bytes", |oci, m| {
        m["files"].as_array_mut().unwrap().push(json!("twin"));
        let mut twin = oci["layers"].as_array().unwrap().iter().find(|l| l["size"] == 1000).unwrap().clone();
        twin["size"] = json!(999);
        twin["mediaType"] = json!(oci::FILE);
        twin["annotations"][oci::TITLE] = json!("twin");
        oci["layers"].as_array_mut().unwrap().push(twin);
    });
}

#[test]
fn sources_are_few_different_and_well_formed() {
    let source = |n: usize| format!("https://files.example/{n}/{{digest}}");
    let manifest = changed(|_, m| m["sources"] = json!((0..8).map(source).collect::<Vec<_>>())).unwrap();
    assert_eq!(manifest.manifest().sources.len(), 8);
    check_manifest("`sources` has 9 entries", |m| {
        m["sources"] = json!((0..9).map(source).collect::<Vec<_>>());
    });
    check_manifest("`sources` has `https://files.example/1/{digest}` twice", |m| {
        m["sources"] = json!([source(1), source(2), source(1)]);
    });
    for bad in ["file:///etc/passwd/{digest}", "https://files.example/", "https://a:b@files.example/{digest}"]
    {
        check_manifest("cannot be a source", |m| m["sources"] = json!([bad]));
    }
}

#[test]
fn numbers_and_texts_have_limits() {
    check_manifest("format 2", |m| m["format"] = json!(2));
    check_manifest("`release` is 0", |m| m["release"] = json!(0));
    check_manifest("`min-release` 2 is above `release` 1", |m| m["min-release"] = json!(2));
    check_manifest("`module.memory-mib` is 0", |m| m["module"]["memory-mib"] = json!(0));
    check_manifest("`module.memory-mib` is 5000", |m| m["module"]["memory-mib"] = json!(5000));
    check_manifest("`module.deadline-ms`", |m| m["module"]["deadline-ms"] = json!(u32::MAX));
    check_manifest("`module.concurrency`", |m| m["module"]["concurrency"] = json!(0));
    check_manifest("`module.tensor-mib`", |m| m["module"]["tensor-mib"] = json!(0));
    let sequences =
        |value: serde_json::Value| move |m: &mut serde_json::Value| m["module"]["sequences"] = value;
    check_manifest("`module.sequences.most` is 0", sequences(json!({"most": 0})));
    check_manifest("`module.sequences.most` is 1025", sequences(json!({"most": 1025})));
    check_manifest("`module.sequences.idle-seconds` is 0", sequences(json!({"idle-seconds": 0})));
    check_manifest("`module.sequences.idle-seconds`", sequences(json!({"idle-seconds": 86_401})));
    check_manifest("unknown field `idle-second`", sequences(json!({"idle-second": 1})));
    check_manifest("needs a `module.component`", |m| {
        m["module"]["sequences"] = json!({});
        m["module"].as_object_mut().unwrap().remove("component");
    });
    check_manifest("`module.queue` is 65537", |m| m["module"]["queue"] = json!(65537));
    check_manifest("`models.sessions` is 3; it must be 1 to 2", |m| m["models"][0]["sessions"] = json!(3));
    let batching = |size: u32, delay: u32| json!({"max-size": size, "max-delay-ms": delay});
    check_manifest("`module.batching.max-size` is 1", |m| m["module"]["batching"] = batching(1, 0));
    check_manifest("max-delay-ms", |m| m["module"]["batching"] = batching(2, u32::MAX));
    check_manifest("has to be -1", |m| {
        m["module"]["batching"] = batching(2, 0);
        m["inputs"][0]["shape"] = json!([1, -1]);
    });
    for (field, value) in [("sequences", json!({})), ("isolation", json!("request"))] {
        check_manifest("share an instance", |m| {
            m["module"]["batching"] = batching(2, 0);
            m["module"][field] = value;
        });
    }
    check_manifest("intra-op-threads", |m| m["models"][0]["intra-op-threads"] = json!(0));
    for (wrong, says) in [
        (json!(["cuda", "cuda"]), "`models.execution-providers` has `cuda` twice"),
        (json!(["cpu", "cuda"]), "`cpu` comes last"),
        (json!(["npu"]), "unknown variant `npu`"),
    ] {
        check_manifest(says, |m| m["models"][0]["execution-providers"] = wrong);
    }
    check_manifest("probation-failures", |m| m["activation"]["probation-failures"] = json!(101));
    check_manifest("probation-latency-ms", |m| m["activation"]["probation-latency-ms"] = json!(u32::MAX));
    check_manifest("probation-memory-mib", |m| m["activation"]["probation-memory-mib"] = json!(u32::MAX));
    check_manifest("warm-up", |m| m["activation"]["warm-up"] = json!(101));
    check_manifest("acceptance.memory-mib", |m| m["acceptance"]["memory-mib"] = json!(u32::MAX));
    check_manifest("probation-seconds", |m| m["activation"]["probation-seconds"] = json!(u32::MAX));
    check_manifest("`models` is empty", |m| m["models"] = json!([]));
    check_manifest("`acceptance.cases` is empty", |m| m["acceptance"]["cases"] = json!([]));
    check_manifest("`outputs` is empty", |m| m["outputs"] = json!([]));
    check_manifest("dimension -2", |m| m["inputs"][0]["shape"] = json!([-2]));
    check_manifest("17 entries", |m| m["inputs"][0]["shape"] = json!(vec![1; 17]));
    check_manifest("a tensor's name", |m| m["inputs"][0]["name"] = json!("a\nb"));
    check_manifest("256 bytes", |m| m["inputs"][0]["name"] = json!("x".repeat(256)));
    check_manifest("`description` has 1025", |m| m["description"] = json!("x".repeat(1025)));
    check_manifest("tolerance", |m| m["acceptance"]["tolerance"]["absolute"] = json!(-1.0));
    check_manifest("`settings`", |m| m["settings"] = json!({"a=b": "c"}));
    check_manifest("65 entries", |m| {
        m["settings"] = (0..65).map(|n| (format!("k{n}"), json!("v"))).collect();
    });
}

#[test]
fn a_blob_passes_by_in_pieces_of_any_size() {
    let bytes = &contents()["model.onnx.data"];
    for piece in [1000, 65535, 65536, 65537, 200_000] {
        let mut indexer = ChunkIndexer::new();
        bytes.chunks(piece).for_each(|piece| indexer.update(piece));
        assert_eq!(indexer.finish(), Indexed::of(bytes), "{piece}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A manifest or config with any one byte changed is refused, the digest above it being known.
    #[test]
    fn a_changed_byte_of_a_manifest_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8, which in any::<bool>()) {
        let built = good();
        let (mut manifest, mut config) = (built.manifest.clone(), config(built));
        let bytes = if which { &mut manifest } else { &mut config };
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        match Bundle::parse(&manifest, &config) {
            Err(_) => {}
            // Only the OCI manifest can still be read, and then it is another package.
            Ok(bundle) => prop_assert!(which && bundle.digest() != built.bundle.digest()),
        }
    }

    /// Any one bit changed in a blob is found in its chunk, and in no other one.
    #[test]
    fn a_changed_byte_of_a_blob_is_detected(size in 1usize..200_000, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes: Vec<u8> = (0..size).map(|n| (n * 7 + n / 300) as u8).collect();
        let indexed = Indexed::of(&bytes);
        let index = match indexed.indexes.first() {
            Some((_, index)) => ChunkIndex::parse(index, size as u64).unwrap(),
            None => ChunkIndex::without_index(indexed.digest, size as u64).unwrap(),
        };
        let at = at.index(size);
        bytes[at] ^= 1 << bit;
        for (n, chunk) in (0..).zip(bytes.chunks(CHUNK as usize)) {
            prop_assert_eq!(index.verify(n, chunk).is_err(), at / CHUNK as usize == n as usize);
        }
        prop_assert!(index.verify(index.len(), &[]).is_err());
        prop_assert!(index.verify(0, &bytes[..bytes.len().min(CHUNK as usize) - 1]).is_err());
    }

    /// An index with any one bit changed is refused, or disagrees with the blob.
    #[test]
    fn a_changed_byte_of_an_index_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| contents()["model.onnx.data"].clone());
        static INDEX: LazyLock<Indexed> = LazyLock::new(|| Indexed::of(&LARGE));
        let bytes: &[u8] = &LARGE;
        let mut index = INDEX.indexes[0].1.clone();
        let at = at.index(index.len());
        index[at] ^= 1 << bit;
        // A wrong length is refused outright; a wrong digest accuses its own chunk.
        let entry = (at / 36) as u32;
        match ChunkIndex::parse(&index, bytes.len() as u64) {
            Err(_) => prop_assert!(at % 36 < 4),
            Ok(read) => {
                let chunk = bytes.chunks(CHUNK as usize).nth(entry as usize).unwrap();
                prop_assert!(at % 36 >= 4 && read.verify(entry, chunk).is_err());
            }
        }
    }

    /// No bytes at all make the parsers panic.
    #[test]
    fn garbage_does_not_panic(a in prop::collection::vec(any::<u8>(), 0..400), b in prop::collection::vec(any::<u8>(), 0..400), size in any::<u64>()) {
        prop_assert!(Bundle::parse(&a, &b).is_err());
        let _ = ChunkIndex::parse(&a, size);
        let _ = Draft::from_toml(&String::from_utf8_lossy(&a));
    }
}
