//! Guest components: what they import, what they may use, and how one is called.
//!
//! An [`Instance`] is a component with a store of its own. It serves one call at a time; whoever
//! calls it throws it away after anything but an answer or an error of the module's own.

pub mod entry;
pub mod files;
pub mod held;
pub mod imports;
pub mod output;
pub mod state;
mod transfer;
pub mod wasi;
pub mod whole;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use wasmtime::component::{
    Component, ComponentExportIndex, InstancePre, Linker, ResourceTableError, TypedFunc,
};
use wasmtime::{Engine, Store, UpdateDeadline};

use self::entry::{Entry, Predict, export};
use self::imports::bindings::Module;
use self::imports::{Code, Error};
use self::state::{DeadlineMet, LimitMet, State};
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::PredictError;
use crate::nn;
use crate::runtime::package::Shared;
use crate::sequence::Part;
use crate::tensor::NamedTensor;

/// The interface that it may export.
const LIFECYCLE: (&str, &str) = ("selvedge:model/lifecycle@0.1.0", "init");
/// A call that does not end by its epoch sleeps inside of the host; it is dropped this much later.
const SLEEP_GRACE: Duration = Duration::from_millis(50);

/// How wasmtime's errors of limits without a type begin: too many instances, memories or tables, and too
/// many bytes that one call hands over.
const WASMTIME_LIMITS: [&str; 2] = ["resource limit exceeded", "too much data is being copied"];

type Init = TypedFunc<(), (Result<(), Error>,)>;

/// Everything that a component may import. The network is not among it.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    Module::add_to_linker::<_, wasmtime::component::HasSelf<_>>(&mut linker, |state: &mut State| state)?;
    transfer::add_to_linker(&mut linker)?;
    nn::add_to_linker(&mut linker)?;
    wasi::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// A component that has everything it asks for, and exports what it must.
pub struct Prepared {
    pre: InstancePre<State>,
    entry: Entry,
    init: Option<ComponentExportIndex>,
    built_in: bool,
}

impl Prepared {
    /// Checks the component's imports and exports; says in words what is wrong with it.
    pub fn new(linker: &Linker<State>, component: &Component) -> Result<Self, String> {
        let kind = component.component_type();
        for (name, _) in kind.imports(component.engine()) {
            if name.starts_with("wasi:sockets/") {
                return Err(format!("it asks for the network (`{name}`), which no module gets"));
            }
        }
        let entry = Entry::of(component)?;
        let init = export(component, LIFECYCLE);
        let pre = linker.instantiate_pre(component).map_err(|error| format!("{error:#}"))?;
        Ok(Self { pre, entry, init, built_in: false })
    }

    /// The same, as a module of ours that does nothing but say who answers: it needs no stack of its own on which it
    /// could be left to itself for a while, nor its time taken. What it may use and the deadline are a package's own.
    #[must_use]
    pub fn built_in(self) -> Self {
        Self { built_in: true, ..self }
    }
}

/// A component with its store.
pub struct Instance {
    store: Store<State>,
    predict: Predict,
}

