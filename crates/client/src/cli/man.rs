//! `lockfence man [COMMAND]`, `lockfence man --dir FOLDER`

use clap::CommandFactory as _;
use clap_mangen::Man as Page;

use crate::args::{Cli, Man};
use crate::escape;
use crate::exit::{Failed, USAGE};
use crate::say;

pub(crate) fn run(args: &Man) -> Result<u8, Failed> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    if let Some(dir) = &args.dir {
        let failed = |error| Failed::new(USAGE, format!("cannot write to {}: {error}", dir.display()));
        std::fs::create_dir_all(dir).map_err(failed)?;
        clap_mangen::generate_to(command, dir).map_err(failed)?;
        return Ok(0);
    }
    let page = match &args.command {
        None => Page::new(command),
        Some(name) => match command.find_subcommand(name) {
            Some(command) => Page::new(command.clone()),
            None => {
                let name = escape::for_people(name.as_bytes());
                return Err(Failed::new(
                    USAGE,
                    format!("there is no command {name:?}; see lockfence --help"),
                ));
            }
        },
    };
    let mut text = Vec::new();
    page.render(&mut text)?;
    say::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}
