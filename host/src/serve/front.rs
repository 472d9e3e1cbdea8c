//! Who answers a request: the path that nearly all of them have is known by sight, and every other one is the
//! router's.
//!
//! A router finds the same function, through a tree of paths, parameters that are texts of their own and a
//! future in a box: for a model that answers within microseconds that is a good part of the whole.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::Serving;
use super::infer;
use super::routes;

/// Answers the requests of one listener.
#[derive(Clone)]
pub struct Front {
    router: TowerToHyperService<Router>,
    serving: Option<Arc<Serving>>,
}

impl Front {
    /// The inference endpoint over `serving`.
    pub fn new(serving: Arc<Serving>) -> Self {
        Self { serving: Some(Arc::clone(&serving)), ..routes::router(serving).into() }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        if let Some(serving) = &self.serving
            && let Some((model, version)) = asked(&request)
        {
            let model = serving.find(model, version);
            let request = request.map(Body::new);
            return match model {
                Ok(model) => infer::infer(State(Arc::clone(serving)), model, request).await.into_response(),
                Err(failure) => failure.into_response(),
            };
        }
        match self.router.call(request.map(Body::new)).await {
            Ok(response) => response,
        }
    }
}

/// A router alone.
impl From<Router> for Front {
    fn from(router: Router) -> Self {
        Self { router: TowerToHyperService::new(router), serving: None }
    }
}

/// The model, and its version where it is named, of a request to `infer`; `None`: the router knows.
fn asked<B>(request: &Request<B>) -> Option<(&str, Option<&str>)> {
    if *request.method() != Method::POST {
        return None;
    }
    let path = request.uri().path().strip_prefix("/v2/models/")?.strip_suffix("/infer")?;
    // What is escaped has to be read first.
    if path.contains('%') {
        return None;
    }
    let mut parts = path.split('/');
    let model = parts.next().filter(|name| !name.is_empty())?;
    match (parts.next(), parts.next(), parts.next()) {
        (None, _, _) => Some((model, None)),
        (Some("versions"), Some(version), None) if !version.is_empty() => Some((model, Some(version))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_the_paths_of_infer_and_leaves_the_others() {
        let check = |method: &str, path: &str, expected: Option<(&str, Option<&str>)>| {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            assert_eq!(asked(&request), expected, "{method} {path}");
        };
        check("POST", "/v2/models/m/infer", Some(("m", None)));
        check("POST", "/v2/models/m/infer?x=/a/infer", Some(("m", None)));
        check("POST", "/v2/models/m/versions/1.0.0/infer", Some(("m", Some("1.0.0"))));
        for path in [
            "/v2/models//infer",
            "/v2/models/infer",
            "/v2/models/m/versions//infer",
            "/v2/models/m/versions/infer",
            "/v2/models/m/versions/1/2/infer",
            "/v2/models/m/other/1/infer",
            "/v2/models/m%2e/infer",
            "/v2/models/m/infer/",
            "/v2/models/m/raw",
            "/v2/models/m/infers",
        ] {
            check("POST", path, None);
        }
        check("GET", "/v2/models/m/infer", None);
    }
}
