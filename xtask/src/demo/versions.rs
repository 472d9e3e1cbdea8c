//! The second part of the demo: versions that follow the first. One takes over while somebody asks
//! without pause; one fails its cases; one brings the host down after it was committed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::asking::Asking;
use super::{DEVICE, Demo, show};
use crate::run::{self, say};
use crate::setup::files_below;
use crate::{clock, paths};

/// Longest time that the device may take for anything here.
const PATIENCE: Duration = Duration::from_secs(120);
/// Requests in peace before and after a swap.
const IN_PEACE: usize = 20;
/// Computes for minutes in one operator, unless somebody ends it.
const RUN_AWAY: &str = r#"{"inputs":[{"name":"n","datatype":"INT64","shape":[1],"data":[3000]}]}"#;

impl Demo {
    /// All of it; the device runs release 1 before, and release 2 afterwards.
    pub fn tell_of_versions(&self, inference: &str) -> Result<()> {
        self.second(inference)?;
        self.third()?;
        self.fourth(inference)
    }

    fn second(&self, inference: &str) -> Result<()> {
        say("\nA second version takes over while somebody asks without pause.");
        let package = self.release(&self.example, "1.1.0", 2)?;
        say(format!("(packaged and released as {package})"));
        let sample = self.example.join("samples/report.pdf");
        let sample = fs::read(&sample).with_context(|| format!("reading {}", sample.display()))?;
        let asking = Asking::start(inference, "/v2/models/file-type/raw", sample);
        self.wait_for(&asking, IN_PEACE)?;
        let deployed = self.selvedge(&["deploy", "file-type@r2", "--target", DEVICE, "--wait"]);
        let seen = asking.sent();
        self.wait_for(&asking, seen + IN_PEACE)?;
        let asked = asking.stop();
        deployed?;
        say(asked.line());
        if let Some(failure) = asked.failures.first() {
            bail!("a request failed during the swap: {failure}");
        }
        if !["1.0.0", "1.1.0"].iter().all(|version| asked.versions.contains_key(*version)) {
            bail!("not both versions answered");
        }
        Ok(())
    }

    fn third(&self) -> Result<()> {
        say("\nA third version expects a wrong answer: the device refuses it, and says which.");
        let folder = self.folder.join("third");
        for file in files_below(&self.example)? {
            let to = folder.join(file.strip_prefix(&self.example)?);
            fs::create_dir_all(to.parent().context("a file lies in a folder")?).context("making a folder")?;
            fs::copy(&file, &to).with_context(|| format!("copying {}", file.display()))?;
        }
        let case = folder.join("cases/report.json");
        let text = fs::read_to_string(&case).context("reading a case")?;
        say(format!("$ sed -i s/pdf/png/ {}", paths::shown(&case)));
        fs::write(&case, text.replace(r#""pdf""#, r#""png""#)).context("writing a case")?;
        self.release(&folder, "1.2.0", 3)?;
        self.refused(&["deploy", "file-type@r3", "--target", DEVICE, "--wait"])?;
        let report = self.report()?;
        let what = report["failure"]["what"].as_str().unwrap_or_default();
        if !["report", "png", "pdf"].iter().all(|part| what.contains(part)) {
            bail!("the report does not say which case, what was expected and what came: {report}");
        }
        if report["committed"]["release"] != 2 {
            bail!("the second version does not answer any more: {report}");
        }
        Ok(())
    }

    fn fourth(&self, inference: &str) -> Result<()> {
        say("\nA fourth version passes its cases, and one request makes it run away in native code.");
        let folder = self.folder.join("fourth");
        let maker = self.selvedge.with_file_name("make_runaway");
        let mut make = run::program(std::path::Path::new(&paths::shown(&maker)));
        make.arg(paths::shown(&folder)).args(["file-type", "2.0.0"]);
        show(&make);
        run::loudly(&mut make)?;
        self.release(&folder, "2.0.0", 4)?;
        self.selvedge(&["deploy", "file-type@r4", "--target", DEVICE, "--wait"])?;
        say("The host ends, names the package and is back; after the third time it is quarantined,");
        say("and the release before it starts as a new trial.");
        let url = format!("{inference}/v2/models/file-type/versions/2.0.0/infer");
        say(format!("$ curl --data '{RUN_AWAY}' {url}    # until nobody answers"));
        let back = clock::wait_for(PATIENCE, || {
            if crate::children::interrupted() {
                return Some(Err(anyhow::anyhow!("interrupted")));
            }
            // Its end is what is wanted: no answer comes.
            let asking = Asking::start(inference, "/v2/models/file-type/infer", RUN_AWAY.as_bytes().to_vec());
            let _ = clock::wait_for(PATIENCE, || (asking.sent() > 0).then_some(()));
            drop(asking.stop());
            let report = match self.report() {
                Ok(report) => report,
                Err(error) => return Some(Err(error)),
            };
            let quarantined = report["failure"]["reason"] == "quarantined";
            let served = report["committed"]["release"] == 2 && report["serving"] == true;
            (quarantined && served).then_some(Ok(()))
        });
        back.context("the release was not quarantined in time")??;
        self.selvedge(&["explain", DEVICE])?;
        say("\nThe assignment follows what works.");
        self.selvedge(&["rollback", "file-type", "--target", DEVICE, "--to", "r2", "--wait"])
    }

    /// Packages and releases a folder; the package's path. Its cases are the device's business here.
    fn release(&self, folder: &std::path::Path, version: &str, release: u32) -> Result<String> {
        let package: PathBuf = self.folder.join(format!("file-type-{version}.pkg"));
        let (folder, package) = (paths::shown(folder), paths::shown(&package));
        let release = release.to_string();
        let mut arguments =
            vec!["package", &folder, "--version", version, "--release", &release, "--out", &package];
        if version != "1.1.0" {
            arguments.push("--skip-acceptance");
        }
        self.selvedge(&arguments)?;
        let keys = paths::shown(&self.folder.join("stack/keys"));
        self.selvedge(&["release", &package, "--keys", &keys])?;
        Ok(package)
    }

    /// Runs a command that has to fail.
    fn refused(&self, arguments: &[&str]) -> Result<()> {
        match self.selvedge(arguments) {
            Ok(()) => bail!("`selvedge {}` should have failed", arguments.join(" ")),
            Err(_) if crate::children::interrupted() => bail!("interrupted"),
            Err(_) => Ok(()),
        }
    }

    /// What the device reports of the package.
    fn report(&self) -> Result<Value> {
        let text = run::quietly(&mut self.command(&["--json", "targets", DEVICE]))?;
        let target: Value = serde_json::from_str(&text).context("a target that is no JSON")?;
        let packages = target["reported"]["packages"].as_array().cloned().unwrap_or_default();
        let found = packages.into_iter().find(|package| package["name"] == "file-type");
        found.context("the device reports nothing of the package")
    }

    fn wait_for(&self, asking: &Asking, sent: usize) -> Result<()> {
        clock::wait_for(PATIENCE, || (asking.sent() >= sent).then_some(()))
            .context("the device does not answer")
    }
}
