//! A host without ONNX Runtime: its control socket's paths over packages that give back what came.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use axum::Router;
use selvedge_control::PackageRef;
use selvedge_host::control::hand_over::Copies;
use selvedge_host::control::journal::Journal;
use selvedge_host::control::{Control, routes};
use selvedge_host::deadline::Deadline;
use selvedge_host::failure::OpenError;
use selvedge_host::serve::Serving;
use selvedge_host::serve::predictor::{Opener, Prediction, Predictor};
use selvedge_host::serve::served::Served;
use selvedge_host::tensor::NamedTensor;
use selvedge_package::{Digest, FilePath, Manifest, PackageName};
use serde_json::json;
use tokio::sync::{Mutex, watch};

/// Memory for requests in MiB.
pub const BUDGET_MIB: u32 = 4;

/// The packages that there are: name, version, release, element type. The first two answer from the start.
const PACKAGES: [(&str, &str, u64, &str); 4] = [
    ("m", "1.0.0", 1, "FP32"),
    ("t", "1.0.0", 1, "BYTES"),
    ("m", "2.0.0", 2, "FP32"),
    ("n", "1.0.0", 1, "INT8"),
];

const ANSWER_FROM_THE_START: usize = 2;

struct Echo {
    manifest: Manifest,
    digest: Digest,
    models: Vec<(PackageName, Digest)>,
    case: Vec<u8>,
}

impl Echo {
    fn new((name, version, release, datatype): (&str, &str, u64, &str)) -> Arc<Self> {
        let manifest = json!({
            "format": 1, "name": name, "version": version, "release": release,
            "module": {"concurrency": 1, "deadline-ms": 60_000, "tensor-mib": 1},
            "models": [{"name": "net", "file": "net.onnx"}],
            "inputs": [{"name": "x", "datatype": datatype, "shape": [-1]}],
            "outputs": [{"name": "y", "datatype": datatype, "shape": [-1]}],
            "acceptance": {"cases": ["cases/a.json"]}
        });
        let tensor = |name| json!({"name": name, "datatype": datatype, "shape": [0], "data": []});
        let case = json!({"name": "a", "inputs": [tensor("x")], "outputs": [tensor("y")]});
        Arc::new(Self {
            digest: Digest::of(manifest.to_string().as_bytes()),
            manifest: serde_json::from_value(manifest).expect("a manifest"),
            models: vec![("net".parse().expect("a name"), Digest::of(b"net"))],
            case: case.to_string().into_bytes(),
        })
    }
}

/// All of them, made once.
fn echoes() -> &'static [Arc<Echo>] {
    static ALL: OnceLock<Vec<Arc<Echo>>> = OnceLock::new();
    ALL.get_or_init(|| PACKAGES.into_iter().map(Echo::new).collect())
}

impl Predictor for Echo {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn models(&self) -> &[(PackageName, Digest)] {
        &self.models
    }

    fn read_file(&self, _: &FilePath) -> Result<Vec<u8>, OpenError> {
        Ok(self.case.clone())
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn predict(self: Arc<Self>, inputs: Vec<NamedTensor>, _: Deadline) -> Prediction {
        let outputs = inputs.into_iter().map(|input| NamedTensor::new("y", input.tensor)).collect();
        Box::pin(std::future::ready(Ok(outputs)))
    }
}

/// Opens them by their digests, in whatever directory.
struct ByDigest(Vec<Arc<dyn Predictor>>);

impl Opener for ByDigest {
    fn open(
        &self,
        _: &Path,
        digest: Digest,
        _: &BTreeMap<String, String>,
    ) -> Result<Arc<dyn Predictor>, OpenError> {
        let missing = || OpenError::Corrupt { file: "package.json".to_owned(), why: "not there".to_owned() };
        self.0.iter().find(|package| package.digest() == digest).cloned().ok_or_else(missing)
    }

    fn onnxruntime_version(&self) -> String {
        "0.0".to_owned()
    }
}

/// What is asked, and what is looked at afterwards.
pub struct Host {
    /// The control socket's paths.
    pub router: Router,
    /// What is served.
    pub serving: Arc<Serving>,
}

impl Host {
    /// With some packages that answer, all told to be here.
    pub fn start() -> Self {
        let packages: Vec<_> = echoes().iter().map(|echo| Arc::clone(echo) as Arc<dyn Predictor>).collect();
        let serving = Serving::new(BUDGET_MIB);
        for package in &packages[..ANSWER_FROM_THE_START] {
            let served = Served::new(Arc::clone(package), BTreeMap::new(), 0);
            serving.table.stage(Arc::clone(&served));
            serving.table.activate(&served.reference());
        }
        serving.announce();
        let control = Control {
            serving: Arc::clone(&serving),
            opener: Arc::new(ByDigest(packages)),
            journal: Arc::new(Journal::default()),
            listeners: Copies::default(),
            folder: None,
            http: "127.0.0.1:1".to_owned(),
            stop: watch::channel(false).0,
            loading: Mutex::new(()),
            // One that hangs is said by the answer.
            fatal: Arc::new(|_| {}),
        };
        Self { router: routes::router(Arc::new(control)), serving }
    }

    /// The packages that can be loaded.
    pub fn packages() -> Vec<PackageRef> {
        let reference =
            |echo: &Arc<Echo>| PackageRef { name: echo.manifest.name.clone(), digest: echo.digest };
        echoes().iter().map(reference).collect()
    }
}
