//! What the address of a raw request says, whose body has no place for it: which sequence it belongs to.

use axum::extract::Query;
use axum::http::Uri;
use serde::Deserialize;

use super::failure::Failure;
use crate::oip::request::{Parameter, Parameters};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    sequence_id: Option<String>,
    sequence_start: Option<bool>,
    sequence_end: Option<bool>,
}

/// The parameters that a request with a JSON part would have there. An id of digits is a number.
pub fn parameters(uri: &Uri) -> Result<Parameters, Failure> {
    let Query(asked) = Query::<Asked>::try_from_uri(uri).map_err(|error| {
        Failure::Header(format!(
            "the address may say `sequence_id`, `sequence_start` and `sequence_end` (`true` or `false`) after `?`: {error}"
        ))
    })?;
    let flag = |name: &str, value: Option<bool>| Some((name.to_owned(), Parameter::Boolean(value?)));
    let id = asked.sequence_id.map(|id| ("sequence_id".to_owned(), number_or_text(id)));
    let start = flag("sequence_start", asked.sequence_start);
    Ok(id.into_iter().chain(start).chain(flag("sequence_end", asked.sequence_end)).collect())
}

fn number_or_text(id: String) -> Parameter {
    match id.parse::<u64>() {
        Ok(number) => i64::try_from(number).map_or(Parameter::Unsigned(number), Parameter::Integer),
        Err(_) => Parameter::Text(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Parameters, String> {
        parameters(&format!("/v2/models/m/raw{query}").parse().unwrap())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn an_address_names_a_sequence() {
        let check = |query: &str, id: Parameter| {
            let expected = Parameters::from([("sequence_id".to_owned(), id)]);
            assert_eq!(read(query), Ok(expected), "{query}");
        };
        check("?sequence_id=7", Parameter::Integer(7));
        check("?sequence_id=18446744073709551615", Parameter::Unsigned(u64::MAX));
        check("?sequence_id=a%2Fb", Parameter::Text("a/b".to_owned()));
        check("?sequence_id=-7", Parameter::Text("-7".to_owned()));
        assert_eq!(read(""), Ok(Parameters::new()));
        assert_eq!(read("?"), Ok(Parameters::new()));
        let both = read("?sequence_id=a&sequence_start=true&sequence_end=false").unwrap();
        assert_eq!(both["sequence_start"], Parameter::Boolean(true));
        assert_eq!(both["sequence_end"], Parameter::Boolean(false));
    }

    #[test]
    fn another_word_is_refused() {
        for query in ["?sequence=7", "?sequence_id=7&sequence_start=yes", "?sequence_id=7&sequence_id=8"] {
            assert!(read(query).unwrap_err().contains("may say `sequence_id`"), "{query}");
        }
    }
}
