//! `cargo xtask demo`: the main job on this machine, every station a real program on loopback. It
//! prints each command before it runs, so that a reader can repeat it by hand, and leaves no process
//! behind, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::run::{self, say, step};
use crate::{beside, children, clock, examples, paths};

mod answer;
mod asking;
mod stack;
mod versions;

use stack::Stack;

/// Name of the device.
const DEVICE: &str = "edge-1";

/// What becomes of the stack when the demo is done.
#[derive(Clone, Copy, PartialEq)]
pub enum Afterwards {
    /// It ends.
    Stop,
    /// It stays, also when something failed.
    Keep,
}

impl Afterwards {
    /// As the command line says it.
    pub fn from_flag(keep: bool) -> Self {
        if keep { Self::Keep } else { Self::Stop }
    }
}

/// Whether programs are built first.
#[derive(Clone, Copy, PartialEq)]
pub enum Programs {
    /// Built from today's sources.
    Build,
    /// Taken from beside this program, as they are: a story of the tests runs the demo on them.
    AsBuilt,
}

impl Programs {
    /// As the command line says it.
    pub fn from_flag(no_build: bool) -> Self {
        if no_build { Self::AsBuilt } else { Self::Build }
    }

    /// Makes sure that they are there, and says in which folder.
    fn folder(self) -> Result<PathBuf> {
        if self == Self::AsBuilt {
            let own = std::env::current_exe().context("finding this program")?;
            return Ok(own.parent().unwrap_or(Path::new("/")).to_owned());
        }
        // The whole workspace, as the tests do: its parts alone would be other builds.
        step("building the programs", || {
            run::loudly(run::cargo().args(["build", "--locked", "--workspace", "--bins"]))
        })?;
        beside::link("debug")?;
        Ok(paths::cargo_target().join("debug"))
    }
}

/// Runs the demo; it writes to `folder`, `target/demo` where none is named.
pub fn run(afterwards: Afterwards, programs: Programs, folder: Option<PathBuf>) -> Result<()> {
    let started = clock::Started::now();
    let example = examples::file_type()?;
    let programs = programs.folder()?;
    let folder = folder.unwrap_or_else(|| paths::root().join("target/demo"));
    stack::clear(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;

    let demo = Demo { selvedge: programs.join("selvedge"), folder, example };
    let mut stack = demo.up()?;
    let told = demo.tell(&mut stack);
    if afterwards == Afterwards::Keep && !children::interrupted() {
        stack.leave()?;
        demo.say_how_to_go_on();
        return told;
    }
    let ended = stack.end();
    told.and(ended)?;
    say(format!("the demo took {:.0} s and left nothing running", started.elapsed().as_secs_f64()));
    Ok(())
}

struct Demo {
    selvedge: PathBuf,
    /// Everything that the demo writes.
    folder: PathBuf,
    /// The package folder.
    example: PathBuf,
}

impl Demo {
    fn up(&self) -> Result<Stack> {
        say("\nTo repeat what follows by hand: the programs of a checkout find these by variables.");
        let shown = |path: PathBuf| paths::shown(&path);
        say(format!("$ export SELVEDGE_ONNXRUNTIME=$PWD/{}", shown(paths::onnxruntime())));
        say(format!("$ export SELVEDGE_MODULES=$PWD/{}", shown(paths::modules())));
        say("\nBroker, registry, agent and host start, each a process of its own.");
        let mut up = self.command(&["up", "--broker-port", "0", "--registry-port", "0", "--http-port", "0"]);
        show(&up);
        Stack::start(&mut up, &self.folder)
    }

    fn tell(&self, stack: &mut Stack) -> Result<()> {
        let package = self.folder.join("file-type.pkg");
        let (example, package) = (paths::shown(&self.example), paths::shown(&package));
        let keys = paths::shown(&self.folder.join("stack/keys"));

        say("\nThe model, its labels, its module and its golden cases become a package.");
        self.selvedge(&["package", &example, "--release", "1", "--out", &package])?;
        say("\nThe releaser signs it; the registry takes it.");
        self.selvedge(&["release", &package, "--keys", &keys])?;
        say("\nThe registry signs what the device shall run; the device pulls, verifies, tries, commits.");
        self.selvedge(&["deploy", "file-type", "--target", DEVICE, "--wait"])?;
        stack.still_runs()?;

        say("\nThe device answers over HTTP on loopback.");
        let sample = format!("{example}/samples/report.pdf");
        self.selvedge(&["ask", "file-type", "--file", &sample])?;
        curl(&sample, &format!("{}/v2/models/file-type/raw", stack.inference()?))?;
        say("\nAll samples, beside what the Python package said when the golden cases were made:");
        let answers = self.ask_all()?;
        say(answers.table());

        say("\nThe target as the registry sees it.");
        self.selvedge(&["targets", DEVICE])?;
        answers.check()?;

        let inference = stack.inference()?;
        self.tell_of_versions(&inference)?;
        stack.still_runs()
    }

    /// Asks about every sample of the example.
    fn ask_all(&self) -> Result<answer::Answers> {
        let mut answers = answer::Answers::default();
        for case in answer::cases(&self.example)? {
            let sample = paths::shown(&self.example.join(&case.sample));
            let mut ask = self.command(&["--json", "ask", "file-type", "--file", &sample]);
            let text = run::quietly(&mut ask)?;
            let found: Value = serde_json::from_str(&text).context("an answer that is no JSON")?;
            answers.add(case, &found)?;
        }
        Ok(answers)
    }

    fn say_how_to_go_on(&self) {
        let data = paths::shown(&self.folder.join("stack"));
        let selvedge = paths::shown(&self.selvedge);
        say("\nEverything keeps running. From the root of the repository:");
        say(format!("  {selvedge} --data {data} ask file-type --file README.md"));
        say(format!("  {selvedge} --data {data} status"));
        say(format!(
            "  DATA={data} SELVEDGE={selvedge} examples/01-file-type/run 2    releases the next version"
        ));
        match stack::up_pid(&self.folder) {
            Some(pid) => say(format!("  kill {pid}    ends it")),
            None => say("  (the stack is not recorded: see target/demo/up.log)"),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = run::program(Path::new(&paths::shown(&self.selvedge)));
        command.arg("--data").arg(paths::shown(&self.folder.join("stack"))).args(arguments);
        command.env("SELVEDGE_ONNXRUNTIME", paths::onnxruntime()).env("SELVEDGE_MODULES", paths::modules());
        command
    }

    fn selvedge(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(arguments);
        show(&command);
        if children::interrupted() {
            bail!("interrupted");
        }
        run::loudly(&mut command)
    }
}

/// Any HTTP client does; without curl the command line is shown all the same.
fn curl(sample: &str, url: &str) -> Result<()> {
    let mut curl = run::program(Path::new("curl"));
    curl.args(["--silent", "--show-error", "--data-binary", &format!("@{sample}"), url]);
    show(&curl);
    if run::is_there("curl") {
        say(run::quietly(&mut curl)?);
    }
    Ok(())
}

fn show(command: &Command) {
    say(format!("$ {}", run::shown(command)));
}
