//! Packages in temporary directories, and the one runtime of the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use selvedge_host::failure::{OpenError, PredictError};
use selvedge_host::runtime::{Fatal, Loaded, Runtime, RuntimeOptions};
use selvedge_host::tensor::{Buffer, NamedTensor, Tensor};
use selvedge_package::bundle::Builder;
use selvedge_package::manifest::ExecutionProvider;
use selvedge_package::tensor::Datatype;
use selvedge_package::{Digest, Manifest};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for any test on a busy machine; a test that reaches it has failed.
pub const LONG: Duration = Duration::from_secs(120);

/// Models that could not be stopped.
pub static FATAL: Mutex<Vec<Fatal>> = Mutex::new(Vec::new());

/// What set-up fetched and built.
pub fn options() -> RuntimeOptions {
    let place = |name: &str| {
        PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is set by .cargo/config.toml")))
    };
    RuntimeOptions {
        onnxruntime: place("SELVEDGE_ONNXRUNTIME"),
        modules: place("SELVEDGE_MODULES"),
        cache: None,
        execution_providers: vec![ExecutionProvider::Cpu],
        fatal: Arc::new(|fatal| FATAL.lock().unwrap().push(fatal)),
    }
}

pub fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new(options()).unwrap());
    &RUNTIME
}

/// A hostile guest by its folder's name.
pub fn hostile(name: &str) -> Vec<u8> {
    module(&format!("hostile/{name}"))
}

/// A guest by its folder.
pub fn module(name: &str) -> Vec<u8> {
    let path = options().modules.join(format!("{name}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask modules`", path.display()))
}

/// A hostile guest that was written by hand, by its file's name.
pub fn hostile_text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../modules/hostile/text");
    std::fs::read_to_string(folder.join(format!("{name}.wat"))).unwrap()
}

/// A package on its way into a directory.
pub struct Package {
    manifest: Value,
    files: BTreeMap<String, Vec<u8>>,
}

impl Package {
    /// A package of one model; inputs and outputs as `(name, datatype, shape)`.
    pub fn new(model: Vec<u8>, inputs: &[(&str, &str, &[i64])], outputs: &[(&str, &str, &[i64])]) -> Self {
        let specs = |tensors: &[(&str, &str, &[i64])]| -> Value {
            let spec = |(name, datatype, shape): &(&str, &str, &[i64])| json!({"name": name, "datatype": datatype, "shape": shape});
            tensors.iter().map(spec).collect()
        };
        let manifest = json!({
            "format": 1, "name": "tiny", "version": "1.0.0", "release": 1,
            "module": {},
            "models": [{"name": "main", "file": "model.onnx"}],
            "inputs": specs(inputs), "outputs": specs(outputs),
            "acceptance": {"cases": ["cases/one.json"]},
        });
        let files =
            BTreeMap::from([("model.onnx".to_owned(), model), ("cases/one.json".to_owned(), b"{}".to_vec())]);
        Self { manifest, files }
    }

    /// The identity model, float32 [2, 3].
    pub fn identity() -> Self {
        let model = selvedge_tests::onnx_writer::identity();
        Self::new(model, &[("x", "FP32", &[2, 3])], &[("y", "FP32", &[2, 3])])
    }

    /// A guest beside the identity model, which gives its inputs back if it gives anything.
    pub fn guest(component: Vec<u8>) -> Self {
        let package = Self::new(
            selvedge_tests::onnx_writer::identity(),
            &[("x", "UINT8", &[-1])],
            &[("x", "UINT8", &[-1])],
        );
        package.component(component)
    }

    pub fn component(self, component: Vec<u8>) -> Self {
        self.module("component", json!("module.wasm")).file("module.wasm", component)
    }

    pub fn module(mut self, key: &str, value: Value) -> Self {
        self.manifest["module"][key] = value;
        self
    }

    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.manifest[key] = value;
        self
    }

    pub fn file(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.to_owned(), bytes.into());
        self
    }

    pub fn rename(mut self, from: &str, to: &str) -> Self {
        let bytes = self.files.remove(from).unwrap();
        self.file(to, bytes)
    }

    /// Writes the directory that the agent would have made.
    pub fn write(self) -> Written {
        let manifest: Manifest = serde_json::from_value(self.manifest).unwrap();
        let mut builder = Builder::new(manifest);
        for (path, bytes) in &self.files {
            builder.bytes(path.parse().unwrap(), bytes).unwrap();
        }
        let built = builder.build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: &[u8]| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        for (path, bytes) in &self.files {
            write(path, bytes);
        }
        write("package.json", &built.manifest);
        write("manifest.json", &built.blobs[0].1);
        Written { directory, digest: built.bundle.digest() }
    }
}

/// A package's directory.
pub struct Written {
    directory: TempDir,
    pub digest: Digest,
}

impl Written {
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn open(&self) -> Result<Arc<Loaded>, OpenError> {
        self.open_with(&BTreeMap::new())
    }

    pub fn open_with(&self, settings: &BTreeMap<String, String>) -> Result<Arc<Loaded>, OpenError> {
        runtime().open(self.path(), self.digest, settings)
    }

    /// The error that opening gives.
    pub fn refusal(&self) -> OpenError {
        match self.open() {
            Ok(_) => panic!("opened"),
            Err(error) => error,
        }
    }
}

/// Asks a package, on a runtime of this call.
pub fn ask(loaded: &Loaded, inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, PredictError> {
    executor().block_on(loaded.predict(inputs, LONG))
}

pub fn executor() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Asks a guest that never answers so many times at once, and `neighbour`, which has an input `x` of 2×3, a few
/// times meanwhile: that must answer while the others still run, and those must miss their deadline in the end. That
/// it does so again and again is no matter of a deadline: how soon is the machine's.
pub async fn answers_beside(guest: &Arc<Loaded>, requests: usize, neighbour: &Loaded) {
    let running: Vec<_> = (0..requests)
        .map(|_| {
            let guest = Arc::clone(guest);
            tokio::spawn(async move { guest.predict(small(), LONG).await })
        })
        .collect();
    while guest.idle_instances() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for number in 0..20 {
        neighbour.predict(vec![fp32("x", &[2, 3], &[1.0; 6])], LONG).await.unwrap();
        if number == 2 {
            assert!(running.iter().any(|request| !request.is_finished()), "the guest must still run");
        }
    }
    for request in running {
        assert!(matches!(request.await.unwrap(), Err(PredictError::Deadline(_))));
    }
}

pub fn fp32(name: &str, shape: &[u64], values: &[f32]) -> NamedTensor {
    NamedTensor::new(name, Tensor::fixed(Datatype::Fp32, shape, Buffer::from(values)).unwrap())
}

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    let bytes = tensor.as_fixed().unwrap().chunks_exact(4);
    bytes.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// A tensor that guests of [`Package::guest`] take.
pub fn small() -> Vec<NamedTensor> {
    vec![NamedTensor::new("x", Tensor::fixed(Datatype::Uint8, [3], vec![1, 2, 3]).unwrap())]
}
