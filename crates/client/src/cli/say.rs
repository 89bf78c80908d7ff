//! What is written: data on the standard output, everything else on the standard error output, never a password.

use std::io::{self, Write as _};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

/// Writes data. A closed pipe is an error like any other here; [`crate::exit::Failed`] makes it a quiet end.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line for people, without passwords.
pub(crate) fn line(text: &str) {
    let mut text = without_passwords(text);
    text.push('\n');
    // Where nobody listens there is nobody to tell.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Lines for people that nobody may have to wait for: where the standard error output is a full pipe that nobody reads,
/// writing to it takes for ever. A thread of its own writes; what it is behind with for too long is left out.
#[derive(Debug)]
pub(crate) struct Aside {
    lines: SyncSender<String>,
    /// Disconnected once all is written.
    writes: Receiver<()>,
}

impl Aside {
    const LINES_MAX: usize = 64;
    const FINISHES_WITHIN: Duration = Duration::from_millis(200);

    /// Where the system gives no thread nothing is said.
    pub(crate) fn new() -> Self {
        let (lines, to_write) = mpsc::sync_channel::<String>(Self::LINES_MAX);
        let (writing, writes) = mpsc::sync_channel::<()>(0);
        let write = move || {
            let _writing = writing;
            to_write.iter().for_each(|text| line(&text));
        };
        let _ = thread::Builder::new().name("say".to_owned()).spawn(write);
        Self { lines, writes }
    }

    pub(crate) fn line(&self, text: String) {
        let _ = self.lines.try_send(text);
    }

    /// Lets it write what there is, for a moment.
    pub(crate) fn finish(self) {
        drop(self.lines);
        let _ = self.writes.recv_timeout(Self::FINISHES_WITHIN);
    }
}

/// `text` without what may be a password: in each line that has a URL, all between the first `://` and the last `@`, and
/// the values of `pass=` and `…password=`, which the addresses of Unix sockets and sentinels have; where such a one may go
/// on behind the last `@`, all to the end. A password may hold any character, so this takes rather too much.
pub(crate) fn without_passwords(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(line_without_password).collect();
    lines.join("\n")
}

fn line_without_password(line: &str) -> String {
    let Some((before, url)) = line.split_once("://") else { return line.to_owned() };
    let url = match url.rsplit_once('@') {
        None => url.to_owned(),
        // It may be one in a password.
        Some((login, _)) if has_password(login) => "…".to_owned(),
        Some((_, place)) => format!("…@{place}"),
    };
    let url = PASSWORDS.iter().fold(url, |url, key| without_values(&url, key));
    format!("{before}://{url}")
}

/// What stands before the password of a Unix socket, or of sentinels.
const PASSWORDS: [&str; 2] = ["pass=", "password="];

/// Whether there is one among the options of an address.
pub(crate) fn has_password(url: &str) -> bool {
    PASSWORDS.iter().any(|key| url.contains(key))
}

fn without_values(url: &str, key: &str) -> String {
    let mut parts = url.split(key);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let behind = part.find('&').and_then(|end| part.get(end..)).unwrap_or_default();
        shown.push_str(key);
        shown.push('…');
        shown.push_str(behind);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::without_passwords;

    #[test]
    fn passwords_are_taken_out() {
        for (text, shown) in [
            ("nothing here, a@b", "nothing here, a@b"),
            ("redis://host:1/0", "redis://host:1/0"),
            ("a redis://:se@c ret'@host:1 b", "a redis://…@host:1 b"),
            ("'redis://u:secret@host', rediss://u:secret@other'\nx@y", "'redis://…@other'\nx@y"),
            ("redis+unix:///s?user=u&pass=secret&db=1", "redis+unix:///s?user=u&pass=…&db=1"),
            ("redis+unix:///s?pass=sec ret x", "redis+unix:///s?pass=…"),
            ("redis+unix:///s?pass=sec@ret&db=1 x", "redis+unix://…"),
            (
                "redis+sentinel://:a@s,t/name?sentinel_user=u&sentinel_password=b&x=1",
                "redis+sentinel://…@s,t/name?sentinel_user=u&sentinel_password=…&x=1",
            ),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
