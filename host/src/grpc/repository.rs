//! The calls of the model repository, on the control socket.

use std::sync::Arc;

use axum::response::Response;
use serde_json::json;

use super::{tables, told};
use crate::control::repository::{index, load_model, no_parameters, one_repository, unload_model};
use crate::control::{Control, refused::Refused};
use crate::oip::refusal::Refusal;
use crate::protobuf::{Fields, Value};
use crate::serve::failure::Failure;

/// Longest name of a model, and of a parameter.
const MOST_NAME: usize = 1024;

/// Answers one of the three.
pub async fn answer(control: &Arc<Control>, method: &str, message: &[u8]) -> Result<Response, Failure> {
    let asked = Asked::of(method, message)?;
    match method {
        "RepositoryIndex" => {
            let models = index(control, asked.ready).await?;
            told(tables::INDEX, &json!({"models": models}))
        }
        "RepositoryModelLoad" => {
            asked.bare()?;
            load_model(Arc::clone(control), asked.model).await?;
            told(&[], &json!({}))
        }
        _ => {
            unload_model(control, &asked.model).await?;
            told(&[], &json!({}))
        }
    }
}

/// What a message says.
#[derive(Default)]
struct Asked {
    ready: bool,
    model: String,
    /// The first of its parameters.
    parameter: Option<String>,
}

impl Asked {
    fn of(method: &str, message: &[u8]) -> Result<Self, Failure> {
        let mut asked = Self::default();
        for field in Fields::new(message) {
            match field.map_err(Refusal::from)? {
                (1, value) if !text(value)?.is_empty() => return Err(one_repository().into()),
                (1, _) => {}
                (2, Value::Number(ready)) if method == "RepositoryIndex" => asked.ready = ready != 0,
                (2, value) => text(value)?.clone_into(&mut asked.model),
                (3, value) => {
                    let entry = value.bytes().map_err(Refusal::from)?;
                    let key = Fields::new(entry).flatten().find(|(number, _)| *number == 1);
                    let key = key.map_or(Ok(""), |(_, value)| text(value))?;
                    asked.parameter.get_or_insert_with(|| key.to_owned());
                }
                _ => {}
            }
        }
        Ok(asked)
    }

    /// Packages are loaded as they are.
    fn bare(&self) -> Result<(), Failure> {
        match &self.parameter {
            None => Ok(()),
            Some(name) => Err(no_parameters(name).into()),
        }
    }
}

fn text(value: Value<'_>) -> Result<&str, Refusal> {
    Ok(value.text(MOST_NAME)?)
}

impl From<Refused> for Failure {
    fn from(Refused(error): Refused) -> Self {
        Self::Repository(error)
    }
}
