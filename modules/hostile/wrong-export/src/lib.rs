//! A good component of another world: it exports `init` alone. The host must refuse to load it.

wit_bindgen::generate!({
    inline: "
        package hostile:wrong;
        world other { export run: func() -> u32; }
    ",
});

struct WrongExport;

export!(WrongExport);

impl Guest for WrongExport {
    fn run() -> u32 {
        7
    }
}
