//! What an idle device costs on a link that is paid by the byte: a heartbeat is one small segment, nothing
//! else is said, and nothing is connected anew. The day that follows from it is the one in `docs/agent.md`.

#![allow(clippy::unwrap_used)]

use selvedge_tests::packages::push_identity;
use selvedge_tests::process::Process;
use selvedge_tests::programs::program;
use selvedge_tests::stack::Stack;
use selvedge_tests::wait;
use selvedge_tests::wire::Wire;

/// Heartbeats that are counted.
const HEARTBEATS: u64 = 30;
/// Bytes of a heartbeat over TLS, with all headers and its acknowledgement: the bound of the document.
const A_HEARTBEAT: u64 = 300;
/// Bytes of a ping and its answer over TLS, with all headers and acknowledgements.
const A_PING: u64 = 256;
/// Bytes of a day, as the document has them.
const A_DAY: u64 = 550_000;

#[test]
fn an_idle_day_has_few_bytes() {
    let mut stack = Stack::without_agent();
    let wire = Wire::to(stack.broker_address());
    stack.agents_broker = wire.address.clone();
    // Writes the wire's address into the enrolment.
    stack.start_agent();
    push_identity(&stack, 0);
    stack.wait_committed("identity", 1);
    stack.agent().stop();
    let mut command = std::process::Command::new(program("selvedge-agent"));
    command.args(["run", "--heartbeat", "1", "--data", &stack.path("agent"), "--http"]);
    command.arg(stack.inference().replace("http://", ""));
    command.arg("--host-binary").arg(program("selvedge-host"));
    let log = stack.dir.path().join("agent.log");
    stack.agent = Some(Process::start("agent", &mut command, &log));

    // Reports are acknowledged, and a certificate has come: from then on it only says that it is there.
    let serves = |status: &serde_json::Value| status["host"].to_string().contains("serving");
    let quiet = |status: &serde_json::Value| status["reports_waiting"] == 0 && serves(status);
    wait::until("nothing to be reported", || match stack.agent_status() {
        status if quiet(&status) && status["connected"] == true => Ok(()),
        status => Err(status),
    });
    let after = |heartbeats: u64| {
        let sent = wire.sent();
        wait::until("heartbeats", || match wire.sent() {
            now if now >= sent + heartbeats => Ok(()),
            now => Err(now),
        });
    };
    after(5);
    let before = (wire.sent(), wire.charged(), wire.connections());
    after(HEARTBEATS);
    let (sent, charged) = (wire.sent() - before.0, wire.charged() - before.1);
    let each = charged / sent;
    println!("{sent} heartbeats, {charged} bytes with TLS, TCP and IP: {each} each");
    assert!(each <= A_HEARTBEAT, "{each} bytes a heartbeat");
    assert_eq!(wire.connections(), before.2);

    let day = 86_400 / 60 * each + 86_400 / 240 * A_PING;
    println!("a day with the defaults: {day} bytes");
    assert!(day <= A_DAY, "{day} bytes a day");
    let document = std::fs::read_to_string(selvedge_tests::programs::root().join("docs/agent.md")).unwrap();
    assert!(document.contains("550,000 bytes a day"), "the document says another bound");
}
