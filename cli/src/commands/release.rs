//! `selvedge release`: sends what the registry lacks of a package, signs the list of releases with
//! the package added, and hands it in.
//!
//! What the registry says that was released before is signed again, so it is verified first against
//! the releaser's own root: a registry cannot slip a release in.

use std::path::{Path, PathBuf};

use reqwest::Method;
use selvedge_package::trust::{ImageTargets, verify_targets};
use selvedge_package::{Bundle, Digest};
use selvedge_signing::image::{ImageTarget, add_target};
use selvedge_signing::keyring::RootFiles;
use selvedge_signing::{Keyring, lifetimes};
use serde_json::json;

use crate::client::Registry;
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::keyring::failed;
use crate::output::Output;
use crate::packaging::layout::Layout;
use crate::progress::Bytes;

/// Sign a package and send it to the registry.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge release model.pkg --keys keys             (`selvedge keys init keys` made them)")]
pub struct Args {
    /// A package that `selvedge package` made
    #[arg(value_name = "PACKAGE")]
    pub package: PathBuf,
    /// Directory of the keys that sign it
    #[arg(long, value_name = "DIR")]
    pub keys: PathBuf,
}

/// Uploads, signs, releases.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let layout = Layout::open(&args.package)?;
    let bundle = layout.bundle();
    let (name, version, release) =
        (&bundle.manifest().name, &bundle.manifest().version, bundle.manifest().release);
    let signer = Signer::load(&args.keys)?;
    let registry = around.registry()?;

    let previous = signer.previous(&registry).await?;
    if previous.has(bundle) {
        // An earlier run got this far; its answer may have been lost. What the registry has lost of
        // the package since is sent again.
        let sent = upload(around.out, &registry, &layout).await?;
        around.out.value(&json!({
            "name": name, "version": version, "release": release, "digest": bundle.digest(),
            "uploaded_bytes": sent, "already": true,
        }));
        around.out.line(format!("{name} {version} r{release} is released already"));
        if sent > 0 {
            around.out.line("what the registry had lost of it was sent again");
        }
        return Ok(());
    }
    // Signed before anything is sent: what may not be released is told at once.
    let targets = signer.sign(&previous, bundle)?;
    let sent = upload(around.out, &registry, &layout).await?;
    let text = String::from_utf8(targets)
        .map_err(|source| Failure::Internal { what: "signed metadata is not text", source: source.into() })?;
    let body = json!({"package": bundle.digest(), "roles": {"targets": text}});
    let row = registry
        .call(
            &format!("release {name} {version} r{release}"),
            Method::POST,
            &registry.in_workspace("/releases"),
            Some(&body),
        )
        .await?;
    around.out.value(&json!({"release": row, "uploaded_bytes": sent, "already": false}));
    around.out.line(format!("{name} {version} r{release} is released"));
    around.out.line(format!("`selvedge deploy {name}@r{release} --target NAME` assigns it"));
    Ok(())
}

/// Sends every blob that the registry lacks; the bytes that were sent.
async fn upload(out: Output, registry: &Registry, layout: &Layout) -> Result<u64, Failure> {
    let bundle = layout.bundle();
    let all = bundle.blobs().into_iter().map(|blob| (blob.digest, blob.size));
    let mut missing: Vec<(Digest, u64)> = Vec::new();
    for (digest, size) in all.chain([(bundle.digest(), bundle.length())]) {
        if !registry.has_blob(&digest, size).await? {
            missing.push((digest, size));
        }
    }
    let total = missing.iter().map(|(_, size)| size).sum();
    let what = format!("sending {} of {} blobs", missing.len(), bundle.blobs().len() + 1);
    let bar = Bytes::begin(out, &what, total);
    for (digest, size) in &missing {
        registry.put_blob(digest, &layout.blob(digest), *size, bar.counter()).await?;
    }
    bar.end();
    Ok(total)
}

/// The keys of a releaser, with the root that they belong to.
struct Signer {
    keys: Keyring,
    root: Vec<u8>,
    dir: PathBuf,
}

/// What was released before, as signed and as read.
struct Previous {
    bytes: Option<Vec<u8>>,
    read: Option<ImageTargets>,
    /// The registry's own root. It is not trusted; what it refuses, the registry will refuse.
    root: Option<Vec<u8>>,
}

