//! `selvedge target enrol|label|revoke|detach|rm`: making targets known, describing them, and ending
//! what they may do. The enrolment holds a one-time token and perhaps a key: it goes into a file of mode
//! 0600 and is never printed.

use std::path::PathBuf;

use reqwest::Method;
use selvedge_mqtt::BrokerAddress;
use selvedge_package::{DeviceId, Digest};
use serde_json::{Value, json};

use crate::commands::{Surroundings, push};
use crate::failure::Failure;
use crate::reference::{Pair, object};
use crate::supervisor::record::write_atomically;

/// Enrol, label, revoke and remove targets.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  selvedge target enrol edge-1 --out edge-1.json --label site=oslo
  selvedge target enrol edge-1 --offline --keys keys --broker mqtt://127.0.0.1:1883 --out edge-1.json
  selvedge target enrol edge-1 --again --out edge-1-again.json   (wiped, revoked, or away for too long)
  selvedge target label edge-1 site=bergen canary-
  selvedge target revoke edge-1                                  (stolen: nothing of it counts any more)
  selvedge target detach edge-1
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
        /// Another enrolment of a target that there is: labels, deployments and history stay; the key of
        /// before counts until the device that gets this file shows another one
        #[arg(long, conflicts_with_all = ["offline", "labels"])]
        again: bool,
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
        /// With --offline and an mqtts broker: the authority that signed its certificate, as PEM
        #[arg(long, value_name = "FILE", requires = "offline")]
        broker_ca: Option<PathBuf>,
        /// With --offline: the device's certificate for the broker, as PEM; its name is the device's
        #[arg(long, value_name = "FILE", requires_all = ["broker_ca", "device_tls_key"])]
        device_cert: Option<PathBuf>,
        /// With --offline: the key of that certificate, as PEM
        #[arg(long, value_name = "FILE", requires = "device_cert")]
        device_tls_key: Option<PathBuf>,
    },
    /// Set and remove labels of a target
    Label {
        /// The target
        name: DeviceId,
        /// KEY=VALUE sets a label, KEY- removes it
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        changes: Vec<String>,
    },
    /// Believe a target nothing and tell it nothing any more: its key and certificates never count
    /// again. `enrol --again` makes a file by which it comes back with another key
    Revoke {
        /// The target
        name: DeviceId,
    },
    /// Let a target go: it is told nothing more and keeps running what it has; says what that is
    Detach {
        /// The target
        name: DeviceId,
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
        Command::Enrol {
            name,
            out,
            keys: Some(keys),
            broker: Some(broker),
            repository,
            broker_ca,
            device_cert,
            device_tls_key,
            ..
        } => {
            let repository = repository.as_ref();
            let credential = device_cert.as_deref().zip(device_tls_key.as_deref());
            let tls = push::OfflineTls { broker_ca: broker_ca.as_deref(), credential };
            push::enrol_offline(around, &push::Offline { name, out, keys, broker, repository, tls }).await
        }
        Command::Enrol { name, out, again: true, .. } => {
            let path = around.registry()?.in_workspace(&format!("/targets/{name}/enrolment"));
            write_enrolment(around, name, out, (&path, &json!({}))).await
        }
        Command::Enrol { name, out, labels, .. } => {
            let body = json!({"name": name, "kind": "device", "labels": object(labels)?});
            let path = around.registry()?.in_workspace("/targets");
            write_enrolment(around, name, out, (&path, &body)).await
        }
        Command::Revoke { name } => revoke(around, name).await,
        Command::Detach { name } => detach(around, name).await,
        Command::Label { name, changes } => label(around, name, changes).await,
        Command::Rm { name } => remove(around, name).await,
    }
}

/// Asks for an enrolment and writes it; `asked` is where and with what.
async fn write_enrolment(
    around: &Surroundings<'_>,
    name: &DeviceId,
    file: &PathBuf,
    asked: (&str, &Value),
) -> Result<(), Failure> {
    let registry = around.registry()?;
    if file.exists() {
        return Err(Failure::Conflict {
            what: format!("{} exists already", file.display()),
            advice: "say another file with --out; an enrolment is never overwritten".to_owned(),
        });
    }
    let (path, body) = asked;
    let fresh = body.get("name").is_some();
    let answer = match registry.call(&format!("enrol {name}"), Method::POST, path, Some(body)).await {
        Err(Failure::Answered { status: 404, .. }) if !fresh => return Err(registry.no_target(name).await),
        answer => answer?,
    };
    let enrolment = serde_json::to_vec_pretty(&answer["enrolment"])
        .map_err(|source| Failure::Internal { what: "cannot write the enrolment", source: source.into() })?;
    if let Err(failure) = write_atomically(file, &enrolment, true) {
        if fresh {
            // Without its file the target could never be used, and its name would be taken.
            let path = registry.in_workspace(&format!("/targets/{name}"));
            registry.call(&format!("remove {name} again"), Method::DELETE, &path, None).await?;
        }
        return Err(failure);
    }
    let roots = [("image", "image_root"), ("director", "director_root")].map(|(name, key)| {
        (name, Digest::of(answer["enrolment"][key].as_str().unwrap_or_default().as_bytes()))
    });
    let [image, director] = &roots;
    around.out.value(&json!({
        "target": answer["target"],
        "enrolment_file": file,
        "fingerprints": {"image_root": image.1, "director_root": director.1},
    }));
    around.out.line(format!(
        "target {name} is known; its enrolment is in {} (a secret, good for one device)",
        file.display()
    ));
    around.out.line("the device must show the same fingerprints (`selvedge-agent trust show`):");
    for (name, fingerprint) in &roots {
        around.out.line(format!("  {name:<8} root  {fingerprint}"));
    }
    around.out.line(format!("on the device: selvedge-agent run --data DIR --enrolment {}", file.display()));
    Ok(())
}

async fn revoke(around: &Surroundings<'_>, name: &DeviceId) -> Result<(), Failure> {
    let answer = post(around, name, "revoke").await?;
    around.out.value(&answer);
    around.out.line(format!("target {name} is revoked: nothing that it says counts, and it is told nothing"));
    around.out.line(format!(
        "`selvedge target enrol {name} --again --out FILE` lets it come back with another key"
    ));
    Ok(())
}

async fn detach(around: &Surroundings<'_>, name: &DeviceId) -> Result<(), Failure> {
    let answer = post(around, name, "detach").await?;
    around.out.value(&answer);
    around
        .out
        .line(format!("target {name} is detached: it is told nothing more, and its key counts nowhere"));
    let keeps = answer["keeps"].as_array().map(Vec::as_slice).unwrap_or_default();
    if keeps.is_empty() {
        around.out.line("it reported nothing that it runs");
    }
    for package in keeps {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let release = package["release"].as_u64().unwrap_or_default();
        around.out.line(format!("it keeps running {} {} r{release}", text("package"), text("version")));
    }
    around.out.line("to stop that too, stop selvedge-agent on the device and remove its data directory");
    Ok(())
}

async fn post(around: &Surroundings<'_>, name: &DeviceId, what: &str) -> Result<Value, Failure> {
    let registry = around.registry()?;
    let path = registry.in_workspace(&format!("/targets/{name}/{what}"));
    match registry.call(&format!("{what} {name}"), Method::POST, &path, Some(&json!({}))).await {
        Err(Failure::Answered { status: 404, .. }) => Err(registry.no_target(name).await),
        answer => answer,
    }
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
