//! A disk in memory that loses power at a chosen operation, and forgets what was not synced.
//!
//! Names and contents are kept twice: as programs see them, and as the platter has them. Syncing a
//! file or a directory copies the one to the other. At the cut the program's view is replaced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;

use redb::StorageBackend;
use selvedge_agent::store::disk::{Disk, DiskFile};

/// What of the unsynced is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: the process was killed, the machine lives.
    Nothing,
    /// All of it.
    Everything,
    /// Some sectors of files and some names, by this seed.
    Some(u64),
}

/// Where in the operation the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before anything of it is done.
    Before,
    /// After half of the bytes.
    Middle,
    /// When it is done, before it returns.
    After,
}

#[derive(Debug, Clone)]
enum Node {
    File { seen: Vec<u8>, kept: Vec<u8> },
    Directory { seen: BTreeMap<String, usize>, kept: BTreeMap<String, usize> },
}

#[derive(Debug, Default)]
struct World {
    nodes: Vec<Node>,
    operations: u64,
    cut: Option<(u64, Moment)>,
    dead: bool,
    wear: Wear,
    sync_fails: bool,
}

/// What a memory card has to bear.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wear {
    /// Bytes written to files.
    pub bytes: u64,
    /// Files and directories made durable: each costs the card a page or more, and some metadata.
    pub syncs: u64,
}

/// The disk; clones share it.
#[derive(Debug, Clone)]
pub struct CutDisk {
    world: Arc<Mutex<World>>,
    /// Whether other threads are kept away.
    gate: Arc<(Mutex<bool>, Condvar)>,
    /// Who is never kept away.
    first: ThreadId,
}

