//! Tables: columns apart by spaces, so that they can be read and cut (`awk`) alike. On a terminal long names wrap; elsewhere
//! each lock is one line.

use comfy_table::{ContentArrangement, Table, presets};
use crossterm::terminal;
use lockfence_client::admin::Mode;

use crate::escape;
use crate::merge::Merged;
use crate::time;

/// A table with those headings, as wide as the terminal. One that does not know its width (0) gets whole lines.
pub(crate) fn new(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings.to_vec());
    if table.is_tty() {
        fit(&mut table, terminal::size().map_or(0, |(width, _)| width));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Wraps what does not fit; 0 is a width that is not known.
pub(crate) fn fit(table: &mut Table, width: u16) {
    if width > 0 {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
}

/// A table as text, each line ended.
pub(crate) fn text(table: &Table) -> String {
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// The table of locks. The last column is for quorums alone.
pub(crate) fn locks<'a>(locks: impl IntoIterator<Item = &'a Merged<'a>>, nodes: usize) -> Table {
    let mut headings = vec!["LOCK", "STATE", "MODE", "HOLDER", "AGE", "LEFT", "WAITERS"];
    if nodes > 1 {
        headings.push("NODES");
    }
    let mut table = new(&headings);
    for lock in locks {
        let free = lock.owner.is_none();
        let unless_free = |text: String| if free { "-".to_owned() } else { text };
        let mut row = vec![
            escape::for_people(lock.name),
            lock.state.name().to_owned(),
            mode(lock.mode),
            holder(lock),
            unless_free(time::shown(lock.held)),
            unless_free(time::shown(lock.left)),
            lock.waiters.to_string(),
        ];
        if nodes > 1 {
            row.push(format!("{}/{nodes}", lock.held_at));
        }
        table.add_row(row);
    }
    table
}

/// A mode in one word; a dash while the lock is free.
pub(crate) fn mode(mode: Option<Mode>) -> String {
    match mode {
        None => "-".to_owned(),
        Some(Mode::Limit(n)) => format!("limit:{n}"),
        Some(mode) => mode.name().to_owned(),
    }
}

fn holder(lock: &Merged<'_>) -> String {
    let Some(owner) = lock.owner else { return "-".to_owned() };
    match lock.holders.saturating_sub(1) {
        0 => escape::owner(owner),
        others => format!("{} +{others}", escape::owner(owner)),
    }
}
