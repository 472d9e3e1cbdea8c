//! placeholder
pub enum Afterwards {
    Stop,
    Keep,
}
impl Afterwards {
    pub fn from_flag(keep: bool) -> Self {
        if keep { Self::Keep } else { Self::Stop }
    }
}
pub fn run(_a: Afterwards) -> anyhow::Result<()> {
    Ok(())
}
