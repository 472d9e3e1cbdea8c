//! Single-file packages: what is written reads back; what a stranger wrote on a USB stick is an error
//! that says what is wrong, and never a panic, an endless read or a file outside.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::io::Read;

use proptest::prelude::*;
use selvedge_package::Digest;
use selvedge_package::archive::{
    ArchiveError, ArchiveLimits, Entry, LAYOUT, MetadataFiles, MetadataName, Reader, Writer,
};
use selvedge_package::trust::{DelegatedFile, MetadataBundle, Repository, RepositoryMetadata};
use tar::{EntryType, Header};

/// All that an archive holds.
#[derive(Debug, Default, PartialEq)]
struct Held {
    index: Vec<u8>,
    metadata: MetadataFiles,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

fn read_with(archive: impl Read, limits: ArchiveLimits) -> Result<Held, ArchiveError> {
    let mut reader = Reader::new(archive, limits);
    let mut held = Held::default();
    while let Some(entry) = reader.next_entry()? {
        match entry {
            Entry::Layout => {}
            Entry::Index(bytes) => held.index = bytes,
            Entry::Metadata { repository, name, bytes } => held.metadata.insert(repository, name, bytes),
            Entry::Blob(blob) => {
                let digest = blob.digest;
                held.blobs.insert(digest, blob.bytes(1 << 20)?);
            }
        }
    }
    // It stays at its end.
    assert!(reader.next_entry()?.is_none());
    Ok(held)
}

fn read(archive: &[u8]) -> Result<Held, ArchiveError> {
    read_with(archive, ArchiveLimits::PACKAGES)
}

fn written(index: &[u8], metadata: &MetadataFiles, blobs: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), index, metadata).unwrap();
    for blob in blobs {
        writer.blob(Digest::of(blob), blob.len() as u64, blob.as_slice()).unwrap();
    }
    writer.finish().unwrap()
}

/// A file of any role, as far as an archive looks at it.
fn file(version: u64) -> Vec<u8> {
    format!("{{\"signed\":{{\"version\":{version}}}}}").into_bytes()
}

fn bundle() -> MetadataBundle {
    let part = |targets| RepositoryMetadata {
        roots: vec![file(9), file(10)],
        timestamp: file(7),
        snapshot: file(7),
        targets: file(targets),
        delegated: Vec::new(),
    };
    let mut image = part(3);
    image.delegated = vec![
        DelegatedFile { role: "bin-3".into(), file: file(2) },
        DelegatedFile { role: "bin-3a".into(), file: file(1) },
    ];
    MetadataBundle { image, director: part(7), assignment: b"{}".to_vec() }
}

#[test]
fn a_bundle_comes_out_as_it_went_in() {
    let device = "edge-1".parse().unwrap();
    let files = MetadataFiles::of(&bundle(), Some(&device)).unwrap();
    assert_eq!(files.device(), Some(&device));
    let blobs = [vec![1; 512], Vec::new(), vec![2; 513]];
    let archive = written(b"{}", &files, &blobs);
    let held = read(&archive).unwrap();
    assert_eq!(held.metadata.bundle().unwrap(), bundle());
    assert_eq!(held.blobs.len(), 3);
    // Made for no device, and of no repository at all.
    let mut image = bundle();
    image.director = RepositoryMetadata::default();
    image.assignment.clear();
    let files = MetadataFiles::of(&image, None).unwrap();
    assert_eq!(read(&written(b"{}", &files, &[])).unwrap().metadata.bundle().unwrap(), image);
    assert!(read(&written(b"{}", &MetadataFiles::default(), &[])).unwrap().metadata.is_empty());
    // A file that says no version has no name.
    image.image.snapshot = b"{}".to_vec();
    assert!(MetadataFiles::of(&image, None).is_err());
}

#[test]
fn other_tools_read_it() {
    let archive = written(b"{}", &MetadataFiles::of(&bundle(), None).unwrap(), &[vec![7; 1000]]);
    let mut other = tar::Archive::new(archive.as_slice());
    let names: Vec<_> = other
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names[0], "oci-layout");
    assert_eq!(names[2], "selvedge/image/9.root.json");
    assert_eq!(names.last().unwrap(), &format!("blobs/sha256/{}", Digest::of(&[7; 1000]).hex()));
}

