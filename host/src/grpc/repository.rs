//! The calls of the model repository, on the control socket.

use std::sync::Arc;

use axum::response::Response;
use serde_json::json;

use super::wire::{Fields, Value};
use super::{tables, told};
use crate::control::repository::{index, load_model, no_parameters, one_repository, unload_model};
use crate::control::{Control, refused::Refused};
use crate::oip::refusal::Refusal;
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
            let read = field.and_then(|(number, value)| match (number, value) {
                (1, value) => value.text(MOST_NAME).map(|repository| {
                    if repository.is_empty() { Ok(()) } else { Err(Failure::from(one_repository())) }
                }),
                (2, Value::Number(ready)) if method == "RepositoryIndex" => {
                    asked.ready = ready != 0;
                    Ok(Ok(()))
                }
                (2, value) => {
                    value.text(MOST_NAME)?.clone_into(&mut asked.model);
                    Ok(Ok(()))
                }
                (3, value) => {
                    let key = Fields::new(value.bytes()?).flatten().find(|(number, _)| *number == 1);
                    let key = key.map_or(Ok(""), |(_, value)| value.text(MOST_NAME))?;
                    asked.parameter.get_or_insert_with(|| key.to_owned());
                    Ok(Ok(()))
                }
                _ => Ok(Ok(())),
            });
            read.map_err(Refusal::Message)??;
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

impl From<Refused> for Failure {
    fn from(Refused(error): Refused) -> Self {
        Self::Repository(error)
    }
}
