//! `docs/security.md` names the test that shows each line: every one of them exists.

use selvedge_tests::programs::root;

#[test]
fn every_test_that_the_document_names_exists() {
    let text = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    let named: Vec<&str> =
        text.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains("::")).collect();
    assert!(named.len() > 40, "{named:?}");
    for name in named {
        let (file, test) = name.split_once("::").unwrap();
        if (file, test) == ("file", "test") {
            continue;
        }
        let path = match file.strip_suffix(".rs") {
            Some(_) => root().join(file),
            None => root().join("tests/tests/attacks").join(file).with_extension("rs"),
        };
        let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(source.contains(&format!("fn {test}(")), "{name} is no test of {}", path.display());
    }
}
