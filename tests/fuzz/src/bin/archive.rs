//! A single-file package on a stranger's USB stick. Whatever it holds, reading ends, gives no more than the
//! stream has, and what is taken can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_package::archive::{ArchiveLimits, Entry, MetadataFiles, Reader, Writer};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new(bytes, ArchiveLimits::PACKAGES);
    let (mut index, mut metadata, mut blobs) = (Vec::new(), MetadataFiles::default(), Vec::new());
    let (mut taken, mut good) = (0, true);
    loop {
        match reader.next_entry() {
            Ok(None) => break,
            Ok(Some(Entry::Layout)) => {}
            Ok(Some(Entry::Index(file))) => {
                taken += file.len();
                index = file;
            }
            Ok(Some(Entry::Metadata { repository, name, bytes })) => {
                taken += bytes.len();
                metadata.insert(repository, name, bytes);
            }
            Ok(Some(Entry::Blob(blob))) => {
                let digest = blob.digest;
                match blob.bytes(1 << 20) {
                    Ok(bytes) => {
                        taken += bytes.len();
                        blobs.push((digest, bytes));
                    }
                    Err(_) => good = false,
                }
            }
            Err(_) => {
                assert!(matches!(reader.next_entry(), Ok(None)), "there is nothing after an error");
                return;
            }
        }
        assert!(taken <= bytes.len());
    }
    let _ = metadata.bundle();
    if good {
        let mut writer = Writer::new(Vec::new(), &index, &metadata).unwrap();
        for (digest, bytes) in &blobs {
            writer.blob(*digest, bytes.len() as u64, bytes.as_slice()).unwrap();
        }
        writer.finish().unwrap();
    }
});
