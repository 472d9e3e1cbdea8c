//! Finds speech in audio: input `audio` (BYTES [1], a WAV file), outputs `segments` (INT64 [n, 2], first sample and
//! the one after the last of each) and `sample_rate` (INT64 [1]).
//!
//! A file may come in one request, or in pieces as the requests of a sequence: the first has the head of the file, and
//! each answers with the segments that ended in it. What goes on is kept between them: the model's own state behind
//! its handle, a few samples, and where speech began. The answers of a sequence together are those of the whole file.

mod detector;
mod samples;
mod segments;
mod wav;

use std::cell::RefCell;

use detector::Detector;
use samples::Samples;
use wav::Header;

mod bindings {
    wit_bindgen::generate!({ path: "../../host/wit", world: "module" });
}

use bindings::exports::selvedge::model::predictor;
use bindings::selvedge::model::errors::{Code, Error};
use bindings::selvedge::model::sequences;
use bindings::selvedge::model::tensors::{Datatype, NamedTensor, Tensor};
use segments::Segment;

/// Audio is read so many bytes at a time, however long it is.
const BLOCK: u64 = 64 << 10;

struct VoiceActivity;

bindings::export!(VoiceActivity with_types_in bindings);

/// A file on its way.
struct Stream {
    header: Header,
    samples: Samples,
    detector: Detector,
    /// Bytes of samples that are still to come; without it as many as do.
    left: Option<u64>,
}

thread_local! {
    static STREAM: RefCell<Option<Stream>> = const { RefCell::new(None) };
}

impl predictor::Guest for VoiceActivity {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        let part = sequences::current();
        let [NamedTensor { tensor, .. }] = &inputs[..] else {
            return Err(invalid(format!("one input is wanted, `audio`; there are {}", inputs.len())));
        };
        let length = tensor.element_length(0)?;
        let (mut stream, from) = if part.first {
            let head = tensor.element(0, 0, BLOCK)?;
            let header = wav::header(&head).map_err(invalid)?;
            let from = header.samples_at;
            (Stream::new(header)?, from)
        } else {
            let stream = STREAM.take();
            (stream.ok_or_else(|| internal("a request of the sequence failed before".to_owned()))?, 0)
        };
        let mut found = stream.read(tensor, from, length)?;
        if part.last {
            found.extend(stream.end()?);
        }
        let answer = answer(&stream.header, &found)?;
        if !part.last {
            STREAM.set(Some(stream));
        }
        Ok(answer)
    }
}

impl Stream {
    fn new(header: Header) -> Result<Self, Error> {
        let samples = Samples::new(header.channels, header.step);
        let detector = Detector::open(header.rate / header.step)?;
        Ok(Self { left: header.samples_bytes, samples, detector, header })
    }

    /// Reads a part of the file; gives the segments that ended in it, in samples of the file.
    fn read(&mut self, tensor: &Tensor, mut from: u64, length: u64) -> Result<Vec<Segment>, Error> {
        let mut found = Vec::new();
        while from < length && self.left != Some(0) {
            let most = BLOCK.min(length - from).min(self.left.unwrap_or(u64::MAX));
            let bytes = tensor.element(0, from, most)?;
            from += most;
            self.left = self.left.map(|left| left - most);
            for sample in self.samples.of(&bytes) {
                found.extend(self.detector.hear(sample)?);
            }
        }
        Ok(self.in_file(found))
    }

    /// The file is over.
    fn end(&mut self) -> Result<Vec<Segment>, Error> {
        if let Some(left) = self.left
            && left > 0
        {
            return Err(invalid(format!("the audio ends {left} bytes before its head says it does")));
        }
        let found = self.detector.end()?;
        Ok(self.in_file(found.into_iter().flatten().collect()))
    }

    fn in_file(&self, mut found: Vec<Segment>) -> Vec<Segment> {
        for Segment { start, end } in &mut found {
            *start *= u64::from(self.header.step);
            *end *= u64::from(self.header.step);
        }
        found
    }
}

fn answer(header: &Header, found: &[Segment]) -> Result<Vec<NamedTensor>, Error> {
    let segments: Vec<u8> =
        found.iter().flat_map(|segment| [segment.start, segment.end]).flat_map(u64::to_le_bytes).collect();
    let segments = Tensor::create(Datatype::Int64, &[found.len() as u64, 2], &segments)?;
    let rate = Tensor::create(Datatype::Int64, &[1], &u64::from(header.rate).to_le_bytes())?;
    Ok(vec![
        NamedTensor { name: "segments".to_owned(), tensor: segments },
        NamedTensor { name: "sample_rate".to_owned(), tensor: rate },
    ])
}

fn invalid(message: String) -> Error {
    Error { code: Code::InvalidInput, message }
}

fn internal(message: String) -> Error {
    Error { code: Code::Internal, message }
}
