//! Tables: columns apart by spaces, so that they can be read and cut (`awk`) alike. On a terminal long names wrap; elsewhere
//! each lock is one line.

use comfy_table::{Column, ColumnConstraint, ContentArrangement, Table, presets};
use crossterm::terminal;
use lockfence_client::admin::Mode;

use crate::escape;
use crate::merge::Merged;
use crate::time;

/// What may be long, and can be read in several lines; numbers and times cannot.
const WRAPPED: [&str; 4] = ["LOCK", "HOLDER", "WAITER", "NODE"];
/// So narrow it may become.
const WRAPPED_TO: u16 = 12;
/// Between two columns.
const GAP: u16 = 2;

/// A table with those headings.
pub(crate) fn new(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings.to_vec());
    for (column, heading) in table.column_iter_mut().zip(headings) {
        column.set_padding((0, GAP));
        if !WRAPPED.contains(heading) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// A table as text, each line ended; on a terminal as wide as that.
pub(crate) fn text(mut table: Table) -> String {
    if table.is_tty() {
        fit(&mut table, terminal::size().map_or(0, |(width, _)| width));
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// Wraps what may be wrapped. Where that is not enough, or the width is not known (0), the lines stay whole.
fn fit(table: &mut Table, width: u16) {
    let narrowest = |(column, content): (&Column, u16)| match column.constraint() {
        Some(_) => content.saturating_add(GAP),
        None => content.min(WRAPPED_TO).saturating_add(GAP),
    };
    let needed = table.column_iter().zip(table.column_max_content_widths()).map(narrowest);
    if needed.fold(0, u16::saturating_add) <= width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
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

#[cfg(test)]
mod tests {
    use super::{fit, new};

    #[test]
    fn names_are_wrapped_and_nothing_else() {
        let shown = |width| {
            let mut table = new(&["LOCK", "TOKEN", "LEFT"]);
            table.add_row(["n".repeat(40), "1764428400123456".to_owned(), "29m 59s".to_owned()]);
            fit(&mut table, width);
            table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        for width in [45, 50, 60] {
            let lines = shown(width);
            assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= width.into()), "{lines:?}");
            assert!(lines.iter().any(|line| line.contains("1764428400123456  29m 59s")), "{lines:?}");
        }
        for width in [0, 1, 20, 40, 80] {
            assert_eq!(shown(width).len(), 2, "{width}");
        }
    }
}
