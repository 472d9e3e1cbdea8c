//! Tries every way out of the folder that `package-files` grants, and every way to change what is in
//! it. Answers with one line for each: what it tried, and what became of it.

use std::fs;
use std::io::Error as Io;

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::tensors::Tensor;

struct Escape;

export!(Escape);

impl Guest for Escape {
    fn predict(_: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let mut lines = Vec::new();
        let mut tell = |what: String, result: Result<Vec<u8>, Io>| {
            let became = match result {
                Ok(bytes) => format!("SUCCEEDED {}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)])),
                Err(error) => format!("refused {error}"),
            };
            lines.push(format!("{what}: {became}").into_bytes());
        };
        // What is granted, so that the rest is not refused for a reason of its own.
        tell("its own".to_owned(), fs::read("/package/model.onnx"));
        for path in [
            "/etc/passwd", "/package/../../../../../../etc/passwd", "/package/./cases/../../../../../etc/passwd",
            "../etc/passwd", "/package//etc/passwd/../../../../etc/passwd", "/proc/self/environ", "/dev/zero",
            "/package/link-to-a-file", "/package/link-to-a-folder/secret", "/package/link-up/secret",
        ] {
            tell(format!("read {path}"), fs::read(path));
        }
        let made = |result: Result<(), Io>| result.map(|()| Vec::new());
        tell("write".to_owned(), made(fs::write("/package/new", "x")));
        tell("overwrite".to_owned(), made(fs::write("/package/model.onnx", "x")));
        tell("append".to_owned(), made(fs::OpenOptions::new().append(true).open("/package/model.onnx").map(drop)));
        tell("remove".to_owned(), made(fs::remove_file("/package/model.onnx")));
        tell("rename".to_owned(), made(fs::rename("/package/model.onnx", "/package/other.onnx")));
        tell("folder".to_owned(), made(fs::create_dir("/package/folder")));
        tell("link".to_owned(), made(fs::hard_link("/package/model.onnx", "/package/hard")));
        let tensor = Tensor::create_bytes(&[lines.len() as u64], &lines)?;
        Ok(vec![NamedTensor { name: "tried".to_owned(), tensor }])
    }
}