/// Keeps other threads away from the disk until it is dropped, except when it is opened.
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn set(&self, closed: bool) {
        *self.0.0.lock().unwrap() = closed;
        self.0.1.notify_all();
    }

    /// Lets the others work, until it is closed again.
    pub fn open(&self) {
        self.set(false);
    }

    /// Keeps them away.
    pub fn close(&self) {
        self.set(true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

fn power() -> io::Error {
    io::Error::other("the power is gone")
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl CutDisk {
    /// An empty disk with power.
    pub fn new() -> Self {
        Self::of(vec![Node::Directory { seen: BTreeMap::new(), kept: BTreeMap::new() }])
    }

    fn of(nodes: Vec<Node>) -> Self {
        let world = Arc::new(Mutex::new(World { nodes, ..World::default() }));
        Self { world, gate: Arc::default(), first: std::thread::current().id() }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        if std::thread::current().id() != self.first {
            let (closed, changed) = &*self.gate;
            drop(changed.wait_while(closed.lock().unwrap(), |closed| *closed).unwrap());
        }
        self.world.lock().unwrap()
    }

    /// Keeps other threads away: so operations come in the same order each time.
    pub fn gate(&self) -> Gate {
        let gate = Gate(Arc::clone(&self.gate));
        gate.close();
        gate
    }

    /// What was written since the disk was made or got power again.
    pub fn wear(&self) -> Wear {
        self.world().wear
    }

    /// A file's bytes: as programs see them, and as they would be found after a power cut.
    pub fn bytes(&self, path: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut world = self.world();
        let id = world.find(path).ok()?;
        world.file(id).ok().map(|(seen, kept)| (seen.clone(), kept.clone()))
    }

    /// Cuts the power at this operation, counted from now.
    pub fn cut_at(&self, operation: u64, moment: Moment) {
        let mut world = self.world();
        world.operations = 0;
        world.cut = Some((operation, moment));
    }

    /// Whether the power is gone.
    pub fn is_dead(&self) -> bool {
        self.world().dead
    }

    /// Gives power again, with what is left. Files that are still open fail for ever.
    pub fn restart(&self, loss: Loss) -> Self {
        let mut old = self.world();
        let mut seed = match loss {
            Loss::Some(seed) => seed | 1,
            _ => 1,
        };
        let mut coin = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % 2 == 0
        };
        let nodes = std::mem::take(&mut old.nodes);
        old.dead = true;
        let nodes = nodes
            .into_iter()
            .map(|node| match node {
                Node::File { seen, kept } => {
                    let left = match loss {
                        Loss::Nothing => seen,
                        Loss::Everything => kept,
                        Loss::Some(_) => mix(&seen, kept, &mut coin),
                    };
                    Node::File { kept: left.clone(), seen: left }
                }
                Node::Directory { seen, kept } => {
                    let left = match loss {
                        Loss::Nothing => seen,
                        Loss::Everything => kept,
                        Loss::Some(_) => mix_names(&seen, kept, &mut coin),
                    };
                    Node::Directory { kept: left.clone(), seen: left }
                }
            })
            .collect();
        Self::of(nodes)
    }

    /// Another disk with the same content, and power.
    pub fn copy(&self) -> Self {
        Self::of(self.world().nodes.clone())
    }

    /// Changes a byte of a file behind everyone's back.
    pub fn flip(&self, path: &Path, offset: usize) {
        self.change(path, |bytes| {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= 1;
            }
        });
    }

    /// The next sync of a file fails, and those after it do not: as a kernel says once that a write was lost.
    pub fn fail_next_sync(&self) {
        self.world().sync_fails = true;
    }

    /// Cuts a file short, or makes it longer, behind everyone's back.
    pub fn resize(&self, path: &Path, size: usize) {
        self.change(path, |bytes| bytes.resize(size, 0x5a));
    }

    fn change(&self, path: &Path, change: impl Fn(&mut Vec<u8>)) {
        let mut world = self.world();
        let id = world.find(path).unwrap();
        if let Node::File { seen, kept } = &mut world.nodes[id] {
            for bytes in [seen, kept] {
                change(bytes);
            }
        }
    }
}

fn mix(seen: &[u8], mut kept: Vec<u8>, coin: &mut impl FnMut() -> bool) -> Vec<u8> {
    if coin() {
        kept.resize(seen.len(), 0);
    }
    let sectors = kept.chunks_mut(512).zip(seen.chunks(512));
    for (kept, seen) in sectors {
        if coin() {
            let both = kept.len().min(seen.len());
            kept[..both].copy_from_slice(&seen[..both]);
        }
    }
    kept
}

/// Each change of a name reached the platter or did not.
fn mix_names(
    seen: &BTreeMap<String, usize>,
    mut kept: BTreeMap<String, usize>,
    coin: &mut impl FnMut() -> bool,
) -> BTreeMap<String, usize> {
    let names: Vec<String> = seen.keys().chain(kept.keys()).cloned().collect();
    for name in names {
        if seen.get(&name) != kept.get(&name) && coin() {
            match seen.get(&name) {
                Some(id) => drop(kept.insert(name, *id)),
                None => drop(kept.remove(&name)),
            }
        }
    }
    kept
}

impl World {
    /// Counts an operation that changes something. `Some(half)` where the power goes during it.
    fn spend(&mut self) -> io::Result<Option<Moment>> {
        if self.dead {
            return Err(power());
        }
        let this = self.operations;
        self.operations += 1;
        match self.cut {
            Some((at, moment)) if at == this => {
                self.dead = true;
                if moment == Moment::Before { Err(power()) } else { Ok(Some(moment)) }
            }
            _ => Ok(None),
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(power()) } else { Ok(()) }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut id = 0;
        for part in parts(path) {
            match &self.nodes[id] {
                Node::Directory { seen, .. } => id = *seen.get(&part).ok_or_else(not_found)?,
                Node::File { .. } => return Err(not_found()),
            }
        }
        Ok(id)
    }

    fn names(&mut self, directory: &Path) -> io::Result<&mut BTreeMap<String, usize>> {
        let id = self.find(directory)?;
        match &mut self.nodes[id] {
            Node::Directory { seen, .. } => Ok(seen),
            Node::File { .. } => Err(not_found()),
        }
    }

    fn parent(&mut self, path: &Path) -> io::Result<(&mut BTreeMap<String, usize>, String)> {
        let name = path.file_name().ok_or_else(not_found)?.to_string_lossy().into_owned();
        Ok((self.names(path.parent().ok_or_else(not_found)?)?, name))
    }

    fn file(&mut self, id: usize) -> io::Result<(&mut Vec<u8>, &mut Vec<u8>)> {
        match self.nodes.get_mut(id) {
            Some(Node::File { seen, kept }) => Ok((seen, kept)),
            _ => Err(power()),
        }
    }

    fn make_file(&mut self, path: &Path, empty: bool) -> io::Result<usize> {
        if let Ok(id) = self.find(path) {
            if empty {
                self.file(id)?.0.clear();
            }
            return Ok(id);
        }
        let id = self.nodes.len();
        let (names, name) = self.parent(path)?;
        names.insert(name, id);
        self.nodes.push(Node::File { seen: Vec::new(), kept: Vec::new() });
        Ok(id)
    }
}

fn parts(path: &Path) -> Vec<String> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect()
}

/// After an operation whose end the program does not live to see.
fn done<T>(moment: Option<Moment>, value: T) -> io::Result<T> {
    if moment.is_some() { Err(power()) } else { Ok(value) }
}

