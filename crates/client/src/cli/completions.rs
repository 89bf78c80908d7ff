//! `lockfence completions SHELL`

use clap::CommandFactory as _;

use crate::args::{Cli, Completions};
use crate::exit::Failed;
use crate::say;

pub(crate) fn run(args: &Completions) -> Result<u8, Failed> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lockfence", &mut script);
    say::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
