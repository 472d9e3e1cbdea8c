//! `selvedge release`: sends what the registry lacks of a package, signs the list of releases with
//! the package added, and hands it in.
//!
//! What the registry says that was released before is signed again, so it is verified first against
//! the releaser's own root and compared with what was seen before: a registry can neither slip a
//! release in nor have one forgotten. Where several people must sign, `--propose` writes the changed
//! lists for the others, and `--signed` hands them in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reqwest::Method;
use selvedge_package::trust::{ImageFiles, ImageTargets, verify_image};
use selvedge_package::{Bundle, Digest};
use selvedge_signing::image::ImageTarget;
use selvedge_signing::roots::RootSpec;
use selvedge_signing::tree::{ChangedFiles, add_release};
use selvedge_signing::{SigningKey, lifetimes};
use serde_json::{Value, json};

use crate::ceremony::chain::{self, Which};
use crate::ceremony::passphrase::PassphraseArgs;
use crate::ceremony::seen::Seen;
use crate::ceremony::{files, signers};
use crate::client::Registry;
use crate::clock;
use crate::commands::Surroundings;
use crate::commands::trust::texts;
use crate::failure::Failure;
use crate::keyring::failed;
use crate::output::Output;
use crate::packaging::layout::Layout;
use crate::progress::Bytes;

/// Sign a package and send it to the registry.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge release model.pkg --keys keys             (`selvedge keys init keys` made them)
  selvedge release model.pkg --keys keys --key alice.pem --propose proposal
  selvedge trust sign proposal --root image.root.json --key bob.pem
  selvedge release model.pkg --keys keys --signed proposal")]
pub struct Args {
    /// A package that `selvedge package` made
    #[arg(value_name = "PACKAGE")]
    pub package: PathBuf,
    /// Directory of the registry's keys: its roots are trusted, and its offline keys sign
    #[arg(long, value_name = "DIR")]
    pub keys: PathBuf,
    /// A private key that signs, in place of those in the directory; may be repeated
    #[arg(long, value_name = "KEY.pem", conflicts_with = "signed")]
    pub key: Vec<PathBuf>,
    /// Hand nothing in: write what is signed so far into this folder, for others to sign
    #[arg(long, value_name = "DIR", conflicts_with = "signed")]
    pub propose: Option<PathBuf>,
    /// Hand in what such a folder holds, signed by enough people
    #[arg(long, value_name = "DIR")]
    pub signed: Option<PathBuf>,
    /// Where passphrases come from.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// Uploads, signs, releases.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let layout = Layout::open(&args.package)?;
    let bundle = layout.bundle();
    let (name, version, release) =
        (&bundle.manifest().name, &bundle.manifest().version, bundle.manifest().release);
    let mut signer = Signer::load(args)?;
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
    let changed = match &args.signed {
        Some(dir) => signer.handed(&previous, bundle, files::proposal(dir)?)?,
        None => signer.sign(&previous, bundle, args.propose.is_some())?,
    };
    if let Some(dir) = &args.propose {
        return proposed(around, &signer, dir, &previous, &changed, bundle);
    }
    let sent = upload(around.out, &registry, &layout).await?;
    let body = json!({"package": bundle.digest(), "roles": texts(&changed.0)?});
    let row = registry
        .call(
            &format!("release {name} {version} r{release}"),
            Method::POST,
            &registry.in_workspace("/releases"),
            Some(&body),
        )
        .await?;
    signer.seen.keep(registry.address(), &changed.on(previous.files.as_ref()))?;
    around.out.value(&json!({"release": row, "uploaded_bytes": sent, "already": false}));
    around.out.line(format!("{name} {version} r{release} is released"));
    around.out.line(format!("`selvedge deploy {name}@r{release} --target NAME` assigns it"));
    Ok(())
}

