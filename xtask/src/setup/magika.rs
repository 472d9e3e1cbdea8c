//! The file-type model of the example, with its configuration, out of the `magika` wheel. The wheel
//! for x86-64 serves every machine: the model in it does not depend on the processor.

use anyhow::Result;

use super::wheel::Wheel;
use super::{Key, Stamp};
use crate::paths;

const WHEEL: Wheel = Wheel {
    package: "magika",
    version: "1.0.3",
    platforms: &["manylinux_2_28_x86_64"],
    sha256: "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
};

/// Makes sure that `target/setup/magika` holds the model, its configuration and its types.
pub fn files() -> Result<()> {
    let folder = paths::setup().join("magika");
    let files = [
        ("magika/models/standard_v3_3/model.onnx", folder.join("model.onnx")),
        ("magika/models/standard_v3_3/config.min.json", folder.join("config.min.json")),
        ("magika/config/content_types_kb.min.json", folder.join("content_types_kb.min.json")),
    ];
    let stamp = Stamp::new("magika", Key::new().text(WHEEL.version).text(WHEEL.sha256));
    let products = files.each_ref().map(|(_, path)| path.clone());
    if !stamp.is_fresh(&products) {
        WHEEL.unpack(&files)?;
        stamp.set()?;
    }
    Ok(())
}
