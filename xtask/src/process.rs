//! Running commands.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What a command printed, and whether it succeeded.
pub(crate) struct Finished {
    pub(crate) ok: bool,
    pub(crate) lines: Vec<String>,
}

/// Runs a command, printing its output as it comes, until `deadline`.
pub(crate) fn stream(command: &mut Command, deadline: Option<Instant>) -> Result<Finished, String> {
    println!("$ {}", show(command));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    let stdout = child.stdout.take().ok_or("no stdout")?;
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let mut lines = Vec::new();
    loop {
        // Once the pipe is closed the command is about to end; a day stands for no limit.
        let left = deadline.map_or(Duration::from_secs(86_400), |d| d.saturating_duration_since(Instant::now()));
        match receive.recv_timeout(left) {
            Ok(line) => {
                println!("{line}");
                lines.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // Only this child, by its handle. What it started itself may outlive it; a run past its limit is over
                // anyway, and signalling anything wider could reach processes that are not ours.
                let _ = child.kill();
                let _ = child.wait();
                return Err("ran into the time limit".to_owned());
            }
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    Ok(Finished { ok: status.success(), lines })
}

/// Runs a command for its output; its errors go to the terminal.
pub(crate) fn capture(command: &mut Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if !output.status.success() {
        return Err(format!("failed: {}", show(command)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a command can be started and succeeds; prints nothing.
pub(crate) fn quiet(program: &str, args: &[&str]) -> bool {
    let silent =
        Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    silent.is_ok_and(|s| s.success())
}

/// A command as one would type it, without its environment.
fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let args = command.get_args().map(|a| a.to_string_lossy().into_owned());
    std::iter::once(name).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_come_back() {
        let run = stream(Command::new("sh").args(["-c", "echo one; echo two; exit 3"]), None).unwrap();
        assert!(!run.ok);
        assert_eq!(run.lines, ["one", "two"]);
    }

    #[test]
    fn a_deadline_ends_the_child() {
        let start = Instant::now();
        let deadline = Some(start + Duration::from_millis(200));
        assert!(stream(Command::new("sleep").arg("20"), deadline).is_err());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
