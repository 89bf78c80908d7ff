//! The limits that the system sets to the test program.

use std::io;

/// Raises the limit of open files to the hard limit, for tests with thousands of clients; returns it.
pub fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live struct of the right type.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(got, 0, "getrlimit: {}", io::Error::last_os_error());
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer is to a live struct of the right type.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0, "setrlimit: {}", io::Error::last_os_error());
    limit.rlim_cur
}
