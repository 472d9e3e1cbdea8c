//! Fixtures of the end-to-end stories: real programs on loopback, in temporary directories.
//!
//! `programs` finds the binaries, `process` runs one and ends it, `broker` is one of four brokers,
//! `stack` starts it, registry, agent and host, `ports` gives addresses that stay free, `command` runs `selvedge`, `tampering` sits between
//! agent and broker, `asking` asks a model without pause, `knocking` knocks at the host's door,
//! `serving` is a host without an agent, `socket_unit` holds its sockets as systemd does, `onnx_writer` writes tiny models,
//! `emulated` is a slow and lossy link between network namespaces, `cgroup` a limit on memory, `failing` is a disk that fails when told to, `mount` a small one, `packages` and
//! `versions` make packages of them, `web` serves them over HTTP, `wire` counts
//! bytes and `usage` asks the kernel what a process uses; `peer` is a program to compare with, `report` is what a bench prints at its end, `spread` a median
//! with its range. Nothing here sleeps for a result: `wait` polls a
//! condition.

pub mod asking;
pub mod broker;
pub mod cgroup;
pub mod clock;
pub mod command;
pub mod counts;
pub mod delivery;
pub mod emulated;
pub mod examples;
pub mod failing;
pub mod knocking;
pub mod link;
pub mod mount;
pub mod onnx_writer;
pub mod packages;
pub mod peer;
pub mod ports;
pub mod process;
pub mod programs;
pub mod report;
pub mod serving;
pub mod socket_unit;
pub mod spread;
pub mod stack;
pub mod tampering;
pub mod usage;
pub mod versions;
pub mod wait;
pub mod web;
pub mod wire;
