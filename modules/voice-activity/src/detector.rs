//! The model, fed with one window of samples after another, each with the end of the one before in front.

use crate::bindings::selvedge::model::errors::Error;
use crate::bindings::selvedge::model::sessions::Session;
use crate::bindings::selvedge::model::tensors::{Datatype, NamedTensor, Tensor};
use crate::internal;
use crate::segments::{Segment, Segments};

/// The manifest's name of the model.
const MODEL: &str = "vad";
/// Its state: FP32 [2, 1, 128].
const STATE: [u64; 3] = [2, 1, 128];

pub struct Detector {
    session: Session,
    /// What the model gave after the last window. It stays with the host.
    state: Tensor,
    rate: Tensor,
    /// The end of the last window, and what there is of the next.
    samples: Vec<f32>,
    context: usize,
    window: usize,
    /// How many samples were heard.
    heard: u64,
    segments: Segments,
}

impl Detector {
    /// Begins with silence. `rate` is 8000 or 16 000.
    pub fn open(rate: u32) -> Result<Self, Error> {
        let (context, window) = if rate == 16_000 { (64, 512) } else { (32, 256) };
        let mut samples = Vec::with_capacity(context + window);
        samples.resize(context, 0.0);
        let zeros = vec![0; STATE.iter().product::<u64>() as usize * 4];
        Ok(Self {
            session: Session::open(MODEL)?,
            state: Tensor::create(Datatype::Fp32, &STATE, &zeros)?,
            rate: Tensor::create(Datatype::Int64, &[], &i64::from(rate).to_le_bytes())?,
            samples,
            context,
            window,
            heard: 0,
            segments: Segments::new(rate),
        })
    }

    /// One more sample; gives a segment that has ended.
    pub fn hear(&mut self, sample: f32) -> Result<Option<Segment>, Error> {
        self.samples.push(sample);
        self.heard += 1;
        if self.samples.len() < self.context + self.window {
            return Ok(None);
        }
        self.judge()
    }

    /// No more samples; gives the segments that end with them.
    pub fn end(&mut self) -> Result<[Option<Segment>; 2], Error> {
        let mut last = None;
        if self.samples.len() > self.context {
            self.samples.resize(self.context + self.window, 0.0);
            last = self.judge()?;
        }
        Ok([last, self.segments.end(self.heard)])
    }

    /// Asks the model about a full window.
    fn judge(&mut self) -> Result<Option<Segment>, Error> {
        let bytes: Vec<u8> = self.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let input = Tensor::create(Datatype::Fp32, &[1, self.samples.len() as u64], &bytes)?;
        let inputs =
            [("input".to_owned(), &input), ("state".to_owned(), &self.state), ("sr".to_owned(), &self.rate)];
        let mut outputs = self.session.run(&inputs, &["output".to_owned(), "stateN".to_owned()])?;
        let (Some(NamedTensor { tensor: state, .. }), Some(NamedTensor { tensor: output, .. }), None) =
            (outputs.pop(), outputs.pop(), outputs.pop())
        else {
            return Err(internal("the model did not give `output` and `stateN`".to_owned()));
        };
        self.state = state;
        self.samples.drain(..self.window);
        let probability = output.read(0, 4)?;
        let probability = probability.try_into().map(f32::from_le_bytes);
        let probability = probability.map_err(|_| internal("the model's `output` is empty".to_owned()))?;
        Ok(self.segments.window(self.window as u64, probability))
    }
}