#[test]
fn metadata_with_two_versions_of_a_role_is_no_bundle() {
    let mut files = MetadataFiles::of(&bundle(), None).unwrap();
    files.insert(Repository::Image, MetadataName::Snapshot(8), file(8));
    assert!(matches!(files.bundle(), Err(ArchiveError::Metadata { .. })));
    let mut files = MetadataFiles::of(&bundle(), None).unwrap();
    files.insert(Repository::Image, MetadataName::Targets { role: "bin-3".into(), version: 1 }, file(1));
    assert!(matches!(files.bundle(), Err(ArchiveError::Metadata { .. })));
}

#[test]
fn a_blob_that_is_not_its_digest_is_neither_written_nor_read() {
    let digest = Digest::of(b"good");
    for (size, bytes) in [(4, &b"evil"[..]), (4, b"goo"), (4, b"good!"), (5, b"good"), (3, b"good")] {
        let mut writer = Writer::new(Vec::new(), b"{}", &MetadataFiles::default()).unwrap();
        assert!(writer.blob(digest, size, bytes).is_err(), "{size} {bytes:?}");
    }
    let mut archive = written(b"{}", &MetadataFiles::default(), &[b"good".to_vec()]);
    let at = archive.windows(4).position(|window| window == b"good").unwrap();
    archive[at] = b'x';
    assert!(matches!(read(&archive), Err(ArchiveError::Blob { .. })));
}