impl Previous {
    fn has(&self, bundle: &Bundle) -> bool {
        let releases = self.read.iter().flat_map(|targets| &targets.releases);
        let manifest = bundle.manifest();
        releases.into_iter().any(|released| {
            released.digest == bundle.digest()
                && released.custom.package == manifest.name
                && released.custom.release == manifest.release
        })
    }
}

impl Signer {
    fn load(dir: &Path) -> Result<Self, Failure> {
        let reading = |error| failed(format!("read the keys in {}", dir.display()), error);
        let keys = Keyring::load(dir).map_err(reading)?;
        let root = RootFiles::load(&dir.join("roots")).map_err(reading)?.image;
        Ok(Self { keys, root, dir: dir.to_owned() })
    }

    async fn previous(&self, registry: &Registry) -> Result<Previous, Failure> {
        let answer = registry.get("show what was released", "/v1/trust/image").await?;
        let text = |key: &str| {
            answer.get(key).and_then(serde_json::Value::as_str).map(|text| text.as_bytes().to_vec())
        };
        let root = text("root");
        let targets = answer["roles"]["targets"].as_str().map(|text| text.as_bytes().to_vec());
        let Some(bytes) = targets else {
            return Ok(Previous { bytes: None, read: None, root });
        };
        // Its age is no matter here: a list that expired is exactly what a new signature renews.
        let read = verify_targets(&self.root, &bytes, jiff::Timestamp::UNIX_EPOCH).map_err(|source| {
            Failure::Untrusted {
                what: "what the registry says was released is not signed by the keys of this directory"
                    .to_owned(),
                advice: format!("check that {} holds the keys of this registry", self.dir.display()),
                source: Some(source.into()),
            }
        })?;
        Ok(Previous { bytes: Some(bytes), read: Some(read), root })
    }

