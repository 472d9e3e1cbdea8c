//! docs/keys.md, command by command: three people and a registry, from the first key to a revoked one.
//! Then what was released under the last roots is exported, and judged under the first.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use selvedge_cli::packaging::authoring::{Content, Sources};
use selvedge_cli::packaging::layout::write;
use selvedge_package::draft::Draft;

/// Where the document says that the registry starts.
const START: &str = "<!-- the registry starts here -->";

fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_selvedge")).parent().unwrap().to_owned()
}

/// The blocks marked `sh`, as one script each for before and after the registry's start.
fn scripts() -> [String; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/keys.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, after) = text.split_once(START).unwrap();
    [before, after].map(|part| {
        let blocks = part.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
        blocks.collect::<String>()
    })
}

struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Registry {
    /// Nothing of this needs a broker: the registry goes on trying to reach one.
    #[allow(clippy::disallowed_methods)]
    fn start(dir: &Path) -> (Self, String) {
        let program = programs().join("selvedge-registry");
        assert!(program.exists(), "{} is missing: build the workspace", program.display());
        let log = std::fs::File::create(dir.join("registry.log")).unwrap();
        let child = Command::new(program)
            .args([
                "serve",
                "--data",
                "registry",
                "--listen",
                "127.0.0.1:0",
                "--broker",
                "mqtt://127.0.0.1:1",
            ])
            .args(["--online-keys", "office/keys/online", "--roots", "office/keys/roots"])
            .args(["--address-file", "address"])
            .current_dir(dir)
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap();
        let registry = Self(child);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let address = std::fs::read_to_string(dir.join("address")).unwrap_or_default();
            if !address.trim().is_empty() && dir.join("registry/token").exists() {
                let address = address.trim().to_owned();
                let address = if address.starts_with("http") { address } else { format!("http://{address}") };
                return (registry, address);
            }
            let log = std::fs::read_to_string(dir.join("registry.log")).unwrap_or_default();
            assert!(Instant::now() < until, "the registry does not start: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

struct Place {
    dir: tempfile::TempDir,
    registry: Option<String>,
}

impl Place {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs().display());
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.dir.path())
            .env("SELVEDGE_KEY_PASSPHRASE", "correct horse battery")
            .stdin(Stdio::null())
            .current_dir(self.dir.path());
        if let Some(address) = &self.registry {
            command.env("SELVEDGE_REGISTRY", address);
            command.env("SELVEDGE_TOKEN_FILE", self.dir.path().join("registry/token"));
        }
        command
    }

    fn script(&self, text: &str) {
        let output = self.command("bash").args(["-euxc", text]).output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
    }

    fn run(&self, line: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_selvedge")).args(line).output().unwrap()
    }

    fn done(&self, line: &[&str]) -> serde_json::Value {
        let output = self.run(&[line, &["--json"]].concat());
        assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A file and the directory of the same packages are judged alike, down to who signed until when.
    fn same_verdict(&self, file: &str, directory: &str) {
        let said = |path: &str| self.done(&["verify", path, "--keys", "office/keys"]);
        let (file, directory) = (said(file), said(directory));
        for part in ["packages", "metadata", "verdict"] {
            assert_eq!(file[part], directory[part], "{part}");
        }
        assert_eq!(file["verdict"]["taken"], true);
    }

    /// What `office` has seen of the registry's lists.
    fn seen(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.dir.path().join("office/keys/seen.json")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["registries"].as_object().unwrap().values().next().unwrap().clone()
    }

    fn refused(&self, line: &[&str], code: i32, says: &str) {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line:?}: {said}");
        assert!(said.contains(says), "{line:?}: `{says}` is not in: {said}");
    }
}

async fn package(dir: &Path, version: &str, release: u64) {
    let toml = format!(
        "name='file-type'\nversion='{version}'\nrelease={release}\nmodels=[{{name='m',file='m.onnx'}}]\n\
         inputs=[{{name='x',datatype='FP32',shape=[1]}}]\noutputs=[{{name='y',datatype='FP32',shape=[1]}}]\n\
         acceptance={{cases=['c.json']}}"
    );
    let content = |bytes: &[u8]| Content::Bytes(bytes.to_vec());
    let files = BTreeMap::from([
        ("m.onnx".parse().unwrap(), content(&[7; 200_000])),
        ("c.json".parse().unwrap(), content(b"{}")),
    ]);
    let manifest = Draft::from_toml(&toml).unwrap().finish().unwrap();
    write(dir, Sources { manifest, files }, |_| {}).await.unwrap();
}