/// One entry, whatever it is.
fn entry(name: &[u8], kind: EntryType, size: u64, bytes: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    let mut entry = header.as_bytes().to_vec();
    entry.extend(bytes);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

fn plain(name: &str, bytes: &[u8]) -> Vec<u8> {
    entry(name.as_bytes(), EntryType::Regular, bytes.len() as u64, bytes)
}

/// Reads an archive of these entries after a good beginning.
fn check(entries: &[Vec<u8>], words: &str) {
    let mut archive = [plain("oci-layout", LAYOUT), plain("index.json", b"{}")].concat();
    archive.extend(entries.concat());
    archive.extend([0; 1024]);
    let text = read(&archive).unwrap_err().to_string();
    assert!(text.contains(words), "{text:?} lacks {words:?}");
}

#[test]
fn hostile_entries_are_refused_by_name() {
    let kinds = [
        (EntryType::Directory, "a directory"),
        (EntryType::Symlink, "a link"),
        (EntryType::Link, "a link"),
        (EntryType::GNULongName, "changes the name"),
        (EntryType::XHeader, "changes the name"),
        (EntryType::XGlobalHeader, "changes the name"),
        (EntryType::GNUSparse, "not a regular file"),
        (EntryType::Fifo, "not a regular file"),
        (EntryType::Char, "not a regular file"),
        (EntryType::Continuous, "not a regular file"),
    ];
    for (kind, words) in kinds {
        check(&[entry(b"blobs/sha256/x", kind, 0, b"")], words);
    }
    for name in ["../etc/passwd", "/etc/passwd", "blobs/sha256/../../x", "x", "selvedge/image/x.json"] {
        check(&[plain(name, b"")], "no such file");
    }
    check(&[plain("a\nb", b"")], "a\\nb");
    check(&[entry(b"\xff\xfe", EntryType::Regular, 0, b"")], "not text");
    let blob = plain(&format!("blobs/sha256/{}", Digest::of(b"x").hex()), b"x");
    check(&[blob.clone(), blob.clone()], "twice");
    let timestamp = plain("selvedge/image/timestamp.json", b"{}");
    check(&[timestamp.clone(), timestamp.clone()], "twice");
    check(&[blob.clone(), timestamp.clone()], "wrong place");
    check(&[plain("index.json", b"{}")], "twice");
    check(&[blob.clone(), plain("oci-layout", LAYOUT)], "twice");
}

#[test]
fn sizes_are_refused_before_anything_is_read() {
    // The bytes that are promised are not there: whoever tried to read them would say so.
    let huge = |name: &str, size| entry(name.as_bytes(), EntryType::Regular, size, b"");
    let blob = format!("blobs/sha256/{}", Digest::of(b"x").hex());
    check(&[huge(&blob, (2 << 30) + 1)], "at most 2147483648");
    check(&[huge("selvedge/image/timestamp.json", (16 << 10) + 1)], "at most 16384");
    check(&[huge("selvedge/image/1.bin-3.json", (256 << 10) + 1)], "at most 262144");
    check(&[huge("selvedge/director/edge-1.json", u64::MAX)], "at most 65536");
    // Many small ones.
    let limits = ArchiveLimits {
        blobs: 2,
        metadata: 2,
        metadata_bytes: 10,
        total_bytes: 3,
        ..ArchiveLimits::PACKAGES
    };
    let refusal = |files: &MetadataFiles, blobs: &[&[u8]], limits| {
        let blobs: Vec<_> = blobs.iter().map(|blob| blob.to_vec()).collect();
        read_with(written(b"{}", files, &blobs).as_slice(), limits).unwrap_err().to_string()
    };
    let none = MetadataFiles::default();
    assert!(refusal(&none, &[b"a", b"b", b"c"], limits).contains("more than 2 blobs"));
    assert!(refusal(&none, &[b"aa", b"bb"], limits).contains("more than 3 bytes of blobs"));
    let mut files = MetadataFiles::default();
    for version in 1..4 {
        files.insert(Repository::Image, MetadataName::Root(version), b"{}".to_vec());
    }
    assert!(refusal(&files, &[], limits).contains("more than 2 metadata files"));
    let mut files = MetadataFiles::default();
    files.insert(Repository::Image, MetadataName::Timestamp, vec![b' '; 11]);
    assert!(refusal(&files, &[], limits).contains("more than 10 bytes of metadata"));
}

#[test]
fn what_is_no_archive_is_said_to_be_none() {
    for (bytes, words) in [
        (&b""[..], "ends in the middle"),
        (&[0; 1024], "it is empty"),
        (&[b'x'; 2048], "ustar"),
        (&plain("index.json", b"{}"), "wrong place"),
        (&plain("oci-layout", b"{}"), "oci-layout"),
        (&plain("oci-layout", br#"{"imageLayoutVersion":"2.0.0"}"#), "oci-layout"),
    ] {
        let text = read(bytes).unwrap_err().to_string();
        assert!(text.contains(words), "{text:?} lacks {words:?}");
    }
    let mut archive = written(b"{}", &MetadataFiles::default(), &[]);
    archive[0] ^= 1;
    assert!(read(&archive).unwrap_err().to_string().contains("checksum"));
}

#[test]
fn an_archive_that_was_cut_is_cut() {
    let blobs = [vec![1; 700], vec![2; 512]];
    let archive = written(b"{}", &MetadataFiles::of(&bundle(), None).unwrap(), &blobs);
    let end = archive.len() - 1024;
    for keep in (0..end + 512).step_by(37) {
        assert!(read(&archive[..keep]).is_err(), "{keep} of {}", archive.len());
    }
    assert!(read(&archive[..end + 512]).is_ok());
    // The same for whoever skips the blobs.
    for keep in [end - 1, end - 512, end] {
        let mut reader = Reader::new(&archive[..keep], ArchiveLimits::PACKAGES);
        let last = std::iter::from_fn(|| match reader.next_entry() {
            Ok(None) => None,
            Ok(Some(_)) => Some(true),
            Err(_) => Some(false),
        })
        .take(100)
        .find(|good| !good);
        assert_eq!(last, Some(false), "{keep}");
    }
}

/// A stream that gives a byte at a time, as a socket may.
struct Drops<'a>(&'a [u8]);

impl Read for Drops<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(1);
        self.0.read(&mut buffer[..most])
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        index in prop::collection::vec(any::<u8>(), 0..2000),
        roots in prop::collection::btree_map(1..u64::MAX, prop::collection::vec(any::<u8>(), 0..600), 0..4),
        blobs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 0..4),
    ) {
        let mut metadata = MetadataFiles::default();
        for (version, root) in roots {
            metadata.insert(Repository::Image, MetadataName::Root(version), root.clone());
            metadata.insert(Repository::Director, MetadataName::Root(version), root);
        }
        let archive = written(&index, &metadata, &blobs);
        prop_assert_eq!(archive.len() % 512, 0);
        let held = read_with(Drops(&archive), ArchiveLimits::PACKAGES).unwrap();
        let blobs = blobs.into_iter().map(|blob| (Digest::of(&blob), blob)).collect();
        prop_assert_eq!(held, Held { index, metadata, blobs });
    }

    /// Whatever is changed, reading ends, without a panic, in an error or in files of the list.
    #[test]
    fn any_change_is_an_error_or_another_archive(
        changes in prop::collection::vec((0_usize..8000, any::<u8>()), 1..8),
    ) {
        let metadata = MetadataFiles::of(&bundle(), None).unwrap();
        let mut archive = written(b"{}", &metadata, &[vec![1; 100]]);
        for (at, byte) in changes {
            let at = at % archive.len();
            archive[at] = byte;
        }
        let _ = read(&archive);
    }
}
