//! The ONNX Runtime library, out of its PyPI wheel: the only source that is there wherever a package
//! registry is. Debian's own is too old for the tests' comparisons.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::wheel::Wheel;
use super::{Key, Stamp};
use crate::paths;

const VERSION: &str = "1.32.0";

/// Processor architectures that the programs run on.
#[derive(Clone, Copy, PartialEq)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// This machine's.
    pub fn here() -> Result<Self> {
        match (std::env::consts::OS, std::env::consts::ARCH) {
            ("linux", "x86_64") => Ok(Self::X86_64),
            ("linux", "aarch64") => Ok(Self::Aarch64),
            (os, arch) => bail!("{os} on {arch} is not supported: Linux on x86_64 or aarch64 is"),
        }
    }

    fn wheel(self) -> Wheel {
        let (platforms, sha256): (&[_], _) = match self {
            Self::X86_64 => (
                &["manylinux_2_28_x86_64", "manylinux_2_27_x86_64"],
                "5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d",
            ),
            Self::Aarch64 => (
                &["manylinux_2_28_aarch64", "manylinux_2_27_aarch64"],
                "2303372a85299b6757b0e11e1cbf13e410ddf7e10c37f4b37e99d1c90e7daf7c",
            ),
        };
        Wheel { package: "onnxruntime", version: VERSION, platforms, sha256 }
    }
}

/// Makes sure that the library is there and says where.
pub fn library(architecture: Architecture) -> Result<PathBuf> {
    let (name, path) = if architecture == Architecture::here()? {
        ("onnxruntime", paths::onnxruntime())
    } else {
        ("onnxruntime-arm64", paths::setup().join("arm64/libonnxruntime.so"))
    };
    let wheel = architecture.wheel();
    let stamp = Stamp::new(name, Key::new().text(VERSION).text(wheel.sha256));
    if !stamp.is_fresh(std::slice::from_ref(&path)) {
        wheel.unpack(&[("onnxruntime/capi/libonnxruntime.so.1.32.0", path.clone())])?;
        stamp.set()?;
    }
    Ok(path)
}
