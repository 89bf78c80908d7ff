//! Durations, as they are typed and as they are shown.

use std::time::Duration;

use tokio::time::Instant;

/// So long from now. What is longer than a clock can show is for ever: a hundred years.
pub(crate) fn from_now(time: Duration) -> Instant {
    const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(time.min(FOR_EVER)).unwrap_or(now)
}

/// `30s`, `1m 30s`, `500ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; durations are like 30s, 5m, 1h30m, 500ms"))
}

/// The same, where no time at all makes no sense.
pub(crate) fn parse_above_zero(text: &str) -> Result<Duration, String> {
    let time = parse(text)?;
    if time.is_zero() { Err("must be above 0".to_owned()) } else { Ok(time) }
}

/// In whole seconds, and in ms below one: `3m 21s`, `450ms`.
pub(crate) fn shown(time: Duration) -> String {
    let short = if time < Duration::from_secs(1) {
        Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(time.as_secs())
    };
    humantime::format_duration(short).to_string()
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{from_now, parse, parse_above_zero, shown};

    #[test]
    fn a_time_beyond_all_clocks_is_not_over_at_once() {
        let decades = Duration::from_secs(1_000_000_000);
        assert!(from_now(Duration::MAX) > Instant::now() + decades);
        assert!(from_now(Duration::from_secs(1)) < Instant::now() + decades);
    }

    #[test]
    fn durations_are_read_and_shown() {
        assert_eq!(parse("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_above_zero("0ms").is_err() && parse_above_zero("1ms").is_ok() && parse("0ms").is_ok());
        assert!(parse("30").is_err_and(|error| error.contains("30s")));
        assert_eq!(shown(Duration::from_millis(201_450)), "3m 21s");
        assert_eq!(shown(Duration::from_micros(450_900)), "450ms");
        assert_eq!(shown(Duration::ZERO), "0s");
    }
}