impl Instance {
    /// Makes an instance and runs its `init`, where it has one.
    pub async fn new(shared: &Arc<Shared>, deadline: Deadline) -> Result<Self, PredictError> {
        let state = State::new(shared, deadline).map_err(PredictError::Internal)?;
        let mut store = Store::new(shared.prepared.pre.component().engine(), state);
        store.set_hostcall_fuel(shared.limits.tensors.saturating_add(16 << 20));
        store.limiter(|state| &mut state.limiter);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| {
            let state = store.data();
            if clock::now() >= state.deadline.answer {
                Err(DeadlineMet.into())
            } else if state.shared.prepared.built_in {
                Ok(UpdateDeadline::Continue(1))
            } else {
                Ok(UpdateDeadline::Yield(1))
            }
        });
        let ready = async {
            let instance = shared.prepared.pre.instantiate_async(&mut store).await?;
            let predict = shared.prepared.entry.of_instance(&mut store, &instance)?;
            if let Some(init) = shared.prepared.init {
                let init: Init = instance.get_typed_func(&mut store, init)?;
                let (answer,) = init.call_async(&mut store, ()).await?;
                return Ok(answer.map(|()| predict));
            }
            Ok(Ok(predict))
        };
        let predict = match within(deadline.answer, ready).await {
            Ok(Ok(predict)) => predict,
            Ok(Err(error)) => {
                let error = given(error, shared.limits.text);
                return Err(PredictError::Module(format!("its init failed: {error}")));
            }
            Err(error) => return Err(failure(&mut store, error)),
        };
        Ok(Self { store, predict })
    }

    /// Says which place the next request has in the sequence that the instance belongs to; without one it belongs to
    /// none.
    pub fn place(&mut self, part: Option<Part>) {
        self.store.data_mut().part = part;
    }

    /// Answers one request; it `began` a moment ago, if the clock was read then. Only after `Ok` and after an error
    /// that [`reusable`] may the instance be used again. Says when the answer was there, if the clock was read then.
    pub async fn call(
        &mut self,
        inputs: Vec<NamedTensor>,
        deadline: Deadline,
        began: Option<Instant>,
    ) -> (Result<Vec<NamedTensor>, PredictError>, Option<Instant>) {
        let built_in = self.store.data().shared.prepared.built_in;
        self.store.data_mut().begin(deadline, began.filter(|_| built_in));
        self.store.set_epoch_deadline(1);
        let answer = if built_in {
            self.predict.call_at_once(&mut self.store, inputs).await
        } else {
            self.predict.call(&mut self.store, inputs, deadline.answer).await
        };
        let state = self.store.data_mut();
        let ended = state.learn();
        let answer = match answer {
            Ok(Ok(outputs)) => Ok(outputs),
            Ok(Err(error)) => Err(match error.code {
                Code::InvalidInput => PredictError::InvalidInput(given(error, state.text())),
                Code::Model => PredictError::Model(given(error, state.text())),
                Code::Limit => PredictError::Limit(given(error, state.text())),
                Code::Internal => PredictError::Module(given(error, state.text())),
            }),
            Err(error) => Err(error),
        };
        state.expire();
        (answer, ended)
    }
}

/// Whether an instance that gave this error may serve another request.
pub fn reusable(error: &PredictError) -> bool {
    matches!(error, PredictError::InvalidInput(_) | PredictError::Model(_) | PredictError::Module(_))
}

/// An error's message, cut to `most` bytes.
fn given(error: Error, most: usize) -> String {
    let mut message = error.message;
    message.truncate(message.floor_char_boundary(most));
    message
}

/// Waits for a call into a guest; at `deadline` the epoch ends a guest that computes, and a little
/// later this does one that sleeps. There is a timer only where the call does not end at once: one for each call costs
/// more than many calls do.
async fn within<T>(
    deadline: Instant,
    call: impl Future<Output = wasmtime::Result<T>>,
) -> wasmtime::Result<T> {
    let (mut call, mut timer) = (pin!(call), None);
    poll_fn(|context| {
        if let Poll::Ready(answer) = call.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        let at = || Box::pin(tokio::time::sleep_until((deadline + SLEEP_GRACE).into()));
        timer.get_or_insert_with(at).as_mut().poll(context).map(|()| Err(DeadlineMet.into()))
    })
    .await
}

/// Why a call into a guest ended without an answer.
fn failure(store: &mut Store<State>, error: wasmtime::Error) -> PredictError {
    let state = store.data_mut();
    state.end();
    if error.is::<DeadlineMet>() {
        return PredictError::Deadline(state.allowed());
    }
    if let Some(LimitMet(what)) = error.downcast_ref() {
        return PredictError::Limit(what.clone());
    }
    if let Some(refused) = state.limiter.take_refused() {
        return PredictError::Limit(refused);
    }
    match error.downcast_ref::<ResourceTableError>() {
        // Tensors and sessions have a table of their own, whose limit is an error that the module gets.
        Some(ResourceTableError::Full) => {
            let most = state.wasi_handles();
            return PredictError::Limit(format!(
                "the module asked for more than {most} files, streams and timers of WASI at once"
            ));
        }
        Some(other) => {
            return PredictError::Trap(format!("the module used a handle that it may not: {other}"));
        }
        None => {}
    }
    match error.downcast_ref::<wasmtime::Trap>() {
        Some(wasmtime::Trap::StackOverflow) => {
            PredictError::Limit("the module's stack overflowed".to_owned())
        }
        Some(trap) => PredictError::Trap(trap.to_string()),
        None => {
            let why = format!("{:#}", anyhow::Error::from(error));
            let limit = WASMTIME_LIMITS.iter().any(|limit| why.contains(limit));
            let why = why.chars().take(1000).collect();
            if limit { PredictError::Limit(why) } else { PredictError::Trap(why) }
        }
    }
}
