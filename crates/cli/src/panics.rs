//! A panic of any thread or task is a bug that ends the process. The parts that are left would look alive: a
//! process whose accept loop or array is gone, and which still answers `status`.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::PanicHookInfo,
    thread,
};

use netraid_block::redact_addresses;

use crate::lines;

/// What the process ends with then; the usual of a Rust program.
const EXIT_CODE: i32 = 101;

/// From now on a panic says its reason on standard error and ends the process, wherever it happens.
#[allow(clippy::exit, reason = "no other part of the process is to go on")]
pub(crate) fn end_the_process() {
    std::panic::set_hook(Box::new(|info| {
        let trace = Backtrace::capture();
        lines::errors().push(reason(info).as_bytes());
        // To find the names in it may take a while.
        if trace.status() == BacktraceStatus::Captured {
            lines::errors().push(trace.to_string().as_bytes());
        }
        lines::finish();
        std::process::exit(EXIT_CODE);
    }));
}

fn reason(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let what = info.payload_as_str().unwrap_or("no reason");
    let what = redact_addresses(what).replace('\n', "; ");
    format!(
        "netraid: thread '{name}' panicked{place}: {what}; this is a bug, and the process ends: report it, \
         with what RUST_BACKTRACE=1 says\n"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Says which part of this test a process is.
    const PART: &str = "NETRAID_TEST_PANICS";
    const OWN_NAME: &str =
        "panics::tests::a_panic_of_a_task_or_thread_ends_the_process_with_its_reason";

    /// The process is one that goes on for ever but for its panic.
    fn panic_in(part: &str) -> ! {
        end_the_process();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            if part == "task" {
                tokio::spawn(async { panic!("a\ntask of iscsi://joe:secret-secret@host/iqn.x/0") });
            } else {
                thread::Builder::new().name("own".into()).spawn(|| panic!("a thread")).unwrap();
            }
            std::future::pending().await
        })
    }

    #[test]
    fn a_panic_of_a_task_or_thread_ends_the_process_with_its_reason() {
        if let Ok(part) = std::env::var(PART) {
            panic_in(&part);
        }
        let wanted = [("task", "a; task of iscsi://"), ("thread", "thread 'own' panicked at")];
        for (part, text) in wanted {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", OWN_NAME, "--nocapture"]).env(PART, part);
            command.env_remove("RUST_BACKTRACE");
            let end = command.output().unwrap();
            let said = String::from_utf8_lossy(&end.stderr);
            assert_eq!(end.status.code(), Some(EXIT_CODE), "{said}");
            assert!(said.contains(text) && said.contains("this is a bug"), "{said}");
            assert!(!said.contains("secret-secret"), "{said}");
        }
    }
}
