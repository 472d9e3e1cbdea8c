//! Finding the deployments that people mean by an id, the beginning of one, or a package with a
//! target or selector; and saying which there are where none is meant, or several.

use selvedge_package::DeviceId;
use selvedge_package::nearest::nearest;

use crate::failure::Failure;
use crate::output::table;
use crate::rows::deployment::Deployment;

/// Letters of an id that must be given at least.
const SHORTEST: usize = 4;
/// Deployments that an error lists at most.
const LISTED: usize = 10;

/// Which deployments of a package are meant.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Scope {
    /// The one for this target
    #[arg(long, value_name = "NAME")]
    pub target: Option<DeviceId>,
    /// The one with this selector
    #[arg(long, value_name = "SELECTOR", conflicts_with = "target")]
    pub selector: Option<String>,
}

impl Scope {
    /// Whether everything is meant.
    pub fn is_open(&self) -> bool {
        self.target.is_none() && self.selector.is_none()
    }

    fn has(&self, row: &Deployment) -> bool {
        let same = |text: &String| row.selector.as_ref().is_some_and(|has| plain(has) == plain(text));
        self.target.as_ref().is_none_or(|target| row.target.as_ref() == Some(target))
            && self.selector.as_ref().is_none_or(same)
    }
}

/// A selector without what does not matter: blanks, and the order of terms and of listed values.
fn plain(selector: &str) -> Vec<String> {
    let (mut terms, mut term, mut inside) = (Vec::new(), String::new(), false);
    for c in selector.chars().filter(|c| !c.is_whitespace()) {
        match c {
            ',' if !inside => terms.push(std::mem::take(&mut term)),
            _ => {
                inside = (inside || c == '(') && c != ')';
                term.push(c);
            }
        }
    }
    terms.push(term);
    for term in &mut terms {
        if let Some((key, values)) = term.strip_suffix(')').and_then(|term| term.split_once('(')) {
            let mut values: Vec<&str> = values.split(',').collect();
            values.sort_unstable();
            *term = format!("{key}({})", values.join(","));
        }
    }
    terms.sort_unstable();
    terms
}

/// The deployments in `rows` that `text` means: one by its id, or all of a package in a scope; at
/// least one.
pub fn find<'a>(rows: &'a [Deployment], text: &str, scope: &Scope) -> Result<Vec<&'a Deployment>, Failure> {
    let of_package: Vec<&Deployment> = rows.iter().filter(|row| row.package.as_str() == text).collect();
    if of_package.is_empty() {
        return by_id(rows, text, scope).map(|row| vec![row]);
    }
    let meant: Vec<&Deployment> = of_package.iter().copied().filter(|row| scope.has(row)).collect();
    if !meant.is_empty() {
        return Ok(meant);
    }
    let what = match (&scope.target, &scope.selector) {
        (Some(target), _) => format!("no deployment of {text} is for the target {target} alone"),
        (_, Some(selector)) => format!("no deployment of {text} has the selector `{selector}`"),
        _ => format!("there is no deployment of {text}"),
    };
    Err(Failure::missing(what, format!("those of {text} are:\n{}", listed(&of_package))))
}

/// The one deployment that is meant.
pub fn find_one<'a>(rows: &'a [Deployment], text: &str, scope: &Scope) -> Result<&'a Deployment, Failure> {
    match find(rows, text, scope)?.as_slice() {
        [only] => Ok(only),
        several => Err(several_of(text, several, "say which by its id")),
    }
}

/// Several are meant where one has to be; `advice` says how one is.
pub fn several_of(text: &str, several: &[&Deployment], advice: &str) -> Failure {
    Failure::usage(
        format!("{text} has {} deployments", several.len()),
        format!("{advice}:\n{}", listed(several)),
    )
}

