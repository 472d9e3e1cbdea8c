//! `GET /v2/openapi.json`: the REST paths as an OpenAPI document, for people and for tools.

use axum::http::StatusCode;
use axum::response::Response;

use super::failure;

/// The document.
pub const DOCUMENT: &str = include_str!("openapi.json");

/// Answers with it.
pub async fn document() -> Response {
    failure::json_text(StatusCode::OK, DOCUMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::fake::{Behaviour, Fake, get, manifest};
    use crate::serve::routes::{MODEL_PATHS, SERVER_PATHS};
    use crate::serve::served::Served;
    use crate::serve::{Serving, routes};
    use serde_json::Value;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    #[test]
    fn the_document_has_every_path_and_no_other() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let told: BTreeSet<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
        let mut served: BTreeSet<String> =
            SERVER_PATHS.iter().filter(|path| **path != "/v2/").map(ToString::to_string).collect();
        for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
            served.extend(MODEL_PATHS.iter().map(|path| format!("{model}{path}")));
        }
        assert_eq!(told, served);
    }

    #[tokio::test]
    async fn every_answer_has_the_fields_that_the_document_says() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let serving = Serving::new(4);
        let served = Served::new(
            Fake::package(manifest("m", "1.0.0", 1, "FP32", &[1]), Behaviour::Echo),
            Default::default(),
            0,
        );
        serving.table.stage(Arc::clone(&served));
        serving.table.activate(&served.reference()).unwrap();
        serving.announce();
        let router = routes::router(serving);
        for (path, item) in document["paths"].as_object().unwrap() {
            let Some(schema) =
                item["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].as_str()
            else {
                continue;
            };
            let schema = document.pointer(schema.trim_start_matches('#')).unwrap();
            let path = path.replace("{model}", "m").replace("{version}", "1");
            let (status, answer) = get(&router, &path).await;
            assert_eq!(status, StatusCode::OK, "{path}: {answer}");
            for field in schema["required"].as_array().unwrap() {
                assert!(answer.get(field.as_str().unwrap()).is_some(), "{path}: no {field} in {answer}");
            }
        }
    }
}
