//! `TESSL_LOG`: what the library tells about its work.

use crate::error::{CliError, Result};
use std::fmt;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// Sends events to stderr: those of `level`, or what `TESSL_LOG` asks for.
///
/// # Errors
/// `Usage` for text that `TESSL_LOG` does not know.
pub(crate) fn start(level: LevelFilter) -> Result<()> {
    let filter = filter(std::env::var("TESSL_LOG").as_deref().unwrap_or(""), level)?;
    let events = tracing_subscriber::fmt::layer()
        .event_format(Line)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    // A second start in one process (tests) keeps the first.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(events));
    Ok(())
}

/// `warning: message key=value`, like the errors of the command.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, cx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        };
        write!(writer, "{level}: ")?;
        cx.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

fn filter(text: &str, level: LevelFilter) -> Result<Targets> {
    let bare = Targets::new();
    match text.trim() {
        "" => Ok(bare.with_default(level)),
        "plan" => Ok(bare.with_default(LevelFilter::WARN).with_target("tessl::plan", LevelFilter::DEBUG)),
        text => text.parse().map_err(|_| {
            CliError::Usage(format!(
                "TESSL_LOG: `{text}` is not plan, off, error, warn, info, debug, trace or a list like tessl::plan=debug,warn"
            ))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_topics() {
        let filter = |text| filter(text, LevelFilter::WARN);
        assert!(filter("plan").unwrap().would_enable("tessl::plan", &Level::DEBUG));
        assert!(!filter("plan").unwrap().would_enable("tessl::runtime", &Level::DEBUG));
        assert!(filter("").unwrap().would_enable("tessl", &Level::WARN));
        assert!(!filter("off").unwrap().would_enable("tessl", &Level::ERROR));
        assert!(filter("tessl::plan=loud").is_err());
    }

    #[test]
    fn a_quiet_command_speaks_when_asked() {
        assert!(!filter("", LevelFilter::OFF).unwrap().would_enable("tessl", &Level::ERROR));
        assert!(filter("warn", LevelFilter::OFF).unwrap().would_enable("tessl", &Level::WARN));
        assert!(filter("plan", LevelFilter::OFF).unwrap().would_enable("tessl::plan", &Level::DEBUG));
    }
}
