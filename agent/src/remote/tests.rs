//! Questions against a host that the test plays.

use super::*;
use selvedge_protocol::remote::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::from_secs(1000);

struct Bench {
    remote: Remote,
    done: mpsc::UnboundedReceiver<Done>,
    listener: TcpListener,
    host: String,
    place: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (sender, done) = mpsc::unbounded_channel();
        let mut remote = Remote::new(Logs::default(), place.path().join("host.log"), 5, sender);
        remote.connected(16 * 1024);
        Self { remote, done, listener, host, place }
    }

    fn ask(&mut self, request: InferRequest) -> Option<InferAnswer> {
        self.remote.infer(request, Some(&self.host), NOW).map(answer)
    }

    async fn answered(&mut self) -> InferAnswer {
        let done = tokio::time::timeout(SOON, self.done.recv()).await.unwrap().unwrap();
        answer(self.remote.done(done, NOW))
    }

    /// The next connection to the host and the whole request on it.
    async fn asked(&self) -> (TcpStream, String) {
        let (mut stream, _) = tokio::time::timeout(SOON, self.listener.accept()).await.unwrap().unwrap();
        let mut request = Vec::new();
        loop {
            stream.read_buf(&mut request).await.unwrap();
            let text = String::from_utf8_lossy(&request).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return (stream, text);
            }
        }
    }
}

