//! A disk that fails when it is told to, and the real agent on it, in a thread of the test.
//!
//! A file system that holds open files cannot be made read-only from outside, except by breaking it for
//! good; so what the agent is told by it is changed here, where everything durable passes.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use selvedge_agent::config::{Choices, Config};
use selvedge_agent::daemon::{Ground, run_on};
use selvedge_agent::enrolment::Enrolment;
use selvedge_agent::remote::Logs;
use selvedge_agent::store::disk::{Disk, DiskFile, RealDisk, StorageBackend};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::programs::program;
use crate::stack::Stack;

/// The machine's disk, which fails from time to time.
#[derive(Debug, Clone, Default)]
pub struct FailingDisk {
    /// The error of every change, 0: none.
    error: Arc<AtomicI32>,
    refused: Arc<AtomicU64>,
    changes: Arc<AtomicU64>,
}

impl FailingDisk {
    /// From now on every change fails with this error of the system.
    pub fn fail(&self, errno: i32) {
        self.error.store(errno, Ordering::SeqCst);
    }

    /// It works again.
    pub fn work(&self) {
        self.fail(0);
    }

    /// How many changes have failed.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// How many changes there were: writes, names, and what was made durable.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn change(&self) -> io::Result<()> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        match self.error.load(Ordering::SeqCst) {
            0 => Ok(()),
            errno => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(FailingFile { disk: self.clone(), file })
    }
}

#[derive(Debug)]
struct FailingFile<F> {
    disk: FailingDisk,
    file: F,
}

impl DiskFile for FailingFile<Box<dyn DiskFile>> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.change()?;
        self.file.write_at(offset, bytes)
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.change()?;
        self.file.sync()
    }
}

impl StorageBackend for FailingFile<Box<dyn StorageBackend>> {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.change()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.disk.change()?;
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.change()?;
        self.file.write(offset, data)
    }
}

impl Disk for FailingDisk {
    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        self.change()?;
        Ok(Box::new(FailingFile { disk: self.clone(), file: RealDisk.database(path)? }))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.change()?;
        Ok(self.file(RealDisk.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        RealDisk.open(path)
    }
    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.change()?;
        Ok(self.file(RealDisk.open_or_create(path)?))
    }
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.make_directory(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.hard_link(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.remove_file(path)
    }
    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.remove_tree(path)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        RealDisk.sync_directory(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(path)
    }
    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        RealDisk.size(path)
    }
}

/// The agent in a thread.
pub struct Agent {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
}

impl Agent {
    /// Starts it as the device of a stack.
    pub fn of(stack: &Stack, disk: &FailingDisk, choices: Choices) -> Self {
        let text = std::fs::read_to_string(stack.path("enrolment.json")).expect("the device is enrolled");
        let mut enrolment: Value = serde_json::from_str(&text).expect("an enrolment is JSON");
        enrolment["broker"] = stack.broker_url().into();
        let enrolment = serde_json::from_value(enrolment).expect("it is an enrolment");
        let http = stack.inference().trim_start_matches("http://").parse().expect("it is an address");
        let host_binary = Some(program("selvedge-host"));
        let ours = Choices { host_binary, http: Some(http), ..Choices::default() };
        let config = Config::merge(&stack.dir.path().join("agent"), choices, ours);
        Self::start(disk, config.expect("the choices can be met"), enrolment)
    }

    fn start(disk: &FailingDisk, config: Config, enrolment: Enrolment) -> Self {
        let (stop, stopped) = oneshot::channel();
        let ground = Ground { disk: Arc::new(disk.clone()), launcher: program("selvedge-agent") };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                tokio::select! {
                    ended = run_on(ground, config, Some(enrolment), Logs::default()) => {
                        Err(format!("the agent has ended: {ended:?}"))
                    }
                    _ = stopped => Ok(()),
                }
            })
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(Ok(())))), "{ended:?}");
        }
    }
}
