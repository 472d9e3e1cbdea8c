//! `make_runaway FOLDER NAME VERSION`: writes the package folder of a model that passes its golden case
//! and runs away on a larger number. The demo pushes it.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, name, version] = arguments.as_slice() else {
        eprintln!("usage: make_runaway FOLDER NAME VERSION");
        return ExitCode::from(2);
    };
    selvedge_tests::versions::runaway(Path::new(folder), name, version);
    ExitCode::SUCCESS
}