fn by_id<'a>(rows: &'a [Deployment], text: &str, scope: &Scope) -> Result<&'a Deployment, Failure> {
    let begins = |row: &&Deployment| row.id == text || (text.len() >= SHORTEST && row.id.starts_with(text));
    let found: Vec<&Deployment> = rows.iter().filter(begins).collect();
    match found.as_slice() {
        [only] if scope.is_open() || scope.has(only) => Ok(only),
        [only] => Err(Failure::usage(
            format!("deployment {} is for {}", only.id, only.where_to()),
            "an id says it all: leave --target and --selector out",
        )),
        [] => {
            let names = rows.iter().map(|row| row.package.as_str());
            let advice = match nearest(text, names.chain(rows.iter().map(|row| row.id.as_str()))) {
                Some(near) => format!("did you mean `{near}`? `selvedge deployments` lists all"),
                None if rows.is_empty() => "nothing is deployed; `selvedge deploy` does it".to_owned(),
                None => "`selvedge deployments` lists those that there are".to_owned(),
            };
            Err(Failure::missing(format!("there is no deployment {text}"), advice))
        }
        several => Err(Failure::usage(
            format!("the ids of {} deployments begin with {text}", several.len()),
            format!("give more of it:\n{}", listed(several)),
        )),
    }
}

/// Deployments as a table that goes into an error's advice.
fn listed(rows: &[&Deployment]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .take(LISTED)
        .map(|row| vec![format!("  {}", row.id), row.to_string(), row.scope(), row.priority.to_string()])
        .collect();
    let more = rows.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("\n  … and {more} more") } else { String::new() };
    format!("{}{more}", table(&["  ID", "RELEASE", "FOR", "PRIORITY"], &cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows() -> Vec<Deployment> {
        serde_json::from_value(json!([
            {"id": "aaaa000000000001", "package": "file-type", "release": 1, "target": "edge-1"},
            {"id": "aaaa000000000002", "package": "file-type", "release": 2,
             "selector": "arch = aarch64, site in (bergen, oslo)", "priority": 5},
            {"id": "bbbb000000000003", "package": "scale", "release": 1, "target": "edge-1"},
        ]))
        .unwrap()
    }

    fn scope(target: Option<&str>, selector: Option<&str>) -> Scope {
        Scope { target: target.map(|name| name.parse().unwrap()), selector: selector.map(str::to_owned) }
    }

    fn found(text: &str, scope: &Scope) -> Result<Vec<u64>, (String, String)> {
        let rows = rows();
        let ids = find(&rows, text, scope);
        ids.map(|rows| rows.iter().map(|row| row.id[15..].parse().unwrap()).collect())
            .map_err(|failure| (failure.to_string(), failure.advice().unwrap()))
    }

    #[test]
    fn an_id_its_beginning_or_a_package_is_enough() {
        let open = Scope::default();
        assert_eq!(found("aaaa000000000001", &open), Ok(vec![1]));
        assert_eq!(found("bbbb", &open), Ok(vec![3]));
        assert_eq!(found("file-type", &open), Ok(vec![1, 2]));
        assert_eq!(found("file-type", &scope(Some("edge-1"), None)), Ok(vec![1]));
        for selector in ["arch = aarch64, site in (bergen, oslo)", "site in (oslo,bergen),arch=aarch64"] {
            assert_eq!(found("file-type", &scope(None, Some(selector))), Ok(vec![2]));
        }
    }

    #[test]
    fn what_is_not_there_names_what_is() {
        let open = Scope::default();
        for (text, scope, what, advice) in [
            ("file-tyep", &open, "no deployment file-tyep", "did you mean `file-type`"),
            ("aaaa000000000009", &open, "no deployment aaaa", "did you mean `aaaa"),
            ("zzz", &open, "no deployment zzz", "selvedge deployments"),
            ("bbb", &open, "no deployment bbb", "selvedge deployments"),
            ("aaaa", &open, "2 deployments begin with aaaa", "aaaa000000000002"),
            ("file-type", &scope(Some("edge-2"), None), "target edge-2", "arch = aarch64"),
            ("file-type", &scope(None, Some("site = x")), "selector `site = x`", "edge-1"),
            ("bbbb", &scope(Some("edge-2"), None), "is for edge-1", "leave --target"),
        ] {
            let (said, advised) = found(text, scope).unwrap_err();
            assert!(said.contains(what), "{text}: {said}");
            assert!(advised.contains(advice), "{text}: {advised}");
        }
    }

    #[test]
    fn one_of_several_has_to_be_said() {
        let rows = rows();
        let failure = find_one(&rows, "file-type", &Scope::default()).unwrap_err();
        assert_eq!(failure.exit(), crate::exit::Exit::Usage);
        assert!(failure.advice().unwrap().contains("aaaa000000000001"));
        assert_eq!(find_one(&rows, "scale", &Scope::default()).unwrap().release, 1);
    }
}
