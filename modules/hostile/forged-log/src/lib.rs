//! Writes log lines that are made to look like other people's: with line ends and the colours of a
//! terminal inside. The host must show all of them as one line of this package each.

wit_bindgen::generate!({ path: "../../../host/wit", world: "module" });
use exports::selvedge::model::predictor::{Error, Guest, NamedTensor};
use selvedge::model::log::{Level, write};

struct ForgedLog;

export!(ForgedLog);

const FORGED: &str = "2026-01-01T00:00:00Z ERROR selvedge_host: forged: the device is on fire";

impl Guest for ForgedLog {
    fn predict(inputs: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Error> {
        for end in ["\n", "\r\n", "\r", "\u{85}", "\u{2028}", "\u{b}", "\u{1b}[2K\u{1b}[1G", "\u{9b}1F"] {
            write(Level::Info, &format!("harmless{end}{FORGED}"));
        }
        println!("harmless\r{FORGED}");
        eprintln!("harmless\u{1b}[1A{FORGED}");
        Ok(inputs)
    }
}
