//! Output: results on stdout, everything else on stderr. Colours and progress only where someone watches.

use crate::error::{CliError, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// A piece of text with a colour, which the stream drops where it is not wanted (`NO_COLOR`, pipes).
#[derive(Clone, Copy, Debug)]
pub enum Paint {
    /// For headings.
    Bold,
    /// For good news.
    Green,
    /// For bad news.
    Red,
    /// For what matters less.
    Dim,
}

impl Paint {
    /// `text` in this colour.
    pub fn text(self, text: impl Display) -> String {
        let code = match self {
            Paint::Bold => 1,
            Paint::Green => 32,
            Paint::Red => 31,
            Paint::Dim => 2,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Prints a line on stdout.
///
/// # Errors
/// `Closed` when the reader has gone; a full disk or the like is an error of the file `stdout`.
pub fn out(line: impl Display) -> Result<()> {
    told(writeln!(anstream::stdout(), "{line}"))
}

/// Prints a piece of text on stdout, at once.
///
/// # Errors
/// As [`out`].
pub fn piece(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    told(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

fn told(outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(CliError::Closed),
        Err(e) => Err(CliError::file("stdout", e.to_string())),
    }
}

/// Prints a value as JSON on stdout.
///
/// # Errors
/// As [`out`].
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| CliError::Usage(format!("JSON: {e}")))?;
    out(text)
}

/// Prints a line on stderr. Nobody listening there is no reason to stop.
pub fn note(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// A line about what is going on, replaced by the next one; nothing at all where stderr is not a terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// No progress yet; shown at the first [`step`](Self::step) or [`bytes`](Self::bytes).
    pub fn new() -> Self {
        let shown = std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Progress { bar: ProgressBar::with_draw_target(None, target) }
    }

    /// Names the current step.
    pub fn step(&self, what: impl Into<String>) {
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            self.bar.set_style(style.tick_chars("|/-\\ "));
        }
        self.bar.set_message(what.into());
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Names a step of `total` bytes.
    pub fn bytes(&self, what: impl Into<String>, total: u64) {
        self.bar.disable_steady_tick();
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:24}] {bytes}/{total_bytes} {binary_bytes_per_sec}")
        {
            self.bar.set_style(style.progress_chars("## "));
        }
        self.bar.set_message(what.into());
        self.bar.set_length(total);
        self.bar.set_position(0);
    }

    /// `bytes` more are done.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Runs `f` with the line out of the way, so that it can print.
    pub fn pause<T>(&self, f: impl FnOnce() -> T) -> T {
        self.bar.suspend(f)
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A table without borders.
pub fn table<const N: usize>(header: [&str; N]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(header);
    table
}

/// `part` of `whole` as a bar of `width` characters.
pub fn bar(part: f64, whole: f64, width: u32) -> String {
    let share = if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
    let filled = (1..=width).filter(|&i| f64::from(i) <= (share * f64::from(width)).round()).count();
    let mut bar = "#".repeat(filled);
    bar.extend(std::iter::repeat_n('.', usize::try_from(width).unwrap_or(0) - filled));
    bar
}

/// A duration with three digits.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.3} us", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// A rate of arithmetic.
pub fn flops(per_second: f64) -> String {
    match per_second {
        f if f >= 1e12 => format!("{:.2} TFLOP/s", f / 1e12),
        f => format!("{:.1} GFLOP/s", f / 1e9),
    }
}

/// A size in bytes.
pub fn bytes(n: u64) -> String {
    #[allow(clippy::cast_precision_loss)]
    let f = n as f64;
    match f {
        f if f >= 1024.0 * 1024.0 * 1024.0 => format!("{:.1} GiB", f / (1024.0 * 1024.0 * 1024.0)),
        f if f >= 1024.0 * 1024.0 => format!("{:.1} MiB", f / (1024.0 * 1024.0)),
        f if f >= 1024.0 => format!("{:.1} KiB", f / 1024.0),
        _ => format!("{n} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_units() {
        assert_eq!(bar(1.0, 2.0, 8), "####....");
        assert_eq!(bar(1.0, 0.0, 3), "...");
        assert_eq!(bar(9.0, 2.0, 3), "###");
        assert_eq!(bytes(1 << 20), "1.0 MiB");
        assert_eq!(flops(2.5e12), "2.50 TFLOP/s");
        assert_eq!(seconds(0.0125), "12.500 ms");
    }
}
