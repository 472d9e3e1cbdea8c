//! What a package says of itself: `selvedge.toml`, the OCI manifest and the package manifest. Input: the
//! OCI manifest and the package manifest with a zero byte between them, or a TOML file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use selvedge_package::bundle::{Bundle, parse_oci};
use selvedge_package::draft::Draft;
use selvedge_package::limits::Limits;
use selvedge_package::{Digest, rules};
use serde_json::{Value, json};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(draft) = Draft::from_toml(text)
        && let Ok(manifest) = draft.finish()
    {
        rules::check(&manifest, &Limits::PACKAGE).expect("a finished draft was checked");
        let json = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(serde_json::from_slice::<selvedge_package::Manifest>(&json).unwrap(), manifest);
    }
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (oci, config) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let _ = parse_oci(&Limits::PACKAGE, oci);
    let _ = Bundle::parse(oci, config);
    // Again with a manifest that names this very config.
    let Ok(mut read) = serde_json::from_slice::<Value>(oci) else {
        return;
    };
    if !read.get("config").is_some_and(Value::is_object) {
        return;
    }
    read["config"]["digest"] = json!(Digest::of(config).to_string());
    read["config"]["size"] = json!(config.len());
    let oci = serde_json::to_vec(&read).unwrap();
    if let Ok(bundle) = Bundle::parse(&oci, config) {
        assert_eq!(bundle.digest(), Digest::of(&oci));
        assert!(bundle.size() <= Limits::PACKAGE.package_bytes);
        for file in bundle.files() {
            let _ = format!("{file:?}");
        }
        for blob in bundle.blobs() {
            let _ = bundle.index_of(&blob.digest);
        }
    }
});