fn answer(said: Said) -> InferAnswer {
    match said.body {
        Body::InferAnswer(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn request(id: &str) -> InferRequest {
    InferRequest {
        nonce: Vec::new(),
        id: id.to_owned(),
        within_ms: 60_000,
        model: "p".to_owned(),
        version: None,
        endpoint: Endpoint::Infer,
        content_type: Some("application/json".to_owned()),
        header_length: Some(7),
        body: b"question".to_vec(),
    }
}

fn http(head: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{head}content-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_request_is_carried_and_a_second_time_only_answered() {
    let mut bench = Bench::new().await;
    assert_eq!(bench.ask(request("a")), None);
    assert_eq!(bench.ask(request("a")), None, "it is on its way");
    let (mut stream, asked) = bench.asked().await;
    assert!(asked.starts_with("POST /v2/models/p/infer HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("inference-header-content-length: 7\r\n"), "{asked}");
    assert!(asked.ends_with("\r\n\r\nquestion"), "{asked}");
    let said = http("content-type: x/y\r\nInference-Header-Content-Length: 3\r\n", "answer");
    stream.write_all(said.as_bytes()).await.unwrap();
    let answer = bench.answered().await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"answer"[..]));
    assert_eq!((answer.content_type.as_deref(), answer.header_length), (Some("x/y"), Some(3)));
    assert_eq!(bench.ask(request("a")), Some(answer));

    // A version, the other endpoints.
    let version = Some("1.0.0-a+b".to_owned());
    bench.ask(InferRequest { version, endpoint: Endpoint::Raw, ..request("b") });
    assert!(bench.asked().await.1.starts_with("POST /v2/models/p/versions/1.0.0-a+b/raw HTTP"));
    bench.ask(InferRequest { endpoint: Endpoint::Metadata, ..request("c") });
    assert!(bench.asked().await.1.starts_with("GET /v2/models/p HTTP"));
}

#[tokio::test]
async fn what_cannot_be_answered_is_answered_as_that() {
    let mut bench = Bench::new().await;
    let check = |answer: InferAnswer, status: u16, word: &str| {
        let text = String::from_utf8(answer.body).unwrap();
        assert!(answer.status == status && text.contains(word), "{} {text}", answer.status);
        assert!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["error"].is_string());
    };
    // Too long, with and without a length; nothing at all; a host that breaks off; one that hangs.
    let large = "x".repeat(20_000);
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{large}");
    for (n, (said, status, word)) in [
        (http("", &large), 413, "20000 bytes"),
        (endless, 413, "more than 15360"),
        (String::new(), 503, "does not answer"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1".to_owned(), 503, "does not answer"),
        ("\0garbage\r\n\r\n".to_owned(), 503, "does not answer"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(bench.ask(request(&n.to_string())), None);
        let (mut stream, _) = bench.asked().await;
        stream.write_all(said.as_bytes()).await.unwrap();
        drop(stream);
        check(bench.answered().await, status, word);
    }
    bench.ask(InferRequest { within_ms: 50, ..request("late") });
    check(bench.answered().await, 504, "50 ms");

    // No request that HTTP or the host's paths could carry.
    for (n, bad) in [
        InferRequest { model: "../x".to_owned(), ..request("") },
        InferRequest { version: Some("1/../..".to_owned()), ..request("") },
        InferRequest { version: Some(String::new()), ..request("") },
        InferRequest { content_type: Some("a\r\nb: c".to_owned()), ..request("") },
    ]
    .into_iter()
    .enumerate()
    {
        bench.ask(InferRequest { id: format!("bad-{n}"), ..bad });
        check(bench.answered().await, 400, "");
    }
    check(bench.remote.infer(request("down"), None, NOW).map(answer).unwrap(), 503, "not running");
    assert_eq!(bench.ask(request("no/id")), None);
    assert_eq!(bench.ask(InferRequest { within_ms: 0, ..request("no-time") }), None);
    assert_eq!(bench.remote.running, 0);
}

#[tokio::test]
async fn a_flood_reaches_the_host_a_few_at_a_time_and_is_refused_beyond_that() {
    let mut bench = Bench::new().await;
    let mut refused = 0;
    for n in 0..500 {
        if let Some(answer) = bench.ask(request(&n.to_string())) {
            assert_eq!(answer.status, 503);
            refused += 1;
        }
    }
    assert_eq!(refused, REFUSALS.0, "a refusal a message would be a flood too");
    assert_eq!(bench.remote.running, MOST);
    let mut held = Vec::new();
    for _ in 0..AT_ONCE {
        held.push(bench.asked().await.0);
    }
    let more = tokio::time::timeout(Duration::from_millis(100), bench.listener.accept()).await;
    assert!(more.is_err(), "the others wait");
    for n in 0..MOST {
        let mut stream = match held.pop() {
            Some(stream) => stream,
            None => bench.asked().await.0,
        };
        stream.write_all(http("", "ok").as_bytes()).await.unwrap();
        assert_eq!(bench.answered().await.status, 200, "{n}");
    }
    assert_eq!(bench.remote.running, 0);
}

#[tokio::test]
async fn log_lines_are_given_again_for_the_same_command_and_a_flood_is_dropped() {
    let mut bench = Bench::new().await;
    let log = bench.place.path().join("host.log");
    std::fs::write(&log, "2026-11-28T01:02:03Z INFO host: one\n").unwrap();
    let command = |id: &str, after| Command {
        id: id.to_owned(),
        within_ms: 1000,
        nonce: Vec::new(),
        ask: Ask::Logs { after, lines: 10 },
    };
    let lines = |said: Option<Said>| match said.map(|said| said.body) {
        Some(Body::CommandResult(CommandResult { outcome: Outcome::Logs(lines), .. })) => lines,
        other => panic!("{other:?}"),
    };
    let first = lines(bench.remote.command(&command("a", None), NOW));
    assert_eq!((first.epoch, first.last, first.lines.len()), (5, 1, 1));
    assert_eq!(first.lines[0].text, "host: one");
    std::fs::write(&log, "2026-11-28T01:02:03Z INFO host: one\n2026-11-28T01:02:04Z INFO host: two\n")
        .unwrap();
    assert_eq!(lines(bench.remote.command(&command("a", None), NOW)), first, "the same command");
    let second = lines(bench.remote.command(&command("b", Some(first.last)), NOW));
    assert_eq!(second.lines.len(), 1);
    assert_eq!(second.lines[0].text, "host: two");

    assert_eq!(bench.remote.command(&command("no id", None), NOW), None);
    assert_eq!(bench.remote.command(&Command { within_ms: 0, ..command("c", None) }, NOW), None);
    let answered = (0..100).filter(|n| bench.remote.command(&command(&n.to_string(), None), NOW).is_some());
    assert!(answered.count() < COMMANDS.0 as usize);
}
