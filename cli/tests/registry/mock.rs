//! A mock registry: each route gives its answers in turn and stays at the last one; every request is
//! noted. It can be stopped and started again on the same port.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The prefix of the workspace's routes.
pub const WORKSPACE: &str = "/v1/workspaces/default";
/// What opens the mock.
const TOKEN: &str = "s3cret";

/// One request that was made.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `POST /path?query`.
    pub line: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

#[derive(Default)]
struct World {
    answers: HashMap<String, VecDeque<(u16, Value)>>,
    asked: Vec<Asked>,
}

/// The mock.
pub struct Mock {
    world: Arc<Mutex<World>>,
    address: SocketAddr,
    runtime: Option<Runtime>,
    home: TempDir,
}

impl Mock {
    /// Starts with what most tests need: a target, its packages, and no deployments.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut mock = Self {
            world: Arc::default(),
            address: listener.local_addr().unwrap(),
            runtime: None,
            home: tempfile::tempdir().unwrap(),
        };
        mock.serve(listener);
        let packages = json!({"items": [
            package("file-type", "1.1.0", 2), package("file-type", "1.0.0", 1), package("scale", "2.0.0", 4),
        ]});
        mock.says("GET", "/packages", packages);
        mock.says("GET", "/targets", json!({"items": [target("edge-1"), target("edge-2")]}));
        mock.says("GET", "/targets/edge-1", target("edge-1"));
        mock.says("GET", "/deployments", json!({"items": []}));
        mock
    }

    /// The next answer of a route of the workspace; the last one stays. The query is not looked at.
    pub fn answers(&self, method: &str, path: &str, status: u16, body: Value) {
        let mut world = self.world.lock().unwrap();
        let route = format!("{method} {WORKSPACE}{path}");
        world.answers.entry(route).or_default().push_back((status, body));
    }

    /// A successful answer in place of those that were set before.
    pub fn says(&self, method: &str, path: &str, body: Value) {
        self.world.lock().unwrap().answers.remove(&format!("{method} {WORKSPACE}{path}"));
        self.answers(method, path, 200, body);
    }

    /// An error as the registry words it.
    pub fn refuses(&self, method: &str, path: &str, status: u16, reason: &str, error: &str) {
        self.answers(method, path, status, json!({"error": error, "reason": reason}));
    }

    /// Every request so far whose line begins with `method` and the path.
    pub fn asked(&self, method: &str, path: &str) -> Vec<Asked> {
        let begin = format!("{method} {WORKSPACE}{path}");
        self.world.lock().unwrap().asked.iter().filter(|one| one.line.starts_with(&begin)).cloned().collect()
    }

    /// The body of the only request of that kind, as JSON.
    pub fn sent(&self, method: &str, path: &str) -> Value {
        let asked = self.asked(method, path);
        assert_eq!(asked.len(), 1, "{asked:?}");
        serde_json::from_slice(&asked[0].body).unwrap()
    }

    /// Stops it; its connections are closed.
    pub fn stop(&mut self) {
        self.runtime = None;
    }

    /// Starts it again, on the same port.
    pub fn start_again(&mut self) {
        let listener = until(|| TcpListener::bind(self.address).ok());
        self.serve(listener);
    }

    fn serve(&mut self, listener: TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.world));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        self.runtime = Some(runtime);
    }

    /// `selvedge` with this registry.
    pub fn selvedge(&self, line: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(line)
            .env_clear()
            .env("HOME", self.home.path())
            .env("SELVEDGE_REGISTRY", format!("http://{}", self.address))
            .env("SELVEDGE_TOKEN", TOKEN)
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs it; it must end with `code` and say all of `says`, on standard output or standard error.
    pub fn check(&self, line: &[&str], code: i32, says: &[&str]) -> String {
        check(&self.selvedge(line).output().unwrap(), code, says)
    }

    /// Runs it with `--json`; it must succeed.
    pub fn json(&self, line: &[&str]) -> Value {
        let output = self.selvedge(line).arg("--json").output().unwrap();
        check(&output, 0, &[]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts it, with what it says in pipes.
    pub fn begin(&self, line: &[&str]) -> Child {
        self.selvedge(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Looks at how a run ended; gives standard output and standard error together.
pub fn check(output: &Output, code: i32, says: &[&str]) -> String {
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{said}");
    for text in says {
        assert!(said.contains(text), "`{text}` is not in:\n{said}");
    }
    assert!(!said.contains('\u{1b}'), "steers a terminal that is none: {said:?}");
    assert!(!said.contains(TOKEN), "the token is told: {said}");
    said
}

async fn answer(State(world): State<Arc<Mutex<World>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let route = format!("{} {}", head.method, head.uri.path());
    let mut world = world.lock().unwrap();
    let line = format!("{} {}", head.method, head.uri);
    let known = head.headers.get("authorization").is_some_and(|value| value == &format!("Bearer {TOKEN}"));
    world.asked.push(Asked { line, headers: head.headers, body });
    let (status, value) = match world.answers.get_mut(&route) {
        _ if !known => (401, json!({"error": "no", "reason": "wrong-token"})),
        Some(answers) if answers.len() > 1 => answers.pop_front().unwrap(),
        Some(answers) => answers[0].clone(),
        None if head.uri.path().contains("/targets/") => (404, json!({"error": "no", "reason": "no-target"})),
        None => (404, json!({"error": "no", "reason": "no-route"})),
    };
    let body = if value.is_null() { String::new() } else { value.to_string() };
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

/// Polls until there is something; a limit ends a hang.
pub fn until<T>(mut probe: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(found) = probe() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited a minute in vain");
}

/// A release.
pub fn package(name: &str, version: &str, release: u64) -> Value {
    json!({"name": name, "version": version, "release": release, "size": 1000,
        "digest": format!("sha256:{release:064x}"), "settings": {"threshold": "0.5"}})
}

/// A target that is online.
pub fn target(name: &str) -> Value {
    json!({"name": name, "kind": "device", "online": true, "enrolled": true, "health": "ok",
        "labels": {"site": "oslo"}, "facts": {"architecture": "aarch64", "memory-mib": "4096"},
        "desired": [], "desired_sequence": 1,
        "reported": {"generation": 1, "desired": 1, "packages": [
            {"name": "file-type", "committed": {"release": 1, "version": "1.0.0", "digest": format!("sha256:{:064x}", 1)},
             "pending": null, "serving": true, "failure": null}]}})
}

/// A deployment of file-type 1.1.0 (r2).
pub fn row(id: &str, target: Option<&str>, selector: Option<&str>) -> Value {
    json!({"id": id, "package": "file-type", "version": "1.1.0", "release": 2,
        "digest": format!("sha256:{:064x}", 2), "target": target, "selector": selector, "priority": 0,
        "settings": {}, "created_at": "2026-01-01T00:00:00Z", "ended_at": null, "ended": null})
}

/// How far a target of a deployment is.
pub fn place(name: &str, state: &str, bytes: u64) -> Value {
    let fetching = state == "fetching";
    json!({"name": name, "online": true, "verdict": "wins", "why": "", "state": state, "running": null,
        "bytes": fetching.then_some(bytes), "total": fetching.then_some(1000),
        "failure": (state == "failed").then(|| json!({"release": 2, "reason": "acceptance",
            "what": "case `pdf`: expected pdf, got png"})),
        "settled": state == "failed" || state == "serving"})
}

/// A deployment with its targets.
pub fn detail(row: &Value, targets: &[Value]) -> Value {
    let mut detail = row.clone();
    detail["targets"] = targets.into();
    detail["summary"] = json!({"targets": targets.len(), "wins": targets.len(), "lost": 0, "blocked": 0});
    detail
}