fn proposed(
    around: &Surroundings<'_>,
    signer: &Signer,
    dir: &Path,
    previous: &Previous,
    changed: &ChangedFiles,
    bundle: &Bundle,
) -> Result<(), Failure> {
    files::propose(dir, changed, previous.files.as_ref())?;
    let names: Vec<&String> = changed.0.keys().collect();
    let signed = changed.on(previous.files.as_ref());
    let complete = verify_image(&signer.root, &signed, clock::now()).is_ok();
    let manifest = bundle.manifest();
    around.out.line(format!(
        "{} {} r{} is proposed in {}",
        manifest.name,
        manifest.version,
        manifest.release,
        dir.display()
    ));
    if !complete {
        around.out.line(format!(
            "each who must sign: selvedge trust sign {} --root THEIR-COPY-OF-image.root.json --key KEY.pem",
            dir.display()
        ));
    }
    around.out.line(format!(
        "then: selvedge release PACKAGE --keys {} --signed {}",
        signer.dir.display(),
        dir.display()
    ));
    around
        .out
        .value(&json!({"folder": dir, "lists": names, "complete": complete, "digest": bundle.digest()}));
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

/// Who releases: keys, the root that they belong to, and what was seen of the registry.
struct Signer {
    keys: Vec<SigningKey>,
    root: Vec<u8>,
    dir: PathBuf,
    named: Vec<PathBuf>,
    passphrase: PassphraseArgs,
    seen: Seen,
}

/// What was released before, as signed and as read.
#[derive(Default)]
struct Previous {
    files: Option<ImageFiles>,
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
    fn load(args: &Args) -> Result<Self, Failure> {
        let mut signer = Self {
            keys: Vec::new(),
            root: chain::held(&args.keys)?.image,
            dir: args.keys.clone(),
            named: args.key.clone(),
            passphrase: args.passphrase.clone(),
            seen: Seen::load(&args.keys)?,
        };
        if args.signed.is_none() {
            signer.take_keys(args.propose.is_some())?;
        }
        Ok(signer)
    }

    /// The keys that sign; none will do only for a proposal.
    fn take_keys(&mut self, none_will_do: bool) -> Result<(), Failure> {
        let role = RootSpec::read(&self.root)
            .map_err(|error| failed(format!("read the roots in {}", self.dir.display()), error))?
            .targets;
        self.keys = signers::releasers(&self.dir, &self.named, &role, &self.passphrase)?;
        if self.keys.is_empty() && !none_will_do {
            return Err(Failure::missing(
                format!("{} has no key that signs releases", self.dir.join("offline").display()),
                "`selvedge keys init DIR` makes one; where people hold their own, say --key KEY.pem, or --propose DIR",
            ));
        }
        Ok(())
    }

    async fn previous(&mut self, registry: &Registry) -> Result<Previous, Failure> {
        let answer = registry.get("show what was released", "/v1/trust/image").await?;
        let root = answer["root"].as_str().map(|text| text.as_bytes().to_vec());
        if root.as_ref().is_some_and(|root| *root != self.root) {
            // Keys were rotated since: followed as a device would, or not at all.
            if let Ok(newest) = chain::newest(&self.dir, registry, Which::Image).await {
                self.root = newest;
            }
        }
        let Some(files) = read_files(&answer) else {
            self.seen.check(registry.address(), None)?;
            return Ok(Previous { root, ..Previous::default() });
        };
        let read = verified(&self.root, &files, &self.dir)?;
        self.seen.check(registry.address(), Some(&files))?;
        Ok(Previous { files: Some(files), read: Some(read), root })
    }

    /// The lists with one release more, and the proof that devices will take them; for a proposal
    /// without that.
    fn sign(&self, previous: &Previous, bundle: &Bundle, proposal: bool) -> Result<ChangedFiles, Failure> {
        let target = ImageTarget::of(bundle);
        let expires = lifetimes::expiry(clock::now(), lifetimes::IMAGE_TARGETS);
        let keys = signers::dynamic(&self.keys);
        let changed = add_release(&self.root, previous.files.as_ref(), &target, expires, &keys)
            .map_err(|error| failed(format!("sign {}", target.name()), error))?;
        if !proposal {
            self.prove(previous, &changed)?;
        }
        Ok(changed)
    }

    /// What others have signed: it must be complete, list this package, and nothing else anew.
    fn handed(
        &self,
        previous: &Previous,
        bundle: &Bundle,
        roles: BTreeMap<String, Vec<u8>>,
    ) -> Result<ChangedFiles, Failure> {
        let changed = ChangedFiles(roles);
        let read = self.prove(previous, &changed)?;
        let target = ImageTarget::of(bundle);
        let before = previous.read.iter().flat_map(|read| &read.releases);
        let before: Vec<_> = before.collect();
        let new: Vec<_> = read.releases.iter().filter(|one| !before.contains(one)).collect();
        let exact = matches!(new.as_slice(), [one] if one.target == target.name()
            && one.digest == target.digest && one.length == target.length && one.custom == target.custom);
        if exact && read.releases.len() == before.len() + 1 {
            return Ok(changed);
        }
        Err(Failure::Conflict {
            what: format!("the signed lists do not add exactly {} to what is released now", target.name()),
            advice: "somebody released in the meantime, or it is another package: propose it again"
                .to_owned(),
        })
    }

    fn prove(&self, previous: &Previous, changed: &ChangedFiles) -> Result<ImageTargets, Failure> {
        let (files, now) = (changed.on(previous.files.as_ref()), clock::now());
        let read = verify_image(&self.root, &files, now).map_err(|source| Failure::Untrusted {
            what: "no device would take what these keys sign".to_owned(),
            advice: format!(
                "{} must hold the root that names these keys, and it must not be expired; where several people must \
                 sign, --propose DIR writes it for the others; lists that have expired are renewed by `selvedge trust renew`",
                self.dir.join("roots").display()
            ),
            source: Some(source.into()),
        })?;
        if let Some(root) = &previous.root {
            verify_image(root, &files, now).map_err(|source| Failure::Untrusted {
                what: "the registry trusts other keys than these".to_owned(),
                advice: format!("check that {} holds the keys of this registry", self.dir.display()),
                source: Some(source.into()),
            })?;
        }
        Ok(read)
    }
}

/// What was released, verified and not older than what was seen; `None` where nothing was.
pub async fn previous(
    registry: &Registry,
    root: &[u8],
    keys: &Path,
    seen: &Seen,
) -> Result<Option<ImageFiles>, Failure> {
    let answer = registry.get("show what was released", "/v1/trust/image").await?;
    let files = read_files(&answer);
    if let Some(files) = &files {
        verified(root, files, keys)?;
    }
    seen.check(registry.address(), files.as_ref())?;
    Ok(files)
}

/// The lists in the registry's answer; `None` before the first release.
pub fn read_files(answer: &Value) -> Option<ImageFiles> {
    let roles = answer.get("roles")?.as_object()?;
    let mut files = ImageFiles::default();
    for (role, file) in roles {
        files.set(role, file.as_str()?.as_bytes().to_vec());
    }
    (!files.targets.is_empty()).then_some(files)
}

fn verified(root: &[u8], files: &ImageFiles, keys: &Path) -> Result<ImageTargets, Failure> {
    // Its age is no matter here: a list that expired is exactly what a new signature renews.
    verify_image(root, files, jiff::Timestamp::UNIX_EPOCH).map_err(|source| Failure::Untrusted {
        what: "what the registry says was released is not signed by the keys of this directory".to_owned(),
        advice: format!("check that {} holds the keys of this registry", keys.display()),
        source: Some(source.into()),
    })
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

    fn made(dir: &Path) -> Signer {
        let args = Args {
            package: PathBuf::new(),
            keys: dir.to_owned(),
            key: Vec::new(),
            propose: None,
            signed: None,
            passphrase: PassphraseArgs::default(),
        };
        Signer::load(&args).unwrap()
    }

    fn read(signer: &Signer, changed: ChangedFiles) -> Previous {
        let files = changed.on(None);
        let read = verify_image(&signer.root, &files, clock::now()).unwrap();
        Previous { files: Some(files), read: Some(read), root: None }
    }

    #[test]
    fn a_counter_only_grows_and_the_same_again_is_known() {
        let dir = tempfile::tempdir().unwrap();
        super::super::keys::init(dir.path()).unwrap();
        let signer = made(dir.path());
        let none = Previous::default();
        let first = read(&signer, signer.sign(&none, &bundle("1.0.0", 2), false).unwrap());
        assert!(first.has(&bundle("1.0.0", 2)) && !first.has(&bundle("1.0.1", 2)));
        for (version, release) in [("1.0.0", 3), ("1.0.1", 2), ("1.0.1", 1)] {
            assert_eq!(
                signer.sign(&first, &bundle(version, release), false).unwrap_err().exit(),
                Exit::Conflict,
                "{version} r{release}"
            );
        }
        assert!(signer.sign(&first, &bundle("1.0.1", 3), false).is_ok());
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
        let mut signer = made(dir.path());
        let root = std::mem::replace(&mut signer.root, made(other.path()).root);
        let none = Previous::default();
        assert_eq!(signer.sign(&none, &bundle("1.0.0", 1), false).unwrap_err().exit(), Exit::Untrusted);
        let theirs = Previous { root: Some(std::mem::replace(&mut signer.root, root)), ..none };
        assert_eq!(signer.sign(&theirs, &bundle("1.0.0", 1), false).unwrap_err().exit(), Exit::Untrusted);
    }
}
