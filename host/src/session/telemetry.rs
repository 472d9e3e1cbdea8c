//! Keeps ONNX Runtime silent. Builds of 1.32 for Linux carry a telemetry client: when an environment
//! is made they write a device id and a database below the home directory and have an address to send
//! to, whatever the session asks for. Only its environment variable stops all of it.
#![allow(unsafe_code)]

/// Forbids telemetry to every ONNX Runtime that this process loads.
///
/// # Safety
/// No other thread may exist yet: it could read the environment meanwhile.
pub unsafe fn forbid() {
    // SAFETY: the caller promises that this is the only thread.
    unsafe { std::env::set_var("ORT_DISABLE_TELEMETRY", "1") };
}
