//! The program `lockfence`: runs commands under a lock, and shows locks.
//!
//! One command a file. It uses the library's public face only, so whatever it does a program can do, too.
//!
//! # What it must never do
//! - Run a protected command without a grant, or let one go on after a loss.
//! - Print a password: every line for people goes through [`say`], which takes them out.
//! - Panic on a closed pipe or a name that is no text.
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("the program `lockfence` uses process groups, /proc and PR_SET_PDEATHSIG: it is for Linux");

mod args;
mod break_lock;
mod completions;
mod escape;
mod exit;
mod info;
mod json;
mod ls;
mod man;
mod merge;
mod nodes;
mod run;
mod say;
mod table;
mod time;
mod watch;

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::args::{Cli, Command};
use crate::exit::Failed;

fn main() -> ExitCode {
    if let Some(code) = run::become_command() {
        return ExitCode::from(code);
    }
    let code = match Cli::try_parse() {
        Ok(cli) => carry_out(&cli.command),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            say::print(&error.render().to_string()).map(|()| 0).map_err(Failed::from)
        }
        Err(error) => {
            say::line(error.render().to_string().trim_end());
            Ok(exit::USAGE)
        }
    };
    ExitCode::from(code.unwrap_or_else(Failed::tell))
}

fn carry_out(command: &Command) -> Result<u8, Failed> {
    match command {
        Command::Run(args) => on_runtime(run::run(args)),
        Command::Ls(args) => on_runtime(ls::run(args)),
        Command::Info(args) => on_runtime(info::run(args)),
        Command::Break(args) => on_runtime(break_lock::run(args)),
        Command::Watch(args) => on_runtime(watch::run(args)),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}

/// Runs a command that talks to nodes. `work` itself runs on the main thread, which lasts as long as the program; a
/// lock is renewed on a thread of its own.
fn on_runtime(work: impl Future<Output = Result<u8, Failed>>) -> Result<u8, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failed::new(exit::USAGE, format!("the system gives no thread: {error}")))?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}
