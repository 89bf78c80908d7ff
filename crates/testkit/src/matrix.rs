//! One test body, one test per server.

use crate::ServerKind;

/// Runs `body` on the server, or says that it is skipped. [`server_tests!`](crate::server_tests) calls this.
pub fn run(kind: ServerKind, body: fn(ServerKind)) {
    if kind.present() {
        body(kind);
    }
}

/// Makes of each `fn name(kind: ServerKind)` the tests `name::redis_7_0`, `name::redis_8_2` and
/// `name::valkey_9_1`. A server that is absent is skipped, see [`ServerKind::present`].
///
/// Attributes and doc comments go to the function.
#[macro_export]
macro_rules! server_tests {
    ($($(#[$attribute:meta])* fn $name:ident($kind:ident: $type:ty) $body:block)+) => {$(
        $(#[$attribute])*
        #[cfg(test)]
        fn $name($kind: $type) $body

        #[cfg(test)]
        mod $name {
            #[test]
            fn redis_7_0() {
                $crate::run($crate::ServerKind::Redis70, super::$name);
            }

            #[test]
            fn redis_8_2() {
                $crate::run($crate::ServerKind::Redis82, super::$name);
            }

            #[test]
            fn valkey_9_1() {
                $crate::run($crate::ServerKind::Valkey91, super::$name);
            }
        }
    )+};
}
