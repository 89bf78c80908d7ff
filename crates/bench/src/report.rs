//! The table at the end: one row a measurement, with its ratio and its goal.

use std::fs;

pub(crate) struct Row {
    pub(crate) server: &'static str,
    pub(crate) what: String,
    pub(crate) ours: String,
    pub(crate) theirs: String,
    pub(crate) ratio: f64,
    pub(crate) goal: Goal,
}

#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Goal {
    fn text(self) -> String {
        match self {
            Self::AtLeast(ratio) => format!("≥ {ratio:.1}"),
            Self::AtMost(ratio) => format!("≤ {ratio:.1}"),
            Self::None => String::new(),
        }
    }

    fn met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::None => true,
        }
    }
}

pub(crate) struct Report {
    rows: Vec<Row>,
    load_before: String,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new(), load_before: load() }
    }

    pub(crate) fn add(&mut self, row: Row) {
        eprintln!(
            "{:<10} {:<46} {:>12} {:>12} {:>7}",
            row.server,
            row.what,
            row.ours,
            row.theirs,
            short(row.ratio)
        );
        self.rows.push(row);
    }

    pub(crate) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| !row.goal.met(row.ratio)).count()
    }

    pub(crate) fn print(&self) {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!("\nMachine: {} with {cores} cores.", model.unwrap_or("unknown processor"));
        println!("Load average before and after: {}, {}.\n", self.load_before, load());
        println!("| server | measured | lockfence | compared with | ratio | goal |");
        println!("|---|---|---:|---:|---:|---|");
        for Row { server, what, ours, theirs, ratio, goal } in &self.rows {
            let missed = if goal.met(*ratio) { "" } else { " **missed**" };
            let (ratio, goal) = (short(*ratio), goal.text());
            println!("| {server} | {what} | {ours} | {theirs} | {ratio} | {goal}{missed} |");
        }
    }
}

/// A ratio with two digits that say something.
fn short(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

/// The middle value.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
