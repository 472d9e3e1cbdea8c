//! What belongs to one instance: its handles, its limits, and the request that it serves.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wasmtime::component::{Resource, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use super::held::{Expired, Footprint, Held, Request};
use super::imports::{Code, Error, Tensors};
use super::output::Lines;
use super::wasi;
use super::whole::Whole;
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::PredictError;
use crate::limits::Limiter;
use crate::nn::NnTensor;
use crate::runtime::package::Shared;
use crate::sequence::Part;
use crate::session::Ran;
use crate::tensor::{NamedTensor, Tensor};

/// The data of a store.
pub struct State {
    pub(crate) shared: Arc<Shared>,
    pub(crate) table: ResourceTable,
    pub(super) limiter: Limiter,
    pub(crate) deadline: Deadline,
    pub(super) lines: Arc<Mutex<Lines>>,
    wasi: WasiCtx,
    /// Handles of WASI: files, streams, pollables. Some are descriptors of this process, so that there
    /// are far fewer of them than of tensors.
    wasi_table: ResourceTable,
    pub(super) held: usize,
    request: Request,
    /// The request, where the module takes it as a whole.
    pub(super) whole: Option<Whole>,
    /// When the request began, where its model's run is taken to begin and to end with it.
    pub(super) began: Option<Instant>,
    /// The model that has had such a run, and how that went.
    pub(super) ran: Option<(usize, Ran)>,
    /// Tensors of this request behind handles.
    live: usize,
    /// The request's place in the sequence that the instance belongs to.
    pub(super) part: Option<Part>,
}

/// The deadline passed while a guest ran.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the deadline passed")]
pub struct DeadlineMet;

/// A limit was met in a call that has no error to give.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct LimitMet(pub String);

impl State {
    /// The state of a fresh instance; says in words what the host could not do.
    pub fn new(shared: &Arc<Shared>, deadline: Deadline) -> Result<Self, String> {
        let mut table = ResourceTable::new();
        table.set_max_capacity(shared.limits.handles);
        let mut wasi_table = ResourceTable::new();
        wasi_table.set_max_capacity(shared.limits.wasi_handles);
        let lines = Arc::new(Mutex::new(Lines::new(&shared.name, &shared.limits)));
        let wasi = wasi::context(shared, &lines).map_err(|error| format!("{error:#}"))?;
        Ok(Self {
            shared: shared.clone(),
            table,
            limiter: Limiter::new(shared.limits),
            deadline,
            lines,
            wasi,
            wasi_table,
            held: 0,
            request: Request::INIT,
            whole: None,
            began: None,
            ran: None,
            live: 0,
            part: None,
        })
    }

    /// A request begins.
    pub fn begin(&mut self, deadline: Deadline, began: Option<Instant>) {
        self.deadline = deadline;
        (self.began, self.ran) = (began, None);
        self.request = self.request.next();
        self.limiter.take_refused();
    }

    /// Nothing of a request is left behind a handle after it.
    pub fn expire(&mut self) {
        if self.live == 0 {
            return;
        }
        for entry in self.table.iter_mut() {
            let freed = expired::<Tensor>(entry).or_else(|| expired::<NnTensor>(entry));
            self.held = self.held.saturating_sub(freed.unwrap_or_default());
        }
        self.live = 0;
    }

    /// A model's run that began and ended with the request is over: its model knows from now on what it takes. Says
    /// when that is, if there was one.
    pub fn learn(&mut self) -> Option<Instant> {
        let (began, (index, how)) = (self.began?, self.ran.take()?);
        let (_, model) = self.shared.models.get(index)?;
        let now = clock::now();
        model.learn(how, now - began);
        Some(now)
    }

