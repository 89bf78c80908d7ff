//! `lockfence watch [PATTERN]`

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::ContentArrangement;
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Watch;
use crate::exit::{self, Failed};
use crate::ls::Look;
use crate::{json, nodes, say, table, time};

pub(crate) async fn run(args: &Watch) -> Result<u8, Failed> {
    let admin = nodes::admin(&args.nodes)?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let screen = (!args.json && io::stdout().is_terminal()).then(Screen::open).transpose()?;
    let mut looks: u64 = 0;
    loop {
        let look = tokio::select! {
            biased;
            _ = interrupt.recv() => return Ok(0),
            _ = terminate.recv() => return Ok(0),
            look = Look::take(&admin, &args.which) => look,
        };
        looks = looks.saturating_add(1);
        match &screen {
            Some(screen) => screen.draw(&look, args)?,
            None => print(&look, args.json, looks == 1)?,
        }
        if args.count.is_some_and(|count| looks >= count) {
            return Ok(0);
        }
        tokio::select! {
            biased;
            _ = interrupt.recv() => return Ok(0),
            _ = terminate.recv() => return Ok(0),
            () = tokio::time::sleep(args.interval) => {}
        }
    }
}

/// Where nobody looks at a screen. That nodes do not answer is told each time, and is no end: they may come back.
fn print(look: &Look, as_json: bool, first: bool) -> Result<(), Failed> {
    if as_json {
        say::print(&json::text(&look.json(), false))?;
    } else {
        let between = if first { "" } else { "\n" };
        say::print(&format!("{between}{}", table::text(&look.table())))?;
    }
    if let Err(failed) = look.verdict() {
        failed.tell();
    }
    Ok(())
}

/// The terminal's other screen. What was on the first one comes back at the end.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(Self)
    }

    /// Draws over what is there: clearing all of it first would flicker.
    fn draw(&self, look: &Look, args: &Watch) -> Result<(), Failed> {
        let (width, height) = terminal::size()?;
        let mut table = look.table();
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        let mut lines = vec![format!("every {}; Ctrl-C ends", time::shown(args.interval)), String::new()];
        lines.extend(table::text(&table).lines().map(str::to_owned));
        let silent = look.silent();
        lines.extend(silent.iter().map(|node| say::without_passwords(&exit::at_node(node))));
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for (place, line) in lines.iter().take(usize::from(height)).enumerate() {
            if place > 0 {
                out.write_all(b"\r\n")?;
            }
            out.write_all(line.as_bytes())?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        Ok(out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone there is nothing to bring back.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
    }
}