impl Disk for CutDisk {
    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let mut world = self.world();
        let moment = world.spend()?;
        let id = world.make_file(path, false)?;
        done(moment, Box::new(OpenFile { disk: self.clone(), id }) as Box<dyn StorageBackend>)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.world();
        let moment = world.spend()?;
        let id = world.make_file(path, true)?;
        done(moment, Box::new(OpenFile { disk: self.clone(), id }) as Box<dyn DiskFile>)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let world = self.world();
        world.alive()?;
        let id = world.find(path)?;
        Ok(Box::new(OpenFile { disk: self.clone(), id }))
    }

    fn open_or_create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut world = self.world();
        let moment = world.spend()?;
        let id = world.make_file(path, false)?;
        done(moment, Box::new(OpenFile { disk: self.clone(), id }) as Box<dyn DiskFile>)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let moment = world.spend()?;
        let mut at = 0;
        for part in parts(path) {
            let next = world.nodes.len();
            let Node::Directory { seen, .. } = &mut world.nodes[at] else { return Err(not_found()) };
            at = *seen.entry(part).or_insert(next);
            if at == next {
                world.nodes.push(Node::Directory { seen: BTreeMap::new(), kept: BTreeMap::new() });
            }
        }
        done(moment, ())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        let moment = world.spend()?;
        let id = world.find(from)?;
        let (names, name) = world.parent(from)?;
        names.remove(&name);
        let (names, name) = world.parent(to)?;
        names.insert(name, id);
        done(moment, ())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        let moment = world.spend()?;
        let id = world.find(from)?;
        let (names, name) = world.parent(to)?;
        names.insert(name, id);
        done(moment, ())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let moment = world.spend()?;
        let (names, name) = world.parent(path)?;
        names.remove(&name).ok_or_else(not_found)?;
        done(moment, ())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.find(path)?;
        let moment = world.spend()?;
        if moment == Some(Moment::Middle) {
            // Half of what is in it is gone, the rest and the directory are not.
            let names = world.names(path)?;
            let half: Vec<_> = names.keys().take(names.len() / 2).cloned().collect();
            for name in half {
                names.remove(&name);
            }
            return Err(power());
        }
        let (names, name) = world.parent(path)?;
        names.remove(&name);
        done(moment, ())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        let moment = world.spend()?;
        world.wear.syncs += 1;
        let id = world.find(path)?;
        if moment != Some(Moment::Middle)
            && let Node::Directory { seen, kept } = &mut world.nodes[id]
        {
            kept.clone_from(seen);
        }
        done(moment, ())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut world = self.world();
        world.alive()?;
        Ok(world.names(path)?.keys().cloned().collect())
    }

    fn size(&self, path: &Path) -> io::Result<Option<u64>> {
        let mut world = self.world();
        world.alive()?;
        let Ok(id) = world.find(path) else { return Ok(None) };
        Ok(Some(world.file(id).map_or(0, |(seen, _)| seen.len() as u64)))
    }
}

#[derive(Debug)]
struct OpenFile {
    disk: CutDisk,
    id: usize,
}

impl OpenFile {
    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.disk.world();
        let moment = world.spend()?;
        let bytes = if moment == Some(Moment::Middle) { &bytes[..bytes.len() / 2] } else { bytes };
        world.wear.bytes += bytes.len() as u64;
        let (seen, _) = world.file(self.id)?;
        let offset = usize::try_from(offset).unwrap();
        if seen.len() < offset + bytes.len() {
            seen.resize(offset + bytes.len(), 0);
        }
        seen[offset..offset + bytes.len()].copy_from_slice(bytes);
        done(moment, ())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut world = self.disk.world();
        let moment = world.spend()?;
        world.wear.syncs += 1;
        if moment != Some(Moment::Middle) {
            let (seen, kept) = world.file(self.id)?;
            kept.clone_from(seen);
        }
        done(moment, ())
    }

    fn length(&self) -> io::Result<u64> {
        let mut world = self.disk.world();
        world.alive()?;
        Ok(world.file(self.id)?.0.len() as u64)
    }
}

impl DiskFile for OpenFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut world = self.disk.world();
        world.alive()?;
        let (seen, _) = world.file(self.id)?;
        let from = usize::try_from(offset).unwrap().min(seen.len());
        let read = into.len().min(seen.len() - from);
        into[..read].copy_from_slice(&seen[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_bytes(offset, bytes)
    }

    fn size(&self) -> io::Result<u64> {
        self.length()
    }

    fn sync(&self) -> io::Result<()> {
        if std::mem::take(&mut self.disk.world().sync_fails) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.sync_all()
    }
}

impl StorageBackend for OpenFile {
    fn len(&self) -> io::Result<u64> {
        self.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.read_at(offset, out)? {
            read if read == out.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.disk.world();
        let moment = world.spend()?;
        if moment != Some(Moment::Middle) {
            let (seen, _) = world.file(self.id)?;
            seen.resize(usize::try_from(len).unwrap(), 0);
        }
        done(moment, ())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_bytes(offset, data)
    }
}
