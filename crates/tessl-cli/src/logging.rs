//! `TESSL_LOG`: what the library tells about its work.

use crate::error::{CliError, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// Sends events to stderr: warnings, or what `TESSL_LOG` asks for.
///
/// # Errors
/// `Usage` for text that `TESSL_LOG` does not know.
pub(crate) fn start() -> Result<()> {
    let filter = filter(std::env::var("TESSL_LOG").as_deref().unwrap_or(""))?;
    let events = tracing_subscriber::fmt::layer()
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    // A second start in one process (tests) keeps the first.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(events));
    Ok(())
}

fn filter(text: &str) -> Result<Targets> {
    let bare = Targets::new().with_default(LevelFilter::WARN);
    match text.trim() {
        "" => Ok(bare),
        "plan" => Ok(bare.with_target("tessl::plan", LevelFilter::DEBUG)),
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
    use tracing::Level;

    #[test]
    fn levels_and_topics() {
        assert!(filter("plan").unwrap().would_enable("tessl::plan", &Level::DEBUG));
        assert!(!filter("plan").unwrap().would_enable("tessl::runtime", &Level::DEBUG));
        assert!(filter("").unwrap().would_enable("tessl", &Level::WARN));
        assert!(!filter("off").unwrap().would_enable("tessl", &Level::ERROR));
        assert!(filter("tessl::plan=loud").is_err());
    }
}
