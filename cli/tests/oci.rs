//! Packages go to other tools and come back: `skopeo`, as Debian has it, reads what is exported, and
//! what it copies is imported again, byte for byte.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use selvedge_cli::packaging::authoring::{Content, Sources};
use selvedge_cli::packaging::layout::{Layout, write};
use selvedge_package::draft::Draft;

fn selvedge(dir: &Path, line: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
    command.env_clear().env("HOME", dir).stdin(Stdio::null()).current_dir(dir).args(line);
    command.output().unwrap()
}

fn done(dir: &Path, line: &[&str]) -> serde_json::Value {
    let output = selvedge(dir, &[line, &["--json"]].concat());
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(dir: &Path, line: &[&str], code: i32, says: &str) {
    let output = selvedge(dir, line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line:?}: {said}");
    assert!(said.contains(says), "{line:?}: {said}");
}

fn skopeo(dir: &Path, line: &[&str]) -> Vec<u8> {
    let output = Command::new("skopeo")
        .args(["--insecure-policy", "--tmpdir"])
        .arg(dir)
        .args(line)
        .current_dir(dir)
        .output()
        .expect("skopeo is missing: run `cargo xtask setup`, or install Debian's `skopeo`");
    assert!(output.status.success(), "skopeo {line:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

async fn package(dir: &Path) -> Layout {
    let toml = "name='file-type'\nversion='1.0.0'\nrelease=3\nfiles=['labels.txt']\nmodels=[{name='m',file='m.onnx'}]\n\
                inputs=[{name='x',datatype='FP32',shape=[1]}]\noutputs=[{name='y',datatype='FP32',shape=[1]}]\n\
                acceptance={cases=['c.json']}";
    let content = |bytes: Vec<u8>| Content::Bytes(bytes);
    let files = BTreeMap::from([
        ("m.onnx".parse().unwrap(), content((0..300_000u32).flat_map(u32::to_le_bytes).collect())),
        ("labels.txt".parse().unwrap(), content(b"a\nb\n".to_vec())),
        ("c.json".parse().unwrap(), content(b"{}".to_vec())),
    ]);
    let manifest = Draft::from_toml(toml).unwrap().finish().unwrap();
    write(&dir.join("made.pkg"), Sources { manifest, files }, |_| {}).await.unwrap()
}

fn same(dir: &Path, name: &str, layout: &Layout) {
    let read = Layout::open(&dir.join(name)).unwrap();
    assert_eq!(read.bundle().digest(), layout.bundle().digest());
    for blob in layout.bundle().blobs() {
        let bytes = |layout: &Layout| std::fs::read(layout.blob(&blob.digest)).unwrap();
        assert!(bytes(&read) == bytes(layout), "{}", blob.digest);
    }
}

#[tokio::test]
async fn skopeo_reads_what_is_exported_and_what_it_copies_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let layout = package(dir).await;
    done(dir, &["export", "made.pkg", "--out", "a.svpkg"]);
    done(dir, &["export", "made.pkg", "--oci", "layout"]);
    same(dir, "layout", &layout);

    let manifest = std::fs::read(layout.blob(&layout.bundle().digest())).unwrap();
    for place in ["oci-archive:a.svpkg:1.0.0", "oci:layout:1.0.0", "oci:made.pkg:1.0.0"] {
        assert!(skopeo(dir, &["inspect", "--raw", place]) == manifest, "{place}");
    }
    // Through its own forms, and back.
    skopeo(dir, &["copy", "oci-archive:a.svpkg:1.0.0", "dir:plain"]);
    assert!(std::fs::read(dir.join("plain/manifest.json")).unwrap() == manifest);
    skopeo(dir, &["copy", "oci:layout:1.0.0", "oci-archive:theirs.tar:1.0.0"]);
    skopeo(dir, &["copy", "dir:plain", "oci:again:x"]);
    for (from, to) in [("a.svpkg", "b.pkg"), ("theirs.tar", "c.pkg"), ("again", "d.pkg"), ("layout", "e.pkg")]
    {
        let told = done(dir, &["import", from, "--out", to]);
        assert_eq!(told["digest"], layout.bundle().digest().to_string(), "{from}");
        same(dir, to, &layout);
    }
    refused(dir, &["import", "a.svpkg", "--out", "b.pkg"], 5, "exists already");
    refused(dir, &["import", "layout", "--out", "f.pkg", "--package", "other"], 3, "file-type@1.0.0");
    // Nobody has signed it, so no device takes it.
    refused(dir, &["verify", "a.svpkg"], 9, "nobody has signed");
    refused(dir, &["verify", "made.pkg"], 9, "nobody has signed");
    refused(dir, &["verify", "theirs.tar"], 9, "");
}

#[tokio::test]
async fn damage_is_found_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    package(dir).await;
    done(dir, &["export", "made.pkg", "--out", "a.svpkg"]);
    let good = std::fs::read(dir.join("a.svpkg")).unwrap();
    // Every 512th byte of the content once, and every length: refused, and nothing is left behind.
    let step = (good.len() / 60) | 1;
    for at in (0..good.len()).step_by(step) {
        for bad in [good[..at].to_vec(), [&good[..at], &[good[at] ^ 0x55], &good[at + 1..]].concat()] {
            std::fs::write(dir.join("bad.svpkg"), &bad).unwrap();
            let output = selvedge(dir, &["import", "bad.svpkg", "--out", "bad.pkg"]);
            let code = output.status.code();
            if code == Some(0) {
                // Only bytes that mean nothing: what fills blocks, and dates and owners of a tar.
                std::fs::remove_dir_all(dir.join("bad.pkg")).unwrap();
                assert!(bad.len() == good.len() || good.len() - bad.len() <= 2048, "cut at {at}");
                continue;
            }
            assert_eq!(code, Some(4), "at {at}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(!dir.join("bad.pkg").exists());
        }
    }
    let left = std::fs::read_dir(dir)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".selvedge-"));
    assert_eq!(left.count(), 0);
}

/// A tar that names what no OCI layout has, or leads elsewhere.
#[test]
fn hostile_tars_write_nothing_outside() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let make = |name: &str, kind: tar::EntryType, link: Option<&str>| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        // `set_path` would refuse what an attacker writes.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        if let Some(link) = link {
            header.set_link_name_literal(link).unwrap();
        }
        header.set_size(if kind == tar::EntryType::Regular { 4 } else { 0 });
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, &b"evil"[..if kind == tar::EntryType::Regular { 4 } else { 0 }]).unwrap();
        builder.into_inner().unwrap()
    };
    use tar::EntryType::{Char, Fifo, Link, Regular, Symlink};
    for (name, kind, link) in [
        ("../out", Regular, None),
        ("/tmp/selvedge-evil", Regular, None),
        ("blobs/../../out", Regular, None),
        ("blobs/sha256/xyz", Regular, None),
        ("index.json", Symlink, Some("/etc/passwd")),
        ("index.json", Link, Some("/etc/passwd")),
        ("index.json", Fifo, None),
        ("index.json", Char, None),
        ("evil", Regular, None),
    ] {
        std::fs::write(dir.join("evil.tar"), make(name, kind, link)).unwrap();
        refused(dir, &["import", "evil.tar", "--out", "x.pkg"], 4, "");
        assert!(!dir.join("out").exists() && !Path::new("/tmp/selvedge-evil").exists(), "{name}");
    }
}