    /// A request ends: what it wrote is told.
    pub fn end(&mut self) {
        self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner).end();
    }

    /// The time that the request had.
    pub fn allowed(&self) -> Duration {
        self.deadline.allowed()
    }

    /// Bytes of an error's message.
    pub fn text(&self) -> usize {
        self.shared.limits.text
    }

    /// How many handles of WASI there may be.
    pub fn wasi_handles(&self) -> usize {
        self.shared.limits.wasi_handles
    }

    /// Puts a tensor that the module made, or that was made for it, behind a handle, if the limits allow it. In a
    /// sequence it stays for the next request.
    pub fn admit(&mut self, tensor: Tensor) -> Result<Resource<Held>, Error> {
        self.made(tensor)
    }

    /// The same for a tensor of any interface.
    pub fn made<T>(&mut self, tensor: T) -> Result<Resource<Held<T>>, Error>
    where
        T: Footprint + Send + 'static,
    {
        let request = if self.part.is_some() { Request::INIT } else { self.request };
        self.hold(tensor, request)
    }

    /// Puts a tensor that came with the request behind a handle, if the limits allow it. It may be a small part of a
    /// large body, so that it ends with the request in a sequence, too.
    pub fn admit_input(&mut self, tensor: Tensor) -> Result<Resource<Held>, Error> {
        self.hold(tensor, self.request)
    }

    /// Puts a tensor behind a handle, if the limits allow it, for as long as another that has the same memory.
    pub fn hold<T>(&mut self, tensor: T, request: Request) -> Result<Resource<Held<T>>, Error>
    where
        T: Footprint + Send + 'static,
    {
        let held = self.held_with(tensor.footprint())?;
        let handle = self.table.push(Held::new(tensor, request)).map_err(|_| Error {
            code: Code::Limit,
            message: format!("an instance may hold {} handles at once", self.shared.limits.handles),
        })?;
        self.held = held;
        self.live += usize::from(request != Request::INIT);
        Ok(handle)
    }

    /// What is held with `size` bytes more, if the limits allow it.
    pub(super) fn held_with(&self, size: usize) -> Result<usize, Error> {
        let (held, most) = (self.held.saturating_add(size), self.shared.limits.held_tensors);
        if held <= most {
            return Ok(held);
        }
        let message = format!("an instance may hold {} MiB of tensors at once", most >> 20);
        Err(Error { code: Code::Limit, message })
    }

    /// Takes a tensor back from behind its handle.
    pub fn release<T>(&mut self, handle: Resource<Held<T>>) -> wasmtime::Result<Result<T, Expired>>
    where
        T: Footprint + Send + 'static,
    {
        let (tensor, of_request) = self.table.delete(handle)?.into_inner();
        if let Ok(tensor) = &tensor {
            // Writing to a tensor copies it at most: its footprint stays what was admitted.
            self.held = self.held.saturating_sub(tensor.footprint());
            self.live = self.live.saturating_sub(usize::from(of_request));
        }
        Ok(tensor)
    }

    pub(super) fn check_count(&self, outputs: usize) -> Result<(), PredictError> {
        let most = self.shared.limits.outputs;
        if outputs <= most {
            return Ok(());
        }
        Err(PredictError::Limit(format!("the module gave {outputs} outputs; at most {most} are allowed")))
    }

    pub(super) fn check_size(&self, size: usize) -> Result<(), PredictError> {
        let most = self.shared.limits.tensors;
        if size <= most {
            return Ok(());
        }
        let (size, most) = (size.div_ceil(1 << 20), most >> 20);
        Err(PredictError::Limit(format!("the module gave outputs of {size} MiB and may give {most} MiB")))
    }

    /// The tensors of an answer.
    pub fn take_outputs(&mut self, outputs: Vec<Tensors>) -> Result<Vec<NamedTensor>, PredictError> {
        self.check_count(outputs.len())?;
        let mut size = 0_usize;
        let mut answer = Vec::with_capacity(outputs.len());
        for Tensors { name, tensor } in outputs {
            let tensor = self
                .release(tensor)
                .map_err(|error| PredictError::Internal(format!("{error:#}")))?
                .map_err(|error| PredictError::Module(format!("its output `{name}`: {error}")))?;
            size = size.saturating_add(tensor.footprint());
            answer.push(NamedTensor { name, tensor });
        }
        self.check_size(size)?;
        Ok(answer)
    }
}

/// Takes away what is behind a handle, if it is one of this type.
fn expired<T: Footprint + 'static>(entry: &mut dyn Any) -> Option<usize> {
    entry.downcast_mut::<Held<T>>().map(Held::expire)
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.wasi_table }
    }
}