    /// The list of releases with one more, and the proof that devices will take it.
    fn sign(&self, previous: &Previous, bundle: &Bundle) -> Result<Vec<u8>, Failure> {
        let target = ImageTarget::of(bundle);
        let now = clock::now();
        let expires = lifetimes::expiry(now, lifetimes::IMAGE_TARGETS);
        let signed = add_target(previous.bytes.as_deref(), &target, expires, &[&self.keys.image_targets])
            .map_err(|error| failed(format!("sign {}", target.name()), error))?;
        verify_targets(&self.root, &signed, now).map_err(|source| Failure::Untrusted {
            what: "no device would take what these keys sign".to_owned(),
            advice: format!(
                "{} must hold the root that names these keys, and it must not be expired",
                self.dir.join("roots").display()
            ),
            source: Some(source.into()),
        })?;
        if let Some(root) = &previous.root {
            verify_targets(root, &signed, now).map_err(|source| Failure::Untrusted {
                what: "the registry trusts other keys than these".to_owned(),
                advice: format!("check that {} holds the keys of this registry", self.dir.display()),
                source: Some(source.into()),
            })?;
        }
        Ok(signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use selvedge_package::bundle::Builder;
    use selvedge_package::draft::Draft;
    use std::collections::BTreeMap;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use crate::context::{Context, Token};
    use crate::packaging::authoring::{Content, Sources};
    use crate::packaging::layout::write;

    fn bundle(version: &str, release: u64) -> Bundle {
        let toml = format!(
            "name='a'\nversion='{version}'\nrelease={release}\nmodels=[{{name='m',file='m.onnx'}}]\ninputs=[{{name='x',datatype='FP32',shape=[1]}}]\n\
             outputs=[{{name='y',datatype='FP32',shape=[1]}}]\nacceptance={{cases=['c.json']}}"
        );
        let mut builder = Builder::new(Draft::from_toml(&toml).unwrap().finish().unwrap());
        builder
            .bytes("m.onnx".parse().unwrap(), b"m")
            .unwrap()
            .bytes("c.json".parse().unwrap(), b"{}")
            .unwrap();
        builder.build().unwrap().bundle
    }

    fn read(signer: &Signer, bytes: Vec<u8>) -> Previous {
        let read = verify_targets(&signer.root, &bytes, clock::now()).unwrap();
        Previous { bytes: Some(bytes), read: Some(read), root: None }
    }

    #[test]
    fn a_counter_only_grows_and_the_same_again_is_known() {
        let dir = tempfile::tempdir().unwrap();
        super::super::keys::init(dir.path()).unwrap();
        let signer = Signer::load(dir.path()).unwrap();
        let none = Previous { bytes: None, read: None, root: None };
        let first = read(&signer, signer.sign(&none, &bundle("1.0.0", 2)).unwrap());
        assert!(first.has(&bundle("1.0.0", 2)) && !first.has(&bundle("1.0.1", 2)));
        for (version, release) in [("1.0.0", 3), ("1.0.1", 2), ("1.0.1", 1)] {
            assert_eq!(
                signer.sign(&first, &bundle(version, release)).unwrap_err().exit(),
                Exit::Conflict,
                "{version} r{release}"
            );
        }
        assert!(signer.sign(&first, &bundle("1.0.1", 3)).is_ok());
    }

    /// A mock of the registry's blobs: keeps what is sent, and answers HEAD with the length that it has.
    fn blobs(kept: Arc<Mutex<BTreeMap<String, Vec<u8>>>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut line) = (Vec::new(), String::new());
                while stream.read_line(&mut line).unwrap() > 2 {
                    head.push(std::mem::take(&mut line).to_lowercase());
                }
                let Some(first) = head.first() else { continue };
                let digest = first.split(' ').nth(1).unwrap().rsplit('/').next().unwrap().to_owned();
                let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
                stream.read_exact(&mut body).unwrap();
                let mut kept = kept.lock().unwrap();
                let answer = match (first.starts_with("put"), kept.get(&digest)) {
                    (true, _) => {
                        kept.insert(digest, body);
                        "201 Created\r\ncontent-length: 0".to_owned()
                    }
                    (false, Some(bytes)) => format!("200 OK\r\ncontent-length: {}", bytes.len()),
                    (false, None) => "404 Not Found\r\ncontent-length: 0".to_owned(),
                };
                let answer = format!("HTTP/1.1 {answer}\r\nconnection: close\r\n\r\n");
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn what_the_registry_has_lost_is_sent_again() {
        let dir = tempfile::tempdir().unwrap();
        let content = |text: &str| Content::Bytes(text.as_bytes().to_vec());
        let files = [("m.onnx", content("a model")), ("c.json", content("{}"))];
        let sources = Sources {
            manifest: bundle("1.0.0", 1).manifest().clone(),
            files: files.into_iter().map(|(path, content)| (path.parse().unwrap(), content)).collect(),
        };
        let layout = write(&dir.path().join("out"), sources, |_| {}).await.unwrap();
        let kept = Arc::new(Mutex::new(BTreeMap::new()));
        std::fs::write(dir.path().join("token"), "t").unwrap();
        let registry = Registry::new(Context {
            registry: blobs(Arc::clone(&kept)),
            token: Token::read(&dir.path().join("token")).unwrap(),
            workspace: "default".parse().unwrap(),
        })
        .unwrap();
        let send = async || upload(Output::new(true), &registry, &layout).await.unwrap();
        let all = send().await;
        let sizes = kept.lock().unwrap().values().map(Vec::len).sum::<usize>() as u64;
        assert!(all > 0 && all == sizes);
        assert_eq!(send().await, 0);
        let model = Digest::of(b"a model").to_string();
        kept.lock().unwrap().get_mut(&model).unwrap().truncate(3);
        assert_eq!(send().await, 7);
        assert_eq!(kept.lock().unwrap()[&model], b"a model");
        kept.lock().unwrap().remove(&model);
        assert_eq!(send().await, 7);
    }

    #[test]
    fn keys_that_no_root_names_sign_nothing() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&dir, &other] {
            super::super::keys::init(dir.path()).unwrap();
        }
        let mut signer = Signer::load(dir.path()).unwrap();
        let root = std::mem::replace(&mut signer.root, Signer::load(other.path()).unwrap().root);
        let none = Previous { bytes: None, read: None, root: None };
        assert_eq!(signer.sign(&none, &bundle("1.0.0", 1)).unwrap_err().exit(), Exit::Untrusted);
        let theirs = Previous { root: Some(std::mem::replace(&mut signer.root, root)), ..none };
        assert_eq!(signer.sign(&theirs, &bundle("1.0.0", 1)).unwrap_err().exit(), Exit::Untrusted);
    }
}
