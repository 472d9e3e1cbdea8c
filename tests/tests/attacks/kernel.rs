//! What the kernel says of date and disk, decided by the test: see `kernel.c`.
//!
//! The library is compiled with `cc`, which every Rust tool chain links with.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use jiff::Timestamp;
use selvedge_tests::clock;

/// The state that the programs under test share with the test.
pub struct Kernel {
    file: File,
    path: PathBuf,
    data: PathBuf,
}

impl Kernel {
    /// Tells the truth: the machine's date, synchronised, and room on the disk.
    pub fn new(folder: &Path, data: &Path) -> Self {
        let path = folder.join("kernel");
        let file = File::options().create(true).truncate(true).write(true).open(&path).unwrap();
        let kernel = Self { file, path, data: data.to_owned() };
        kernel.set_shift(0);
        kernel.set_synchronised(true);
        kernel.set_room();
        kernel
    }

    /// A program that believes it.
    pub fn around<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LD_PRELOAD", library())
            .env("SELVEDGE_TEST_KERNEL", &self.path)
            .env("SELVEDGE_TEST_DATA", &self.data)
    }

    /// The date is so many seconds from the machine's.
    pub fn set_shift(&self, seconds: i64) {
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// It is this date now.
    pub fn set_date(&self, date: &str) {
        let date: Timestamp = date.parse().unwrap();
        self.set_shift(date.as_second() - clock::date().as_second());
    }

    /// Whether the kernel vouches for the date.
    pub fn set_synchronised(&self, synchronised: bool) {
        self.file.write_all_at(&i32::from(synchronised).to_ne_bytes(), 8).unwrap();
    }

    /// The disk has room.
    pub fn set_room(&self) {
        self.file.write_all_at(&(-1_i32).to_ne_bytes(), 12).unwrap();
    }

    /// The disk is full after so many writes more.
    pub fn set_full_after(&self, writes: i32) {
        self.file.write_all_at(&writes.to_ne_bytes(), 12).unwrap();
    }
}

/// The compiled library, made once for this test program.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/kernel.c");
        let new = folder.join(format!("kernel-{}.so", std::process::id()));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&new, &source])
            .output()
            .expect("cc can be started: every Rust tool chain links with it");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // Tests run at once, each in a process of its own: the last one wins, all are the same.
        let library = folder.join("kernel.so");
        std::fs::rename(&new, &library).unwrap();
        library
    })
}
