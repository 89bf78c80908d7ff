//! `lockfence watch [PATTERN]`

use std::io::{self, IsTerminal as _, Write as _};

use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{cursor, execute, queue};
use lockfence_client::admin::Admin;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::args::Watch;
use crate::exit::{self, Failed};
use crate::ls::Look;
use crate::run::job;
use crate::{json, nodes, say, table, time};

/// That of a terminal which does not know it.
const HEIGHT: usize = 24;

pub(crate) async fn run(args: &Watch) -> Result<u8, Failed> {
    let admin = nodes::admin(&args.nodes)?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut stop = signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?;
    let mut show = Show::open(args)?;
    loop {
        tokio::select! {
            biased;
            _ = interrupt.recv() => return Ok(0),
            _ = terminate.recv() => return Ok(0),
            _ = stop.recv() => show.stop()?,
            over = show.next(&admin) => if let Some(code) = over? { return Ok(code) },
        }
    }
}

/// What is shown, and where.
struct Show<'a> {
    args: &'a Watch,
    screen: Option<Screen>,
    looks: u64,
    next: Instant,
}

impl<'a> Show<'a> {
    fn open(args: &'a Watch) -> io::Result<Self> {
        let screen = (!args.json && io::stdout().is_terminal()).then(Screen::open).transpose()?;
        Ok(Self { args, screen, looks: 0, next: Instant::now() })
    }

    /// Takes the next look when it is time. If it was the last one: with what exit code it ends. Dropped before, it is
    /// taken later.
    async fn next(&mut self, admin: &Admin) -> Result<Option<u8>, Failed> {
        tokio::time::sleep_until(self.next).await;
        let look = Look::take(admin, &self.args.which).await;
        let told = match &self.screen {
            Some(screen) => screen.draw(&look, self.args).map(|()| None)?,
            None => print(&look, self.args.json, self.looks == 0).map(Some)?,
        };
        self.looks = self.looks.saturating_add(1);
        self.next = time::from_now(self.args.interval);
        let over = self.args.count.is_some_and(|count| self.looks >= count);
        Ok(over.then(|| {
            self.screen = None; // closes it
            told.unwrap_or_else(|| tell(&look))
        }))
    }

    /// Ctrl-Z: the shell gets its own screen.
    fn stop(&mut self) -> io::Result<()> {
        let had = self.screen.take().is_some(); // which closes it
        job::stop();
        if had {
            self.screen = Some(Screen::open()?);
            self.next = Instant::now();
        }
        Ok(())
    }
}

/// Where nobody looks at a screen. That nodes do not answer is told each time, and is no end: they may come back.
fn print(look: &Look, as_json: bool, first: bool) -> Result<u8, Failed> {
    if as_json {
        say::print(&json::text(&look.json(), false))?;
    } else {
        let between = if first { "" } else { "\n" };
        say::print(&format!("{between}{}", table::text(look.table())))?;
    }
    Ok(tell(look))
}

/// Tells which servers did not answer, and gives the exit code of a look.
fn tell(look: &Look) -> u8 {
    look.verdict().map_or_else(Failed::tell, |()| 0)
}

/// The terminal's other screen. What was on the first one comes back at the end.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        // A line that is too long is cut: one that went on below would push the first ones out.
        execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, cursor::Hide)?;
        Ok(Self)
    }

    /// Draws over what is there: clearing all of it first would flicker.
    fn draw(&self, look: &Look, args: &Watch) -> Result<(), Failed> {
        let (_, height) = terminal::size()?;
        let mut lines = vec![format!("every {}; Ctrl-C ends", time::shown(args.interval)), String::new()];
        lines.extend(table::text(look.table()).lines().map(str::to_owned));
        let silent = look.silent();
        lines.extend(silent.iter().map(|node| say::without_passwords(&exit::at_node(node))));
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        let height = if height == 0 { HEIGHT } else { usize::from(height) };
        for (place, line) in lines.iter().take(height).enumerate() {
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
        let _ = execute!(io::stdout(), cursor::Show, EnableLineWrap, LeaveAlternateScreen);
    }
}