#[tokio::test]
async fn the_documented_way_works_and_ends_with_a_key_that_is_worth_nothing() {
    let mut place = Place { dir: tempfile::tempdir().unwrap(), registry: None };
    let dir = place.dir.path().to_owned();
    let [before, after] = scripts();
    place.script(&before);
    std::fs::create_dir(dir.join("first")).unwrap();
    for name in ["image.root.json", "director.root.json"] {
        std::fs::copy(dir.join("office/keys/roots").join(name), dir.join("first").join(name)).unwrap();
    }
    package(&dir.join("office/file-type.pkg"), "1.0.0", 1).await;
    let (_registry, address) = Registry::start(&dir);
    place.registry = Some(address);
    // Section 6 goes wrong twice before it goes right: without the lists nothing is published, and after half
    // a success the whole command is given again.
    let publish =
        "(cd office && selvedge trust publish director.3.json image.3.json --lists resigned --keys keys)";
    let (first, last) = after.split_once(publish).unwrap();
    place.script(first);
    {
        let line =
            ["trust", "publish", "office/director.3.json", "office/image.3.json", "--keys", "office/keys"];
        place.refused(&line, 9, "--lists DIR");
        assert_eq!(place.done(&["trust", "show"])["roots"]["director"]["version"], 2);
        place.done(&["trust", "publish", "office/director.3.json"]);
        let all = place.done(&[&line[..], &["--lists", "office/resigned"]].concat());
        assert_eq!((&all["roots"][0]["already"], &all["roots"][1]["already"]), (&true.into(), &false.into()));
        assert_eq!(place.done(&["trust", "show"])["roots"]["image"]["version"], 3);
    }
    place.script(&format!("{publish}{last}"));

    // What was handed in with the last root is what was seen last.
    let resigned = std::fs::read_to_string(dir.join("office/resigned/targets.json")).unwrap();
    let resigned: serde_json::Value = serde_json::from_str(&resigned).unwrap();
    assert_eq!(place.seen()["targets"][0].as_u64(), resigned["signed"]["version"].as_u64());

    let shown = place.done(&["trust", "show"]);
    for repository in ["image", "director"] {
        assert_eq!(shown["roots"][repository]["version"], 3);
        assert_eq!(shown["roots"][repository]["roles"]["root"]["threshold"], 2);
    }
    let carol = place.done(&["keys", "show", "carol/carol.pub"])["key_id"].as_str().unwrap().to_owned();
    assert!(!shown.to_string().contains(&carol));
    // Carol's key: nothing that follows from the newest roots is hers to sign.
    place.done(&[
        "trust",
        "rotate",
        "--repository",
        "image",
        "--root",
        "office/keys/roots/image.root.json",
        "--out",
        "image.4.json",
    ]);
    let sign = ["trust", "sign", "image.4.json", "--root", "office/keys/roots/image.root.json", "--key"];
    place.refused(&[&sign[..], &["carol/carol.pem"]].concat(), 9, "no say");
    // One alone is not enough, and what is not complete is not published.
    place.done(&[&sign[..], &["dave/dave.pem"]].concat());
    place.refused(&["trust", "publish", "image.4.json"], 9, "image.4.json");
    // What is published already is said and left out; the newest root stays the newest.
    let again = place.done(&["trust", "publish", "office/image.2.json", "--keys", "office/keys"]);
    assert_eq!(again["roots"][0]["already"], true);
    assert_eq!(place.done(&["trust", "show"])["roots"]["image"]["version"], 3);

    // What is exported is judged alike under the first roots and the newest ones.
    place.done(&["export", "file-type@1.0.0", "--out", "f.svpkg"]);
    for roots in ["first", "office/keys/roots"] {
        let root = format!("{roots}/image.root.json");
        assert_eq!(place.done(&["verify", "f.svpkg", "--root", &root])["verdict"]["taken"], true);
    }
    place.refused(&["verify", "f.svpkg"], 2, "no root is given");
    place.done(&["export", "file-type@1.0.0", "--oci", "layout"]);
    place.same_verdict("f.svpkg", "layout");
    place.refused(
        &["verify", "f.svpkg", "--keys", "office/keys", "--at", "2040-01-01T00:00:00Z"],
        9,
        "expired",
    );
    place.done(&["keys", "init", "others"]);
    place.refused(&["verify", "f.svpkg", "--keys", "others"], 9, "would refuse");
    place.done(&["import", "f.svpkg", "--out", "again.pkg", "--keys", "office/keys"]);
    place.refused(&["import", "f.svpkg", "--out", "never.pkg", "--keys", "others"], 9, "would refuse");
    assert!(!dir.join("never.pkg").exists());

    // All that one device shall run, for a stick: for that device, and nobody else's roots.
    place.done(&["target", "enrol", "edge-1", "--out", "edge-1.json"]);
    place.refused(&["export", "--target", "edge-1", "--out", "e.svpkg"], 3, "edge-1");
    place.done(&["deploy", "file-type@1.0.0", "--target", "edge-1"]);
    place.done(&["export", "--target", "edge-1", "--out", "e.svpkg"]);
    let verdict = place.done(&["verify", "e.svpkg", "--keys", "office/keys"])["verdict"].clone();
    assert_eq!((&verdict["taken"], &verdict["device"]), (&true.into(), &"edge-1".into()), "{verdict}");
    place.done(&["export", "--target", "edge-1", "--oci", "edge"]);
    place.same_verdict("e.svpkg", "edge");
    place.done(&["import", "edge", "--out", "edge.pkg", "--keys", "office/keys"]);
    // One letter less, and the folder is worth as little as such a file.
    let assignment = dir.join("edge/selvedge/director/edge-1.json");
    let signed = std::fs::read_to_string(&assignment).unwrap();
    std::fs::write(&assignment, signed.replacen("edge-1", "edge-", 1)).unwrap();
    place.refused(&["verify", "edge", "--keys", "office/keys"], 9, "would refuse");
    let image = ["verify", "e.svpkg", "--root", "first/image.root.json"];
    place.refused(&image, 2, "the Director's root is not given");
    place.done(&[&image[..], &["--director-root", "first/director.root.json"]].concat());
    place.refused(&["verify", "e.svpkg", "--keys", "others"], 9, "would refuse");

    // Alone, one of two releases nothing; and a package that others signed for is not any package.
    package(&dir.join("two.pkg"), "2.0.0", 2).await;
    let release = ["release", "two.pkg", "--keys", "office/keys"];
    place.refused(&[&release[..], &["--key", "alice/alice.pem"]].concat(), 9, "no device would take");
    place.refused(&release, 3, "no key that signs releases");
    place.refused(&[&release[..], &["--signed", "office/proposal"]].concat(), 5, "do not add exactly");
    place.done(&[&release[..], &["--key", "alice/alice.pem", "--propose", "p2"]].concat());
    place.done(&["trust", "sign", "p2", "--root", "dave/roots/image.root.json", "--key", "dave/dave.pem"]);
    place.done(&["trust", "check", "p2", "--against", "dave/roots/image.root.json"]);
    package(&dir.join("three.pkg"), "2.0.1", 2).await;
    place.refused(
        &["release", "three.pkg", "--keys", "office/keys", "--signed", "p2"],
        5,
        "do not add exactly",
    );
    place.done(&[&release[..], &["--signed", "p2"]].concat());
    assert!(place.done(&[&release[..], &["--signed", "p2"]].concat())["already"].as_bool().unwrap());

    // Lists that were renewed by several are remembered as what was released.
    let renew = ["trust", "renew", "--keys", "office/keys", "--key", "alice/alice.pem", "--propose", "again"];
    place.done(&renew);
    place.done(&["trust", "sign", "again", "--root", "dave/roots/image.root.json", "--key", "dave/dave.pem"]);
    let before = place.seen()["targets"][0].as_u64().unwrap();
    place.done(&["trust", "publish", "--lists", "again", "--keys", "office/keys"]);
    assert_eq!(place.seen()["targets"][0], before + 1);

    // A registry that forgets is found out.
    let seen = std::fs::read_to_string(dir.join("office/keys/seen.json")).unwrap();
    let version = place.seen()["targets"][0].as_u64().unwrap();
    let newer = seen.replace(&format!("\"targets\":[{version},"), &format!("\"targets\":[{},", version + 1));
    assert_ne!(newer, seen);
    std::fs::write(dir.join("office/keys/seen.json"), newer).unwrap();
    place.refused(&[&release[..], &["--key", "alice/alice.pem"]].concat(), 9, "was seen before");
}
