//! What scikit-learn trains and skl2onnx exports, packaged without a manifest and served from a folder: Triton's
//! client gets scikit-learn's own predictions.

use selvedge_tests::command::Selvedge;

use crate::folder;
use crate::triton_client::said_by;

/// Runs the script's `export` or `ask`; what it printed.
async fn script(what: &str, argument: &str) -> String {
    said_by("scikit_learn.py", vec![what.to_owned(), argument.to_owned()]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_scikit_learn_answers_as_scikit_learn_does() {
    let directory = tempfile::tempdir().unwrap();
    let (models, packages) = (directory.path().join("models"), directory.path().join("packages"));
    std::fs::create_dir(&models).unwrap();
    std::fs::create_dir(&packages).unwrap();
    script("export", &models.display().to_string()).await;
    let mut names = Vec::new();
    for model in std::fs::read_dir(&models).unwrap() {
        let model = model.unwrap().path();
        let name = model.file_stem().unwrap().to_string_lossy().into_owned();
        let out = packages.join(&name).display().to_string();
        Selvedge::new().run(&["package", &model.display().to_string(), "--out", &out]);
        names.push(name);
    }
    names.sort_unstable();
    let host = folder::start(directory, &packages).await;
    let told = script("ask", host.url.strip_prefix("http://").unwrap()).await;
    let mut agreed: Vec<&str> = told.lines().map(|line| line.split_once(':').unwrap().0).collect();
    agreed.sort_unstable();
    assert_eq!(agreed, names, "{told}");
    assert_eq!(agreed.len(), 9);
}
