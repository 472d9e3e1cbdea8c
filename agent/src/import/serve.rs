//! Taking a file from the socket: the body's pieces go to a thread that reads them as a file, which asks
//! the agent's loop what it may do.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use selvedge_package::trust::MetadataBundle;
use selvedge_package::{DeviceId, Digest};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Gate, ImportError, Imported, Permit, take};
use crate::status::{Question, Step};
use crate::store::Store;

/// Longest wait for the next piece of the file.
const SILENCE: Duration = Duration::from_secs(60);
/// Pieces that wait for the thread.
const WAITING: usize = 4;

/// Takes files, one at a time.
#[derive(Debug, Clone)]
pub struct Taker {
    store: Store,
    turn: Arc<Semaphore>,
}

impl Taker {
    /// Into this store.
    pub fn new(store: Store) -> Self {
        Self { store, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Takes the file in a request's body.
    pub async fn take(
        &self,
        mut body: Incoming,
        questions: mpsc::Sender<Question>,
    ) -> Result<Imported, ImportError> {
        let Ok(_turn) = self.turn.try_acquire() else {
            return Err(ImportError::refused("busy", "another file is being imported"));
        };
        let (sender, pieces) = mpsc::channel(WAITING);
        let store = self.store.clone();
        let taking = tokio::task::spawn_blocking(move || {
            take(Pieces { pieces, left: Bytes::new() }, &store, &mut Agent { questions })
        });
        // The thread sees a file that ends in the middle where this gives up.
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE, body.frame()).await {
            if let Ok(data) = frame.into_data()
                && sender.send(data).await.is_err()
            {
                break;
            }
        }
        drop(sender);
        match taking.await {
            Ok(result) => result,
            Err(_) => Err(ImportError::refused("internal", "the import has ended without a word")),
        }
    }
}

/// The pieces as a file.
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    left: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.left = piece,
                None => return Ok(0),
            }
        }
        let most = self.left.len().min(buffer.len());
        self.left.copy_to_slice(&mut buffer[..most]);
        Ok(most)
    }
}

/// The agent's loop, which keeps the trust state.
struct Agent {
    questions: mpsc::Sender<Question>,
}

impl Agent {
    fn ask(&self, step: Step) -> Result<Option<Permit>, ImportError> {
        let ending = || ImportError::refused("internal", "the agent is ending");
        let (answer, answered) = oneshot::channel();
        self.questions.blocking_send(Question::Import(step, answer)).map_err(|_| ending())?;
        answered.blocking_recv().map_err(|_| ending())?
    }
}

impl Gate for Agent {
    fn judge(&mut self, bundle: &MetadataBundle, device: Option<&DeviceId>) -> Result<Permit, ImportError> {
        let step = Step::Judge(Box::new(bundle.clone()), device.cloned());
        let permit = self.ask(step)?;
        permit.ok_or_else(|| ImportError::refused("internal", "the agent gave no permit"))
    }

    fn keep(&mut self, packages: &BTreeSet<Digest>) -> Result<(), ImportError> {
        self.ask(Step::Keep(packages.clone())).map(|_| ())
    }

    fn accept(&mut self, bundle: &MetadataBundle) -> Result<(), ImportError> {
        self.ask(Step::Accept(Box::new(bundle.clone()))).map(|_| ())
    }

    fn give_up(&mut self, packages: &BTreeSet<Digest>) {
        if let Err(error) = self.ask(Step::GiveUp(packages.clone())) {
            tracing::warn!("{}", crate::failure::chain(&error));
        }
    }
}
