//! `selvedge target enrol|label|rm`: making targets known, describing and removing them. The
//! enrolment holds a one-time token: it goes into a file of mode 0600 and is never printed.

use std::path::PathBuf;

use reqwest::Method;
use selvedge_mqtt::BrokerAddress;
use selvedge_package::DeviceId;
use serde_json::{Value, json};

use crate::commands::{Surroundings, push};
use crate::failure::Failure;
use crate::reference::{Pair, object};
use crate::supervisor::record::write_atomically;

/// Enrol, label and remove targets.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  selvedge target enrol edge-1 --out edge-1.json --label site=oslo
  selvedge target enrol edge-1 --offline --keys keys --broker mqtt://127.0.0.1:1883 --out edge-1.json
  selvedge target label edge-1 site=bergen canary-
  selvedge target rm edge-1")]
pub enum Command {
    /// Make a target, and the file with which a device becomes it
    Enrol {
        /// Name of the target, which becomes the device's id
        name: DeviceId,
        /// Where to write the enrolment; bring it to the device and start
        /// `selvedge-agent run --data DIR --enrolment FILE` there
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// A label; may be repeated
        #[arg(long = "label", value_name = "KEY=VALUE", conflicts_with = "offline")]
        labels: Vec<Pair>,
        /// Without a registry, for `selvedge push`
        #[arg(long, requires_all = ["keys", "broker"])]
        offline: bool,
        /// With --offline: directory of the keys whose roots the device shall trust
        #[arg(long, value_name = "DIR", requires = "offline")]
        keys: Option<PathBuf>,
        /// With --offline: the broker as the device reaches it
        #[arg(long, value_name = "URL", requires = "offline")]
        broker: Option<BrokerAddress>,
        /// With --offline: what is pushed to which devices [default: `push` in the directory of the keys]
        #[arg(long, value_name = "DIR", requires = "offline")]
        repository: Option<PathBuf>,
    },
    /// Set and remove labels of a target
    Label {
        /// The target
        name: DeviceId,
        /// KEY=VALUE sets a label, KEY- removes it
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        changes: Vec<String>,
    },
    /// Remove a target; the device keeps running what it has, and is heard no more
    Rm {
        /// The target
        name: DeviceId,
    },
}

/// Runs one of them.
pub async fn run(around: &Surroundings<'_>, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Enrol { name, out, keys: Some(keys), broker: Some(broker), repository, .. } => {
            let repository = repository.as_ref();
            push::enrol_offline(around, &push::Offline { name, out, keys, broker, repository }).await
        }
        Command::Enrol { name, out, labels, .. } => enrol(around, name, out, labels).await,
        Command::Label { name, changes } => label(around, name, changes).await,
        Command::Rm { name } => remove(around, name).await,
    }
}

async fn enrol(
    around: &Surroundings<'_>,
    name: &DeviceId,
    file: &PathBuf,
    labels: &[Pair],
) -> Result<(), Failure> {
    let registry = around.registry()?;
    if file.exists() {
        return Err(Failure::Conflict {
            what: format!("{} exists already", file.display()),
            advice: "say another file with --out; an enrolment is never overwritten".to_owned(),
        });
    }
    let body = json!({"name": name, "kind": "device", "labels": object(labels)?});
    let answer = registry
        .call(&format!("enrol {name}"), Method::POST, &registry.in_workspace("/targets"), Some(&body))
        .await?;
    let enrolment = serde_json::to_vec_pretty(&answer["enrolment"])
        .map_err(|source| Failure::Internal { what: "cannot write the enrolment", source: source.into() })?;
    if let Err(failure) = write_atomically(file, &enrolment, true) {
        // Without its file the target could never be used, and its name would be taken.
        let path = registry.in_workspace(&format!("/targets/{name}"));
        registry.call(&format!("remove {name} again"), Method::DELETE, &path, None).await?;
        return Err(failure);
    }
    around.out.value(&json!({"target": answer["target"], "enrolment_file": file}));
    around.out.line(format!(
        "target {name} is known; its enrolment is in {} (a secret, good for one device)",
        file.display()
    ));
    around.out.line(format!("on the device: selvedge-agent run --data DIR --enrolment {}", file.display()));
    Ok(())
}

async fn label(around: &Surroundings<'_>, name: &DeviceId, changes: &[String]) -> Result<(), Failure> {
    let registry = around.registry()?;
    let (_, target) = registry.target(name).await?;
    let mut labels = target.labels;
    for change in changes {
        match change.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                labels.insert(key.to_owned(), value.to_owned());
            }
            _ => match change.strip_suffix('-') {
                Some(key) if !key.is_empty() => {
                    labels.remove(key);
                }
                _ => {
                    return Err(Failure::usage(
                        format!("`{change}` changes no label"),
                        "write KEY=VALUE to set one, KEY- to remove one",
                    ));
                }
            },
        }
    }
    let path = registry.in_workspace(&format!("/targets/{name}"));
    let answer = registry
        .call(&format!("label {name}"), Method::PATCH, &path, Some(&json!({"labels": labels})))
        .await?;
    around.out.value(&answer);
    around.out.line(format!("{name}: {}", crate::output::pairs(&labels)));
    Ok(())
}

async fn remove(around: &Surroundings<'_>, name: &DeviceId) -> Result<(), Failure> {
    let registry = around.registry()?;
    let path = registry.in_workspace(&format!("/targets/{name}"));
    match registry.call(&format!("remove {name}"), Method::DELETE, &path, None).await {
        Ok(_) => {}
        Err(Failure::Answered { status: 404, .. }) => return Err(registry.no_target(name).await),
        Err(failure) => return Err(failure),
    }
    around.out.value(&json!({"removed": name, "result": Value::Null}));
    around.out.line(format!("target {name} is removed"));
    Ok(())
}
