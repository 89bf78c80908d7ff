//! Command arguments: bytes, from whatever a test has at hand.

/// Something that can be an argument of a command.
///
/// Numbers are written in decimal, as a client would.
pub trait ToArg {
    /// The argument as the bytes that go over the wire.
    fn to_arg(&self) -> Vec<u8>;
}

impl<T: ToArg + ?Sized> ToArg for &T {
    fn to_arg(&self) -> Vec<u8> {
        (**self).to_arg()
    }
}

impl ToArg for str {
    fn to_arg(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl ToArg for String {
    fn to_arg(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl ToArg for [u8] {
    fn to_arg(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl<const N: usize> ToArg for [u8; N] {
    fn to_arg(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl ToArg for Vec<u8> {
    fn to_arg(&self) -> Vec<u8> {
        self.clone()
    }
}

macro_rules! decimal {
    ($($number:ty)*) => {$(
        impl ToArg for $number {
            fn to_arg(&self) -> Vec<u8> {
                self.to_string().into_bytes()
            }
        }
    )*};
}
decimal!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f64);

/// The arguments as a `Vec<Vec<u8>>`, for [`Conn::cmd`](crate::Conn::cmd) and
/// [`Conn::pipeline`](crate::Conn::pipeline): `args!["SET", key, 7]`.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        ::std::vec![$($crate::ToArg::to_arg(&$arg)),*]
    };
}

/// Sends a command and reads its reply: `cmd!(conn, "LOCK.ACQUIRE", key, owner, 5000)`.
///
/// Takes `&str`, `String`, byte slices, arrays and vectors, and integers, mixed.
#[macro_export]
macro_rules! cmd {
    ($conn:expr, $($arg:expr),+ $(,)?) => {
        $conn.cmd($crate::args![$($arg),+])
    };
}

/// Sends a command and leaves its reply for [`Conn::recv`](crate::Conn::recv):
/// `send!(conn, "LOCK.ACQUIRE", key, owner, 5000, "WAIT", 0)`.
#[macro_export]
macro_rules! send {
    ($conn:expr, $($arg:expr),+ $(,)?) => {
        $conn.send($crate::args![$($arg),+])
    };
}

/// The command in RESP, as every server reads it.
pub(crate) fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// The command for a message: printable, and cut where it is long.
pub(crate) fn display<A: AsRef<[u8]>>(args: &[A]) -> String {
    const SHOWN_BYTES: usize = 200;
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().escape_ascii().to_string()).collect();
    let mut line = words.join(" ");
    if line.len() > SHOWN_BYTES {
        line.truncate(SHOWN_BYTES);
        line.push('…');
    }
    line
}
